"""Tables out of the records of `__consumer_offsets`, in the columns of Spark's Kafka source.

Offset commits (key versions 0 and 1, value versions 0 to 4) are decoded by native column expressions: no
Python worker, unused columns are pruned. Records on groups (key versions 2 to 23) have nested arrays and go
through korvet.offsets.codec in mapInArrow. A damaged record is a row of `quarantine` and never fails a job,
although Spark's ANSI mode is on: every number is read with a null for what is not there.

Native decoding differs from the codec in one point: unknown tagged fields of a value version 4 are skipped
unchecked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from korvet.offsets.codec import DecodeError, decode_key, decode_value
from korvet.offsets.consumer_protocol import decode_assignment, decode_subscription
from korvet.offsets.formatters import format_group_record, format_newer_group_record
from korvet.offsets.group_records import (
    ConsumerAssignment,
    ConsumerMember,
    GroupEpoch,
    ShareAssignment,
    ShareEpoch,
    ShareMember,
    StreamsEpoch,
    StreamsMember,
    group_type,
)
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    UnknownKey,
    UnknownValue,
)
from korvet.offsets.wire import topic_id_text
from korvet.spark.entries import MAX_SPARK_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import Column, DataFrame

OFFSET_COMMIT_KEYS = (0, 1)
GROUP_METADATA_KEY = 2
MAX_GROUP_KEY = 23
MAX_COMMIT_VALUE_VERSION = 4
# Kafka's string lengths are an int16; the compact form holds no longer ones either.
MAX_STRING_BYTES = 0x7FFF
# Tag 0 is the topic id, 16 bytes.
TOPIC_ID_TAG_AND_SIZE = b"\x00\x10"
EPOCH_VALUE_VERSION = 3
CONSUMER_PROTOCOL = "consumer"
CLASSIC = "classic"

COMMIT_COLUMNS = (
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
    "src_partition",
    "src_offset",
    "src_ts",
)
QUARANTINE_COLUMNS = ("key", "value", "src_partition", "src_offset", "src_ts", "reason")
_STRING, _INT, _LONG = StringType(), IntegerType(), LongType()
ASSIGNED_TYPE = StructType().add("topic", _STRING).add("partitions", ArrayType(_INT))
MEMBER_TYPE = (
    StructType()
    .add("member_id", _STRING)
    .add("instance_id", _STRING)
    .add("client_id", _STRING)
    .add("client_host", _STRING)
    .add("rebalance_timeout_ms", _INT)
    .add("session_timeout_ms", _INT)
    .add("topics", ArrayType(_STRING))
    .add("assigned", ArrayType(ASSIGNED_TYPE))
)
GROUP_TYPE = (
    StructType()
    .add("group", _STRING)
    .add("group_type", _STRING)
    .add("key_version", _INT)
    .add("member_id", _STRING)
    .add("assigned", ArrayType(ASSIGNED_TYPE))
    .add("data", _STRING)
    .add("protocol_type", _STRING)
    .add("generation", _INT)
    .add("protocol", _STRING)
    .add("leader", _STRING)
    .add("state_ms", _LONG)
    .add("member_count", _INT)
    .add("members", ArrayType(MEMBER_TYPE))
    .add("tombstone", BooleanType())
    .add("value_version", _INT)
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("src_partition", _INT)
    .add("src_offset", _LONG)
    .add("src_ts", TimestampType())
    .add("reason", _STRING)
)
GROUP_COLUMNS = (
    "group",
    "protocol_type",
    "generation",
    "protocol",
    "leader",
    "state_ts",
    "member_count",
    "members",
    "tombstone",
    "value_version",
    "src_partition",
    "src_offset",
    "src_ts",
)


def offset_commits(records: DataFrame) -> DataFrame:
    """Every readable offset commit and its tombstones (value columns null), one row per record.

    `commit_ms` and `expire_ms` are the record's own times in ms, -1 for none; `commit_ts` is null where Spark
    has no such time. `src_*` say where in `__consumer_offsets` the record is.
    """
    parsed = _parse_commits(records)
    return parsed.where(_is_commit() & sf.col("reason").isNull()).select(*COMMIT_COLUMNS)


def group_metadata(records: DataFrame) -> DataFrame:
    """Every readable state of a classic group and its tombstones, one row per record."""
    readable = _parse_groups(records, GROUP_METADATA_KEY, GROUP_METADATA_KEY).where(sf.col("reason").isNull())
    return readable.withColumn("state_ts", spark_time(sf.col("state_ms"))).select(*GROUP_COLUMNS)


def group_records(records: DataFrame) -> DataFrame:
    """Every readable record on groups of any kind; `data` as Kafka's formatters print it."""
    return _parse_groups(records, GROUP_METADATA_KEY, MAX_GROUP_KEY).where(
        sf.col("reason").isNull() & sf.col("group").isNotNull()
    )


