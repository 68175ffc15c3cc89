"""Decoding of `__consumer_offsets` by SQL expressions: without Python workers, and for Spark 3.5, too.

The functions take the columns of Spark's Kafka source and return columns of korvet's tables of the same names
(docs/guides/kafka-connector.md). They don't read the members of groups. Source: OffsetCommitKey,
OffsetCommitValue, GroupMetadataKey and GroupMetadataValue of Apache Kafka; numbers are
big-endian, positions begin with 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from korvet.spark.versions import check_supported, features

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

check_supported(expressions=True)

__all__ = ["current_offsets", "group_states", "offset_commits", "quarantine"]

# 9999-12-31T23:59:59.999Z, the last time that Spark can represent, in ms.
MAX_TIME_MS = 253_402_300_799_999
MAX_COMMIT_VALUE = 4
# Values of classic groups are flexible from this version on. Kafka 4.4 writes version 3.
FLEXIBLE_GROUP_VALUE = 4
CLASSIC_KEY = 2
_POSITION = ("src_partition", "src_offset", "src_ts")
_COMMIT_COLUMNS = (
    "group",
    "topic",
    "partition",
    "committed_offset",
    "leader_epoch",
    "metadata",
    "commit_ms",
    "commit_ts",
    "expire_ms",
    "topic_id",
    "tombstone",
    "key_version",
    "value_version",
)
_GROUP_COLUMNS = (
    "group",
    "protocol_type",
    "generation",
    "protocol",
    "leader",
    "state_ts",
    "member_count",
    "tombstone",
    "value_version",
)


def offset_commits(records: DataFrame) -> DataFrame:
    """Return every readable offset commit and tombstone (value columns null), one row per record."""
    return _commits(records).where(sf.col("reason").isNull()).select(*_COMMIT_COLUMNS, *_POSITION)


def current_offsets(records: DataFrame) -> DataFrame:
    """Return the newest commit of every group and partition; no row if that is a tombstone."""
    keys = ("group", "topic", "partition")
    values = [name for name in (*_COMMIT_COLUMNS, *_POSITION) if name not in keys]
    newest = sf.max_by(sf.struct(*values), "src_offset").alias("newest")
    found = offset_commits(records).groupBy(*keys).agg(newest).select(*keys, "newest.*")
    return found.where(~sf.col("tombstone")).drop("tombstone")


def group_states(records: DataFrame) -> DataFrame:
    """Return every readable state and tombstone of classic groups without its members, one row per record."""
    return _states(records).where(sf.col("reason").isNull()).select(*_GROUP_COLUMNS, *_POSITION)


def quarantine(records: DataFrame) -> DataFrame:
    """Return every offset commit and classic state that these expressions can't read, with the reason."""
    unread = [
        made.where(sf.col("reason").isNotNull()).select("key", "value", *_POSITION, "reason")
        for made in (_commits(records), _states(records))
    ]
    return unread[0].unionByName(unread[1])


def _records(records: DataFrame) -> DataFrame:
    """The records with the versions of their keys (null for a key without one) and values."""
    position = {"src_partition": "partition", "src_offset": "offset", "src_ts": "timestamp"}
    found = records.select("key", "value", *(sf.col(own).alias(name) for name, own in position.items()))
    return _with(
        found,
        key_version=sf.when(sf.length("key") >= 2, _number(sf.col("key"), 1, 2)).cast("int"),
        value_version=sf.when(sf.length("value") >= 2, _number(sf.col("value"), 1, 2)).cast("int"),
        tombstone=sf.col("value").isNull(),
        group_size=_number(sf.col("key"), 3, 2),
    )


