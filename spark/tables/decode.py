"""Decoded tables of the records of `__consumer_offsets`, given in the columns of Spark's Kafka source.

mapInArrow decodes offset commits (key versions 0 and 1, value versions 0 to 4) as whole columns, by
korvet.spark.records.commits, and records on groups (key versions 2 to 23) one by one, by
korvet.offsets.codec. A damaged record becomes a row of `quarantine` and never fails a job.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import functions as sf
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
    SharePartitions,
)
from korvet.offsets.record_types import group_type
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    UnknownKey,
    UnknownValue,
)
from korvet.offsets.streams_records import StreamsEpoch, StreamsMember
from korvet.offsets.wire import uuid_text
from korvet.spark.records.columns import MAX_SPARK_MS
from korvet.spark.records.commits import (
    SOURCES,
    Newest,
    read_commits,
    records_on_groups,
    refused_commits,
    split_commits,
)
from korvet.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame

    from korvet.offsets.group_records import NamedTopicPartitions, OwnedPartitions, TopicIdPartitions

GROUP_METADATA_KEY = 2
MAX_GROUP_KEY = 23
CONSUMER_PROTOCOL = "consumer"
CLASSIC = "classic"

_STRING, _INT, _LONG = StringType(), IntegerType(), LongType()
COMMIT_TYPE = (
    StructType()
    .add("group", _STRING)
    .add("topic", _STRING)
    .add("partition", _INT)
    .add("committed_offset", _LONG)
    .add("leader_epoch", _INT)
    .add("metadata", _STRING)
    .add("commit_ms", _LONG)
    .add("commit_ts", TimestampType())
    .add("expire_ms", _LONG)
    .add("topic_id", BinaryType())
    .add("tombstone", BooleanType())
    .add("key_version", _INT)
    .add("value_version", _INT)
    .add("src_partition", _INT)
    .add("src_offset", _LONG)
    .add("src_ts", TimestampType())
)
QUARANTINE_TYPE = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("src_partition", _INT)
    .add("src_offset", _LONG)
    .add("src_ts", TimestampType())
    .add("reason", _STRING)
)
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

# The columns of commits, groups and quarantine together; those that a row doesn't have are null.
DECODED_TYPE = StructType(
    [*COMMIT_TYPE, *(field for field in GROUP_TYPE if field.name not in COMMIT_TYPE.names)]
)

# What a row of DECODED_TYPE is, in SQL.
IS_REFUSED = "reason IS NOT NULL"
IS_COMMIT = "reason IS NULL AND key_version <= 1"
IS_OF_GROUP = "reason IS NULL AND key_version > 1"

NEEDED = ("key", "value", "partition", "offset", "timestamp")
"""Columns of a record that decoding needs."""


def decoded(records: DataFrame) -> DataFrame:
    """Return each record as one row with all columns of its table, in one pass: for decoded_commits,
    decoded_groups and decoded_quarantine.
    """
    return records.select(*NEEDED).mapInArrow(_decode_batches, DECODED_TYPE)


def decoded_commits(rows: DataFrame) -> DataFrame:
    """Return what offset_commits returns, from rows of `decoded`."""
    return rows.where(IS_COMMIT).select(*COMMIT_TYPE.names)


def decoded_groups(rows: DataFrame) -> DataFrame:
    """Return what group_records returns, from rows of `decoded`."""
    return rows.where(IS_OF_GROUP).select(*GROUP_TYPE.names)


def decoded_quarantine(rows: DataFrame) -> DataFrame:
    """Return what quarantine returns, from rows of `decoded`."""
    return rows.where(IS_REFUSED).select(*QUARANTINE_TYPE.names)


def offset_commits(records: DataFrame, columns: Sequence[str] = ()) -> DataFrame:
    """Return every readable offset commit and tombstone (value columns null), one row per record.

    `commit_ms` and `expire_ms` are times in the record, in ms; without one, null and -1. `commit_ts` is null
    if Spark can't represent the time, too. `src_*` is the record's position in `__consumer_offsets`.
    columns: only these are built; select() can't avoid building columns. Raises KeyError for an unknown
    column.
    """
    chosen = StructType([COMMIT_TYPE[name] for name in columns]) if columns else COMMIT_TYPE
    sources = [own for name, own in SOURCES.items() if name in chosen.names]
    return records.select("key", "value", *sources).mapInArrow(
        partial(_decode_commit_batches, chosen.names), chosen
    )


def newest_commits(records: DataFrame, count: int = 1) -> DataFrame:
    """Return the newest offset commits and tombstones per task, in the columns of offset_commits.

    Each task returns the `count` newest records that it has read of each group, topic and partition, and
    decodes no other record.
    """
    return records.select(*NEEDED).mapInArrow(partial(_decode_newest, count), COMMIT_TYPE)


def newest_records(records: DataFrame, count: int) -> DataFrame:
    """Return the records that the current state of groups depends on, undecoded.

    These are the records on groups, and the `count` newest commits and tombstones that each task has read of
    each group, topic and partition. The columns are those that decoding needs.
    """
    kept = records.select(*NEEDED)
    return kept.mapInArrow(partial(_keep_newest, count), kept.schema)


def group_metadata(records: DataFrame) -> DataFrame:
    """Return every readable state and tombstone of classic groups, one row per record."""
    readable = _parse_groups(records, GROUP_METADATA_KEY, GROUP_METADATA_KEY).where(sf.col("reason").isNull())
    return readable.withColumn("state_ts", spark_time(sf.col("state_ms"))).select(*GROUP_COLUMNS)


def group_records(records: DataFrame) -> DataFrame:
    """Return every readable record on groups of any type; `data` is what Kafka's formatters print."""
    return _parse_groups(records, GROUP_METADATA_KEY, MAX_GROUP_KEY).where(
        sf.col("reason").isNull() & sf.col("group").isNotNull()
    )