def quarantine(records: DataFrame) -> DataFrame:
    """Every record that can't be read, with the reason: no key, damaged, or a future value version.

    Records of types that Kafka 4.4 does not have are no such case.
    """
    commits = _parse_commits(records).where(sf.col("reason").isNotNull()).select(*QUARANTINE_COLUMNS)
    groups = (
        _parse_groups(records, GROUP_METADATA_KEY, MAX_GROUP_KEY)
        .where(sf.col("reason").isNotNull())
        .select(*QUARANTINE_COLUMNS)
    )
    return commits.unionByName(groups)


def _is_commit() -> Column:
    return sf.col("key_version").isin(*OFFSET_COMMIT_KEYS)


def _parse_commits(records: DataFrame) -> DataFrame:
    """One row per record with all columns of a commit, and a `reason` where it can't be read.

    A number is read wherever it should be; only the check of the whole length says whether it was there.
    Reading one costs more than all else, so fields that lie together are read as one number, and what several
    columns need is read once: it comes out of a generator, because Spark copies the expression of a column
    into every filter on it, and no filter passes a generator.
    """
    return _parse_fields(_measure(_heads(records))).withColumn("reason", _commit_reason())


def _heads(records: DataFrame) -> DataFrame:
    """Adds `key_head`, version and size of the group, and `value_head`: the version, the six bytes behind the
    offset (leader epoch and size of the metadata, or that size and more).
    """
    key, value = sf.col("key"), sf.col("value")
    key_head = sf.when(sf.length(key) >= 4, _unsigned(key, sf.lit(1), 4)).otherwise(
        sf.shiftleft(_unsigned(key, sf.lit(1), 2), 16)
    )
    both = sf.concat(sf.substr(value, sf.lit(1), sf.lit(2)), sf.substr(value, sf.lit(11), sf.lit(6)))
    value_head = sf.when(sf.length(value) >= 16, _signed(both, sf.lit(1), 8)).otherwise(
        sf.shiftleft(_unsigned(value, sf.lit(1), 2), 48)
    )
    return records.select(
        key,
        value,
        sf.col("partition").alias("src_partition"),
        sf.col("offset").alias("src_offset"),
        sf.col("timestamp").alias("src_ts"),
        _once(key_head=key_head, value_head=value_head),
    )


def _once(**columns: Column) -> Column:
    return sf.inline_outer(sf.array(sf.struct(*(column.alias(name) for name, column in columns.items()))))


def _measure(headed: DataFrame) -> DataFrame:
    """Adds versions, the sizes and places of what is variable in key and value, and the texts."""
    key, value, head = sf.col("key"), sf.col("value"), sf.col("value_head")
    key_head = sf.col("key_head")
    version = sf.shiftright(head, 48).cast("int")
    flexible = version == MAX_COMMIT_VALUE_VERSION
    with_epoch = version >= EPOCH_VALUE_VERSION
    group_size = (key_head % 0x10000).cast("int")
    # The size of the topic, and the partition in the end of the key.
    ends = sf.concat(sf.substr(key, 5 + group_size, sf.lit(2)), sf.substr(key, sf.length(key) - 3, sf.lit(4)))
    # Few texts are so long that the third byte counts.
    two = sf.shiftrightunsigned(sf.shiftleft(head, 48), 48)
    is_long = (two >= 0x8000) & (two % 0x100 >= 0x80)
    varint = two * 0x100 + sf.when(is_long, _unsigned(value, sf.lit(17), 1)).otherwise(sf.lit(0))
    measured = headed.select(
        "*",
        _once(
            key_version=sf.shiftright(sf.shiftleft(key_head, 32), 48).cast("int"),
            value_version=version,
            group_size=group_size,
            key_tail=_unsigned(ends, sf.lit(1), 6),
            metadata_at=sf.when(flexible, 15 + _varint_size(varint))
            .when(with_epoch, sf.lit(17))
            .otherwise(sf.lit(13)),
            metadata_size=sf.when(flexible, _varint(varint) - 1)
            .when(with_epoch, sf.shiftright(sf.shiftleft(head, 48), 48))
            .otherwise(sf.shiftright(sf.shiftleft(head, 16), 48))
            .cast("int"),
        ),
    )
    return measured.withColumns(
        {
            "topic_size": sf.shiftright("key_tail", 32).cast("int"),
            "commit_at": sf.col("metadata_at") + sf.col("metadata_size"),
        }
    )


