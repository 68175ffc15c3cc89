"""Reads for consumers that want committed records only (isolation level read_committed, KIP-98).

Such consumers get whole batches up to the last stable offset, and the list of the aborted transactions among
them, whose records they skip themselves. Aborted transactions that are unknown here are read from Redis
together with the records.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.log.transactions import Aborted, overlapping, parse_aborted
from korvet.offsets.record_batch import (
    BASE_OFFSET_AND_LENGTH,
    CONTROL,
    LAST_OFFSET_DELTA_AT,
    LENGTH_EXCLUDES_BYTES,
    TRANSACTIONAL,
)
from korvet.records.control import gap_batch
from korvet.records.kernel import pack_command
from korvet.redis.calls import parse_reply
from korvet.redis.errors import StorageError, domain_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.partition_log import PartitionLog
    from korvet.log.state import LogState
    from korvet.log.values import Bounds, Ends, Fetched

_DELTA: Final = struct.Struct(">i")
# Of a batch's header: base offset, length, attributes, last offset delta, producer ID.
_HEADER: Final = struct.Struct(">qi9xhi16xq")


class Committed(msgspec.Struct, frozen=True, gc=False):
    """Record batches before the last stable offset."""

    batches: list[bytes]
    """The batches, in any number of pieces."""
    aborted: list[Aborted]
    """The aborted transactions with records in the batches."""
    last_stable_offset: int
    """A last stable offset of the log, at or after the end of the batches."""
    ends: Ends
    """The bounds of the log."""


def cut_batches(pieces: list[bytes], end: int) -> tuple[list[bytes], int]:
    """The batches that begin before `end`, and the offset after the last of them; -1 without batches."""
    kept: list[bytes] = []
    after = -1
    for piece in pieces:
        at = 0
        while at < len(piece):
            base, length = BASE_OFFSET_AND_LENGTH.unpack_from(piece, at)
            if base >= end:
                return ([*kept, piece[:at]] if at else kept), after
            after = base + _DELTA.unpack_from(piece, at + LAST_OFFSET_DELTA_AT)[0] + 1
            at += LENGTH_EXCLUDES_BYTES + length
        kept.append(piece)
    return kept, after


def cut_at_lost_marker(
    pieces: list[bytes], aborted: list[Aborted], end: int
) -> tuple[list[bytes], list[Aborted], int]:
    """The batches up to `end`, the aborted transactions that a consumer has to know of, and the end; with an
    earlier end if the consumer would skip records of a later transaction.

    Consumers skip a producer's records from the beginning of an aborted transaction to its marker. If a Redis
    client has deleted the marker, the batches end before the producer's next transaction. The consumer's next
    read begins there, without the aborted transaction. If a Redis client has added a marker before it, the
    batches end with that one, and the next read begins with the aborted transaction. Costs about 1 us per
    batch if a transaction was aborted before `end`, else nothing.
    """
    if not any(each.last_offset < end for each in aborted):
        return pieces, aborted, end
    first, _ = BASE_OFFSET_AND_LENGTH.unpack_from(pieces[0])
    aborted = [each for each in aborted if each.last_offset >= first]
    beginning = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
    # By producer whose records are skipped: the offset of the marker.
    skipped: dict[int, int] = {}
    after = first
    for place, piece in enumerate(pieces):
        at = 0
        while at < len(piece):
            base, length, attributes, delta, producer_id = _HEADER.unpack_from(piece, at)
            while beginning and beginning[-1].first_offset <= base + delta:
                begun = beginning.pop()
                skipped[begun.producer_id] = begun.last_offset
            marker = skipped.get(producer_id, base)
            if not attributes & CONTROL and attributes & TRANSACTIONAL and marker < base:
                return [*pieces[:place], *([piece[:at]] if at else [])], aborted, after
            after = base + delta + 1
            at += LENGTH_EXCLUDES_BYTES + length
            if attributes & CONTROL:
                if base < marker:
                    return [*pieces[:place], piece[:at]], aborted, after
                if marker == base:
                    skipped.pop(producer_id, None)
    return pieces, aborted, end


def cached_committed(
    log: PartitionLog, offset: int, max_bytes: int, remaining_bytes: int | None, *, zstd: bool
) -> Committed | None:
    """Committed batches from `offset` on out of the tail cache, at once; None if Redis has to be asked, or if
    the log is closed. See PartitionLog.cached.
    """
    state = log.state
    known, ends = state.known, state.ends
    stable = ends.last_stable_offset
    if offset < ends.log_start or not known.has_watermark or state.refusal is not None:
        return None
    if offset >= stable:
        if not known.is_stable_current:
            return None
        if offset < ends.log_end:
            return _nothing(ends)
    aborted = state.transactions.aborted_from(offset) if offset < stable else []
    if aborted is None:
        return None
    pieces = log.cached(offset, max_bytes, remaining_bytes, zstd=zstd)
    if pieces is None:
        return None
    if not pieces:
        return _nothing(ends)
    return _committed(state, offset, pieces, stable, aborted)


def _nothing(ends: Ends) -> Committed:
    return Committed([], [], ends.last_stable_offset, ends)


def read_committed(
    log: PartitionLog,
    offset: int,
    max_bytes: int,
    done: Callable[[Committed | StorageError], None],
) -> None:
    """Read committed records; otherwise as PartitionLog.read."""
    read = _Read(log, offset, max_bytes, done)
    if log.state.known.has_watermark:
        read.start()
        return

    def known(error: StorageError | None) -> None:
        if error is None:
            read.start()
        else:
            done(error)

    log.await_watermark(known)


class _Read:
    """One read under way: of records, and of aborted transactions if these are unknown here."""

    __slots__ = (
        "_aborted",
        "_done",
        "_fetched",
        "_generation",
        "_last_stable_offset",
        "_log",
        "_max_bytes",
        "_offset",
        "_pending",
        "_proven_end",
        "_state",
    )

    def __init__(
        self,
        log: PartitionLog,
        offset: int,
        max_bytes: int,
        done: Callable[[Committed | StorageError], None],
    ) -> None:
        self._log = log
        self._state = log.state
        self._offset = offset
        self._max_bytes = max_bytes
        self._done = done
        self._pending = 0
        """Replies that are not here yet."""
        self._fetched: Fetched | StorageError | None = None
        self._aborted: list[Aborted] | StorageError | None = None
        self._last_stable_offset = 0
        self._generation = 0
        self._proven_end = 0

    def start(self) -> None:
        """Read the last stable offset first, unless it is known to be after the offset."""
        state = self._state
        if state.refusal is None and self._offset >= state.known.stable:
            state.read_bounds(self._bounds_arrived, self._done)
        else:
            self._read()

    def _bounds_arrived(self, bounds: Bounds) -> None:
        ends = self._state.ends
        if ends.last_stable_offset <= self._offset <= bounds.log_end:
            self._done(_nothing(ends))
        else:
            self._read()

    def _read(self) -> None:
        state = self._state
        # Taken before the read: all transactions before this offset are decided, and are read as decided.
        self._last_stable_offset = state.ends.last_stable_offset
        self._proven_end = state.transactions.proven_end
        self._generation = state.transactions.generation
        self._aborted = state.transactions.aborted_from(self._offset)
        self._pending = 1
        if state.refusal is None and self._aborted is None:
            self._pending = 2
            payload = pack_command(
                "ZRANGEBYSCORE", state.aborted_key, max(self._offset, 0), "+inf", "WITHSCORES"
            )
            state.links.read.send(payload, self._aborted_arrived)
        self._log.read(self._offset, self._max_bytes, self._records_arrived)

    def _aborted_arrived(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._aborted = domain_error(reply)
        else:
            self._aborted = parse_aborted(parse_reply(reply))
            transactions = self._state.transactions
            if self._generation == transactions.generation:
                transactions.merge_aborted(self._offset, self._aborted, self._proven_end)
        self._arrived()

    def _records_arrived(self, outcome: Fetched | StorageError) -> None:
        self._fetched = outcome
        self._arrived()

    def _arrived(self) -> None:
        self._pending -= 1
        if self._pending:
            return
        state = self._state
        if self._generation != state.transactions.generation and state.refusal is None:
            # The records may lack markers of transactions that were read as aborted, or another server holds
            # the log.
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
        self._done(_committed(state, self._offset, pieces, self._last_stable_offset, aborted))


def _committed(
    state: LogState,
    offset: int,
    pieces: list[bytes],
    last_stable_offset: int,
    aborted: list[Aborted],
) -> Committed:
    kept, after = cut_batches(pieces, last_stable_offset)
    if after < 0:
        # A reader in a gap before an open transaction goes on at the last stable offset.
        gap: list[bytes] = []
        if pieces and offset < last_stable_offset:
            gap = [gap_batch(last_stable_offset - 1, state.leader_epoch)]
        return Committed(gap, [], last_stable_offset, state.ends)
    kept, aborted, after = cut_at_lost_marker(kept, overlapping(aborted, after), after)
    # The last batch may hold records that were appended after the last stable offset was determined. None of
    # them begins a transaction, because no transaction begins within a batch.
    stable = max(last_stable_offset, after)
    return Committed(kept, aborted, stable, state.ends)
