"""The records of share groups (KIP-932): pending entries of the Redis groups of the same names (share.lua).

A member of a share group is the Redis consumer `kafka:<member id>`. Native consumers of the group take from
the same queue.
"""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from korvet.records.batch import BatchError
from korvet.records.kernel import entries_to_batches, pack_command
from korvet.records.native import native_rule
from korvet.redis.errors import StorageError, StorageFault, domain_error
from korvet.redis.functions import named
from korvet.redis.futures import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from korvet.cluster.topic import Topic
    from korvet.records.batch import Entries
    from korvet.redis.commands import Commands

MEMBER_PREFIX: Final = "kafka:"
"""What the names of Redis consumers begin with that are members of a share group."""
NOBODY_PREFIX: Final = "korvet:"
"""What the names of Redis consumers begin with that stand for nobody."""
RELEASED: Final = "korvet:released"
"""The Redis consumer whose pending entries nobody has: they can be acquired."""
UNREADABLE: Final = "korvet:unreadable"
"""The Redis consumer whose pending entries Kafka clients cannot get."""
REJECTED: Final = "korvet:rejected"
"""The Redis consumer whose pending entries are to become dead letters (KIP-1191): members rejected them."""
EXHAUSTED: Final = "korvet:exhausted"
"""The Redis consumer whose pending entries are to become dead letters: they were delivered too often."""
FROM_START: Final = "0-0"
FROM_END: Final = "$"
# Record batches of acquired entries are as large as the entries; korvet_share_acquire limits these.
_NO_LIMIT: Final = (1 << 63) - 1
_GONE: Final = b"*0\r\n"
_REFUSED: Final = [-1]
_PAST_ACQUIRED: Final = [-2]
_RUN: Final = 3
# Numbers in a reply of korvet_share_pending before its runs, and of each run.
_STATE, _PENDING_RUN = 4, 4


class NoShareGroup(StorageError):
    """The stream has no Redis group of that name."""


