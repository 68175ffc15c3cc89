"""The group coordinator as the rest of the broker sees it: requests in, replies out, all 50 partitions
behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.coordinator.alarms import Alarms
from korvet.coordinator.loader import OffsetsLoader
from korvet.coordinator.projector import CommitChange, Place, Projector
from korvet.coordinator.refusals import refuse
from korvet.coordinator.term import Done, Handler, Term
from korvet.coordinator.topics import CatalogueTopics
from korvet.groups.messages import ListedGroup, ListReply, ListRequest, Reply
from korvet.groups.shard import GroupShard
from korvet.offsets.codec import encode_key
from korvet.offsets.packing import offset_of
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey
from korvet.storage.errors import FencedEpoch, StorageError, TopicExists, domain_error
from korvet.storage.projection import Projection

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from korvet.groups.config import GroupConfig
    from korvet.groups.messages import Token
    from korvet.groups.native import NativeGroup
    from korvet.storage.catalogue import Catalogue, Topic
    from korvet.storage.log import PartitionLog
    from korvet.storage.store import Store

logger = logging.getLogger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
OFFSETS_PARTITIONS: Final = 50
FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 1.0
FORGET_ATTEMPTS: Final = 3
# Partitions that are read at the same time: each holds its replies and its newest keys in memory.
LOADS_AT_ONCE: Final = 2


class CoordinatorError(Exception):
    """The coordinator cannot serve a request that has no place for an error of its own; `code` says why."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class _Status(Enum):
    """What a partition without a term answers."""

    LOADING = ErrorCode.coordinator_load_in_progress
    FENCED = ErrorCode.not_coordinator
    CLOSED = ErrorCode.coordinator_not_available


class Watch(NamedTuple):
    """What happens to commits while Redis groups are read: see CoordinatorService.watch."""

    touched: set[Place]
    """Places whose commit was not projected when it began, or has changed since."""
    terms: tuple[Term | None, ...]
    """By partition of `__consumer_offsets`: the life that it had then."""


class _Partition:
    """A partition and its term while it has one; `changed` is set unless it is being loaded.

    `epoch` is the leader epoch in which it is coordinated here; None where another broker does that.
    """

    __slots__ = ("changed", "epoch", "loading", "moved", "number", "status", "term")

    def __init__(self, number: int) -> None:
        self.number = number
        self.epoch: int | None = None
        self.loading: asyncio.Task[None] | None = None
        self.term: Term | None = None
        self.status = _Status.FENCED
        self.moved = False
        """Whether another server took the log over since it began to be read."""
        self.changed = asyncio.Event()
        self.changed.set()


class Ticket:
    """A submitted request that may still wait for its reply."""

    __slots__ = ("_term", "_token")

    def __init__(self, term: Term, token: Token) -> None:
        self._term = term
        self._token = token

    def withdraw(self) -> None:
        """The client went away: no reply any more."""
        self._term.withdraw(self._token)


