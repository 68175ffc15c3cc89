"""The partitions of a coordinator's topic that this broker leads, loaded or being loaded; for both
coordinators.

A partition is loaded when this broker begins to lead it in a leader epoch, and again when an append to it
failed. A partition that is not loaded answers with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from kio.schema.errors import ErrorCode

from korvet.causes import Causes
from korvet.cluster.assignment import to_leader_epoch
from korvet.coordinator.partition_timers import Alarms
from korvet.coordinator.served import Claim, ServedPartition
from korvet.logs import fields
from korvet.metrics.counted import Counted, counter, histogram, part
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType
from korvet.redis.errors import FencedEpoch, StorageError, WritesRefused
from korvet.supervisor import keep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator

    from korvet.cluster.topic import Topic
    from korvet.coordinator.steady_clock import SteadyClock
    from korvet.log.broker_logs import Logs

logger = logging.getLogger(__name__)
causes = Causes(logger)

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 1.0
LOAD_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds. Most partitions have few keys."""
# Limits the partitions that are read at the same time: each holds its replies and its newest keys in memory.
LOADS_AT_ONCE: Final = 2
# Timestamps of records follow the wall clock within this time.
CORRECTION_INTERVAL_S: Final = 1.0

_Term = TypeVar("_Term", bound=ServedPartition[Any, Any])


_MOVES: Final = declare(
    "korvet_coordinator_moves_total",
    "Partitions of the coordinators' topics that this broker gained or lost, new leader epochs included.",
    "coordinator",
    "event",
    kind=MetricType.COUNTER,
)


class LoadCounts(Counted):
    """What is counted of a coordinator's partitions, since the start of the broker."""

    gained = part(_MOVES, "gained")
    lost = part(_MOVES, "lost")
    load_seconds = histogram(
        "korvet_coordinator_load_seconds",
        "Time to load a partition of a coordinator's topic, in seconds.",
        "coordinator",
        bounds=LOAD_BOUNDS,
    )
    """From the beginning of a load until its partition is served; retries included."""
    reloads = counter(
        "korvet_coordinator_reloads_total",
        "Partitions that were loaded again because an append had failed.",
        "coordinator",
    )


class Partition(Generic[_Term]):
    """A partition, and its term while it has one; `changed` is set unless the partition is being loaded.

    `epoch` is the leader epoch in which this broker coordinates the partition; None if another broker does.
    `error` is the answer while there is no term.
    """

    __slots__ = ("changed", "epoch", "error", "loading", "number", "quiet_epoch", "term")

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch: int | None = None
        self.error = ErrorCode.not_coordinator
        self.loading: asyncio.Task[None] | None = None
        self.term: _Term | None = None
        self.quiet_epoch: int | None = None
        """The writers' epoch of a term that ended with nothing in flight, because Redis took no writes:
        the next term can continue with it.
        """
        self.changed = asyncio.Event()
        self.changed.set()


