"""Reads for consumers that want committed records only (isolation level read_committed, KIP-98).

They get whole batches up to where the log is stable, and are told which transactions among them were aborted:
they leave these out themselves. What is not known here of aborted transactions is asked of Redis in the same
go as the records.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.offsets.record_batch import BASE_OFFSET_AND_LENGTH, LAST_OFFSET_DELTA_AT, LENGTH_EXCLUDES_BYTES
from korvet.records.kernel import pack
from korvet.storage.errors import StorageError, domain_error
from korvet.storage.link.calls import parse_reply
from korvet.storage.log.entries import empty_batch
from korvet.storage.log.transactions import Aborted, overlapping, parse_aborted

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.log.values import Fetched

_DELTA: Final = struct.Struct(">i")


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Record batches before the last stable offset."""

    batches: list[bytes]
    """In any number of pieces."""
    aborted: list[Aborted]
    """The transactions with records in them that were aborted."""
    last_stable_offset: int
    """The last stable offset that they are cut at."""
    log_start: int
    log_end: int


def cut_batches(pieces: list[bytes], end: int) -> tuple[list[bytes], int]:
    """The batches that begin before `end`, and the offset behind the last of them, -1 where there is none."""
    kept: list[bytes] = []
    behind = -1
    for piece in pieces:
        at = 0
        while at < len(piece):
            base, length = BASE_OFFSET_AND_LENGTH.unpack_from(piece, at)
            if base >= end:
                return ([*kept, piece[:at]] if at else kept), behind
            behind = base + _DELTA.unpack_from(piece, at + LAST_OFFSET_DELTA_AT)[0] + 1
            at += LENGTH_EXCLUDES_BYTES + length
        kept.append(piece)
    return kept, behind


def cached_committed(
    log: PartitionLog, offset: int, max_bytes: int, room_bytes: int | None, *, zstd: bool
) -> Committed | None:
    """What is known here from `offset` on, at once; None where Redis has to be asked. See
    PartitionLog.cached.
    """
    last_stable_offset = log.last_stable_offset
    if offset < log.log_start:
        return None
    if offset >= last_stable_offset:
        if not log.last_stable_offset_is_current:
            return None
        if offset < log.log_end:
            return Committed([], [], last_stable_offset, log.log_start, log.log_end)
    aborted = log.transactions.aborted_from(offset) if offset < last_stable_offset else []
    if aborted is None:
        return None
    pieces = log.cached(offset, max_bytes, room_bytes, zstd=zstd)
    if pieces is None:
        return None
    if not pieces:
        return Committed([], [], last_stable_offset, log.log_start, log.log_end)
    return _committed(log, offset, pieces, last_stable_offset, aborted)


def read_committed(
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    done: Callable[[Committed | StorageError], None],
) -> None:
    """As PartitionLog.read, for committed records."""
    _Read(log, offset, max_bytes, done).start()


class _Read:
    """One read at work: of records, and of aborted transactions where these are not known here."""

    __slots__ = (
        "_aborted",
        "_done",
        "_fetched",
        "_last_stable_offset",
        "_log",
        "_max_bytes",
        "_offset",
        "_proven_end",
        "_retractions",
        "_waits",
    )

    def __init__(
        self,
        log: PartitionLog,
        offset: int,
        max_bytes: int,
        done: Callable[[Committed | StorageError], None],
    ) -> None:
        self._log = log
        self._offset = offset
        self._max_bytes = max_bytes
        self._done = done
        self._waits = 0
        self._fetched: Fetched | StorageError | None = None
        self._aborted: list[Aborted] | StorageError | None = None
        self._last_stable_offset = 0
        self._retractions = 0
        self._proven_end = 0

    def start(self) -> None:
        """Ask first where the log is stable, unless that is known to be further on than the offset."""
        log = self._log
        if log.refusal is None and self._offset >= log.transactions.last_stable_offset:
            log.links.read_functions.send(log.bounds_payload(), self._bounds_arrived)
        else:
            self._read()

    def _bounds_arrived(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._done(domain_error(reply))
            return
        log = self._log
        bounds = log.take_bounds(parse_reply(reply))
        if bounds.last_stable_offset <= self._offset <= bounds.log_end:
            self._done(Committed([], [], bounds.last_stable_offset, bounds.log_start, log.log_end))
        else:
            self._read()

    def _read(self) -> None:
        log = self._log
        # Taken before the reading: all that lies before it is decided, and is read as it was decided.
        self._last_stable_offset = log.last_stable_offset
        self._proven_end = log.transactions.proven_end
        self._retractions = log.transactions.retractions
        self._aborted = log.transactions.aborted_from(self._offset)
        self._waits = 1
        if log.refusal is None and self._aborted is None:
            self._waits = 2
            payload = pack("ZRANGEBYSCORE", log.aborted_key, max(self._offset, 0), "+inf", "WITHSCORES")
            log.links.read.send(payload, self._aborted_arrived)
        log.read(self._offset, self._max_bytes, self._records_arrived)

    def _aborted_arrived(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._aborted = domain_error(reply)
        else:
            self._aborted = parse_aborted(parse_reply(reply))
            if self._retractions == self._log.transactions.retractions:
                self._log.transactions.learned(self._offset, self._aborted, self._proven_end)
        self._arrived()

    def _records_arrived(self, outcome: Fetched | StorageError) -> None:
        self._fetched = outcome
        self._arrived()

    def _arrived(self) -> None:
        self._waits -= 1
        if self._waits:
            return
        if self._retractions != self._log.transactions.retractions and not self._log.closed:
            # The records may lack markers of what was read as aborted, or another server holds the log.
            self.start()
            return
        for outcome in (self._fetched, self._aborted):
            if isinstance(outcome, StorageError):
                self._done(outcome)
                return
        fetched, aborted = self._fetched, self._aborted
        assert fetched is not None
        assert not isinstance(fetched, StorageError)
        assert aborted is not None
        assert not isinstance(aborted, StorageError)
        pieces = [fetched.data] if fetched.data else []
        self._done(_committed(self._log, self._offset, pieces, self._last_stable_offset, aborted))


def _committed(
    log: PartitionLog,
    offset: int,
    pieces: list[bytes],
    last_stable_offset: int,
    aborted: list[Aborted],
) -> Committed:
    kept, behind = cut_batches(pieces, last_stable_offset)
    if behind < 0:
        # A reader in a gap before an open transaction gets to where the log is stable, all the same.
        gap: list[bytes] = []
        if pieces and offset < last_stable_offset:
            gap = [empty_batch(offset, last_stable_offset - 1, log.leader_epoch)]
        return Committed(gap, [], last_stable_offset, log.log_start, log.log_end)
    return Committed(kept, overlapping(aborted, behind), last_stable_offset, log.log_start, log.log_end)
