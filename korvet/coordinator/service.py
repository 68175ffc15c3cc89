"""The group coordinator for the rest of the broker: requests in, replies out, for all 50 partitions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.causes import Causes
from korvet.coordinator.expressions import TopicExpressions
from korvet.coordinator.lane import CommitChange
from korvet.coordinator.loader import OffsetsLoader
from korvet.coordinator.partitions import FIRST_RETRY_S, LAST_RETRY_S, Partitions
from korvet.coordinator.projector import Projector
from korvet.coordinator.refusals import refuse
from korvet.coordinator.served import RELEASE_TIMEOUT_MS
from korvet.coordinator.share_partitions import RedisSharePartitions
from korvet.coordinator.share_states import ShareStates
from korvet.coordinator.steady_clock import SteadyClock
from korvet.coordinator.term import Term
from korvet.coordinator.topics import CatalogueTopics
from korvet.groups.context import GroupCounts
from korvet.groups.messages import DeleteReply, DeleteRequest, ListedGroup, ListReply, ListRequest, Reply
from korvet.groups.own_configs import SHARE_AUTO_OFFSET_RESET
from korvet.groups.shard import GroupShard
from korvet.groups.share.group import ShareGroup
from korvet.offsets.codec import encode_key
from korvet.offsets.packing import offset_of
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey
from korvet.redis.errors import StorageError, TopicExists
from korvet.redis.futures import awaited, resolve
from korvet.redis.keys import OFFSETS_TOPIC
from korvet.redis_groups.projection import Projection
from korvet.topics.configs import DEFAULT_MAX_MESSAGE_BYTES
from korvet.topics.internal import coordinated_topic, create_internal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.topic import Topic
    from korvet.coordinator.partitions import LoadCounts, Partition
    from korvet.coordinator.served import Claim, Done, OnSafe, Token
    from korvet.coordinator.share_partitions import SharePartitions
    from korvet.coordinator.term import Handler
    from korvet.groups.config import GroupConfig
    from korvet.groups.native import NativeGroup
    from korvet.groups.offset_table import GroupTopicPartition
    from korvet.groups.share.messages import Initialisation
    from korvet.log.broker_logs import Logs
    from korvet.records.control import ControlMarker
    from korvet.redis.commands import Commands

logger = logging.getLogger(__name__)
causes = Causes(logger)

OFFSETS_PARTITIONS: Final = 50
"""Partitions of `__consumer_offsets`, unless the settings or its creator set another number."""
FORGET_ATTEMPTS: Final = 3


class CoordinatorError(Exception):
    """The coordinator cannot serve a request that has no field for an error; `code` is the reason."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Watch(NamedTuple):
    """The changes of commits while Redis groups are read: see CoordinatorService.watch."""

    touched: AbstractSet[GroupTopicPartition]
    """The keys whose commit was not projected when the watch began, or has changed since."""
    terms: tuple[Term | None, ...]
    """By partition of `__consumer_offsets`: its term when the watch began."""


class Ticket:
    """A submitted request that may still wait for its reply."""

    __slots__ = ("_term", "_token")

    def __init__(self, term: Term, token: Token) -> None:
        self._term = term
        self._token = token

    def withdraw(self) -> None:
        """Send no reply any more: the client disconnected."""
        self._term.withdraw(self._token)