class PastAcquired(Exception):
    """A range of an acknowledgement ends after all records that were acquired."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """The limits of a share group."""

    lock_ms: int
    """How long a member has a record that it acquired."""
    deliveries: int
    """How often a record is delivered at most."""
    locks: int
    """Records of one partition that members have at most."""
    keeps_dead: bool = False
    """Whether archived records wait to become dead letters."""


class Run(NamedTuple):
    """Acquired records with consecutive offsets, both ends included."""

    first: int
    last: int
    deliveries: int
    """How often these records were delivered by now."""


class Range(NamedTuple):
    """Offsets that a member acknowledges, both ends included."""

    first: int
    last: int
    types: bytes
    """The type of each offset, or one type for all, as digits: 0 gap, 1 accept, 2 release, 3 reject, 4 renew.
    """


class Acknowledged(NamedTuple):
    """The numbers of records that an acknowledgement changed."""

    accepted: int
    rejected: int
    archived: int
    """Released records that have been delivered as often as the limit says."""
    released: int
    renewed: int


class Demand(msgspec.Struct, frozen=True, gc=False):
    """What a member wants to acquire in one partition."""

    records: int
    """The most records."""
    size_bytes: int
    """The most bytes; the first record is acquired even if it is larger."""
    end: int | None = None
    """Only records before this offset."""
    is_committed: bool = False
    """Whether records of aborted transactions are gaps. Then `end` is the last stable offset or before."""
    largest_bytes: int = 1
    """The size of the largest known entry."""
    after: int | None = None
    """Only released records after this offset."""
    checks_members: bool = True
    """Whether to look for expired locks of members."""
    natives_after: tuple[bytes, bytes] | None = (b"", b"")
    """Where to go on looking for expired locks of native consumers; None if this call does not."""


class Acquired(msgspec.Struct, frozen=True, gc=False):
    """What a member has acquired."""

    runs: list[Run]
    entries: Entries
    """The records of these runs."""
    has_more: bool
    """Whether there may be more to acquire, also for others."""
    locks: int
    """Records that members have now."""
    has_natives: bool
    """Whether native consumers have records."""
    expired: int
    """Expired locks that were found."""
    archived: int
    """Records that were archived: released, or their locks had ended, as often as the limit says."""
    natives_after: tuple[bytes, bytes]
    """Where to go on looking for expired locks of native consumers."""
    has_dead: bool
    """Whether records wait to become dead letters."""


class DeadRecord(NamedTuple):
    """A record that waits to become a dead letter."""

    entry_id: bytes
    offset: int
    """-1 if no offset names the entry."""
    deliveries: int
    """How often it was delivered."""
    rejected: bool
    """Whether a member rejected it; else it was delivered as often as the limit says."""
    fields: Sequence[bytes]
    """The fields of the entry; empty if they were not asked for, or the entry is gone."""
    is_gap: bool = False
    """Whether no letter is due: native consumers got a transaction marker, or a record of a transaction that
    was aborted then.
    """


class QueueView(NamedTuple):
    """The state of a share group in one partition."""

    start: int
    """The offset of the first record that is neither accepted nor archived."""
    members: int
    """Records that members have."""
    natives: int
    """Records that native consumers have."""
    released: int
    """Records that were delivered, and can be acquired."""
    unreadable: int
    """Entries that Kafka clients cannot get."""
    dead: int
    """Records that wait to become dead letters."""
    new: int
    """Records that were never delivered; -1 if the index has to catch up."""
    first_ms: int
    """The timestamp (ms) of the first record that somebody has or can get; -1 without any."""

    @property
    def lag(self) -> int:
        """Records that are neither accepted nor archived; -1 if the index has to catch up."""
        return -1 if self.new < 0 else self.members + self.natives + self.released + self.new

    def waiting_ms(self, now_ms: int) -> int:
        """How long the first record that somebody has or can get has been there; 0 without any."""
        return 0 if self.first_ms < 0 else max(now_ms - self.first_ms, 0)


class PendingKind(enum.IntEnum):
    """Who has a pending entry."""

    RELEASED = 0
    """Nobody: it can be acquired."""
    TAKEN = 1
    """A member or a native consumer."""
    ARCHIVED = 2
    """Nobody gets it any more, although it is pending."""


class PendingRun(NamedTuple):
    """Pending entries with consecutive offsets, both ends included."""

    first: int
    last: int
    deliveries: int
    kind: PendingKind


class PendingView(NamedTuple):
    """The pending entries of a share group in one partition."""

    start: int
    """The offset of the first record that is neither accepted nor archived."""
    end: int
    """The offset after the record that was delivered last."""
    live: int
    """Delivered records that are neither accepted nor archived."""
    has_more: bool
    """Whether `runs` has only the first 1,000 pending entries."""
    runs: list[PendingRun]
    """In the order of their offsets."""


class NativeConsumer(NamedTuple):
    """A consumer of the Redis group that is no member of the share group."""

    name: str
    records: int
    """Records that it has."""
    idle_ms: int
    """How long ago it last asked for records."""


class ShareQueue:
    """The records of one share group in one partition. Every method raises StorageError."""

    __slots__ = ("_aborted", "_bias", "_commands", "_group", "_index", "_native", "_stream", "_topic")

    def __init__(self, commands: Commands, topic: Topic, partition: int, group: str) -> None:
        keyspace = commands.keyspace
        self._commands = commands
        self._group = group
        self._bias = topic.bias
        self._stream = keyspace.stream(topic.name, partition)
        self._index = keyspace.index(topic.name, partition)
        self._aborted = keyspace.aborted(topic.name, partition)
        self._native = native_rule(topic.native_format)
        self._topic = topic

    async def initialise(self, after: str) -> bool:
        """Make the group, to begin after the entry with this ID (or FROM_START, FROM_END), unless it exists.
        Returns whether it was made. Function korvet_share_initialise.
        """
        fcall = self._commands.fcall("korvet_share_initialise", [self._stream], self._group, after)
        return bool(await fcall)

    async def restart(self, after: str) -> None:
        """Make the group anew, to begin after the entry with this ID: all locks end. Function
        korvet_share_restart.
        """
        await self._commands.fcall("korvet_share_restart", [self._stream], self._group, after)

    async def acquire(self, member: str, limits: Limits, demand: Demand, leader_epoch: int) -> Acquired:
        """Acquire records for a member: first those that were released or whose locks have expired, then new
        ones. Raises also NoShareGroup. Function korvet_share_acquire.
        """
        after = demand.natives_after
        payload = pack_command(
            "FCALL",
            named("korvet_share_acquire"),
            2,
            self._stream,
            self._aborted,
            self._group,
            member,
            self._bias,
            demand.records,
            demand.size_bytes,
            demand.largest_bytes,
            limits.locks,
            limits.deliveries,
            limits.lock_ms,
            b"" if demand.end is None else demand.end,
            int(demand.is_committed),
            int(demand.checks_members),
            int(after is not None),
            *(after or (b"", b"")),
            b"" if demand.after is None else demand.after,
            int(limits.keeps_dead),
        )
        acquired: asyncio.Future[Acquired] = asyncio.get_running_loop().create_future()

        def arrived(reply: memoryview | StorageError) -> None:
            if isinstance(reply, StorageError):
                resolve(acquired, domain_error(reply))
                return
            try:
                resolve(acquired, self._acquired(reply, leader_epoch))
            except (StorageError, BatchError) as error:
                resolve(acquired, StorageFault(str(error)) if isinstance(error, BatchError) else error)

        self._commands.links(self._stream).write_functions.send(payload, arrived)
        return await acquired

    def _acquired(self, reply: memoryview, leader_epoch: int) -> Acquired:
        if bytes(reply[: len(_GONE)]) == _GONE:
            raise NoShareGroup(f"{self._stream.decode()} has no group {self._group}")
        runs, state, name, entry_id, at = _head(reply)
        has_more, locks, has_natives, expired, archived, has_dead = map(int, state.split())
        topic = self._topic
        entries = entries_to_batches(
            reply,
            at,
            len(reply),
            bias=self._bias,
            max_bytes=_NO_LIMIT,
            leader_epoch=leader_epoch,
            log_append_time=topic.bias == 0 and topic.log_append_time,
            native=self._native,
            base_sequence=topic.base_sequence,
        )
        numbers = list(map(int, runs.split()))
        acquired = [Run(*numbers[first : first + _RUN]) for first in range(0, len(numbers), _RUN)]
        count = sum(run.last - run.first + 1 for run in acquired)
        if entries.record_count != count:
            raise StorageFault(
                f"{self._stream.decode()}: {count} records were acquired, {entries.record_count} can be read"
            )
        return Acquired(
            acquired,
            entries,
            bool(has_more),
            locks,
            bool(has_natives),
            expired,
            archived,
            (name, entry_id),
            bool(has_dead),
        )

    async def acknowledge(self, member: str, limits: Limits, ranges: Iterable[Range]) -> Acknowledged | None:
        """Apply acknowledgements, which are in the order of their offsets and do not overlap: all of them, or
        none and return None if the member has no lock on one of the records. Raises also PastAcquired.
        Function korvet_share_acknowledge.
        """
        arguments: list[bytes | int] = [argument for one in ranges for argument in one]
        reply: Sequence[int] = await self._commands.fcall(
            "korvet_share_acknowledge",
            [self._stream],
            self._group,
            member,
            self._bias,
            limits.lock_ms,
            limits.deliveries,
            int(limits.keeps_dead),
            *arguments,
        )
        if reply == _PAST_ACQUIRED:
            raise PastAcquired
        return None if reply == _REFUSED else Acknowledged(*reply)

    async def release(self, member: str, limits: Limits) -> tuple[int, int]:
        """Release all records of a member that is gone. Returns how many were archived because of the limit,
        and how many released. Function korvet_share_release.
        """
        archived, released = await self._commands.fcall(
            "korvet_share_release",
            [self._stream],
            self._group,
            member,
            limits.deliveries,
            int(limits.keeps_dead),
        )
        return archived, released

    async def dead(
        self, count: int, *, copies: bool, end: int | None = None, is_committed: bool = False
    ) -> list[DeadRecord]:
        """Up to `count` records that wait to become dead letters, one at least if any wait. copies: with
        their fields. Large records are a reason to return fewer. `end` and `is_committed`: see Demand.
        Function korvet_share_dead.
        """
        reply = await self._commands.fcall(
            "korvet_share_dead",
            [self._stream, self._aborted],
            self._group,
            self._bias,
            count,
            int(copies),
            b"" if end is None else end,
            int(is_committed),
            read=True,
        )
        return [
            DeadRecord(entry_id, offset, deliveries, bool(rejected), fields, bool(is_gap))
            for entry_id, offset, deliveries, rejected, fields, is_gap in reply
        ]

    async def forget_dead(self, records: Iterable[DeadRecord]) -> None:
        """Archive records that have become dead letters, unless somebody has them again. Function
        korvet_share_forget.
        """
        ids = [one.entry_id for one in records]
        await self._commands.fcall("korvet_share_forget", [self._stream], self._group, *ids)

    async def view(self) -> QueueView | None:
        """The state of the group; None if it does not exist. Function korvet_share_view."""
        keys = [self._stream, self._index]
        reply = await self._commands.fcall("korvet_share_view", keys, self._group, self._bias, read=True)
        return QueueView(*reply) if reply else None

    async def pending(self) -> PendingView | None:
        """The first pending entries of the group; None if it does not exist. Function
        korvet_share_pending.
        """
        reply: Sequence[int] = await self._commands.fcall(
            "korvet_share_pending", [self._stream], self._group, self._bias, read=True
        )
        if not reply:
            return None
        start, end, live, has_more = reply[:_STATE]
        runs = [
            PendingRun(reply[at], reply[at + 1], reply[at + 2], PendingKind(reply[at + 3]))
            for at in range(_STATE, len(reply), _PENDING_RUN)
        ]
        return PendingView(start, end, live, bool(has_more), runs)

    async def native_consumers(self) -> list[NativeConsumer]:
        """The native consumers of the group, which exists (XINFO CONSUMERS)."""
        rows = await self._commands.call("XINFO", "CONSUMERS", self._stream, self._group)
        found = (dict(zip(row[::2], row[1::2], strict=True)) for row in rows)
        return [
            NativeConsumer(name, one[b"pending"], one[b"idle"])
            for one in found
            if not (name := one[b"name"].decode(errors="replace")).startswith((MEMBER_PREFIX, NOBODY_PREFIX))
        ]


def _head(reply: memoryview) -> tuple[bytes, bytes, bytes, bytes, int]:
    """The four bulk strings before the entries in a reply of korvet_share_acquire, and where these begin."""
    at = len(b"*5\r\n")
    found = []
    for _ in range(4):
        end = bytes(reply[at : at + 24]).index(b"\r\n") + at
        size = int(bytes(reply[at + 1 : end]))
        found.append(bytes(reply[end + 2 : end + 2 + size]))
        at = end + 2 + size + 2
    runs, state, name, entry_id = found
    return runs, state, name, entry_id, at
