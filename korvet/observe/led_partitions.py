"""The partitions that a broker leads: their replicas and sizes, and the partitions of the whole cluster."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from korvet.causes import Causes
from korvet.cluster.assignment import NO_NODE
from korvet.metrics.declared import declare
from korvet.metrics.family import Samples
from korvet.redis.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.leadership import Leadership
    from korvet.cluster.topic import Topic
    from korvet.log.broker_logs import Logs
    from korvet.outlook.copies import Copies, PartitionCopies
    from korvet.topics.directory import TopicDirectory

# Exactly one broker of the cluster reports each series of these.
_declare: Final = partial(declare, by_one_broker=True)
_PARTITION: Final = ("topic", "partition")
_SERVER: Final = "kafka_server_"
_LEADERS: Final = declare(f"{_SERVER}replicamanager_leadercount", "Partitions that the broker leads.")
_PARTITIONS: Final = declare(
    f"{_SERVER}replicamanager_partitioncount", "Partitions that the broker leads: Redis has the replicas."
)
_COUNTS: Final = {
    "under_replicated": declare(
        f"{_SERVER}replicamanager_underreplicatedpartitions",
        "Of these, partitions whose Redis server lacks a replica that it had within the last hour, or that "
        "min.insync.replicas asks for.",
    ),
    "under_min": declare(
        f"{_SERVER}replicamanager_underminisrpartitioncount",
        "Of these, partitions with fewer replicas in sync than min.insync.replicas asks for.",
    ),
    "at_min": declare(
        f"{_SERVER}replicamanager_atminisrpartitioncount",
        "Of these, partitions with exactly as many replicas in sync as min.insync.replicas asks for.",
    ),
}
"""By field of _States: the number of partitions."""
_EACH: Final = {
    "under_min": _declare(
        "kafka_cluster_partition_underminisr",
        "1 if the partition has fewer replicas in sync than min.insync.replicas asks for.",
        *_PARTITION,
    ),
    "at_min": _declare(
        "kafka_cluster_partition_atminisr",
        "1 if the partition has exactly as many replicas in sync as min.insync.replicas asks for.",
        *_PARTITION,
    ),
}
"""By field of _States: each partition."""
_LOG_SIZE: Final = _declare(
    "kafka_log_log_size",
    "Bytes of the partition's keys, values and headers in Redis, read every half minute.",
    *_PARTITION,
)
_ACTIVE_CONTROLLER: Final = declare(
    "kafka_controller_kafkacontroller_activecontrollercount", "1 if the broker is the controller."
)
_OFFLINE_PARTITIONS: Final = declare(
    "kafka_controller_kafkacontroller_offlinepartitionscount",
    "Partitions without a leader; 0 on brokers that are not the controller.",
)
_GLOBAL_TOPICS: Final = declare(
    "kafka_controller_kafkacontroller_globaltopiccount",
    "Topics of the cluster; 0 on brokers that are not the controller.",
)
_GLOBAL_PARTITIONS: Final = declare(
    "kafka_controller_kafkacontroller_globalpartitioncount",
    "Partitions of the cluster; 0 on brokers that are not the controller.",
)

causes = Causes(logging.getLogger(__name__))

# Interval of readings of the sizes, if all of them are read within it.
_SIZES_PERIOD_S: Final = 30.0
# Partitions whose sizes are read at once, and the pause after them: at most 1,000 calls of 20 us in a second.
_SIZES_AT_ONCE: Final = 50
_PAUSE_S: Final = 0.05


class _Led(NamedTuple):
    """The partitions of one topic that the broker leads, with the label text of each."""

    topic: Topic
    numbers: list[int]
    texts: list[str]


class LedPartitions:
    """Knows which partitions the broker leads, and looks again when leaders or topics have changed."""

    def __init__(
        self, leadership: Leadership, catalogue: Catalogue, shown: Callable[[], list[Topic]]
    ) -> None:
        """`shown` returns the topics that metrics show one by one; the list is another one after changes."""
        self._leadership = leadership
        self._catalogue = catalogue
        self._shown = shown
        self._named: list[Topic] = []
        self._names: frozenset[str] = frozenset()
        self._seen: object = None
        self._led: list[_Led] = []
        self.offline = 0
        """The partitions of the cluster without a leader."""
        self.partitions = 0
        """The partitions of the cluster."""

    @property
    def shown(self) -> frozenset[str]:
        """The names of the topics that metrics show one by one."""
        topics = self._shown()
        if topics is not self._named:
            self._named, self._names = topics, frozenset(topic.name for topic in topics)
        return self._names

    def look(self) -> list[_Led]:
        """Returns the topics with partitions that the broker leads. The list is not changed afterwards."""
        assignment, change = self._leadership.assignment, self._catalogue.local_change
        if self._seen == (id(assignment), assignment.version, change):
            return self._led
        known = {led.topic.topic_id: dict(zip(led.numbers, led.texts, strict=True)) for led in self._led}
        node_id, text = self._leadership.node_id, _LOG_SIZE.text
        found, self.offline, self.partitions = [], 0, 0
        for name, topic in sorted(self._catalogue.topics.items()):
            leaders = assignment.leaders(name, topic.partitions)[: topic.partitions]
            numbers = [number for number, leader in enumerate(leaders) if leader.node_id == node_id]
            self.offline += sum(leader.node_id == NO_NODE for leader in leaders)
            self.partitions += topic.partitions
            if numbers:
                old = known.get(topic.topic_id, {})
                texts = [old.get(number) or text(name, number) for number in numbers]
                found.append(_Led(topic, numbers, texts))
        self._led = found
        self._seen = (id(assignment), assignment.version, change)
        return found


class LogSizes:
    """Reads the sizes of the led partitions at an interval (korvet_bounds)."""

    def __init__(self, led: LedPartitions, logs: Logs) -> None:
        self._led = led
        self._logs = logs
        # By label text, which names the partition.
        self._sizes: dict[str, int] = {}

    async def run(self) -> NoReturn:
        """Read all sizes again and again until cancelled."""
        while True:
            began_s = time.monotonic()
            await self.look()
            await asyncio.sleep(max(began_s + _SIZES_PERIOD_S - time.monotonic(), _PAUSE_S))

    async def look(self) -> None:
        """Read all sizes once."""
        found: dict[str, int] = {}
        left, shown = _SIZES_AT_ONCE, self._led.shown
        for topic, numbers, texts in self._led.look():
            if topic.name not in shown:
                continue
            for start in range(0, len(numbers), _SIZES_AT_ONCE):
                end = start + _SIZES_AT_ONCE
                found.update(await self._sizes_of(topic, numbers[start:end], texts[start:end]))
                left -= len(numbers[start:end])
                if left <= 0:
                    await asyncio.sleep(_PAUSE_S)
                    left = _SIZES_AT_ONCE
        self._sizes = found

    async def _sizes_of(self, topic: Topic, numbers: list[int], texts: list[str]) -> dict[str, int]:
        try:
            sizes = await self._logs.payload_bytes(topic, numbers)
        except StorageError as error:
            causes.warn(error, "the sizes of %s cannot be read: %s", topic.name, error, work=topic.name)
            return {}
        causes.ended(topic.name)
        return dict(zip(texts, sizes, strict=True))

    def collect(self) -> Iterator[Samples]:
        """See Collector. Leaves out partitions that the broker has ceased to lead since the last look."""
        sizes, led = self._sizes, self._led.look()
        rows = ((text, sizes[text]) for each in led for text in each.texts if text in sizes)
        yield Samples(_LOG_SIZE, rows)


def collect_controller(leadership: Leadership, catalogue: Catalogue, led: LedPartitions) -> Iterator[Samples]:
    """See Collector. What Kafka's controller reports."""
    led.look()
    is_controller = int(leadership.is_controller)
    yield _ACTIVE_CONTROLLER.single(is_controller)
    yield _OFFLINE_PARTITIONS.single(is_controller * led.offline)
    yield _GLOBAL_TOPICS.single(is_controller * len(catalogue.topics))
    yield _GLOBAL_PARTITIONS.single(is_controller * led.partitions)