def _parse_fields(measured: DataFrame) -> DataFrame:
    key, value, version = sf.col("key"), sf.col("value"), sf.col("value_version")
    group_size, commit_at = sf.col("group_size"), sf.col("commit_at")
    epoch = sf.shiftright(sf.shiftleft("value_head", 16), 32).cast("int")
    topic_id_first = (version == MAX_COMMIT_VALUE_VERSION) & (
        sf.substr(value, commit_at + 9, sf.lit(2)) == sf.lit(TOPIC_ID_TAG_AND_SIZE)
    )
    return measured.withColumns(
        {
            "group": _text(key, sf.lit(5), group_size),
            "topic": _text(key, 7 + group_size, sf.col("topic_size")),
            "partition": sf.shiftright(sf.shiftleft("key_tail", 32), 32).cast("int"),
            "committed_offset": _signed(value, sf.lit(3), 8),
            "leader_epoch": sf.when(version >= EPOCH_VALUE_VERSION, epoch).when(version >= 0, sf.lit(-1)),
            "metadata": _text(value, sf.col("metadata_at"), sf.col("metadata_size")),
            "commit_ms": _signed(value, commit_at, 8),
            "commit_ts": spark_time(_signed(value, commit_at, 8)),
            "expire_ms": sf.when(version == 1, _signed(value, commit_at + 8, 8)).when(
                version >= 0, sf.lit(-1)
            ),
            "topic_id": sf.when(topic_id_first, sf.substr(value, commit_at + 11, sf.lit(16))),
            "tombstone": value.isNull(),
        }
    )


def _commit_reason() -> Column:
    """Why a record can't be read as what its key says; null for a good one and for other record types."""
    key, value = sf.col("key"), sf.col("value")
    version = sf.col("value_version")
    known = version.between(0, MAX_COMMIT_VALUE_VERSION)
    return (
        sf.when(key.isNull(), sf.lit("no key"))
        .when(sf.length(key) < 2, sf.lit("the key is shorter than its version"))
        .when(~_is_commit(), sf.lit(None))
        .when(~sf.coalesce(_key_is_whole(), sf.lit(False)), sf.lit("damaged offset commit key"))
        .when(value.isNull(), sf.lit(None))
        .when(sf.length(value) < 2, sf.lit("the value is shorter than its version"))
        .when(~known, sf.concat(sf.lit("unknown offset commit value version "), version.cast("string")))
        .when(~sf.coalesce(_value_is_whole(), sf.lit(False)), sf.lit("damaged offset commit value"))
    )


def _key_is_whole() -> Column:
    group_size, topic_size = sf.col("group_size"), sf.col("topic_size")
    return (
        (group_size <= MAX_STRING_BYTES)
        & (topic_size <= MAX_STRING_BYTES)
        & (sf.length("key") == 10 + group_size + topic_size)
        & sf.is_valid_utf8("group")
        & sf.is_valid_utf8("topic")
    )


