"""The groups that the broker coordinates: members, positions and lag; what its coordinators count."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

from korvet.coordinator.partitions import LoadCounts
from korvet.groups.consumer.group import ConsumerGroup
from korvet.groups.share.group import ShareGroup
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType, Samples, label_text
from korvet.offsets.consumer_protocol import DecodeError, decode_assignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from korvet.cluster.topic import Topic
    from korvet.groups.context import AnyGroup
    from korvet.observe.lag import WatchedGroup
    from korvet.observe.parts import Parts

# Exactly one broker of the cluster reports each series of these.
_declare: Final = partial(declare, by_one_broker=True)
_PLACE: Final = ("consumergroup", "topic", "partition")
_CLUSTER_GROUP: Final = ("cluster_name", "group")
_MEMBER: Final = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")
_MEMBERS: Final = _declare("kafka_consumergroup_members", "Members of a group.", "consumergroup")
_CURRENT_OFFSET: Final = _declare(
    "kafka_consumergroup_current_offset",
    "Records ever appended before the committed offset; -1 for a member's partition without a commit, if the "
    "group has committed offsets of other partitions of the topic.",
    *_PLACE,
)
_CURRENT_OFFSET_SUM: Final = _declare(
    "kafka_consumergroup_current_offset_sum",
    "Records ever appended before the committed offsets of a topic.",
    "consumergroup",
    "topic",
)
_LAG: Final = _declare(
    "kafka_consumergroup_lag",
    "Records from the committed offset on; -1 for a member's partition without a commit.",
    *_PLACE,
)
_LAG_SUM: Final = _declare(
    "kafka_consumergroup_lag_sum",
    "Records from the committed offsets of a topic on.",
    "consumergroup",
    "topic",
)
_RAW_CURRENT_OFFSET: Final = _declare(
    "korvet_consumergroup_raw_current_offset", "Committed offset, as Kafka clients see it.", *_PLACE
)
_GROUP_LAG: Final = _declare(
    "kafka_consumergroup_group_lag",
    "Records from the committed offset on, with the member that the partition is assigned to (name of "
    "kafka-lag-exporter).",
    *_MEMBER,
)
_GROUP_LAG_SECONDS: Final = _declare(
    "kafka_consumergroup_group_lag_seconds",
    "Seconds since the timestamp of the first record from the committed offset on; 0 if there is none.",
    *_MEMBER,
)
_MAX_LAG: Final = _declare(
    "kafka_consumergroup_group_max_lag",
    "Largest number of records from a committed offset of a group on.",
    *_CLUSTER_GROUP,
)
_MAX_LAG_SECONDS: Final = _declare(
    "kafka_consumergroup_group_max_lag_seconds", "Largest lag of a group in seconds.", *_CLUSTER_GROUP
)
_SUM_LAG: Final = _declare(
    "kafka_consumergroup_group_sum_lag", "Records from all committed offsets of a group on.", *_CLUSTER_GROUP
)
_TOPIC_SUM_LAG: Final = _declare(
    "kafka_consumergroup_group_topic_sum_lag",
    "Records from the committed offsets of a group in a topic on.",
    *_CLUSTER_GROUP,
    "topic",
)
_PENDING: Final = _declare(
    "korvet_redis_group_pending_entries",
    "Entries of a stream that consumers of a Redis group have received and not acknowledged. Reported by the "
    "partition's leader, for groups with consumers or pending entries.",
    *_PLACE,
)
_PENDING_IDLE: Final = _declare(
    "korvet_redis_group_oldest_pending_idle_seconds",
    "Seconds since the oldest pending entry of a Redis group was delivered last.",
    *_PLACE,
)
_CONSUMERS: Final = _declare(
    "korvet_redis_group_consumers", "Consumers of a Redis group on a stream.", *_PLACE
)
_INFO: Final = _declare(
    "korvet_consumergroup_info",
    "1 for each group, with its state, its type (classic, consumer, share) and its protocol type.",
    "consumergroup",
    "state",
    "type",
    "protocol_type",
    kind=MetricType.INFO,
)
_LEFT_OUT: Final = declare(
    "korvet_metrics_groups_left_out",
    "Groups that the broker coordinates and does not show, or shows without their lag, because of "
    "metrics.groups or metrics.max.rows.",
)
_GROUPS: Final = declare("korvet_consumergroups", "Groups that the broker coordinates, by state.", "state")
_REBALANCES: Final = _declare(
    "korvet_consumergroup_rebalances_total",
    "Rebalances of a group that began; in the consumer protocol, new epochs of the group.",
    "consumergroup",
    kind=MetricType.COUNTER,
)
_COMMITS: Final = _declare(
    "korvet_consumergroup_commits_total",
    "Commit requests of a group that were accepted, those of transactions included.",
    "consumergroup",
    kind=MetricType.COUNTER,
)
_UNPROJECTED: Final = declare(
    "korvet_group_coordinator_unprojected_commits",
    "Commits that Redis groups do not follow yet: waiting (on their way), failed (retried).",
    "state",
)
_COORDINATED: Final = declare(
    "korvet_coordinator_partitions",
    "Partitions of the coordinators' topics on this broker: served, or being loaded.",
    "coordinator",
    "state",
)

_Item = TypeVar("_Item")

# The value of a partition without a commit.
_NONE = -1


class _Owner(NamedTuple):
    """The labels of the member that a partition is assigned to; empty if there is none."""

    member_host: str = ""
    consumer_id: str = ""
    client_id: str = ""


class _Row(NamedTuple):
    """A partition of a group at the time of the scrape."""

    text: str
    member_text: str
    """Empty without a commit."""
    ordinal: int
    raw_offset: int
    lag: int
    waiting_s: float


class _Sums(NamedTuple):
    """A topic of a group."""

    text: str
    cluster_text: str
    ordinals: int
    lag: int


class _View(NamedTuple):
    """A group at the time of the scrape."""

    cluster_text: str
    rows: list[_Row]
    sums: list[_Sums]
    """Empty if nothing is counted yet."""
    max_lag: int
    max_waiting_s: float
    sum_lag: int


_NOBODY = _Owner()


class GroupCollector:
    """Reads the groups of one broker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._cluster_id = parts.store.commands.cluster_id
        # By assignment of a member: those of this scrape, and of the one before. Rebalances make other ones.
        self._assigned: dict[bytes, list[tuple[str, int]]] = {}
        self._assigned_before: dict[bytes, list[tuple[str, int]]] = {}

    def collect(self) -> Iterator[Samples]:
        """See Collector."""
        self._assigned, self._assigned_before = {}, self._assigned
        present = dict(self._groups())
        yield from self._members(present)
        # The first family makes the views, group by group, and all families show the same numbers.
        views = _Made(self._views(present))
        yield Samples(_LAG, ((row.text, row.lag) for row in _rows(views)))
        yield Samples(_CURRENT_OFFSET, ((row.text, row.ordinal) for row in _rows(views)))
        yield Samples(_RAW_CURRENT_OFFSET, ((row.text, row.raw_offset) for row in _rows(views)))
        yield Samples(_GROUP_LAG, ((row.member_text, row.lag) for row in _committed(views)))
        yield Samples(_GROUP_LAG_SECONDS, ((row.member_text, row.waiting_s) for row in _committed(views)))
        yield Samples(_LAG_SUM, ((each.text, each.lag) for each in _sums(views)))
        yield Samples(_CURRENT_OFFSET_SUM, ((each.text, each.ordinals) for each in _sums(views)))
        yield Samples(_TOPIC_SUM_LAG, ((each.cluster_text, each.lag) for each in _sums(views)))
        yield Samples(_MAX_LAG, ((each.cluster_text, each.max_lag) for each in views if each.sums))
        yield Samples(
            _MAX_LAG_SECONDS, ((each.cluster_text, each.max_waiting_s) for each in views if each.sums)
        )
        yield Samples(_SUM_LAG, ((each.cluster_text, each.sum_lag) for each in views if each.sums))
        yield from self._backlogs()

    def _groups(self) -> Iterator[tuple[str, AnyGroup]]:
        for _, term in self._parts.coordinator.terms:
            yield from term.shard.groups.items()

    # Members and states

    def _members(self, present: dict[str, AnyGroup]) -> Iterator[Samples]:
        counts, lag = self._parts.coordinator.counts, self._parts.lag
        counts.keep(present)
        shown = [(name, group) for name, group in present.items() if lag.shows_group(name)]
        shown = shown[: self._parts.config.metrics_max_rows]
        whole = sum(
            ((watched := lag.groups.get(name)) is None or watched.is_shown)
            and name not in lag.queues.left_out
            for name, _ in shown
        )
        yield _LEFT_OUT.single(len(present) - whole)
        text = _MEMBERS.text
        yield Samples(_MEMBERS, ((text(name), len(group.members)) for name, group in shown))
        info = _INFO.text
        yield Samples(
            _INFO,
            (
                (info(name, group.state_name, group.group_type, group.protocol_type or ""), 1)
                for name, group in shown
            ),
        )
        states = Counter(group.state_name for group in present.values())
        yield _GROUPS.by_label(states)
        for family, of_group in (
            (_REBALANCES, counts.rebalances),
            (_COMMITS, counts.commits),
        ):
            found = [(name, of_group[name]) for name, _ in shown if name in of_group]
            yield Samples(family, ((text(name), count) for name, count in found))

    # Positions and lag

    def _views(self, present: dict[str, AnyGroup]) -> Iterator[_View]:
        lag, now_ms = self._parts.lag, time.time_ns() // 1_000_000
        for watched in list(lag.groups.values()):
            # A group may have gone since the last look.
            group = present.get(watched.group_id)
            if watched.is_shown and group is not None:
                yield self._view(watched, self._owners(group), now_ms)

    def _view(self, watched: WatchedGroup, owners: dict[tuple[str, int], _Owner], now_ms: int) -> _View:
        rows: list[_Row] = []
        sums: list[_Sums] = []
        unread = _unread(watched, owners)
        for topic_name in list(watched.topics):
            topic = self._parts.store.catalogue.get(topic_name)
            if topic is None:
                continue
            known = list(self._rows(watched, topic, owners, now_ms))
            if known:
                ordinals, lag = sum(row.ordinal for row in known), sum(row.lag for row in known)
                sums.append(_Sums(*self._sum_texts(watched, topic_name), ordinals, lag))
            rows += known
            rows += _unread_rows(watched, topic_name, unread[topic_name])
        if not watched.cluster_text:
            watched.cluster_text = _SUM_LAG.text(self._cluster_id, watched.group_id)
        return _View(
            watched.cluster_text,
            rows,
            sums,
            max((row.lag for row in rows), default=0),
            max((row.waiting_s for row in rows), default=0.0),
            sum(each.lag for each in sums),
        )

    def _sum_texts(self, watched: WatchedGroup, topic: str) -> tuple[str, str]:
        found = watched.sum_texts.get(topic)
        if found is None:
            found = watched.sum_texts[topic] = (
                _LAG_SUM.text(watched.group_id, topic),
                _TOPIC_SUM_LAG.text(self._cluster_id, watched.group_id, topic),
            )
        return found

    def _rows(
        self, watched: WatchedGroup, topic: Topic, owners: dict[tuple[str, int], _Owner], now_ms: int
    ) -> Iterator[_Row]:
        """The partitions of a topic that the group has committed for. Those that are not counted yet are left
        out.
        """
        topic_name, logs = topic.name, self._parts.lag.logs
        for partition, progress in list(watched.topics.get(topic_name, {}).items()):
            place = topic_name, partition
            log, position = logs.get(place), progress.position
            ends = None if log is None else log.ends
            if ends is None or position is None:
                continue
            owner = owners.get(place, _NOBODY)
            if progress.owner != owner:
                progress.owner = owner
                progress.text = _LAG.text(watched.group_id, *place)
                progress.member_text = _GROUP_LAG.text(self._cluster_id, watched.group_id, *place, *owner)
            ordinal = progress.ordinal(position, ends)
            lag = ends.end_ordinal - ordinal
            waiting_s = progress.waiting_s(now_ms) if lag else 0.0
            yield _Row(progress.text, progress.member_text, ordinal, position.offset, lag, waiting_s)

    def _backlogs(self) -> Iterator[Samples]:
        """The Redis groups on the partitions that this broker leads."""
        found = [
            (_PENDING.text(each.group, *place), each)
            for place, log in self._parts.lag.logs.items()
            if log.backlogs and self._parts.member.leadership.leader_epoch_of(*place) is not None
            for each in log.backlogs
        ][: self._parts.config.metrics_max_rows]
        yield Samples(_CONSUMERS, ((text, each.consumers) for text, each in found))
        yield Samples(_PENDING, ((text, each.pending) for text, each in found))
        waiting = ((text, each.idle_ms / 1000) for text, each in found if each.idle_ms is not None)
        yield Samples(_PENDING_IDLE, waiting)

    # Members of partitions

    def _owners(self, group: AnyGroup) -> dict[tuple[str, int], _Owner]:
        """The member that each partition is assigned to."""
        if group.is_empty or isinstance(group, ShareGroup):
            # Members of a share group take turns.
            return {}
        found: dict[tuple[str, int], _Owner] = {}
        if isinstance(group, ConsumerGroup):
            for (topic_id, partition), member_id in group.owners.items():
                topic = self._parts.store.catalogue.by_id(UUID(bytes=topic_id))
                member = group.members.get(member_id)
                if topic is not None and member is not None:
                    client = member.subscription
                    owner = _Owner(client.client_host, member_id, client.client_id)
                    found[topic.name, partition] = owner
            return found
        for classic in group.members.values():
            owner = _Owner(classic.client_host, classic.member_id, classic.client_id)
            for place in self._assignment(classic.assignment):
                found[place] = owner
        return found

    def _assignment(self, assignment: bytes) -> list[tuple[str, int]]:
        found = self._assigned.get(assignment)
        if found is None:
            found = self._assigned_before.get(assignment)
            if found is None:
                found = _decoded(assignment)
            self._assigned[assignment] = found
        return found