def collect_replicas(
    led: LedPartitions, topics: TopicDirectory, copies: PartitionCopies
) -> Iterator[Samples]:
    """See Collector. Whether the led partitions have the replicas that they should have."""
    found = led.look()
    states = [(each, _states(each, topics, copies)) for each in found]
    count = sum(len(each.numbers) for each in found)
    yield _LEADERS.single(count)
    yield _PARTITIONS.single(count)
    for name, family in _COUNTS.items():
        yield family.single(sum(_count(each, getattr(state, name)) for each, state in states))
    for name, family in _EACH.items():
        yield Samples(family, _rows(states, name, led.shown))


class _States(NamedTuple):
    """What holds for the led partitions of a topic: for all of them, or for each."""

    under_replicated: bool | list[bool]
    under_min: bool | list[bool]
    at_min: bool | list[bool]


def _states(led: _Led, topics: TopicDirectory, copies: PartitionCopies) -> _States:
    wanted = topics.level(led.topic).replicas
    found = copies.of_topic(led.topic.name, led.topic.partitions, wanted)
    if not isinstance(found, list):
        return _States(*_state(found, wanted))
    each = [_state(found[number], wanted) for number in led.numbers]
    return _States(*(list(column) for column in zip(*each, strict=True)))


def _state(copies: Copies, wanted: int) -> tuple[bool, bool, bool]:
    in_sync = copies.in_sync
    return in_sync < copies.expected, in_sync < wanted, in_sync == wanted


def _count(led: _Led, holds: bool | list[bool]) -> int:
    return sum(holds) if isinstance(holds, list) else holds * len(led.numbers)


def _rows(states: list[tuple[_Led, _States]], name: str, shown: frozenset[str]) -> Iterator[tuple[str, int]]:
    for led, state in states:
        if led.topic.name not in shown:
            continue
        holds: bool | list[bool] = getattr(state, name)
        if isinstance(holds, list):
            yield from zip(led.texts, map(int, holds), strict=True)
        else:
            value = int(holds)
            yield from ((text, value) for text in led.texts)