class CoordinatorService:
    """Coordinates the groups whose partition of `__consumer_offsets` this broker leads. Use from one event
    loop.

    A reply is sent once everything that it depends on is in the log. While a partition is read, its groups
    get COORDINATOR_LOAD_IN_PROGRESS. When an append fails, waiting requests get COORDINATOR_NOT_AVAILABLE and
    the partition is read again. When another broker has acquired its epoch, they get NOT_COORDINATOR.
    """

    def __init__(
        self,
        commands: Commands,
        logs: Logs,
        catalogue: Catalogue,
        config: GroupConfig,
        clock: SteadyClock | None = None,
        *,
        share_partitions: SharePartitions | None = None,
        refresh_configs: Callable[[], Awaitable[None]] | None = None,
        topic_partitions: int = OFFSETS_PARTITIONS,
        message_max_bytes: Callable[[], int] = lambda: DEFAULT_MAX_MESSAGE_BYTES,
        release_timeout_ms: int | None = RELEASE_TIMEOUT_MS,
    ) -> None:
        """clock: of the partitions; share_partitions: states of share groups' partitions (None: in Redis);
        refresh_configs: takes over what other brokers have changed in the groups' configs;
        topic_partitions: of a topic that is still to be created;
        message_max_bytes: of a record, unless the topic's max.message.bytes differs; release_timeout_ms:
        see Claim.
        """
        self._topic_partitions = topic_partitions
        self._commands = commands
        self._logs = logs
        self._catalogue = catalogue
        self._config = config
        self._release_timeout_ms = release_timeout_ms
        self._projector = Projector(Projection(commands), catalogue, self._coordinates, self._is_shared)
        self.sharing = ShareStates(
            self.call,
            share_partitions or RedisSharePartitions(commands, logs, catalogue),
            self._projector.is_changing,
            partial(_reset_of, config, refresh_configs),
        )
        """The states of share groups' partitions."""
        self._partitions: Partitions[Term] = Partitions(
            logs,
            OFFSETS_TOPIC,
            clock or SteadyClock(),
            self._read,
            self._reconcile_soon,
            message_max_bytes=message_max_bytes,
            release_timeout_ms=release_timeout_ms,
        )
        self._reconciling = False
        # Held while the topic is created or replaced. Changes are followed after that.
        self._making = asyncio.Lock()
        self._forgetting = asyncio.Lock()
        self.counts = GroupCounts()
        """What is counted for metrics."""
        self._expressions = TopicExpressions(catalogue, self._partitions.spawn)
        self._topics = CatalogueTopics(catalogue, self._expressions)

    @property
    def terms(self) -> Iterator[tuple[int, Term]]:
        """The loaded partitions of `__consumer_offsets`, by number."""
        return ((each.number, each.term) for each in self._partitions if each.term is not None)

    @property
    def loads(self) -> LoadCounts:
        """What is counted of the loading of partitions."""
        return self._partitions.counts

    @property
    def unprojected(self) -> tuple[int, int]:
        """How many commits have not reached their Redis groups yet: those on their way, and those that
        Redis refused.
        """
        return self._projector.waiting, self._projector.failed

    @property
    def reloads(self) -> int:
        """How often a partition was read again because an append had failed."""
        return self._partitions.counts.reloads

    # Life cycle

    async def start(self) -> None:
        """Create `__consumer_offsets` if it does not exist, and begin to load its partitions that this
        broker leads. Raises StorageError.
        """
        async with self._making:
            await coordinated_topic(self._catalogue, OFFSETS_TOPIC, self._topic_partitions)
        self.follow_assignment()

    def follow_assignment(self) -> None:
        """Load the partitions that this broker leads now; unload those that it does not lead, or leads in
        a later epoch.
        """
        if not self._making.locked():
            self._partitions.follow(self._catalogue.get(OFFSETS_TOPIC))

    async def wait_loaded(self) -> None:
        """Wait until every partition serves or is coordinated by another broker."""
        await self._partitions.wait_loaded()

    @property
    def served(self) -> int:
        """How many partitions are served."""
        return self._partitions.served

    @property
    def loading(self) -> int:
        """How many partitions are being loaded."""
        return self._partitions.loading

    async def close(self) -> None:
        """Refuse waiting requests and stop. Everything that was promised is in the log."""
        await self._partitions.close()
        await self._projector.close()

    # Requests

    def submit(self, group_id: str, handler: Handler, request: Any, done: Done) -> Ticket | None:
        """Let `handler`, one of GroupShard's request handlers (for example GroupShard.join), handle a request
        of a group.

        done(reply) is called exactly once, possibly before this returns; the reply has the type that belongs
        to the request, also for errors. Returns the argument for `withdraw`; None if the coordinator's state
        answers the request.
        """
        partition = self._partition_of(group_id)
        if partition is None:
            done(refuse(request, ErrorCode.coordinator_not_available))
            return None
        term = partition.term
        if term is None:
            done(refuse(request, partition.error))
            return None
        return Ticket(term, term.submit(handler, request, done))

    async def call(self, group_id: str, handler: Handler, request: Any) -> Any:
        """`submit`, awaited. A cancelled call means that the client disconnected."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        ticket = self.submit(group_id, handler, request, partial(resolve, reply))
        try:
            return await reply
        finally:
            if ticket is not None and reply.cancelled():
                ticket.withdraw()

    async def look_for_topics(self, pattern: str) -> None:
        """Find the topics that an expression matches, for the heartbeat that names it. Raises
        InvalidRegex, also if the search takes too long.
        """
        await self._expressions.find(pattern)

    async def delete_group(self, group_id: str) -> ErrorCode:
        """DeleteGroups of one group; the states of a share group's partitions are removed before it is.
        Returns the error.
        """
        found = await self.sharing.remove(group_id)
        if found.error is not ErrorCode.none:
            return found.error
        reply: DeleteReply = await self.call(group_id, GroupShard.delete_groups, DeleteRequest((group_id,)))
        return reply.groups[0].error

    async def list_groups(self, request: ListRequest) -> ListReply:
        """The groups that this broker coordinates. Raises CoordinatorError while some of them are being
        loaded, or depend on records that replicas do not have in time.
        """
        groups: list[ListedGroup] = []
        answers = []
        for partition in self._partitions:
            if partition.term is not None:
                answer: asyncio.Future[ListReply] = asyncio.get_running_loop().create_future()
                partition.term.submit(GroupShard.list_groups, request, partial(resolve, answer))
                answers.append(answer)
            elif partition.error is not ErrorCode.not_coordinator:
                raise CoordinatorError(partition.error)
            # There may be many groups: other clients are served between partitions.
            await asyncio.sleep(0)
        for reply in await asyncio.gather(*answers):
            if reply.error is not ErrorCode.none:
                raise CoordinatorError(reply.error)
            groups += reply.groups
        return ListReply(tuple(groups))

    async def forget_topic(self, name: str) -> None:
        """Write tombstones for all offsets that groups have committed for a topic; returns once they are
        safe.

        Waits for partitions that are being loaded. Raises CoordinatorError if a write failed, or if replicas
        do not have the tombstones in time: try again.
        """
        # A topic costs a look at all offsets in one turn of the loop: clients are served between two topics.
        async with self._forgetting:
            await asyncio.sleep(0)
        await asyncio.gather(*(self._forget_topic(partition, name) for partition in self._partitions))

    async def _forget_topic(self, partition: Partition[Term], name: str) -> None:
        error = ErrorCode.none
        for _ in range(FORGET_ATTEMPTS):
            await partition.changed.wait()
            if partition.epoch is None:
                # The group's coordinator forgets the topic.
                return
            if partition.term is None:
                error = partition.error
                continue
            states = partition.term.shard.states_of_topic(name)
            error = await self._in_time(partial(partition.term.delete_topics, (name,)))
            if error is ErrorCode.none:
                for place in states:
                    self.sharing.changes.removed(place)
                return
            if error is ErrorCode.request_timed_out:
                break
        raise CoordinatorError(error)

    async def _in_time(self, submit: Callable[[OnSafe], None]) -> ErrorCode:
        """The error of what `submit` has begun; REQUEST_TIMED_OUT if replicas do not have it in time."""
        timeout_ms = self._release_timeout_ms
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                return await awaited(submit)
        except TimeoutError:
            return ErrorCode.request_timed_out

    async def mark(self, number: int, marker: ControlMarker) -> ErrorCode:
        """End a producer's transaction in a partition of `__consumer_offsets`; see Term.mark. Other
        errors are retriable.
        """
        partition = self._partitions[number] if 0 <= number < len(self._partitions) else None
        if partition is None:
            return ErrorCode.coordinator_not_available
        if partition.term is None:
            return partition.error
        return await self._in_time(partial(partition.term.mark, marker))

    # Redis groups that native consumers have moved

    @contextlib.contextmanager
    def watch(self) -> Iterator[Watch | None]:
        """Note which commits change, to recognise what becomes out of date while Redis groups are read.
        None if that cannot be known, or if nothing is coordinated here. One watch at a time.
        """
        terms = tuple(partition.term for partition in self._partitions)
        if self._projector.expects or not any(terms):
            yield None
            return
        unprojected = (place for term in terms if term is not None for place in term.unprojected())
        try:
            yield Watch(self._projector.watch(unprojected), terms)
        finally:
            self._projector.unwatch()

    def export(self, groups: Sequence[NativeGroup], watch: Watch) -> list[NativeGroup]:
        """Commit what native consumers have moved, as read since `watch` began, if it is known to be up
        to date and the group is coordinated here. Returns those of which Redis has lost the newest
        commit: for `project_again`.
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
        """Set a Redis group to the newest commit of its Kafka group. If the Redis group has followed a record
        that a failover has lost, forget that. Raises StorageError.
        """
        topic = self._partitions.topic
        if topic is None or self._watched_term(native, watch) is None:
            return
        number = partition_for(native.group, len(self._partitions))
        log = self._logs.get(topic, number)
        latest = self._commands.keyspace.latest(topic.name, number)
        key = encode_key(OffsetCommitKey(*native.place))
        entry = await log.links.read.call("HGET", latest, key)
        position = None if entry is None else offset_of(entry, log.bias)
        projected = native.projected
        is_lost = projected is not None and (position is None or position <= projected.position)
        if is_lost and self._watched_term(native, watch) is not None:
            await self._projector.forget(native.topic, native.partition, [native.group])
        term = self._watched_term(native, watch)
        committed = term and term.committed(native.place)
        if position is not None and committed:
            change = CommitChange(*native.place, position, committed.offset, restored=True)
            self._projector.apply([change], lambda: None)

    def _watched_term(self, native: NativeGroup, watch: Watch) -> Term | None:
        """The term of the group's partition; None if the term is another one now, the commit has changed,
        or the topic is gone.
        """
        topic = self._catalogue.get(native.topic)
        if topic is None or topic.topic_id.bytes != native.topic_id:
            return None
        if native.place in watch.touched or self._projector.expects:
            return None
        number = partition_for(native.group, len(self._partitions))
        term = self._partitions[number].term
        return term if term is watch.terms[number] else None

    # The topic

    def partition_of(self, group_id: str) -> tuple[str, int]:
        """The partition of `__consumer_offsets` that holds a group's offsets, by name and number."""
        topic = self._catalogue.get(OFFSETS_TOPIC)
        count = self._topic_partitions if topic is None else topic.partitions
        return OFFSETS_TOPIC, partition_for(group_id, count)

    async def topic_is_unused(self) -> bool:
        """Whether nothing was ever written to `__consumer_offsets`, and no other broker can write to it
        now. Raises StorageError.
        """
        member, topic = self._logs.membership, self._catalogue.get(OFFSETS_TOPIC)
        if topic is None:
            return True
        if member is not None and not member.leadership.alone:
            return False
        streams = (
            self._commands.keyspace.stream(OFFSETS_TOPIC, number) for number in range(topic.partitions)
        )
        # Sent on the write link, so after all appends in flight.
        return not any(await asyncio.gather(*(self._commands.call("EXISTS", stream) for stream in streams)))

    async def make_topic_anew(self, partitions: int, configs: Mapping[str, str]) -> Topic:
        """Replace an unused `__consumer_offsets` by one with these properties. No group is served during
        this.

        Raises TopicExists if it is used, or if other brokers exist, which coordinate groups, too;
        StorageError.
        """
        try:
            async with self._making:
                self._partitions.retire()
                if not await self.topic_is_unused():
                    raise TopicExists(f"Topic '{OFFSETS_TOPIC}' already exists.")
                if self._catalogue.get(OFFSETS_TOPIC) is not None:
                    await self._catalogue.delete(OFFSETS_TOPIC)
                topic = await create_internal(self._catalogue, OFFSETS_TOPIC, partitions, configs)
                logger.warning(
                    "%s is created again with %d partitions, as a client requests", OFFSETS_TOPIC, partitions
                )
                return topic
        finally:
            self.follow_assignment()

    # Partitions

    def _partition_of(self, group_id: str) -> Partition[Term] | None:
        """None before `start`."""
        count = len(self._partitions)
        return self._partitions[partition_for(group_id, count)] if count else None

    def _coordinates(self, group_id: str) -> bool:
        partition = self._partition_of(group_id)
        return partition is not None and partition.epoch is not None

    def _is_shared(self, group_id: str) -> bool:
        partition = self._partition_of(group_id)
        term = None if partition is None else partition.term
        return term is not None and isinstance(term.shard.groups.get(group_id), ShareGroup)

    async def _read(self, claim: Claim) -> Term:
        # Leader epochs never repeat, and after a loss they are higher than the lost generations.
        shard = GroupShard(
            self._config, lambda: str(uuid.uuid4()), self._topics, claim.log.leader_epoch, self.counts
        )
        loader = OffsetsLoader(self._commands.keyspace, claim.log)
        if claim.log_end > 0:
            await loader.replay_into(shard)
        self._projector.expect(loader.commits, claim.log.partition, claim.log_end, len(self._partitions))
        return Term(shard, claim, self._projector, loader.positions, self._initialise_soon)

    def _initialise_soon(self, term: Term, initialisations: Sequence[Initialisation]) -> None:
        self._partitions.spawn(partial(self.sharing.initialise, term, initialisations))

    def _log_end(self, number: int) -> int | None:
        """The log end of a partition of `__consumer_offsets`; None if the partition is not served."""
        topic = self._partitions.topic
        if topic is None or number >= len(self._partitions) or self._partitions[number].term is None:
            return None
        return self._logs.get(topic, number).ends.log_end

    def _reconcile_soon(self) -> None:
        if self._projector.expects and not self._reconciling:
            self._reconciling = True
            self._partitions.spawn(self._reconcile)

    async def _reconcile(self) -> None:
        """Let Redis groups catch up with what was loaded; a failure is retried with the next load or
        commit.
        """
        delay_s = FIRST_RETRY_S
        while self._projector.expects:
            try:
                await self._projector.reconcile(len(self._partitions), self._log_end)
            except StorageError as error:
                message = "Redis groups are not compared with their commits yet: %s"
                causes.warn(error, message, error, work="comparison")
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, LAST_RETRY_S)
        causes.ended("comparison")
        self._reconciling = False


async def _reset_of(config: GroupConfig, refresh: Callable[[], Awaitable[None]] | None, group_id: str) -> str:
    """The group's share.auto.offset.reset. Raises StorageError."""
    if refresh is not None:
        await refresh()
    return config.text(group_id, SHARE_AUTO_OFFSET_RESET)
