"""What a Kafka cluster tells about groups, transactions and rights, by its admin client in Spark's JVM.

It is the truth of now. The history is in `__consumer_offsets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from korvet.spark.session.failures import root_kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from korvet.spark.session.kafka_cluster import Cluster

_NO_EPOCH = -1
# Failures by which a group is left out: the login may not describe it, or it doesn't exist.
_NO_GROUP = ("GroupAuthorizationException", "GroupIdNotFoundException")
# The failure of a request that the cluster is too old for, or that a service leaves out.
_NO_REQUEST = "UnsupportedVersionException"
# A transactional ID that nobody uses: the answer tells whether a login may describe transactions.
_NOBODY = "korvet-report-nobody"


class Committed(NamedTuple):
    """The committed offset of a group for a partition. leader_epoch: -1 for none."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class Member(NamedTuple):
    """A member of a group, with its partitions by topic."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assigned: dict[str, list[int]]


class GroupNow(NamedTuple):
    """A consumer group as its coordinator describes it."""

    group: str
    protocol: str
    members: list[Member]


class OpenTransaction(NamedTuple):
    """A transaction that holds the last stable offset of a partition back. Times are in ms.

    start_offset: of its first record in the partition. transactional_id, timeout_ms: None if no coordinator
    tells of the transaction. since_ms: its start; without a coordinator, the time of its last record.
    is_visible: whether the login may describe transactions. If it may, and no coordinator tells of the
    transaction, nobody will end the transaction.
    """

    topic: str
    partition: int
    producer_id: int
    start_offset: int
    transactional_id: str | None
    since_ms: int
    timeout_ms: int | None
    is_visible: bool = True


@dataclass(frozen=True, slots=True)
class Rights:
    """Topics that a login may not see (`hidden`: no Describe) or not read (`unreadable`: no Read)."""

    hidden: frozenset[str] = frozenset()
    unreadable: frozenset[str] = frozenset()

    @property
    def refused(self) -> frozenset[str]:
        """Topics that the login may not read."""
        return self.hidden | self.unreadable


def rights(cluster: Cluster, topics: Collection[str]) -> Rights:
    """Return what the login may not do (Metadata, DescribeTopicPartitions). Creates no topic."""
    options = cluster.jvm.org.apache.kafka.clients.admin.DescribeTopicsOptions
    names = cluster.listed(topics)
    hidden, unreadable = set(), set()
    with cluster.failures():
        asked = options().includeAuthorizedOperations(True)
        answers = cluster.admin.describeTopics(names, asked).topicNameValues()
        for name in answers:
            try:
                allowed = answers[name].get().authorizedOperations()
            except Py4JJavaError as error:
                kind = root_kind(error.java_exception)
                if kind == "TopicAuthorizationException":
                    hidden.add(name)
                elif kind not in ("UnknownTopicOrPartitionException", "InvalidTopicException"):
                    raise
                continue
            # Brokers without ACLs allow everything; old ones tell nothing.
            if allowed is not None and "READ" not in {each.toString() for each in allowed}:
                unreadable.add(name)
    return Rights(frozenset(hidden), frozenset(unreadable))


def groups(cluster: Cluster) -> list[str]:
    """Return the consumer groups that the login may describe (ListGroups), also those without members."""
    with cluster.failures():
        return sorted(each.groupId() for each in cluster.admin.listConsumerGroups().all().get())


def committed(cluster: Cluster, groups: Collection[str]) -> list[Committed]:
    """Return the committed offsets of groups (OffsetFetch), without those of open transactions.

    Groups that don't exist or that the login may not describe have none.
    """
    if not groups:
        return []
    spec = cluster.jvm.org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec()
    asked = cluster.jvm.java.util.HashMap()
    for group in groups:
        asked.put(group, spec)
    found: list[Committed] = []
    with cluster.failures():
        answers = cluster.admin.listConsumerGroupOffsets(asked)
        for group in groups:
            try:
                offsets = answers.partitionsToOffsetAndMetadata(group).get()
            except Py4JJavaError as error:
                if root_kind(error.java_exception) not in _NO_GROUP:
                    raise
                continue
            for entry in offsets.entrySet():
                where, at = entry.getKey(), entry.getValue()
                if at is not None:
                    epoch = at.leaderEpoch()
                    number = epoch.get() if epoch.isPresent() else _NO_EPOCH
                    found.append(
                        Committed(group, where.topic(), where.partition(), at.offset(), number, at.metadata())
                    )
    return found


def described(cluster: Cluster, groups: Collection[str]) -> list[GroupNow]:
    """Return the groups with their members (DescribeGroups, ConsumerGroupDescribe).

    Groups that don't exist or that the login may not describe are left out.
    """
    found = []
    with cluster.failures():
        answers = cluster.admin.describeConsumerGroups(cluster.listed(groups)).describedGroups()
        for group in groups:
            try:
                answer = answers[group].get()
            except Py4JJavaError as error:
                if root_kind(error.java_exception) not in _NO_GROUP:
                    raise
                continue
            members = [_member(each) for each in answer.members()]
            found.append(GroupNow(group, answer.partitionAssignor() or "", members))
    return found


def _member(described: Any) -> Member:
    assigned: dict[str, list[int]] = {}
    for part in described.assignment().topicPartitions():
        assigned.setdefault(part.topic(), []).append(part.partition())
    instance = described.groupInstanceId()
    return Member(
        described.consumerId(),
        instance.get() if instance.isPresent() else None,
        described.clientId(),
        described.host(),
        assigned,
    )


def open_transactions(
    cluster: Cluster, topic_partitions: Collection[tuple[str, int]]
) -> list[OpenTransaction]:
    """Return the open transactions of partitions (DescribeProducers, ListTransactions, DescribeTransactions).

    Partitions whose producers the login may not see have none, nor has a cluster without these requests
    (before Kafka 3.0, and some services).
    """
    if not topic_partitions:
        return []
    open_ones = list(_open_producers(cluster, topic_partitions))
    if not open_ones:
        return []
    known, is_visible = _coordinated(cluster, {state.producerId() for _, state in open_ones})
    found = []
    for (topic, partition), state in open_ones:
        coordinated = known.get((topic, partition, state.producerId()))
        name, since_ms, timeout_ms = coordinated or (None, state.lastTimestamp(), None)
        start = state.currentTransactionStartOffset().getAsLong()
        place = (topic, partition, state.producerId(), start)
        found.append(OpenTransaction(*place, name, since_ms, timeout_ms, is_visible))
    return found


def _open_producers(
    cluster: Cluster, topic_partitions: Collection[tuple[str, int]]
) -> Iterator[tuple[tuple[str, int], Any]]:
    place = cluster.jvm.org.apache.kafka.common.TopicPartition
    asked = {each: place(*each) for each in topic_partitions}
    with cluster.failures():
        answers = cluster.admin.describeProducers(cluster.listed(asked.values()))
        for each, key in asked.items():
            try:
                producers = answers.partitionResult(key).get().activeProducers()
            except Py4JJavaError as error:
                if root_kind(error.java_exception) not in ("TopicAuthorizationException", _NO_REQUEST):
                    raise
                continue
            for state in producers:
                if state.currentTransactionStartOffset().isPresent():
                    yield each, state


def _coordinated(
    cluster: Cluster, producer_ids: Collection[int]
) -> tuple[dict[tuple[str, int, int], tuple[str, int, int]], bool]:
    """The transactions of producers that a coordinator has: name, start and timeout, by partition and ID.

    Also whether the login may describe transactions: coordinators leave out those that it may not.
    """
    found, is_visible = {}, True
    with cluster.failures():
        try:
            listed = cluster.admin.listTransactions().all().get()
        except Py4JJavaError as error:
            if root_kind(error.java_exception) != _NO_REQUEST:
                raise
            return {}, True
        names = [each.transactionalId() for each in listed if each.producerId() in producer_ids] + [_NOBODY]
        answers = cluster.admin.describeTransactions(cluster.listed(names))
        for name in names:
            try:
                transaction = answers.description(name).get()
            except Py4JJavaError as error:
                kind = root_kind(error.java_exception)
                if kind == "TransactionalIdAuthorizationException":
                    is_visible = False
                # It has ended since.
                elif kind != "TransactionalIdNotFoundException":
                    raise
                continue
            since = transaction.transactionStartTimeMs()
            if since.isPresent():
                times = (name, since.getAsLong(), transaction.transactionTimeoutMs())
                for part in transaction.topicPartitions():
                    found[part.topic(), part.partition(), transaction.producerId()] = times
    return found, is_visible