class CoordinatorService:
    """Coordinates the groups whose partition of `__consumer_offsets` this broker leads. Use from one event
    loop.

    A reply is sent once everything that it rests on is in the log. While a partition is read, its groups are
    told COORDINATOR_LOAD_IN_PROGRESS; when an append fails, those that wait are told
    COORDINATOR_NOT_AVAILABLE and the partition is read again; when another broker acquired its epoch,
    NOT_COORDINATOR.
    """

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        config: GroupConfig,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """clock: now in ms since the epoch."""
        self._store = store
        self._catalogue = catalogue
        self._config = config
        self._clock = clock
        self._projector = Projector(Projection(store), catalogue)
        self._alarms = Alarms(clock, self._ring)
        self._topic: Topic | None = None
        self._partitions: list[_Partition] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reconciling = False
        self._load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._closed = False
        self.reloads = 0
        """How often a partition was read again, as an append had failed."""

    # Life

    async def start(self) -> None:
        """Create `__consumer_offsets` if it is missing, and begin to load what is ours of it. Raises
        StorageError.
        """
        self._topic = await self._offsets_topic()
        self._partitions = [_Partition(number) for number in range(self._topic.partitions)]
        self._store.on_moved = self._log_moved
        self.follow_assignment()

    def follow_assignment(self) -> None:
        """Load partitions that are ours now; unload those that are not, or are ours in a later epoch."""
        if self._closed:
            return
        for partition in self._partitions:
            epoch = self._store.leads(OFFSETS_TOPIC, partition.number)
            if epoch == partition.epoch:
                continue
            partition.epoch = epoch
            if partition.loading is not None:
                partition.loading.cancel()
                partition.loading = None
            self._end_term(partition, _Status.FENCED, ErrorCode.not_coordinator)
            if epoch is None:
                partition.changed.set()
            else:
                self._load_soon(partition)

    async def wait_loaded(self) -> None:
        """Wait until every partition serves or is coordinated by another broker."""
        for partition in self._partitions:
            await partition.changed.wait()

    async def close(self) -> None:
        """Refuse what waits and stop. What was promised is in the log."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for partition in self._partitions:
            self._end_term(partition, _Status.CLOSED, ErrorCode.coordinator_not_available)
            partition.changed.set()
        self._alarms.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._projector.close()

    # Requests

    def submit(self, group_id: str, handler: Handler, request: Any, done: Done) -> Ticket | None:
        """Let `handler`, one of GroupShard's request handlers (GroupShard.join, say), handle a request of a
        group.

        done(reply) is called exactly once, possibly before this returns; the reply has the type that belongs
        to the request, also for errors. Returns what `withdraw` takes, None if it is answered by the
        coordinator's state.
        """
        partition = self._partition_of(group_id)
        if partition is None:
            done(refuse(request, ErrorCode.coordinator_not_available))
            return None
        term = partition.term
        if term is None:
            done(refuse(request, partition.status.value))
            return None
        return Ticket(term, term.submit(handler, request, done))

    async def call(self, group_id: str, handler: Handler, request: Any) -> Any:
        """As `submit`, awaited. A cancelled call is one whose client went away."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        ticket = self.submit(group_id, handler, request, partial(_settle, future))
        try:
            return await future
        finally:
            if ticket is not None and future.cancelled():
                ticket.withdraw()

    async def list_groups(self, request: ListRequest) -> ListReply:
        """The groups that this broker coordinates. Raises CoordinatorError while some of them are being
        loaded.
        """
        groups: list[ListedGroup] = []
        safe = []
        for partition in self._partitions:
            if partition.term is not None:
                settled = self._event()
                groups += partition.term.list_groups(request, partial(_settle, settled)).groups
                safe.append(settled)
            elif partition.status is not _Status.FENCED:
                raise CoordinatorError(partition.status.value)
        for error in await asyncio.gather(*safe):
            if error is not ErrorCode.none:
                raise CoordinatorError(error)
        return ListReply(tuple(groups))

    async def forget_topic(self, name: str) -> None:
        """Write tombstones for all offsets that groups have committed for a topic; returns once they are
        safe.

        Waits for partitions that are being loaded. Raises CoordinatorError where that failed: try again.
        """
        await asyncio.gather(*(self._forget_topic(partition, name) for partition in self._partitions))

    async def _forget_topic(self, partition: _Partition, name: str) -> None:
        error = ErrorCode.none
        for _ in range(FORGET_ATTEMPTS):
            await partition.changed.wait()
            if partition.epoch is None:
                # Its coordinator forgets the topic.
                return
            if partition.term is None:
                error = partition.status.value
                continue
            settled = self._event()
            partition.term.delete_topics((name,), partial(_settle, settled))
            error = await settled
            if error is ErrorCode.none:
                return
        raise CoordinatorError(error)

    # Redis groups that native consumers have moved

    @contextlib.contextmanager
    def watch(self) -> Iterator[Watch | None]:
        """Note which commits change: what is read of Redis groups meanwhile can be told from what is out of
        date. None while that can't be told, or there is nothing to coordinate. One at a time.
        """
        terms = tuple(partition.term for partition in self._partitions)
        if self._projector.expects or not any(terms):
            yield None
            return
        touched = set(self._projector.unsettled())
        for term in terms:
            if term is not None:
                touched.update(term.unsettled())
        self._projector.touched = touched
        try:
            yield Watch(touched, terms)
        finally:
            self._projector.touched = None

    def export(self, groups: Sequence[NativeGroup], watch: Watch) -> list[NativeGroup]:
        """Commit what native consumers have moved, as read since `watch` began, where that is known to be up
        to date and the group is coordinated here. Returns those of which Redis has lost the newest commit:
        for `project_again`.
        """
        behind = []
        by_term: dict[Term, list[NativeGroup]] = {}
        for native in groups:
            term = self._watched_term(native, watch)
            if term is not None:
                by_term.setdefault(term, []).append(native)
        for term, of_term in by_term.items():
            behind += term.export(of_term)
        return behind

    async def project_again(self, native: NativeGroup, watch: Watch) -> None:
        """Let a Redis group follow the newest commit of its Kafka group. Raises StorageError."""
        if self._topic is None or self._watched_term(native, watch) is None:
            return
        number = partition_for(native.group, len(self._partitions))
        log = self._store.log(self._topic, number)
        latest = self._store.keyspace.latest(self._topic.name, number)
        key = encode_key(OffsetCommitKey(*native.place))
        try:
            entry = await log.links.read.call("HGET", latest, key)
        except StorageError as error:
            raise domain_error(error) from error
        term = self._watched_term(native, watch)
        committed = term and term.committed(native.place)
        if entry is not None and committed:
            position = offset_of(entry, log.bias)
            change = CommitChange(*native.place, position, committed.offset)
            self._projector.apply([change], lambda: None)

    def _watched_term(self, native: NativeGroup, watch: Watch) -> Term | None:
        """The life of the group's partition; None where it is another one now, the place was touched, or the
        topic is not there any more.
        """
        topic = self._catalogue.get(native.topic)
        if topic is None or topic.topic_id.bytes != native.topic_id:
            return None
        if native.place in watch.touched or self._projector.expects:
            return None
        number = partition_for(native.group, len(self._partitions))
        term = self._partitions[number].term
        return term if term is watch.terms[number] else None

    # Partitions

    def _partition_of(self, group_id: str) -> _Partition | None:
        """None before `start`."""
        count = len(self._partitions)
        return self._partitions[partition_for(group_id, count)] if count else None

    async def _offsets_topic(self) -> Topic:
        topic = self._catalogue.get(OFFSETS_TOPIC)
        if topic is None:
            try:
                return await self._catalogue.create(
                    OFFSETS_TOPIC,
                    OFFSETS_PARTITIONS,
                    {"cleanup.policy": "compact", "offset.assignment": "dense"},
                    internal=True,
                    offset_assignment="dense",
                )
            except TopicExists:
                topic = self._catalogue.get(OFFSETS_TOPIC)
                if topic is None:
                    raise
        return topic

    def _load_soon(self, partition: _Partition) -> None:
        partition.status = _Status.LOADING
        partition.changed.clear()
        assert self._topic is not None
        partition.loading = self._spawn(self._load(self._topic, partition))

    async def _load(self, topic: Topic, partition: _Partition) -> None:
        """Acquire the partition's epoch, read it and serve it; again and again until Redis lets us."""
        delay_s = FIRST_RETRY_S
        while True:
            try:
                async with self._load_slots:
                    partition.moved = False
                    term = await self._read(topic, partition)
                if not partition.moved:
                    break
            except FencedEpoch as error:
                # Until we hear of it, and this is cancelled or begun again.
                self._store.fenced(error)
            except StorageError as error:
                logger.warning("%s-%d cannot be loaded yet: %s", topic.name, partition.number, error)
            except Exception:
                # A defect of ours: the other partitions serve, this one goes on saying that it is loading.
                logger.exception("%s-%d cannot be loaded", topic.name, partition.number)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_RETRY_S)
        partition.loading = None
        partition.term = term
        partition.changed.set()
        term.begin()
        if all(each.changed.is_set() for each in self._partitions) and not self._reconciling:
            self._reconciling = True
            self._spawn(self._reconcile())

    async def _read(self, topic: Topic, partition: _Partition) -> Term:
        number = partition.number
        log = self._store.log(topic, number)
        # First the epoch, then the reading: what an older term still has under way is in the log by then or
        # refused.
        epoch = await log.acquire_epoch()
        end = (await log.bounds()).log_end
        shard = GroupShard(self._config, lambda: str(uuid.uuid4()), CatalogueTopics(self._catalogue))
        loader = OffsetsLoader(self._store, log)
        if end > 0:
            await loader.replay_into(shard)
        self._projector.expect(loader.commits, number, end)
        term = Term(
            shard,
            log,
            epoch,
            projector=self._projector,
            clock=self._clock,
            on_deadline=partial(self._alarms.set, number),
            on_failure=lambda error: self._failed(topic, partition, term, error),
        )
        return term

    def _log_moved(self, log: PartitionLog) -> None:
        """Another server took a log over: what it lacks of ours never happened."""
        if log.topic.name != OFFSETS_TOPIC:
            return
        partition = self._partitions[log.partition]
        partition.moved = True
        if partition.term is not None and not self._closed:
            self._load_again(partition)

    def _failed(self, topic: Topic, partition: _Partition, term: Term, error: Exception) -> None:
        """An append or a handler failed: the shard is no longer what the log says."""
        if partition.term is not term or self._closed:
            return
        if isinstance(error, FencedEpoch):
            logger.warning("%s-%d is coordinated by another broker now", topic.name, partition.number)
            partition.epoch = None
            self._end_term(partition, _Status.FENCED, ErrorCode.not_coordinator)
            return
        logger.warning("%s-%d is loaded again: %s", topic.name, partition.number, error)
        self._load_again(partition)

    def _load_again(self, partition: _Partition) -> None:
        self.reloads += 1
        self._load_soon(partition)
        self._end_term(partition, _Status.LOADING, ErrorCode.coordinator_not_available)

    def _end_term(self, partition: _Partition, status: _Status, error: ErrorCode) -> None:
        term, partition.term = partition.term, None
        partition.status = status
        if term is not None:
            term.close(error)

    def _ring(self, number: int) -> None:
        term = self._partitions[number].term
        if term is not None:
            term.tick()

    async def _reconcile(self) -> None:
        """Let Redis groups catch up with what was loaded; what fails is tried again with the next load or
        commit.
        """
        try:
            delay_s = FIRST_RETRY_S
            while self._projector.expects:
                try:
                    await self._projector.reconcile(len(self._partitions))
                except StorageError as error:
                    logger.warning("Redis groups are not compared with their commits yet: %s", error)
                    await asyncio.sleep(delay_s)
                    delay_s = min(2 * delay_s, LAST_RETRY_S)
        finally:
            self._reconciling = False

    # Tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the group coordinator failed", exc_info=task.exception())

    @staticmethod
    def _event() -> asyncio.Future[ErrorCode]:
        return asyncio.get_running_loop().create_future()


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    """Set a result that perhaps nobody waits for any more."""
    if not future.done():
        future.set_result(result)
