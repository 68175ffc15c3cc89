"""One partition of a share group, as the broker that leads the partition knows it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from korvet.api.sharing.acknowledgements import given_up_ranges
from korvet.api.sharing.known_records import KnownRecords, LockEnds
from korvet.coordinator.share_partitions import begin
from korvet.groups.own_configs import LATEST
from korvet.groups.share.messages import SharePartition
from korvet.redis.futures import awaited
from korvet.redis_groups.projection import entry_id_before
from korvet.redis_groups.share import Demand, NoShareGroup, PastAcquired, ShareQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from korvet.api.sharing.configs import ShareConfig
    from korvet.api.sharing.counts import ShareCounts
    from korvet.coordinator.share_changes import ShareChanges
    from korvet.log.partition_log import PartitionLog
    from korvet.redis.commands import Commands
    from korvet.redis_groups.share import Acknowledged, Acquired, DeadRecord, Found, Range

# How often the locks of native consumers are looked at while they have records, and how often it is checked
# whether they have some, or have set the group back.
_NATIVES_S: Final = 1.0
_NO_NATIVES_S: Final = 3.0
# The partition's former leader may have given locks. All of them end within the length of one lock: in that
# time they are looked at this often.
_LOOKS: Final = 4


class NotInitialised(Exception):
    """The group does not take records from the partition."""


class SharedPartition:
    """Acquires and acknowledges the records of one group in one partition, and calls back when there may be
    records to acquire: after appends, releases, and the end of locks.
    """

    __slots__ = (
        "_changed",
        "_changes",
        "_counts",
        "_initialised",
        "_is_initialised",
        "_known",
        "_natives_after",
        "_natives_s",
        "_on_dead",
        "_waiting",
        "lock_ends",
        "log",
        "place",
        "queue",
    )

    def __init__(
        self,
        commands: Commands,
        log: PartitionLog,
        group: str,
        counts: ShareCounts,
        is_initialised: Callable[[SharePartition], Awaitable[bool]],
        on_dead: Callable[[SharedPartition, ShareConfig], None],
        changes: ShareChanges,
    ) -> None:
        """is_initialised: see SharePeers. on_dead(self, config): records wait to become dead letters.
        changes: takes note of changed states.
        """
        self.log = log
        self.place = SharePartition(group, log.topic.topic_id.bytes, log.topic.name, log.partition)
        self._is_initialised = is_initialised
        self._counts = counts
        self._on_dead = on_dead
        self._changed = changes.changed
        self.queue = ShareQueue(commands, log.topic, log.partition, group)
        self._initialised = False
        # Counts what may have brought records; 0 while there is nothing to acquire.
        self._changes = 1
        self.lock_ends = LockEnds()
        """When to look for expired locks of members."""
        # When, and from where on, to look at the locks of native consumers.
        self._natives_s = 0.0
        self._natives_after = (b"", b"")
        self._known = KnownRecords()
        self._waiting: dict[Callable[[], None], None] = {}

    def open(self) -> None:
        """Follow the log."""
        self.log.listen(self.wake)

    def close(self) -> None:
        """Cease to follow the log."""
        self.log.unlisten(self.wake)

    def wait(self, callback: Callable[[], None]) -> None:
        """Call back, until `forget`, when there may be records to acquire."""
        self._waiting[callback] = None

    def forget(self, callback: Callable[[], None]) -> None:
        """Cease to call back."""
        self._waiting.pop(callback, None)

    def wake(self) -> None:
        """There may be records to acquire."""
        self._changes += 1
        for callback in list(self._waiting):
            callback()

    @property
    def due_s(self) -> float:
        """When locks may end, by the time of the event loop."""
        return min(self._natives_s, self.lock_ends.first_s)

    def may_have_records(self, now_s: float) -> bool:
        """Whether there may be records to acquire."""
        return self._changes > 0 or self.due_s <= now_s

    async def acquire(
        self, member: str, config: ShareConfig, records: int, size_bytes: int, after: int | None
    ) -> Acquired:
        """Acquire records for a member, those after an offset if there is one. Raises StorageError and
        NotInitialised.
        """
        loop = asyncio.get_running_loop()
        if not self._initialised:
            await self._initialise(config)
        now_s, lock_s = loop.time(), config.limits.lock_ms / 1000
        lock_ends = self.lock_ends
        ended = lock_ends.passed(now_s)
        natives_due = self._natives_s <= now_s
        new = 0 if ended or natives_due else self._known.new(records, config.limits)
        demand = Demand(
            new or records,
            size_bytes,
            self._end(config),
            config.is_committed,
            max(self.log.state.largest_bytes, self._known.largest_bytes),
            after,
            checks_members=ended,
            natives_after=self._natives_after if natives_due else None,
            only_new=new > 0,
        )
        changes, self._changes = self._changes, 0
        try:
            acquired = await self._acquire(member, config, demand)
        except BaseException:
            self._changes += changes + 1
            if ended:
                lock_ends.note(now_s)
            raise
        self._note(acquired, config)
        if acquired.has_more or after is not None:
            self._changes += 1
        if acquired.runs:
            self._changed(self.place)
            lock_ends.note(loop.time() + lock_s)
        found = acquired.found
        if found is not None:
            if found.locks and not lock_ends:
                # Redis's clock went back, or a failover has brought locks back.
                lock_ends.note(loop.time() + lock_s / _LOOKS)
            self._note_natives(found, looked=natives_due)
        return acquired

    def _end(self, config: ShareConfig) -> int | None:
        """The offset before which the group gets records; None without a limit."""
        ends = self.log.ends
        if config.is_committed:
            return ends.last_stable_offset
        return ends.high_watermark if self.log.waits_for_replicas else None

    async def dead(self, config: ShareConfig, count: int, *, copies: bool) -> list[DeadRecord]:
        """Records that wait to become dead letters, see ShareQueue. Raises StorageError."""
        await awaited(self.log.await_watermark)
        return await self.queue.dead(
            count, copies=copies, end=self._end(config), is_committed=config.is_committed
        )

    async def look(self, config: ShareConfig) -> None:
        """End the locks that have expired, also if no member takes records here. Raises StorageError."""
        now_s = asyncio.get_running_loop().time()
        after: tuple[bytes, bytes] | None = (b"", b"")
        has_more, expired = True, 0
        while has_more:
            try:
                demand = Demand(0, 0, self._end(config), natives_after=after)
                looked = await self.queue.acquire("", config.limits, demand, self.log.leader_epoch)
            except NoShareGroup:
                return
            self._note(looked, config)
            assert looked.found is not None
            self._known.released(0)
            expired += looked.found.expired
            after = looked.found.natives_after if any(looked.found.natives_after) else None
            has_more = looked.has_more or after is not None
        self.lock_ends.passed(now_s)
        if expired:
            self.wake()

    def _note(self, acquired: Acquired, config: ShareConfig) -> None:
        self._counts.acquire(acquired)
        found = acquired.found
        if found is not None and found.expired:
            self._changed(self.place)
        if found is not None and found.has_dead:
            self._on_dead(self, config)

    async def _acquire(self, member: str, config: ShareConfig, demand: Demand) -> Acquired:
        acquired, releases = None, self._known.asked(demand)
        limits, epoch = config.limits, self.log.leader_epoch
        try:
            try:
                acquired = await self.queue.acquire(member, limits, demand, epoch)
            except NoShareGroup:
                # A native client has destroyed it, or a failover has lost it.
                await self._begin(config)
                acquired = await self.queue.acquire(member, limits, demand, epoch)
        finally:
            self._known.answered(demand, releases, acquired)
        return acquired

    def _note_natives(self, found: Found, *, looked: bool) -> None:
        now_s = asyncio.get_running_loop().time()
        if not found.has_natives:
            self._natives_s, self._natives_after = now_s + _NO_NATIVES_S, (b"", b"")
        elif looked:
            self._natives_s, self._natives_after = now_s + _NATIVES_S, found.natives_after
        else:
            self._natives_s = min(self._natives_s, now_s + _NATIVES_S)

    async def _initialise(self, config: ShareConfig) -> None:
        """Make the group if there is none. Locks of earlier leaders end within the length of a lock."""
        await awaited(self.log.await_watermark)
        await self._begin(config)
        if self._initialised:
            return
        self._initialised = True
        self._changed(self.place)
        now_s, lock_s = asyncio.get_running_loop().time(), config.limits.lock_ms / 1000
        for look in range(_LOOKS + 2):
            self.lock_ends.note(now_s + lock_s * look / _LOOKS)

    async def _begin(self, config: ShareConfig) -> None:
        """Make the group if there is none: members got it from the coordinator, so it was lost. Unless the
        config says otherwise, it begins where records were lost with it.
        """
        if not await self._is_initialised(self.place):
            raise NotInitialised
        if config.reset != LATEST:
            await begin(self.queue, config.reset, lambda: self.log)
            return
        ended = await self.log.queries.end_of_leader_epoch(max(self.log.leader_epoch - 1, 0))
        assert ended is not None
        _, end = ended
        await self.queue.initialise(entry_id_before(end, self.log.bias))

    async def acknowledge(
        self, member: str, config: ShareConfig, ranges: Sequence[Range]
    ) -> Acknowledged | None:
        """Apply acknowledgements, see ShareQueue. Raises PastAcquired and StorageError."""
        try:
            done = await self.queue.acknowledge(member, config.limits, ranges)
        except PastAcquired:
            self._counts.acknowledge(None)
            raise
        self._counts.acknowledge(done)
        if done is not None:
            self._changed(self.place, given_up_ranges(ranges, released=done.archived > 0))
            if config.limits.keeps_dead and (done.rejected or done.archived):
                self._on_dead(self, config)
            if done.renewed:
                self.lock_ends.note(asyncio.get_running_loop().time() + config.limits.lock_ms / 1000)
            was_full = self._known.is_full(config.limits)
            self._known.acknowledged(done)
            if done.released or was_full:
                self.wake()
        return done

    async def release(self, member: str, config: ShareConfig) -> None:
        """Release all records of a member that is gone. Raises StorageError."""
        archived, released = await self.queue.release(member, config.limits, self._end(config))
        self._counts.archived += archived
        if archived and config.limits.keeps_dead:
            self._on_dead(self, config)
        self._counts.released += released
        self._known.released(archived + released)
        self._changed(self.place)
        self.wake()