class Partitions(Generic[_Term]):
    """The partitions of one topic, by number. Use from one event loop.

    read(claim) reads a claimed partition and returns its term. on_loaded() is called when no partition is
    left to load: each one serves, or another broker coordinates it.
    """

    def __init__(
        self,
        logs: Logs,
        name: str,
        clock: SteadyClock,
        read: Callable[[Claim], Awaitable[_Term]],
        on_loaded: Callable[[], None] | None = None,
        *,
        message_max_bytes: Callable[[], int],
        release_timeout_ms: int | None,
    ) -> None:
        """`message_max_bytes` and `release_timeout_ms`: see Claim."""
        self._message_max_bytes = message_max_bytes
        self._release_timeout_ms = release_timeout_ms
        self._logs = logs
        self._name = name
        self._clock = clock
        self._read = read
        self._on_loaded = on_loaded
        self._alarms = Alarms(clock, self._ring)
        self._timekeeper: asyncio.Task[None] | None = None
        self._partitions: list[Partition[_Term]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self.topic: Topic | None = None
        """The topic that is followed; None if it does not exist."""
        self.closed = False
        self.counts = LoadCounts()

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Partition[_Term]]:
        return iter(self._partitions)

    def __getitem__(self, number: int) -> Partition[_Term]:
        return self._partitions[number]

    # Life cycle

    def follow(self, topic: Topic | None) -> None:
        """Load the partitions of the topic that this broker leads now; unload those that it does not lead, or
        leads in a later epoch. `topic` is None if it does not exist: a failover may lose a topic, and another
        one of that name may replace it.
        """
        if self.topic is not None and (topic is None or topic.topic_id != self.topic.topic_id):
            self.retire()
        if topic is None:
            return
        if self._timekeeper is None:
            self._timekeeper = self.spawn(self._keep_time)
        if self.topic is None:
            self.topic = topic
            self._partitions = [Partition(number) for number in range(topic.partitions)]
        self._follow_assignment()

    def retire(self) -> None:
        """Serve nothing until `follow` is called."""
        for partition in self._partitions:
            if partition.loading is not None:
                partition.loading.cancel()
            self._end_term(partition, ErrorCode.coordinator_load_in_progress)
            partition.changed.set()
        self._partitions = []
        self.topic = None

    def _follow_assignment(self) -> None:
        if self.closed:
            return
        for partition in self._partitions:
            epoch = self._logs.leader_epoch_of(self._name, partition.number)
            if epoch is None:
                partition.error = self._reason(partition)
            if epoch == partition.epoch:
                continue
            self.counts.lost += partition.epoch is not None
            self.counts.gained += epoch is not None
            partition.epoch, partition.quiet_epoch = epoch, None
            if partition.loading is not None:
                partition.loading.cancel()
                partition.loading = None
            self._end_term(partition, self._reason(partition))
            if epoch is None:
                partition.changed.set()
            else:
                self._load_soon(partition)
        self._tell_loaded()

    def _reason(self, partition: Partition[_Term]) -> ErrorCode:
        """Why this broker does not serve a partition. Clients look for another coordinator only if there is
        one: librdkafka, for example, repeats no OffsetFetch after NOT_COORDINATOR.
        """
        moved = self._logs.is_led_by_another(self._name, partition.number)
        return ErrorCode.not_coordinator if moved else ErrorCode.coordinator_not_available

    async def wait_loaded(self) -> None:
        """Wait until every partition serves or is coordinated by another broker."""
        for partition in self._partitions:
            await partition.changed.wait()

    @property
    def are_loaded(self) -> bool:
        """Whether `wait_loaded` would return at once."""
        return all(partition.changed.is_set() for partition in self._partitions)

    @property
    def loading(self) -> int:
        """How many partitions are being loaded."""
        return sum(not partition.changed.is_set() for partition in self._partitions)

    @property
    def served(self) -> int:
        """How many partitions are served."""
        return sum(partition.term is not None for partition in self._partitions)

    def _tell_loaded(self) -> None:
        if self._on_loaded is not None and self.are_loaded:
            self._on_loaded()

    async def close(self) -> None:
        """Refuse waiting requests and stop. Everything that was promised is in the log."""
        self.closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for partition in self._partitions:
            self._end_term(partition, ErrorCode.coordinator_not_available)
            partition.changed.set()
        self._alarms.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `work()` until it returns or the partitions are closed; run it again whenever an exception
        ends it.
        """
        task = keep(f"the coordinator of {self._name}", work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Loading

    def _load_soon(self, partition: Partition[_Term]) -> None:
        partition.error = ErrorCode.coordinator_load_in_progress
        partition.changed.clear()
        assert self.topic is not None
        partition.loading = self.spawn(partial(self._load, self.topic, partition))

    async def _load(self, topic: Topic, partition: Partition[_Term]) -> None:
        """Acquire the partition's epoch, read it and serve it; retry until Redis allows it."""
        delay_s, began_s = FIRST_RETRY_S, time.perf_counter()
        while True:
            if partition.quiet_epoch is not None:
                # By then `writes_refused` is known, and requests are refused without an append.
                await asyncio.sleep(LAST_RETRY_S)
            try:
                async with self._load_slots:
                    term = await self._claim(topic, partition)
                break
            except FencedEpoch as error:
                # Until this broker learns of the new leader, which cancels this task or restarts it.
                self._logs.fenced(error)
            except StorageError as error:
                self._warn(partition, error, "%s-%d cannot be loaded yet: %s")
            except Exception:
                # A defect: the other partitions serve, and this one keeps reporting that it is loading.
                extra = fields(**self._named(partition))
                logger.exception("%s-%d cannot be loaded", topic.name, partition.number, extra=extra)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_RETRY_S)
        causes.ended((self._name, partition.number))
        partition.loading = None
        partition.term = term
        partition.changed.set()
        self.counts.load_seconds.observe(time.perf_counter() - began_s)
        term.begin()
        self._tell_loaded()

    def _named(self, partition: Partition[_Term]) -> dict[str, object]:
        """The fields of lines about a partition."""
        return {"topic": self._name, "partition": partition.number}

    def _warn(self, partition: Partition[_Term], error: Exception, message: str) -> None:
        """Warn of what keeps a partition from being served, until it is loaded."""
        place = self._name, partition.number
        causes.warn(error, message, *place, error, work=place, **self._named(partition))

    async def _claim(self, topic: Topic, partition: Partition[_Term]) -> _Term:
        number = partition.number
        log = self._logs.get(topic, number)
        # The epoch is acquired before the read: by then, records of an older term are in the log or refused.
        epoch, partition.quiet_epoch = partition.quiet_epoch, None
        if epoch is None:
            epoch = await log.acquire_epoch()
        claim = Claim(
            log,
            epoch,
            (await log.bounds()).log_end,
            self._clock,
            partial(self._alarms.set, number),
            lambda error: self._failed(partition, term, error),
            self._message_max_bytes,
            self._release_timeout_ms,
        )
        term = await self._read(claim)
        return term

    def _failed(self, partition: Partition[_Term], term: _Term, error: Exception) -> None:
        """An append or a handler failed: the shard no longer equals the log."""
        if partition.term is not term or self.closed:
            return
        if isinstance(error, FencedEpoch) and not _is_own_claim(error, partition):
            message, extra = "%s-%d is coordinated by another broker now", fields(**self._named(partition))
            logger.warning(message, self._name, partition.number, extra=extra)
            partition.epoch = None
            self.counts.lost += 1
            self._end_term(partition, ErrorCode.not_coordinator)
            return
        self._warn(partition, error, "%s-%d is loaded again: %s")
        if isinstance(error, WritesRefused):
            # Appends are sequential, and this one is answered.
            partition.quiet_epoch = term.writers_epoch
        self._load_again(partition)

    def _load_again(self, partition: Partition[_Term]) -> None:
        self.counts.reloads += 1
        term, partition.term = partition.term, None
        self._load_soon(partition)
        if term is not None:
            term.close(ErrorCode.coordinator_not_available)

    def _end_term(self, partition: Partition[_Term], error: ErrorCode) -> None:
        term, partition.term = partition.term, None
        partition.error = error
        if term is not None:
            term.close(error)

    async def _keep_time(self) -> None:
        """Follow the wall clock. When it is set, no deadline comes earlier or later for that."""
        while True:
            await asyncio.sleep(CORRECTION_INTERVAL_S)
            by_ms = self._clock.correct()
            if by_ms:
                self._alarms.shift(by_ms)
                for partition in self._partitions:
                    if partition.term is not None:
                        partition.term.shift(by_ms)

    def _ring(self, number: int) -> None:
        term = self._partitions[number].term if number < len(self._partitions) else None
        if term is not None:
            term.tick()


def _is_own_claim(error: FencedEpoch, partition: Partition[Any]) -> bool:
    """Whether this broker itself has claimed the partition again: a claim whose connection broke may reach
    Redis after the next one.
    """
    return error.newest is not None and to_leader_epoch(error.newest) == partition.epoch