def _value_is_whole() -> Column:
    version, size = sf.col("value_version"), sf.length("value")
    # The last byte of the commit time in the plain versions; the tags' first byte in the flexible one.
    plain_end, tags_at = sf.col("commit_at") + 7, sf.col("commit_at") + 8
    return (
        sf.col("metadata_size").between(0, MAX_STRING_BYTES)
        & sf.when(version == MAX_COMMIT_VALUE_VERSION, _tags_are_whole(tags_at))
        .when(version == 1, size == plain_end + 8)
        .otherwise(size == plain_end)
        & ((sf.col("metadata_size") == 0) | sf.is_valid_utf8("metadata"))
    )


def _tags_are_whole(tags_at: Column) -> Column:
    """Whether there are no tags, or the topic id alone, or others that begin as tags do."""
    value, size = sf.col("value"), sf.length("value")
    start = sf.substr(value, tags_at, sf.lit(3))
    # How many, the first tag and its size, as one number: what has others is rare.
    tags = _unsigned(value, tags_at, 3)
    others = sf.when(tags % 0x10000 == 16, size > tags_at + 18).otherwise(
        (tags >= 0x10000) & (tags % 0x10000 > 0xFF)
    )
    return (
        sf.when(size == tags_at, start == sf.lit(b"\x00"))
        .when(start == sf.lit(b"\x01" + TOPIC_ID_TAG_AND_SIZE), size == tags_at + 18)
        .otherwise(others)
    )


def _unsigned(data: Column, at: Column, size: int) -> Column:
    """A big-endian unsigned number of up to 7 bytes from byte `at` (1 is the first).

    Read as it stands: bytes that are not there are missing in front, and none at all is null.
    """
    return sf.conv(sf.hex(sf.substr(data, at, sf.lit(size))), 16, 10).try_cast("bigint")


def _signed(data: Column, at: Column, size: int) -> Column:
    """A big-endian signed number of 2, 4 or 8 bytes from byte `at`; see _unsigned."""
    if size == 8:
        # A negative target base makes conv take the 64 bits as signed.
        return sf.conv(sf.hex(sf.substr(data, at, sf.lit(size))), 16, -10).try_cast("bigint")
    spare_bits = 64 - 8 * size
    return sf.shiftright(sf.shiftleft(_unsigned(data, at, size), spare_bits), spare_bits).cast("int")


def _varint_size(three: Column) -> Column:
    """Bytes of the unsigned varint that three bytes begin with; null for a needlessly long one, or above 3.

    Three bytes count to 2,097,151: more than any string length.
    """
    return (
        sf.when(three < 0x800000, sf.lit(1))
        .when((three % 0x10000).between(0x100, 0x7FFF), sf.lit(2))
        .when((three % 0x10000 > 0x7FFF) & (three % 0x100).between(1, 0x7F), sf.lit(3))
    )


def _varint(three: Column) -> Column:
    """The unsigned varint that three bytes begin with; means nothing where _varint_size is null."""
    high = sf.shiftright(three, 16) % 0x80
    middle = sf.shiftright(three, 8) % 0x80
    return (
        sf.when(three < 0x800000, high)
        .when(three % 0x10000 < 0x8000, high + middle * 0x80)
        .otherwise(high + middle * 0x80 + three % 0x80 * 0x4000)
    ).cast("int")


def _text(data: Column, at: Column, size: Column) -> Column:
    return sf.substr(data, at, size).cast("string")


def spark_time(ms: Column) -> Column:
    """A time in ms as Spark's timestamp; null where Spark has none."""
    return sf.when(ms.between(0, MAX_SPARK_MS), sf.timestamp_millis(ms))


def _parse_groups(records: DataFrame, first: int, last: int) -> DataFrame:
    """One row per record on groups of these key versions, decoded by the codec, and a `reason` where it can't
    be read.
    """
    chosen = records.where(_signed(sf.col("key"), sf.lit(1), 2).between(first, last))
    columns = chosen.select("key", "value", "partition", "offset", "timestamp")
    return columns.mapInArrow(_decode_group_batches, GROUP_TYPE)


