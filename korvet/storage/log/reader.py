"""One read of a partition's log: how many entries to ask for, and what an empty reply means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from korvet.offsets.packing import entry_id
from korvet.records.batch import BatchError
from korvet.records.kernel import entries_to_batches, offset_behind, pack
from korvet.storage.errors import OffsetOutOfRange, StorageError, StorageFault, domain_error
from korvet.storage.link.calls import parse_reply
from korvet.storage.log.entries import empty_batch
from korvet.storage.log.values import BOUNDS_FRESH_S, Fetched

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.log.partition_log import PartitionLog

# Field names, lengths and IDs around a record's payload in a reply, roughly.
_ENTRY_OVERHEAD_BYTES: Final = 64
_MOST_ENTRIES: Final = 8192
# Asked for behind the last point of the index, where large records may follow small ones.
_FEW_ENTRIES: Final = 64
# A reply may become this large in the worst case; beyond, the index is asked first.
_LARGEST_REPLY_BYTES: Final = 32 << 20
# The last entry ID that an exact offset names: 2^53 - 1.
_LAST_ID: Final = "8796093022207-1023"


class Read:
    """One read under way. Callbacks only: no coroutine per fetch."""

    __slots__ = (
        "_at",
        "_count",
        "_done",
        "_gap_end",
        "_limited",
        "_log",
        "_max_bytes",
        "_offset",
        "_on_end",
        "_rechecked",
    )

    def __init__(
        self,
        log: PartitionLog,
        offset: int,
        max_bytes: int,
        done: Callable[[Fetched | StorageError], None],
        on_end: Callable[[int], None],
    ) -> None:
        """`on_end` is told where a reply seems to end, see `offset_behind`, before it is converted."""
        self._log = log
        self._offset = offset
        self._at = offset
        self._max_bytes = max_bytes
        self._done = done
        self._on_end = on_end
        self._limited = False
        self._rechecked = False
        self._gap_end = 0
        self._count = 1

    def start(self) -> None:
        """Send the first command; never calls `done` itself."""
        log = self._log
        if not log.loaded and log.topic.storage_layout == "batch":
            # How large entries are has to be known before many of them are asked for.
            log.links.read_functions.send(log.bounds_payload(), self._loaded)
            return
        expected = log.average_bytes + _ENTRY_OVERHEAD_BYTES
        self._count = max(1, min(int(self._max_bytes / expected) + 1, _MOST_ENTRIES))
        if self._offset < 0 or (log.loaded and not log.log_start <= self._offset <= log.log_end):
            self._recheck()
        elif self._count * log.largest_bytes > _LARGEST_REPLY_BYTES:
            payload = pack(
                "FCALL", "korvet_reading_limit", 1, self._log.keys[1], self._offset, self._max_bytes
            )
            self._log.links.read_functions.send(payload, self._limit_known)
        else:
            self._range(_LAST_ID)

    def _loaded(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._done(domain_error(reply))
            return
        self._log.take_bounds(parse_reply(reply))
        self.start()

    def _limit_known(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._done(domain_error(reply))
            return
        limit = parse_reply(reply)
        if limit < 0:
            self._count = min(self._count, _FEW_ENTRIES)
            self._range(_LAST_ID)
            return
        self._limited = True
        self._range("(" + entry_id(limit, self._log.bias))

    def _range(self, last_id: str) -> None:
        first_id = entry_id(self._at, self._log.bias)
        payload = pack("XRANGE", self._log.stream, first_id, last_id, "COUNT", self._count)
        self._log.links.read.send(payload, self._range_arrived)

    def _range_arrived(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._done(domain_error(reply))
            return
        if bytes(reply[:4]) == b"*0\r\n":
            if self._limited:
                # All of that span was deleted: go on behind it, carefully.
                self._limited = False
                self._count = min(self._count, _FEW_ENTRIES)
                self._range(_LAST_ID)
            elif self._rechecked or self._is_at_end():
                self._nothing_left()
            else:
                self._recheck()
            return
        self._convert(reply)

    def _is_at_end(self) -> bool:
        """Whether both ends were read so recently that nothing can be missed: a gap up to a new log end is
        found the next time.
        """
        log = self._log
        return self._offset == log.log_end and log.loaded and log.bounds_age_s() <= BOUNDS_FRESH_S

    def _convert(self, reply: memoryview) -> None:
        log = self._log
        self._on_end(offset_behind(reply, log.bias))
        try:
            entries = entries_to_batches(
                reply,
                0,
                len(reply),
                bias=log.bias,
                max_bytes=self._max_bytes,
                leader_epoch=log.leader_epoch,
                log_append_time=log.reads_append_time,
                native=log.native,
                base_sequence=log.topic.base_sequence,
            )
        except BatchError as error:
            self._done(StorageFault(f"{log.stream.decode()}: XRANGE gave what cannot be read: {error}"))
            return
        if entries.unaddressable:
            log.note_unaddressable(entries.unaddressable)
        if not entries.record_count and entries.damaged_offset >= 0:
            self._done(log.found_damaged(entries.damaged_offset))
            return
        if not entries.record_count:
            self._at = entries.next_offset
            self._range(_LAST_ID)
            return
        log.average_bytes += (len(entries.data) / entries.consumed_entries - log.average_bytes) / 4
        log.grown_to(entries.last_offset + 1)
        fetched = Fetched(
            entries.data,
            entries.record_count,
            entries.first_offset,
            entries.last_offset,
            entries.next_offset,
            log.log_start,
            log.log_end,
        )
        # What lies before the first record may be a gap, or deleted: then the reader must be told.
        if (
            entries.first_offset > self._offset
            and not self._rechecked
            and log.bounds_age_s() > BOUNDS_FRESH_S
        ):
            self._check_start(fetched)
        else:
            self._done(fetched)

    def _check_start(self, fetched: Fetched) -> None:
        def arrived(reply: memoryview | StorageError) -> None:
            if isinstance(reply, StorageError):
                self._done(domain_error(reply))
                return
            bounds = self._log.take_bounds(parse_reply(reply))
            if self._offset < bounds.log_start:
                self._done(OffsetOutOfRange(self._offset, bounds.log_start, bounds.log_end))
            else:
                self._done(
                    msgspec.structs.replace(fetched, log_start=bounds.log_start, log_end=self._log.log_end)
                )

        self._log.links.read_functions.send(self._log.bounds_payload(), arrived)

    def _recheck(self) -> None:
        """Read both ends again; then, where the offset is between them, ask once more.

        In this order: an entry that comes in between is then found by the second XRANGE, not taken for a gap.
        """
        self._rechecked = True
        self._log.links.read_functions.send(self._log.bounds_payload(), self._bounds_arrived)

    def _bounds_arrived(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._done(domain_error(reply))
            return
        bounds = self._log.take_bounds(parse_reply(reply))
        self._gap_end = bounds.log_end
        if bounds.log_start <= self._offset <= bounds.log_end:
            self._range(_LAST_ID)
        else:
            self._done(OffsetOutOfRange(self._offset, bounds.log_start, bounds.log_end))

    def _nothing_left(self) -> None:
        log, end = self._log, self._gap_end
        if self._offset >= end:
            log.end_told()
            self._done(Fetched(b"", 0, -1, -1, self._offset, log.log_start, log.log_end))
            return
        data = empty_batch(self._offset, end - 1, log.leader_epoch)
        self._done(Fetched(data, 0, -1, end - 1, end, log.log_start, log.log_end))
