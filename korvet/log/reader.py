"""One read of a partition's log: the number of entries to ask for, and the meaning of an empty reply."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.log.values import LAST_OFFSET, Fetched
from korvet.offsets.packing import entry_id
from korvet.records.batch import BatchError
from korvet.records.control import gap_batch
from korvet.records.kernel import entries_to_batches, pack_command, predict_end_offset
from korvet.redis.calls import parse_reply
from korvet.redis.errors import (
    DamagedBatch,
    OffsetOutOfRange,
    StorageError,
    StorageFault,
    domain_error,
)
from korvet.redis.functions import named

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.state import LogState
    from korvet.log.values import Bounds
    from korvet.records.batch import Entries

log = logging.getLogger(__name__)

# Field names, lengths and IDs around a record's payload in a reply, roughly.
_ENTRY_OVERHEAD_BYTES: Final = 64
_MOST_ENTRIES: Final = 8192
# Entries asked for after the last point of the index: large records may follow small ones there.
_FEW_ENTRIES: Final = 64
# The size of a reply in the worst case; beyond it the index is asked first.
_LARGEST_REPLY_BYTES: Final = 32 << 20
_LAST_ID: Final = entry_id(LAST_OFFSET)
# Damaged batches of one log that are logged; further ones need no lines of their own.
_MOST_DAMAGED_LOGGED: Final = 1_000


class UnreadableEntries:
    """Logs the entries of one log that consumers cannot get, each kind or entry once."""

    __slots__ = ("_damaged_offsets", "_state", "_unaddressable_logged")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._unaddressable_logged = False
        self._damaged_offsets: set[int] = set()

    def note_unaddressable(self) -> None:
        """Note that a read left out entries that no offset can name."""
        if not self._unaddressable_logged:
            self._unaddressable_logged = True
            log.warning(
                "%s holds entries that Kafka clients cannot see: more than 1,024 in one millisecond. "
                "Native writers that need more can use FCALL korvet_xadd",
                self._state.name,
            )

    def damaged(self, offset: int) -> DamagedBatch:
        """The error for a record batch that cannot be read, in the entry at this offset."""
        entry = entry_id(offset, self._state.bias)
        error = DamagedBatch(
            f"{self._state.name}: entry {entry} is a damaged record batch (wrong CRC, length or place). "
            f"Consumers get CORRUPT_MESSAGE there until they seek to offset {offset + 1}"
        )
        if offset not in self._damaged_offsets and len(self._damaged_offsets) < _MOST_DAMAGED_LOGGED:
            self._damaged_offsets.add(offset)
            log.error("%s", error)
        return error


class Read:
    """One read under way. Callbacks only: no coroutine per fetch."""

    __slots__ = (
        "_at",
        "_count",
        "_done",
        "_gap_end",
        "_is_ours",
        "_limited",
        "_max_bytes",
        "_offset",
        "_on_end",
        "_rechecked",
        "_state",
        "_unreadable",
    )

    def __init__(
        self,
        state: LogState,
        unreadable: UnreadableEntries,
        offset: int,
        max_bytes: int,
        done: Callable[[Fetched | StorageError], None],
        on_end: Callable[[int], None],
    ) -> None:
        """`on_end` is called with the probable end of the reply (`predict_end_offset`) before the reply is
        converted.
        """
        self._state = state
        self._unreadable = unreadable
        self._offset = offset
        self._at = offset
        self._max_bytes = max_bytes
        self._done = done
        self._on_end = on_end
        self._limited = False
        """Whether XRANGE ends at a point of the index."""
        self._rechecked = False
        """Whether both ends were read again."""
        self._gap_end = 0
        """The log end at that time."""
        self._is_ours = False
        """Whether the records that were read are part of the log in our leader epoch."""
        self._count = 1

    def start(self) -> None:
        """Send the first command. It never calls `done` itself."""
        state = self._state
        if not state.known.loaded and state.topic.storage_layout == "batch":
            # The size of the entries has to be known before many of them are asked for.
            state.read_bounds(lambda _: self.start(), self._done)
            return
        expected = state.average_bytes + _ENTRY_OVERHEAD_BYTES
        self._count = max(1, min(int(self._max_bytes / expected) + 1, _MOST_ENTRIES))
        ends, loaded = state.ends, state.known.loaded
        if self._offset < 0 or (loaded and not ends.local_log_start <= self._offset <= ends.log_end):
            self._recheck()
        elif state.release is not None and loaded and self._offset >= ends.high_watermark:
            asyncio.get_running_loop().call_soon(self._nothing_left)
        elif self._count * state.largest_bytes > _LARGEST_REPLY_BYTES:
            name, index = named("korvet_reading_limit"), state.keys[1]
            payload = pack_command("FCALL", name, 1, index, self._offset, self._max_bytes)
            state.links.read_functions.send(payload, self._limit_known)
        else:
            self._range_to_end()

    def _limit_known(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._done(domain_error(reply))
            return
        limit = parse_reply(reply)
        if limit < 0:
            self._count = min(self._count, _FEW_ENTRIES)
            self._range_to_end()
            return
        self._limited = True
        state = self._state
        if state.release is not None:
            limit = min(limit, state.ends.high_watermark)
        self._range("(" + entry_id(limit, state.bias))

    def _range_to_end(self) -> None:
        """Read up to the high watermark, or as far as the log reaches if it is all released."""
        state = self._state
        if state.release is None:
            self._range(_LAST_ID)
        else:
            self._range("(" + entry_id(state.ends.high_watermark, state.bias))

    def _range(self, last_id: str) -> None:
        first_id = entry_id(self._at, self._state.bias)
        payload = pack_command("XRANGE", self._state.stream, first_id, last_id, "COUNT", self._count)
        self._state.links.read.send(payload, self._range_arrived)

    def _range_arrived(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._done(domain_error(reply))
            return
        if bytes(reply[:4]) == b"*0\r\n":
            if self._limited:
                # The whole span was deleted: continue after it with few entries.
                self._limited = False
                self._count = min(self._count, _FEW_ENTRIES)
                self._range_to_end()
            elif self._rechecked or self._is_at_end():
                self._nothing_left()
            else:
                self._recheck()
            return
        self._convert(reply)

    def _is_at_end(self) -> bool:
        """Whether the offset is at the high watermark and both ends are fresh. A gap up to a new log end is
        found by the next read.
        """
        state = self._state
        at_end = state.ends.high_watermark <= self._offset <= state.ends.log_end
        return at_end and state.known.loaded and state.has_fresh_bounds

    def _convert(self, reply: memoryview) -> None:
        state = self._state
        self._on_end(predict_end_offset(reply, state.bias))
        try:
            entries = entries_to_batches(
                reply,
                0,
                len(reply),
                bias=state.bias,
                max_bytes=self._max_bytes,
                leader_epoch=state.leader_epoch,
                log_append_time=state.reads_append_time,
                native=state.native,
                base_sequence=state.topic.base_sequence,
            )
        except BatchError as error:
            self._done(StorageFault(f"{state.name}: XRANGE returned unreadable entries: {error}"))
            return
        if entries.unaddressable:
            self._unreadable.note_unaddressable()
        if entries.record_count:
            self._take(entries)
        elif entries.damaged_offset >= 0:
            self._done(self._unreadable.damaged(entries.damaged_offset))
        else:
            self._at = entries.next_offset
            self._range_to_end()

    def _take(self, entries: Entries) -> None:
        """Deliver records, after a check of the log start if they begin after the requested offset."""
        state = self._state
        first, last, after = entries.first_offset, entries.last_offset, entries.next_offset
        assert first <= last < after, f"records from {first} to {last}, then {after}"
        assert self._offset <= last, f"offset {self._offset} was read, with records up to {last}"
        if state.epoch is not None and entries.last_offset >= state.ends.log_end and not self._is_ours:
            # Somebody else appended: Redis clients, or the next leader of the partition.
            self._check_leader(entries)
            return
        state.note_read(len(entries.data), entries.consumed_entries)
        state.grow_to(entries.last_offset + 1)
        fetched = Fetched(
            entries.data,
            entries.record_count,
            entries.first_offset,
            entries.last_offset,
            entries.next_offset,
            state.ends,
        )
        # The offsets before the first record may be a gap. If they were deleted, the reader gets an error.
        if entries.first_offset > self._offset and not self._rechecked and not state.has_fresh_bounds:
            self._check_start(fetched)
        else:
            self._done(fetched)

    def _check_leader(self, entries: Entries) -> None:
        """Deliver records after the known log end, unless a later leader may have appended them."""

        def arrived(bounds: Bounds) -> None:
            if self._state.is_superseded(bounds.epoch):
                self._done(self._state.superseded())
            else:
                self._is_ours = True
                self._take(entries)

        self._state.read_bounds(arrived, self._done)

    def _check_start(self, fetched: Fetched) -> None:
        def arrived(bounds: Bounds) -> None:
            if self._offset < bounds.log_start:
                self._done(OffsetOutOfRange(self._offset, bounds.log_start, bounds.log_end))
            else:
                self._done(msgspec.structs.replace(fetched, ends=self._state.ends))

        self._state.read_bounds(arrived, self._done)

    def _recheck(self) -> None:
        """Read both ends again, then send XRANGE once more if the offset is between them.

        In this order: the second XRANGE finds an entry that arrives in between, which would be taken for a
        gap otherwise.
        """
        self._rechecked = True
        self._state.read_bounds(self._bounds_arrived, self._done)

    def _bounds_arrived(self, bounds: Bounds) -> None:
        self._gap_end = bounds.log_end
        if self._offset > bounds.log_end and self._state.is_superseded(bounds.epoch):
            self._done(self._state.superseded())
        elif bounds.log_start <= self._offset <= bounds.log_end:
            self._range_to_end()
        else:
            self._done(OffsetOutOfRange(self._offset, bounds.log_start, bounds.log_end))

    def _nothing_left(self) -> None:
        state, ends = self._state, self._state.ends
        end = min(self._gap_end, ends.high_watermark)
        if self._offset >= end:
            state.note_end_read()
            self._done(Fetched(b"", 0, -1, -1, self._offset, ends))
            return
        data = gap_batch(end - 1, state.leader_epoch)
        self._done(Fetched(data, 0, -1, end - 1, end, ends))
