"""The records of share groups (KIP-932): pending entries of the Redis groups of the same names (share.lua).

A member of a share group is the Redis consumer `kafka:<member id>`. Native consumers of the group take from
the same queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from korvet.offsets.packing import entry_id, offset_of
from korvet.records.batch import BatchError
from korvet.records.kernel import entries_to_batches, pack_command, record_runs
from korvet.records.native import native_rule
from korvet.redis.calls import parse_reply
from korvet.redis.errors import RedisFault, StorageError, StorageFault, domain_error
from korvet.redis.functions import named
from korvet.redis.futures import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from korvet.cluster.topic import Topic
    from korvet.records.batch import Entries
    from korvet.redis.commands import Commands

_T = TypeVar("_T")

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
_NOTHING: Final = b"*-1\r\n"
# Entries that are read before the size of one is known, and bytes of entries that are read at once.
_FIRST_READ: Final = 32
_READ_BYTES: Final = 32 << 20
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
    """Only records before this offset. If a member has later ones, it has read them too early, and they were
    not delivered.
    """
    is_committed: bool = False
    """Whether records of aborted transactions are gaps. Then `end` is the last stable offset or before."""
    largest_bytes: int = 0
    """The size of the largest known entry; 0: none is known."""
    after: int | None = None
    """Only records after this offset."""
    checks_members: bool = True
    """Whether to look for expired locks of members."""
    natives_after: tuple[bytes, bytes] | None = (b"", b"")
    """Where to go on looking for expired locks of native consumers; None if this call does not."""
    only_new: bool = False
    """Whether to read new records only: none is released, and no lock may have ended."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """What korvet_share_acquire has found besides records."""

    locks: int
    """Records that members have now."""
    has_natives: bool
    """Whether native consumers have records."""
    expired: int
    """Expired locks that were found."""
    archived: int
    """Records that were archived: released, or their locks had ended, as often as the limit says."""
    has_dead: bool
    """Whether records wait to become dead letters."""
    natives_after: tuple[bytes, bytes]
    """Where to go on looking for expired locks of native consumers."""
    reads_new: bool
    """Whether no released record is left that can be acquired, so new ones can be read."""


class Acquired(msgspec.Struct, frozen=True, gc=False):
    """What a member has acquired."""

    runs: list[Run]
    data: bytes
    """The records of these runs, as record batches."""
    has_more: bool
    """Whether there may be more to acquire, also for others."""
    largest_bytes: int = 0
    """The size of the largest new entry; 0 if none was read."""
    found: Found | None = None
    """None if only new records were read."""

    @property
    def records(self) -> int:
        return sum(run.last - run.first + 1 for run in self.runs)

    @property
    def reads_new(self) -> bool:
        """Whether korvet_share_acquire was called, and has left no released record."""
        return self.found is not None and self.found.reads_new


class _Mixed(NamedTuple):
    """New entries that a member has read. It cannot acquire all of them as they are."""

    first: bytes | str
    """The first entry's ID."""
    last: bytes | str
    goes_back: bool = False
    """Whether a native client has set the group back: the first one is not after Demand.after."""