def _commits(records: DataFrame) -> DataFrame:
    """The columns of offset commits; `reason` for unreadable ones and for records without a type."""
    key, value, version = sf.col("key"), sf.col("value"), sf.col("value_version")
    typed = sf.col("key_version")
    found = _records(records).where(typed.isNull() | typed.isin(0, 1))
    topic_size = _number(key, sf.col("group_size") + 5, 2)
    found = _with(found, topic_size=topic_size, first=_byte(value, 15), second=_byte(value, 16))
    found = _with(found, metadata_size=_metadata_size(), metadata_at=_metadata_at())
    end = sf.col("metadata_at") + sf.col("metadata_size") + 8
    found = _with(found, rest_at=end, rest=sf.length(value) - end + 1)
    topic_at, partition_at = sf.col("group_size") + 7, sf.col("group_size") + sf.col("topic_size") + 7
    of_old = sf.when(~sf.col("tombstone"), -1)
    found = _with(
        found,
        group_bytes=sf.substr(key, sf.lit(5), sf.col("group_size")),
        topic_bytes=sf.substr(key, topic_at, sf.col("topic_size")),
        partition=_number(key, partition_at, 4).cast("int"),
        committed_offset=_number(value, 3, 8),
        leader_epoch=sf.when(version >= 3, _number(value, 11, 4)).otherwise(of_old).cast("int"),
        metadata_bytes=sf.substr(value, sf.col("metadata_at"), sf.col("metadata_size")),
        commit_ms=_number(value, sf.col("rest_at") - 8, 8),
        expire_ms=sf.when(version == 1, _number(value, sf.col("rest_at"), 8)).otherwise(of_old),
        topic_id=sf.when(_has_topic_id(), sf.substr(value, sf.col("rest_at") + 3, sf.lit(16))),
    )
    found = _with(found, reason=_commit_reason(), commit_ts=_time("commit_ms"))
    return found.select("*", *map(_text, ("group", "topic", "metadata")))


def _metadata_size() -> Column:
    """The size of a commit's metadata. Version 4 has size + 1 as a varint of up to 3 bytes."""
    value, version = sf.col("value"), sf.col("value_version")
    first, second, third = sf.col("first"), sf.col("second"), _byte(sf.col("value"), 17)
    long = first % 128 + second % 128 * 128 + third * 16384
    # A varint whose last byte is 0 is longer than it needs to be.
    compact = (
        sf.when(first < 128, first)
        .when((second > 0) & (second < 128), first % 128 + second * 128)
        .when((second >= 128) & third.between(1, 127), long)
    )
    strings = sf.when(version == 3, _number(value, 15, 2)).otherwise(_number(value, 11, 2))
    return sf.when(version == 4, compact - 1).otherwise(strings)


def _metadata_at() -> Column:
    version = sf.col("value_version")
    flexible = sf.when(sf.col("first") < 128, 16).when(sf.col("second") < 128, 17).otherwise(18)
    return sf.when(version == 4, flexible).when(version == 3, 17).otherwise(13)


def _has_topic_id() -> Column:
    """Whether the tags of version 4 are the topic ID only: one tag, number 0, of 16 bytes."""
    tag = sf.substr(sf.col("value"), sf.col("rest_at"), sf.lit(3))
    return (sf.col("value_version") == 4) & (sf.col("rest") == 19) & (tag == sf.lit(b"\x01\x00\x10"))


def _commit_reason() -> Column:
    """Why a commit is unreadable; null for a readable one."""
    version = sf.col("value_version")
    sizes = (sf.col("group_size") >= 0) & (sf.col("topic_size") >= 0)
    whole = sf.length("key") == sf.col("group_size") + sf.col("topic_size") + 10
    no_tags = (sf.col("rest") == 1) & (_byte(sf.col("value"), sf.col("rest_at")) == 0)
    complete = (
        sf.when(version == 4, no_tags | _has_topic_id())
        .when(version == 1, sf.col("rest") == 8)
        .otherwise(sf.col("rest") == 0)
    )
    key_is_read = sizes & whole & _is_text("group") & _is_text("topic")
    known = _certain(version.between(0, MAX_COMMIT_VALUE))
    value_is_read = (sf.col("metadata_size") >= 0) & complete & _is_text("metadata")
    return (
        sf.when(sf.col("key").isNull(), "no key")
        .when(sf.col("key_version").isNull(), "the key is shorter than its version")
        .when(~_certain(key_is_read), "damaged offset commit key")
        .when(~sf.col("tombstone") & ~known, _unknown("offset commit"))
        .when(~sf.col("tombstone") & ~_certain(value_is_read), "damaged offset commit value")
    )


def _states(records: DataFrame) -> DataFrame:
    """The columns of classic groups' states; `reason` for unreadable ones."""
    key, value = sf.col("key"), sf.col("value")
    found = _records(records).where(sf.col("key_version") == CLASSIC_KEY)
    found = _with_string(found, "protocol_type", sf.lit(3))
    generation_at = sf.col("protocol_type_end")
    found = _with_string(found, "protocol", generation_at + 4)
    found = _with_string(found, "leader", sf.col("protocol_end"))
    timed, state_at = sf.col("value_version") >= 2, sf.col("leader_end")
    found = _with(found, members_at=state_at + sf.when(timed, 8).otherwise(0))
    found = _with(
        found,
        group_bytes=sf.substr(key, sf.lit(5), sf.col("group_size")),
        generation=_number(value, generation_at, 4).cast("int"),
        state_ms=sf.when(timed, _number(value, state_at, 8)),
        member_count=_number(value, sf.col("members_at"), 4).cast("int"),
    )
    found = _with(found, reason=_state_reason(), state_ts=_time("state_ms"))
    return found.select("*", *map(_text, ("group", "protocol_type", "protocol", "leader")))