def _decode_group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(GROUP_TYPE, timezone="UTC")
    for batch in batches:
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        rows = [_group_row(key, value) for key, value in zip(keys, values, strict=True)]
        source = {"key": "key", "value": "value", "src_partition": "partition", "src_offset": "offset"}
        arrays = []
        for field in schema:
            if field.name == "src_ts":
                arrays.append(batch.column("timestamp").cast(field.type))
            elif field.name in source:
                arrays.append(batch.column(source[field.name]).cast(field.type))
            else:
                arrays.append(pa.array([row.get(field.name) for row in rows], type=field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _group_row(key_bytes: bytes, value_bytes: bytes | None) -> dict[str, Any]:
    try:
        key = decode_key(key_bytes)
    except DecodeError as error:
        return {"reason": f"damaged group metadata key: {error}"}
    if isinstance(key, UnknownKey | OffsetCommitKey):
        return {}
    try:
        value = decode_value(key, value_bytes)
    except DecodeError as error:
        return {"reason": f"damaged group metadata value: {error}"}
    if isinstance(value, UnknownValue):
        return {"reason": f"unknown group metadata value version {value.version}"}
    row: dict[str, Any] = {
        "group": key.group,
        "key_version": key.version,
        "tombstone": value is None,
        "value_version": None if value is None else value.version,
        "data": format_group_record(key_bytes, value_bytes)
        or format_newer_group_record(key_bytes, value_bytes),
    }
    if isinstance(key, GroupMetadataKey):
        row["group_type"] = CLASSIC
        return row | (_classic_row(value) if isinstance(value, GroupMetadataValue) else {})
    row["group_type"] = group_type(key.version)
    member_id = key.member_id if isinstance(key, GroupMemberKey) else None
    return row | {"member_id": member_id} | _newer_row(member_id, value)


def _classic_row(value: GroupMetadataValue) -> dict[str, Any]:
    return {
        "protocol_type": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "state_ms": value.current_state_timestamp_ms,
        "member_count": len(value.members),
        "members": [_member_row(member, value.protocol_type) for member in value.members],
    }


def _newer_row(member_id: str | None, value: Any) -> dict[str, Any]:
    """What the tables need of a value of a consumer, share or streams group."""
    if isinstance(value, GroupEpoch | ShareEpoch | StreamsEpoch):
        return {"generation": value.epoch}
    if isinstance(value, ConsumerMember | ShareMember | StreamsMember):
        return {"members": [_newer_member(member_id, value)]}
    if isinstance(value, ConsumerAssignment | ShareAssignment):
        owned = value.assigned_partitions
        return {
            "assigned": [
                {"topic": topic_id_text(part.topic_id), "partitions": list(part.partitions)} for part in owned
            ]
        }
    return {}


def _newer_member(
    member_id: str | None, value: ConsumerMember | ShareMember | StreamsMember
) -> dict[str, Any]:
    classic = value.classic_member_metadata if isinstance(value, ConsumerMember) else None
    return {
        "member_id": member_id,
        "instance_id": None if isinstance(value, ShareMember) else value.instance_id,
        "client_id": value.client_id,
        "client_host": value.client_host,
        "rebalance_timeout_ms": None if isinstance(value, ShareMember) else value.rebalance_timeout_ms,
        "session_timeout_ms": None if classic is None else classic.session_timeout_ms,
        # A regular expression has no names here, a streams member has its topology's.
        "topics": None if isinstance(value, StreamsMember) else list(value.subscribed_topic_names),
        "assigned": None,
    }


def _member_row(member: MemberMetadata, protocol_type: str) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "session_timeout_ms": member.session_timeout_ms,
        "topics": _topics(member.subscription, protocol_type),
        "assigned": _assigned(member.assignment, protocol_type),
    }


def _topics(subscription: bytes, protocol_type: str) -> list[str] | None:
    """The topics that a consumer asked for; None for other protocols and for bytes that say nothing."""
    if protocol_type != CONSUMER_PROTOCOL or not subscription:
        return None
    try:
        return list(decode_subscription(subscription).topics)
    except DecodeError:
        return None


def _assigned(assignment: bytes, protocol_type: str) -> list[dict[str, Any]] | None:
    """The partitions that a consumer was given; None as above."""
    if protocol_type != CONSUMER_PROTOCOL or not assignment:
        return None
    try:
        parts = decode_assignment(assignment).assigned_partitions
    except DecodeError:
        return None
    return [{"topic": part.topic, "partitions": list(part.partitions)} for part in parts]