_NO_ENTRIES: Final = _Mixed("", "")


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
        ones. Raises also NoShareGroup.
        """
        taken, whole = None, demand
        if not demand.only_new:
            taken = await self._take_released(member, limits, demand, leader_epoch, _NO_ENTRIES)
            demand = _rest(demand, limits, taken)
            if not taken.reads_new or demand.records <= 0 or demand.size_bytes <= 0:
                return taken
        while True:
            try:
                new = await self._read_new(member, demand, leader_epoch)
                if isinstance(new, _Mixed):
                    if new.goes_back and taken is not None and taken.runs:
                        first = min(taken.runs[0].first, offset_of(new.first, self._bias))
                        new = new._replace(first=entry_id(first, self._bias))
                        taken, demand = msgspec.structs.replace(taken, runs=[], data=b""), whole
                    new = await self._take_released(member, limits, demand, leader_epoch, new)
            except StorageError:
                if taken is None or not taken.runs:
                    raise
                # The member gets what was acquired; the next call meets the error.
                return taken
            taken = new if taken is None else _joined(taken, new)
            demand = _rest(demand, limits, new)
            has_room = demand.records > 0 and demand.size_bytes >= demand.largest_bytes
            if new.found or not new.has_more or not has_room:
                return taken

    async def _read_new(self, member: str, demand: Demand, leader_epoch: int) -> Acquired | _Mixed:
        """Read records that were never delivered, and acknowledge transaction markers among them. This costs
        Redis half of what the same in a function costs. Commands XREADGROUP and XACK.
        """
        largest = demand.largest_bytes
        fitting = min(demand.size_bytes, _READ_BYTES) // largest if largest else _FIRST_READ
        count = max(1, min(demand.records, fitting))
        group, consumer, stream = self._group, MEMBER_PREFIX + member, self._stream
        new, markers = await self._send(
            pack_command("XREADGROUP", "GROUP", group, consumer, "COUNT", count, "STREAMS", stream, ">"),
            functools.partial(self._new, demand, leader_epoch, count),
        )
        if markers:
            # If this fails, they are locked, and become gaps after the locks have ended.
            with contextlib.suppress(StorageError):
                await self._commands.call("XACK", stream, group, *markers)
        return new

    def _new(
        self, demand: Demand, leader_epoch: int, count: int, reply: memoryview
    ) -> tuple[Acquired | _Mixed, list[bytes]]:
        if bytes(reply[: len(_NOTHING)]) == _NOTHING:
            return Acquired([], b"", has_more=False), []
        at = len(b"*1\r\n*2\r\n$%d\r\n\r\n" % len(self._stream)) + len(self._stream)
        before = _NO_LIMIT if demand.end is None else demand.end
        found = record_runs(
            reply, at, len(reply), bias=self._bias, before=before, is_committed=demand.is_committed
        )
        bounds, markers, largest_bytes = found or ([], [], 0)
        goes_back = bool(bounds) and demand.after is not None and bounds[0] <= demand.after
        if found is not None and not goes_back:
            entries = self._batches(reply, at, leader_epoch)
            if len(entries.data) <= demand.size_bytes or entries.record_count < 2:
                acquired = [
                    Run(first, last, 1) for first, last in zip(bounds[::2], bounds[1::2], strict=True)
                ]
                has_more = entries.consumed_entries == count
                return Acquired(acquired, entries.data, has_more, largest_bytes), markers
        ((_, rows),) = parse_reply(reply)
        return _Mixed(rows[0][0], rows[-1][0], goes_back), []

    async def _take_released(
        self, member: str, limits: Limits, demand: Demand, leader_epoch: int, returned: _Mixed
    ) -> Acquired:
        """Acquire records that were released, or whose locks have expired, after entries that the member has
        read are released. Function korvet_share_acquire.
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
            max(demand.largest_bytes, 1),
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
            *returned,
        )
        return await self._send(payload, functools.partial(self._released, leader_epoch))

    def _released(self, leader_epoch: int, reply: memoryview) -> Acquired:
        if bytes(reply[: len(_GONE)]) == _GONE:
            raise NoShareGroup(f"{self._stream.decode()} has no group {self._group}")
        runs, state, native, native_id, at = _head(reply)
        has_more, reads_new, locks, has_natives, expired, archived, has_dead = map(int, state.split())
        entries = self._batches(reply, at, leader_epoch)
        numbers = list(map(int, runs.split()))
        acquired = Acquired(
            [Run(*numbers[first : first + _RUN]) for first in range(0, len(numbers), _RUN)],
            entries.data,
            bool(has_more or reads_new),
            found=Found(
                locks,
                bool(has_natives),
                expired,
                archived,
                bool(has_dead),
                (native, native_id),
                bool(reads_new),
            ),
        )
        if entries.record_count != acquired.records:
            raise StorageFault(
                f"{self._stream.decode()}: {acquired.records} records were acquired, "
                f"{entries.record_count} can be read"
            )
        return acquired

    async def _send(self, payload: bytes, read: Callable[[memoryview], _T]) -> _T:
        """Send a command, and return what `read` makes of its reply. Raises StorageError."""
        received: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

        def arrived(reply: memoryview | StorageError) -> None:
            if isinstance(reply, StorageError):
                is_gone = isinstance(reply, RedisFault) and reply.code == "NOGROUP"
                resolve(received, NoShareGroup(str(reply)) if is_gone else domain_error(reply))
                return
            try:
                resolve(received, read(reply))
            except (StorageError, BatchError) as error:
                resolve(received, StorageFault(str(error)) if isinstance(error, BatchError) else error)

        self._commands.links(self._stream).write_functions.send(payload, arrived)
        return await received

    def _batches(self, reply: memoryview, at: int, leader_epoch: int) -> Entries:
        """The record batches of a reply from a position on."""
        return entries_to_batches(
            reply,
            at,
            len(reply),
            bias=self._bias,
            max_bytes=_NO_LIMIT,
            leader_epoch=leader_epoch,
            log_append_time=self._topic.bias == 0 and self._topic.log_append_time,
            native=self._native,
            base_sequence=self._topic.base_sequence,
            skip_markers=True,
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

    async def release(self, member: str, limits: Limits, end: int | None) -> tuple[int, int]:
        """Release all records of a member that is gone. `end`: see Demand. Returns how many were archived
        because of the limit, and how many released. Function korvet_share_release.
        """
        archived, released = await self._commands.fcall(
            "korvet_share_release",
            [self._stream],
            self._group,
            member,
            limits.deliveries,
            int(limits.keeps_dead),
            self._bias,
            b"" if end is None else end,
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


def _rest(demand: Demand, limits: Limits, taken: Acquired) -> Demand:
    """What a member still wants after it has acquired records."""
    records = demand.records - taken.records
    if taken.found is not None:
        records = min(records, limits.locks - taken.found.locks)
    return msgspec.structs.replace(
        demand,
        records=records,
        size_bytes=demand.size_bytes - len(taken.data),
        largest_bytes=max(demand.largest_bytes, taken.largest_bytes),
        after=taken.runs[-1].last if taken.runs else demand.after,
        checks_members=False,
        natives_after=None,
    )


def _joined(taken: Acquired, new: Acquired) -> Acquired:
    """What two calls have acquired, one after the other."""
    before, found = taken.found, new.found
    if before is not None and found is None:
        found = msgspec.structs.replace(before, locks=before.locks + new.records)
    elif before is not None and found is not None:
        found = msgspec.structs.replace(
            found,
            expired=before.expired + found.expired,
            archived=before.archived + found.archived,
            has_dead=before.has_dead or found.has_dead,
            natives_after=before.natives_after,
        )
    runs, more = taken.runs, new.runs
    if runs and more and (runs[-1].last + 1, runs[-1].deliveries) == (more[0].first, more[0].deliveries):
        runs, more = [*runs[:-1], Run(runs[-1].first, more[0].last, more[0].deliveries)], more[1:]
    largest_bytes = max(taken.largest_bytes, new.largest_bytes)
    return Acquired([*runs, *more], taken.data + new.data, new.has_more, largest_bytes, found)


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
