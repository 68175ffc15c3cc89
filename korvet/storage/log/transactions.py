"""What the leader of a partition knows of its transactions without asking Redis: the last stable offset, and
the transactions that were aborted lately.

Redis executes our appends, our reads and the appends of native writers in one order, but the replies come
over several connections: a read may show records of a transaction before the reply to their append is there.
So only a reply that states both the last stable offset and the log end of the same moment proves anything.
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
# An open transaction in the meta hash: its producer's id, and the offset at which it begins.
_OPEN: Final = struct.Struct(">dd")


class Aborted(NamedTuple):
    """An aborted transaction, as offsets; in the order of the markers."""

    last_offset: int
    """Of its marker."""
    first_offset: int
    """Where it began: the log end before its first record."""
    producer_id: int
    last_stable_offset: int
    """The last stable offset once the marker was there."""


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
    """A producer from its meta field `p:<producer id>`; see lua/_producers.lua for the form."""
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
    """The transactions of one log, as far as replies of Redis prove them.

    A reply that states the last stable offset, and the log end of the same moment, proves it for ever: what
    is before that offset is decided, and the last stable offset never goes back. So replies may come in any
    order and over any connection; what they prove only adds up.

    The abort markers are known in one range of offsets, from `known_from` to before `known_to`. The replies
    to our own appends and markers extend it, since each states the log end before it. So do Redis's replies
    to requests for markers.
    """

    __slots__ = ("_aborted", "known_from", "known_to", "last_stable_offset", "proven_end", "retractions")

    def __init__(self) -> None:
        self.retractions = 0
        """How often `prune` or `forget` was called: what was read of aborted transactions before is not to be
        used with records that were read since.
        """
        self.forget()

    def forget(self) -> None:
        """Nothing is known, as when another server took over, which may lack what was written last."""
        self.retractions += 1
        self.last_stable_offset = -1
        """The last stable offset: every transaction that began before it is decided; -1 while not known."""
        self.proven_end = -1
        """Where the log ended when that was so."""
        self._aborted: list[Aborted] = []
        self.known_from = -1
        self.known_to = -1

    def proven(self, last_stable_offset: int, log_end: int) -> bool:
        """One reply stated both the log end and the last stable offset. Returns whether the known last stable
        offset has grown.
        """
        has_grown = last_stable_offset > self.last_stable_offset
        if has_grown:
            self.last_stable_offset = last_stable_offset
        self.proven_end = max(self.proven_end, log_end)
        return has_grown

    def appended(self, previous_end: int, end: int) -> None:
        """An append of ours took effect: no marker lies from previous_end, the log end before, to `end`."""
        if end <= self.known_to:
            # This reply was late: Redis has been asked since.
            return
        if previous_end != self.known_to:
            # What lies in between is not known.
            self._aborted.clear()
            self.known_from = previous_end
        self.known_to = end

    def ended(self, previous_end: int, marker_offset: int, aborted: Aborted | None) -> None:
        """A marker of ours was appended, at log end previous_end; `aborted` is None if it commits."""
        is_news = marker_offset >= self.known_to
        self.appended(previous_end, marker_offset + 1)
        if is_news and aborted is not None:
            self._aborted.append(aborted)
            self._forget_oldest()

    def learned(self, first: int, aborted: Sequence[Aborted], end: int) -> None:
        """Redis returned all aborted transactions with markers from `first` on, in their order, when the log
        reached `end` at least.
        """
        if first >= end or end < self.known_from:
            return
        if not self.known_from <= first <= self.known_to and not first <= self.known_from <= end:
            self._aborted.clear()
            self.known_from = self.known_to = first
        if first < self.known_from:
            self._aborted[:0] = aborted[: bisect_left(aborted, (self.known_from,))]
            self.known_from = first
        if end > self.known_to:
            self._aborted += aborted[bisect_left(aborted, (self.known_to,)) : bisect_left(aborted, (end,))]
            self.known_to = end
        self._forget_oldest()

    def aborted_from(self, first: int) -> list[Aborted] | None:
        """All aborted transactions that may have records from `first` to the last stable offset; None if
        Redis has to be asked.
        """
        if not 0 <= self.known_from <= first or self.known_to < self.proven_end:
            return None
        return self._aborted[bisect_left(self._aborted, (first,)) :]

    def prune(self, gone: Sequence[int]) -> None:
        """The markers at these offsets, in order, are about to go: of their transactions no record is in the
        log.
        """
        self._aborted = [each for each in self._aborted if not holds(gone, each.last_offset)]
        self.retractions += 1

    def cut(self, log_start: int) -> None:
        """Nothing before log_start is in the log any more."""
        del self._aborted[: bisect_left(self._aborted, (log_start,))]

    def _forget_oldest(self) -> None:
        beyond = len(self._aborted) - _REMEMBERED
        if beyond > 0:
            self.known_from = self._aborted[beyond - 1].last_offset + 1
            del self._aborted[:beyond]


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
        if each.last_stable_offset >= end:
            break
    return found


def member_of(aborted: Aborted) -> bytes:
    """A member of the sorted set; its score is the marker's offset."""
    return b"%d %d %d" % (aborted.producer_id, aborted.first_offset, aborted.last_stable_offset)


def parse_aborted(members: list[bytes]) -> list[Aborted]:
    """Members and scores of the sorted set (ZRANGEBYSCORE ... WITHSCORES)."""
    found = []
    for member, score in zip(members[::2], members[1::2], strict=True):
        producer_id, first, last_stable_offset = map(int, member.split())
        found.append(Aborted(int(score), first, producer_id, last_stable_offset))
    return found