def quarantine(records: DataFrame) -> DataFrame:
    """Return every unreadable record with the reason: no key, damaged, or an unknown value version.

    Records of key types that Kafka 4.4 doesn't have are left out.
    """
    commits = records.select(*NEEDED).mapInArrow(_refuse_commit_batches, QUARANTINE_TYPE)
    groups = (
        _parse_groups(records, GROUP_METADATA_KEY, MAX_GROUP_KEY)
        .where(sf.col("reason").isNotNull())
        .select(*QUARANTINE_TYPE.fieldNames())
    )
    return commits.unionByName(groups)


def not_after(as_of_ms: int) -> Column:
    """Return whether a record of `__consumer_offsets` counts at this moment: one without a time does."""
    return sf.coalesce(sf.unix_millis("timestamp") <= as_of_ms, sf.lit(True))


def spark_time(ms: Column) -> Column:
    """Return a time in ms as Spark's timestamp; null if Spark can't represent it."""
    return sf.when(ms.between(0, MAX_SPARK_MS), sf.timestamp_millis(ms))


def _parse_groups(records: DataFrame, first: int, last: int) -> DataFrame:
    """One row per record on groups with key versions first .. last, with a `reason` if it is unreadable."""
    limits = (number.to_bytes(2, "big") for number in (first, last))
    version = sf.substr(sf.col("key"), sf.lit(1), sf.lit(2))
    chosen = records.where((sf.length("key") >= 2) & version.between(*map(sf.lit, limits)))
    return chosen.select(*NEEDED).mapInArrow(_decode_group_batches, GROUP_TYPE)


def _decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(DECODED_TYPE)
    readable, refused, of_groups = map(arrow_schema, (COMMIT_TYPE, QUARANTINE_TYPE, GROUP_TYPE))
    for batch in batches:
        groups = _decode_groups(records_on_groups(batch), of_groups)
        known = pc.or_(groups["reason"].is_valid(), groups["group"].is_valid())
        for part in (*split_commits(batch, readable, refused), groups.filter(known)):
            if part.num_rows:
                yield _widened(part, schema)


def _widened(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with all columns of a schema; those that it doesn't have are null."""
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name) if field.name in present else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _decode_commit_batches(
    columns: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(StructType([COMMIT_TYPE[name] for name in columns]))
    for batch in batches:
        yield read_commits(batch, schema)


def _decode_newest(count: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema, newest = arrow_schema(COMMIT_TYPE), Newest(count)
    for batch in batches:
        for kept in newest.take(batch):
            yield read_commits(kept, schema)
    for kept in newest.rest():
        yield read_commits(kept, schema)


def _keep_newest(count: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    newest = Newest(count)
    for batch in batches:
        yield from newest.take(batch)
        yield records_on_groups(batch)
    yield from newest.rest()


def _refuse_commit_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(QUARANTINE_TYPE)
    for batch in batches:
        yield refused_commits(batch, schema)


def _decode_group_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(GROUP_TYPE)
    for batch in batches:
        yield _decode_groups(batch, schema)


def _decode_groups(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The records on groups, one row per record; unknown ones have neither a group nor a reason."""
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
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
    """The columns from a value of a consumer, share or streams group."""
    if isinstance(value, GroupEpoch | ShareEpoch | StreamsEpoch):
        return {"generation": value.epoch}
    if isinstance(value, ConsumerMember | ShareMember | StreamsMember):
        return {"members": [_newer_member(member_id, value)]}
    if isinstance(value, ConsumerAssignment | ShareAssignment):
        return {"assigned": _by_topic_id(value.assigned_partitions)}
    # What a share group has begun to read, whoever is assigned to it.
    if isinstance(value, SharePartitions):
        return {"assigned": _by_topic_id(value.initialized_topics)}
    return {}


def _by_topic_id(
    parts: Iterable[OwnedPartitions | TopicIdPartitions | NamedTopicPartitions],
) -> list[dict[str, Any]]:
    return [{"topic": uuid_text(part.topic_id), "partitions": list(part.partitions)} for part in parts]


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
        # A regular expression has no topic names; a streams member reads the topics of its topology.
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
    """The topics of a consumer's subscription; None for other protocols and unreadable bytes."""
    if protocol_type != CONSUMER_PROTOCOL or not subscription:
        return None
    try:
        return list(decode_subscription(subscription).topics)
    except DecodeError:
        return None


def _assigned(assignment: bytes, protocol_type: str) -> list[dict[str, Any]] | None:
    """The partitions of a consumer's assignment; None for other protocols and unreadable bytes."""
    if protocol_type != CONSUMER_PROTOCOL or not assignment:
        return None
    try:
        parts = decode_assignment(assignment).assigned_partitions
    except DecodeError:
        return None
    return [{"topic": part.topic, "partitions": list(part.partitions)} for part in parts]
