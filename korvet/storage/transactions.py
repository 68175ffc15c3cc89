"""What the leader of a partition knows of its transactions without asking Redis: where the oldest open one
begins, and which were aborted lately.

Only the leader appends records of transactions and markers, so what it has seen of its own appends is all
there is, from the moment on at which Redis has told where the log is stable.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# What is older is asked of Redis, along with the records.
_REMEMBERED: Final = 1_000
# A producer in the meta hash: epoch and time, then of its last batches first sequence, last one, offset.
_PRODUCER: Final = struct.Struct(">dd")
_BATCH: Final = struct.Struct(">ddd")
# An open transaction in the meta hash: its producer's id, its first offset.
_OPEN: Final = struct.Struct(">dd")


class Aborted(NamedTuple):
    """An aborted transaction, as offsets; in the order of the markers."""

    last_offset: int
    """Of its marker."""
    first_offset: int
    producer_id: int
    stable_end: int
    """Where the log was stable once the marker was there."""


class KnownProducer(NamedTuple):
    """What a partition's meta hash has of a producer (KIP-98)."""

    producer_id: int
    epoch: int
    last_sequence: int
    """Of its newest batch in this epoch; -1 where there is none."""
    seen_ms: int
    """When it appended last, or had its transaction ended."""
    coordinator_epoch: int
    """Of the coordinator that ended a transaction last; -1 where none was."""
    first_open: int
    """Where its open transaction begins; -1 without one."""


def parse_open(packed: bytes | None) -> dict[int, int]:
    """The producers that have a transaction open, and where these begin, from the meta field `open`."""
    return {int(producer): int(first) for producer, first in _OPEN.iter_unpack(packed or b"")}


def parse_producer(
    field: bytes, packed: bytes, coordinator_epoch: bytes | None, first_open: int
) -> KnownProducer:
    """A producer from its meta field `p:<producer id>`; see append.lua for the form."""
    epoch, seen_ms = _PRODUCER.unpack_from(packed)
    batches = packed[_PRODUCER.size :]
    last_sequence = _BATCH.unpack(batches[-_BATCH.size :])[1] if batches else -1
    return KnownProducer(
        int(field.partition(b":")[2]),
        int(epoch),
        int(last_sequence),
        int(seen_ms),
        -1 if coordinator_epoch is None else int(coordinator_epoch),
        first_open,
    )


class TransactionIndex:
    """The transactions of one log. `known_from` is the first offset from which on all abort markers are
    remembered here; -1 while that is not known.
    """

    __slots__ = ("_aborted", "_begun", "_first_open", "_is_known", "known_from", "prunings")

    def __init__(self) -> None:
        self.prunings = 0
        """How often `prune` was called: what was read of aborted transactions before is not to be used with
        records that were read since.
        """
        self.forget()

    def forget(self) -> None:
        """Nothing is known, as when another server took over: Redis has to be asked."""
        self._first_open: int | None = None
        self._is_known = False
        # First offsets of batches in transactions while it is not known which are open.
        self._begun: list[int] = []
        self._aborted: list[Aborted] = []
        self.known_from = -1

    def stable_end(self, log_end: int) -> int | None:
        """The offset before which every transaction is decided; None while that is not known."""
        if not self._is_known:
            return None
        return log_end if self._first_open is None else self._first_open

    def bounds_known(self, stable_end: int, log_end: int) -> None:
        """Redis said where the log is stable, when it ended at log_end; what was seen since counts more."""
        if self._is_known:
            return
        later = [offset for offset in self._begun if offset >= log_end]
        self._settle(stable_end if stable_end < log_end else min(later, default=None))
        self.known_from = log_end

    def appended(self, base_offset: int) -> None:
        """A batch in a transaction was appended there."""
        if not self._is_known:
            self._begun.append(base_offset)
        elif self._first_open is None:
            self._first_open = base_offset

    def ended(
        self, producer_id: int, marker_offset: int, first_offset: int, stable_end: int, *, committed: bool
    ) -> None:
        """A transaction's marker was appended, behind which the log is stable up to `stable_end`."""
        if self.known_from < 0:
            self.known_from = marker_offset
        # Behind the marker nothing can have begun by then.
        self._settle(stable_end if stable_end <= marker_offset else None)
        if not committed:
            self._aborted.append(Aborted(marker_offset, first_offset, producer_id, stable_end))
            if len(self._aborted) > _REMEMBERED:
                self.known_from = self._aborted[0].last_offset + 1
                del self._aborted[0]

    def learned(self, first: int, aborted: Sequence[Aborted], known_from: int) -> None:
        """Redis told all aborted transactions with markers from `first` on, in their order, asked when
        `known_from` was that: none is missing of those with markers before it.
        """
        if known_from != self.known_from or not 0 <= first < known_from:
            return
        older = aborted[: bisect_left(aborted, (known_from,))]
        beyond = len(older) + len(self._aborted) - _REMEMBERED
        if beyond > 0:
            first, older = older[beyond - 1].last_offset + 1, older[beyond:]
        self._aborted[:0] = older
        self.known_from = first

    def aborted_in(self, first: int, end: int) -> list[Aborted]:
        """The aborted transactions with records in [first, end), of those that are remembered: all, where
        `first` is not before `known_from`.
        """
        return overlapping(self._aborted[bisect_left(self._aborted, (first,)) :], end)

    def prune(self, gone: Sequence[int]) -> None:
        """The markers at these offsets, in order, are about to go: of their transactions no record is in the
        log.
        """
        self._aborted = [each for each in self._aborted if not holds(gone, each.last_offset)]
        self.prunings += 1

    def cut(self, log_start: int) -> None:
        """Nothing before log_start is in the log any more."""
        del self._aborted[: bisect_left(self._aborted, (log_start,))]

    def _settle(self, first_open: int | None) -> None:
        self._is_known = True
        self._first_open = first_open
        self._begun.clear()


def holds(offsets: Sequence[int], offset: int) -> bool:
    """Whether it is among these, which are in order."""
    at = bisect_left(offsets, offset)
    return at < len(offsets) and offsets[at] == offset


def overlapping(aborted: list[Aborted], end: int) -> list[Aborted]:
    """Those with records before `end`, of transactions whose markers are in order. The search ends where the
    log was stable beyond `end`: whatever was aborted later begins behind it.
    """
    found = []
    for each in aborted:
        if each.first_offset < end:
            found.append(each)
        if each.stable_end >= end:
            break
    return found


def member_of(aborted: Aborted) -> bytes:
    """A member of the sorted set; its score is the marker's offset."""
    return b"%d %d %d" % (aborted.producer_id, aborted.first_offset, aborted.stable_end)


def parse_aborted(members: list[bytes]) -> list[Aborted]:
    """Members and scores of the sorted set (ZRANGEBYSCORE ... WITHSCORES)."""
    found = []
    for member, score in zip(members[::2], members[1::2], strict=True):
        producer_id, first, stable_end = map(int, member.split())
        found.append(Aborted(int(score), first, producer_id, stable_end))
    return found
