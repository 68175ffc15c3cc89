"""`__consumer_offsets` of a Kafka cluster beside what its admin client tells.

The records are the history. A partition is readable up to its first open transaction; of what follows, those
commits count that the coordinators confirm. Without the right to read, all is made of the coordinators'
answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.consumer_protocol import Assignment, TopicPartitions, encode_assignment
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from korvet.spark.records.commits import NO_TIME
from korvet.spark.source.source import SCHEMA
from korvet.spark.source.topics import OFFSETS_TOPIC
from korvet.spark.tables import decode
from korvet.spark.tables.queues import SHARE_STATE_TOPIC
from korvet.spark.tables.views import GROUP_PARTITION

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.session.kafka_state import Committed, GroupNow, OpenTransaction, Rights

# Kinds of findings.
ORIGIN, HANGING, NOT_READ, HIDDEN = "origin", "hanging_transaction", "not_read", "hidden"
# Kafka's transaction.max.timeout.ms by default: no open transaction is older, unless nobody will end it.
MAX_TRANSACTION_MS: Final = 900_000
# Coordinators look for transactions to end every ten seconds, and writing markers takes time.
GRACE_MS: Final = 60_000
_INTERNAL: Final = frozenset({OFFSETS_TOPIC, SHARE_STATE_TOPIC})
_TRUTH: Final = "group string, topic string, partition int, now_offset bigint, now_metadata string"
_PLACE: Final = ("partition", "offset")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the cluster itself that a report states, beside its groups.

    kind: ORIGIN (where the numbers are from), HANGING, NOT_READ or HIDDEN (what is missing, and why). age_ms:
    of a transaction.
    """

    kind: str
    message: str
    topic: str | None = None
    partition: int | None = None
    age_ms: int | None = None


def confirmed(records: DataFrame, truth: Collection[Committed]) -> DataFrame:
    """Return those records after open transactions that count.

    A commit counts up to the last one that equals what the coordinator has now: later ones belong to
    transactions that are open or were aborted, or are newer than the coordinator's answer. Records on groups
    always count, because no transaction contains any. truth: the committed offsets of the records' groups,
    asked before the records were read.
    """
    rows = [(each.group, each.topic, each.partition, each.offset, each.metadata) for each in truth]
    now = records.sparkSession.createDataFrame(rows, _TRUTH)
    columns = (*GROUP_PARTITION, "committed_offset", "metadata", "tombstone", "src_partition", "src_offset")
    commits = decode.offset_commits(records, columns)
    is_now = sf.when(sf.col("tombstone"), sf.col("now_offset").isNull()).otherwise(
        (sf.col("committed_offset") == sf.col("now_offset"))
        & (sf.coalesce("metadata", sf.lit("")) == sf.coalesce("now_metadata", sf.lit("")))
    )
    last = (
        commits.join(sf.broadcast(now), [*GROUP_PARTITION], "left")
        .groupBy(*GROUP_PARTITION)
        .agg(sf.max(sf.when(is_now, sf.col("src_offset"))).alias("last"))
    )
    counting = (
        commits.join(sf.broadcast(last), [*GROUP_PARTITION])
        .where(sf.col("src_offset") <= sf.col("last"))
        .select(sf.col("src_partition").alias("partition"), sf.col("src_offset").alias("offset"))
    )
    on_groups = sf.substr(sf.col("key"), sf.lit(1), sf.lit(2)) >= sf.lit(b"\0\2")
    return records.where(on_groups).unionByName(records.join(counting, [*_PLACE], "left_semi"))


def groups_in(records: DataFrame) -> list[str]:
    """Return the groups with commits in records."""
    return [row["group"] for row in decode.offset_commits(records, ("group",)).distinct().collect()]


def as_records(spark: SparkSession, committed: Iterable[Committed], groups: Iterable[GroupNow]) -> DataFrame:
    """Return the answers of coordinators as records of `__consumer_offsets` without times.

    Groups of each type have the state of a classic one: the answers contain no epochs and no topic IDs.
    """
    made = [*map(_of_offset, committed), *map(_of_group, groups)]
    rows = [
        (key, value, OFFSETS_TOPIC, partition_for(group), offset, None, 0, None)
        for offset, (group, key, value) in enumerate(made)
    ]
    return spark.createDataFrame(rows, SCHEMA)