def _unread(watched: WatchedGroup, owners: Iterable[tuple[str, int]]) -> defaultdict[str, list[int]]:
    """The partitions that members have, and that the group has not committed for, by topic."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for topic, partition in owners:
        if partition not in watched.topics.get(topic, ()):
            found[topic].append(partition)
    return found


def _unread_rows(watched: WatchedGroup, topic: str, partitions: Iterable[int]) -> Iterator[_Row]:
    for partition in partitions:
        text = _LAG.text(watched.group_id, topic, partition)
        yield _Row(text, "", _NONE, _NONE, _NONE, 0.0)


class _Made(Generic[_Item]):
    """Items that are made when somebody iterates over them, once for all."""

    def __init__(self, source: Iterator[_Item]) -> None:
        self._source = source
        self._made: list[_Item] = []

    def __iter__(self) -> Iterator[_Item]:
        yield from self._made
        for item in self._source:
            self._made.append(item)
            yield item


def _rows(views: Iterable[_View]) -> Iterator[_Row]:
    return (row for view in views for row in view.rows)


def _committed(views: Iterable[_View]) -> Iterator[_Row]:
    return (row for row in _rows(views) if row.member_text)


def _sums(views: Iterable[_View]) -> Iterator[_Sums]:
    return (each for view in views for each in view.sums)


def _decoded(assignment: bytes) -> list[tuple[str, int]]:
    """The partitions of an assignment; none if another protocol than that of consumers made it."""
    if not assignment:
        return []
    try:
        found = decode_assignment(assignment)
    except DecodeError:
        return []
    return [(each.topic, number) for each in found.assigned_partitions for number in each.partitions]


def collect_coordinators(parts: Parts) -> Iterator[Samples]:
    """See Collector."""
    coordinator, transactions = parts.coordinator, parts.transactions
    yield from coordinator.counts.samples()
    waiting, failed = coordinator.unprojected
    yield _UNPROJECTED.by_label({"waiting": waiting, "failed": failed})
    yield from _loads({"groups": coordinator, "transactions": transactions})


class _Coordinator(Protocol):
    @property
    def loads(self) -> LoadCounts: ...

    @property
    def served(self) -> int: ...

    @property
    def loading(self) -> int: ...


def _loads(coordinators: dict[str, _Coordinator]) -> Iterator[Samples]:
    states = [
        (_COORDINATED.text(name, state), count)
        for name, each in coordinators.items()
        for state, count in (("served", each.served), ("loading", each.loading))
    ]
    yield Samples(_COORDINATED, states)
    loads = [(label_text([("coordinator", name)]), each.loads) for name, each in coordinators.items()]
    yield from LoadCounts.samples_of(loads)