def _with_string(found: DataFrame, name: str, at: Column) -> DataFrame:
    """Add size (-1 for null), bytes and end of the string at a position of the value."""
    found = _with(found, **{f"{name}_at": at, f"{name}_size": _number(sf.col("value"), at, 2)})
    size, start = sf.col(f"{name}_size"), sf.col(f"{name}_at") + 2
    read = sf.when(size >= 0, sf.substr(sf.col("value"), start, size))
    return _with(found, **{f"{name}_bytes": read, f"{name}_end": start + sf.greatest(size, sf.lit(0))})


def _with(found: DataFrame, **columns: Column) -> DataFrame:
    """Add columns that Spark computes once.

    Spark moves conditions on withColumn's columns below it and repeats their expressions there, which doubles
    with each step. It doesn't do so with columns of a generator.
    """
    row = sf.struct(*(column.alias(name) for name, column in columns.items()))
    return found.select("*", sf.inline(sf.array(row)))


def _state_reason() -> Column:
    """Why a state is unreadable; null for a readable one."""
    version, members = sf.col("value_version"), sf.col("member_count")
    end = sf.col("members_at") + 3
    strings = _is_text("protocol_type") & (sf.col("protocol_type_size") >= 0)
    for name in ("protocol", "leader"):
        present = sf.col(f"{name}_size") >= 0
        strings = strings & ((sf.col(f"{name}_size") == -1) | (present & _is_text(name)))
    complete = sf.when(members == 0, sf.length("value") == end).otherwise(sf.length("value") > end)
    key_is_read = (sf.length("key") == sf.col("group_size") + 4) & _is_text("group")
    known = _certain(version.between(0, FLEXIBLE_GROUP_VALUE - 1))
    return (
        sf.when(~_certain(key_is_read), "damaged group metadata key")
        .when(~sf.col("tombstone") & ~known, _unknown("group metadata"))
        .when(~sf.col("tombstone") & ~_certain(strings & complete & (members >= 0)), _DAMAGED_STATE)
    )


_DAMAGED_STATE = "damaged group metadata value"


def _number(data: Column, at: Column | int, size: int) -> Column:
    """The signed number of 2, 4 or 8 bytes at a position; null after the end of the data."""
    position = sf.lit(at) if isinstance(at, int) else at
    digits = sf.hex(sf.substr(data, position, sf.lit(size)))
    if size == 8:
        # A negative base makes the result signed.
        return sf.conv(digits, 16, -10).cast("bigint")
    # Shifted up and down again, the sign bit of the number is that of the result.
    unused = 64 - 8 * size
    return sf.shiftright(sf.shiftleft(sf.conv(digits, 16, 10).cast("bigint"), unused), unused)


def _byte(data: Column, at: Column | int) -> Column:
    """The byte at a position, 0 to 255; null after the end of the data."""
    position = sf.lit(at) if isinstance(at, int) else at
    return sf.conv(sf.hex(sf.substr(data, position, sf.lit(1))), 16, 10).cast("int")


def _text(name: str) -> Column:
    return sf.col(f"{name}_bytes").cast("string").alias(name)


def _is_text(name: str) -> Column:
    """Whether bytes are UTF-8."""
    data = sf.col(f"{name}_bytes")
    if features().utf8_checks:
        return sf.is_valid_utf8(data.cast("string"))
    # Decoding replaces invalid bytes, so encoding gives other bytes.
    return sf.encode(sf.decode(data, "UTF-8"), "UTF-8") == data


def _time(name: str) -> Column:
    """A time in ms as Spark's timestamp; null if Spark can't represent it."""
    return sf.when(sf.col(name).between(0, MAX_TIME_MS), sf.timestamp_millis(sf.col(name)))


def _certain(condition: Column) -> Column:
    return sf.coalesce(condition, sf.lit(False))


def _unknown(what: str) -> Column:
    """The reason for an unknown version; a value without a version is damaged."""
    version = sf.col("value_version").cast("string")
    named = sf.concat(sf.lit(f"unknown {what} value version "), version)
    return sf.coalesce(named, sf.lit(f"damaged {what} value"))