def _of_offset(given: Committed) -> tuple[str, bytes, bytes]:
    key = OffsetCommitKey(given.group, given.topic, given.partition)
    value = OffsetCommitValue(given.offset, given.leader_epoch, given.metadata, NO_TIME)
    return given.group, encode_key(key), encode_value(value)


def _of_group(given: GroupNow) -> tuple[str, bytes, bytes]:
    members = tuple(
        MemberMetadata(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            rebalance_timeout_ms=0,
            session_timeout_ms=0,
            subscription=b"",
            assignment=encode_assignment(
                Assignment(
                    tuple(TopicPartitions(topic, tuple(parts)) for topic, parts in member.assigned.items())
                )
            ),
        )
        for member in given.members
    )
    value = GroupMetadataValue(decode.CONSUMER_PROTOCOL, 0, given.protocol or None, None, NO_TIME, members)
    return given.group, encode_key(GroupMetadataKey(given.group)), encode_value(value)


def hanging(transactions: Iterable[OpenTransaction], as_of_ms: int) -> Iterator[Finding]:
    """Yield a finding for each transaction that is open for longer than any should be."""
    for each in transactions:
        age_ms = as_of_ms - each.since_ms
        limit_ms = MAX_TRANSACTION_MS if each.timeout_ms is None else each.timeout_ms
        if age_ms <= limit_ms + GRACE_MS:
            continue
        whose, cure = "of which no coordinator knows", "kafka-transactions abort ends it"
        if each.transactional_id is not None:
            whose = f"of transactional.id {each.transactional_id}, longer than its timeout"
        elif not each.is_visible:
            whose = "that this login may not describe"
            cure = "whose it is, and whether it ends, is not known (ACL: Describe on transactional IDs)"
        message = (
            f"a transaction {whose} (producer {each.producer_id}) hangs in {each.topic} {each.partition} at "
            f"offset {each.start_offset}: consumers of committed records wait there; {cure}"
        )
        yield Finding(HANGING, message, each.topic, each.partition, age_ms)


def missing(rights: Rights, absent: Collection[str] = ()) -> Iterator[Finding]:
    """Yield findings on what the login may not do, and on topics that the cluster lacks (`absent`)."""
    if OFFSETS_TOPIC in rights.refused:
        message = (
            f"{OFFSETS_TOPIC} can't be read with this login: without earlier commits, the times of commits, "
            "rebalances and most statuses are unknown (ACL: Read on the topic), and groups that it may not "
            "describe are missing (ACL: Describe on the groups)"
        )
        yield Finding(NOT_READ, message, OFFSETS_TOPIC)
    unknown = "the depth of queues (share groups) is unknown"
    if SHARE_STATE_TOPIC in rights.refused:
        message = f"{SHARE_STATE_TOPIC} can't be read with this login: {unknown} (ACL: Read on the topic)"
        yield Finding(NOT_READ, message, SHARE_STATE_TOPIC)
    elif SHARE_STATE_TOPIC in absent:
        message = f"there is no {SHARE_STATE_TOPIC}: {unknown} (Kafka 4.2 and later have it)"
        yield Finding(NOT_READ, message, SHARE_STATE_TOPIC)
    for topic in sorted(rights.unreadable - _INTERNAL):
        message = (
            f"{topic} can't be read with this login: its lag is a difference of offsets, and its waiting "
            "time is unknown (ACL: Read on the topic)"
        )
        yield Finding(NOT_READ, message, topic)
    for topic in sorted(rights.hidden - _INTERNAL):
        message = f"{topic} is hidden from this login: its lag is shown as 0 (ACL: Describe on the topic)"
        yield Finding(HIDDEN, message, topic)


def origin(has_history: bool, held: Collection[int]) -> Finding:
    """Return where the numbers are from. held: partitions of the topic that have an open transaction."""
    admin = "Topics and the ends of their logs are as the admin client tells them."
    if not has_history:
        return Finding(ORIGIN, f"Offsets and members are those of the coordinators. {admin}")
    parts = ", ".join(map(str, sorted(held)))
    later = (
        f"; after open transactions (partition {parts}), commits that coordinators confirm" if parts else ""
    )
    return Finding(ORIGIN, f"Commits, groups and members are from {OFFSETS_TOPIC}{later}. {admin}")
