"""The transactions of a partition as its leader knows them without asking Redis: the last stable offset, and
the recently aborted transactions.

Redis executes our appends, our reads and the appends of native writers in one order, but the replies arrive
over several connections: a read may show records of a transaction before the reply to their append arrives.
So only a reply that states both the last stable offset and the log end of the same moment proves anything.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# Aborted transactions that are remembered; older ones are read from Redis together with the records.
_REMEMBERED: Final = 1_000
# A producer in the meta hash: epoch and time, then for each of its last batches the first sequence, the last
# sequence and the offset.
_PRODUCER: Final = struct.Struct(">dd")
_BATCH: Final = struct.Struct(">ddd")
# An open transaction in the meta hash: its producer's id, and the offset at which it begins.
_OPEN: Final = struct.Struct(">dd")


class Aborted(NamedTuple):
    """An aborted transaction, as offsets. Aborted transactions sort by their markers."""

    last_offset: int
    """The offset of its marker."""
    first_offset: int
    """The log end offset before its first record."""
    producer_id: int
    last_stable_offset: int
    """The last stable offset after the marker."""


class KnownProducer(NamedTuple):
    """A producer in a partition's meta hash (KIP-98)."""

    producer_id: int
    epoch: int
    last_sequence: int
    """The last sequence of its newest batch in this epoch; -1 without a batch."""
    seen_ms: int
    """When it last appended, or a marker last ended its transaction."""
    coordinator_epoch: int
    """The epoch of the coordinator that last ended a transaction; -1 if none did."""
    first_open: int
    """The offset at which its open transaction begins; -1 without one."""


def parse_open(packed: bytes | None) -> dict[int, int]:
    """The producers with an open transaction, each with the offset at which it begins, from the meta field
    `open`. Raises ValueError if the field is damaged.
    """
    try:
        return {int(producer): int(first) for producer, first in _OPEN.iter_unpack(packed or b"")}
    except (struct.error, OverflowError) as error:
        raise ValueError(f"the hash field 'open' is damaged: {error}") from error


def parse_producer(
    field: bytes, packed: bytes, coordinator_epoch: bytes | None, first_open: int
) -> KnownProducer:
    """A producer from its meta field `p:<producer id>`; lua/_producers.lua describes the
    format. Raises ValueError if the field is damaged.
    """
    try:
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
    except (struct.error, OverflowError) as error:
        raise ValueError(f"the hash field {field.decode()!r} is damaged: {error}") from error


class TransactionIndex:
    """The transactions of one log, as far as replies of Redis prove them.

    A reply that states the last stable offset and the log end of the same moment proves them for ever: the
    transactions before that offset are decided, and the last stable offset never decreases. So replies may
    arrive in any order and over any connection; their proofs only add up.

    The abort markers are known in one range of offsets, from `abort_markers_from` to before
    `abort_markers_to`. The replies to our own appends and markers extend the range, since each states the log
    end before it. So do Redis's replies to requests for markers.
    """

    __slots__ = (
        "_aborted",
        "abort_markers_from",
        "abort_markers_to",
        "generation",
        "last_stable_offset",
        "proven_end",
    )

    def __init__(self) -> None:
        self.generation = 0
        """Increases with every `prune` and `forget`. Aborted transactions and records that were read in
        different generations must not be combined.
        """
        self.forget()

    def forget(self) -> None:
        """Forget everything, for example when another server took over, which may lack the last writes."""
        self.generation += 1
        self.last_stable_offset = -1
        """The last stable offset: every transaction that began before it is decided; -1 if it is unknown."""
        self.proven_end = -1
        """The log end when that offset was proven."""
        self._aborted: list[Aborted] = []
        self.abort_markers_from = -1
        self.abort_markers_to = -1

    def observe_bounds(self, last_stable_offset: int, log_end: int) -> None:
        """Take over the last stable offset and the log end of one reply."""
        assert last_stable_offset <= log_end, f"last stable offset {last_stable_offset}, log end {log_end}"
        self.last_stable_offset = max(self.last_stable_offset, last_stable_offset)
        self.proven_end = max(self.proven_end, log_end)

    def appended(self, previous_end: int, end: int) -> None:
        """Take over an append of ours: no marker lies from previous_end, the log end before it, to `end`."""
        assert 0 <= previous_end <= end, f"an append at {previous_end} ends at {end}"
        if end <= self.abort_markers_to:
            # This reply is late: Redis has been asked in the meantime.
            return
        if previous_end != self.abort_markers_to:
            # The markers in between are unknown.
            self._aborted.clear()
            self.abort_markers_from = previous_end
        self.abort_markers_to = end

    def ended(self, previous_end: int, marker_offset: int, aborted: Aborted | None) -> None:
        """Take over a marker of ours, appended at log end previous_end; `aborted` is None if it commits."""
        assert previous_end <= marker_offset, f"a marker at {marker_offset} was appended at {previous_end}"
        assert aborted is None or aborted.first_offset <= aborted.last_offset == marker_offset, aborted
        is_news = marker_offset >= self.abort_markers_to
        self.appended(previous_end, marker_offset + 1)
        if is_news and aborted is not None:
            self._aborted.append(aborted)
            self._forget_oldest()

    def merge_aborted(self, first: int, aborted: Sequence[Aborted], end: int) -> None:
        """Take over a reply of Redis: all aborted transactions with markers from `first` on, in their order,
        of a time when the log reached at least `end`.
        """
        if first >= end or end < self.abort_markers_from:
            return
        if (
            not self.abort_markers_from <= first <= self.abort_markers_to
            and not first <= self.abort_markers_from <= end
        ):
            self._aborted.clear()
            self.abort_markers_from = self.abort_markers_to = first
        if first < self.abort_markers_from:
            self._aborted[:0] = aborted[: bisect_left(aborted, (self.abort_markers_from,))]
            self.abort_markers_from = first
        if end > self.abort_markers_to:
            self._aborted += aborted[
                bisect_left(aborted, (self.abort_markers_to,)) : bisect_left(aborted, (end,))
            ]
            self.abort_markers_to = end
        self._forget_oldest()

    def aborted_from(self, first: int) -> list[Aborted] | None:
        """All aborted transactions that may have records from `first` to the last stable offset; None if
        Redis has to be asked: the list is complete only if `first` is not before `abort_markers_from`.
        """
        if not 0 <= self.abort_markers_from <= first or self.abort_markers_to < self.proven_end:
            return None
        return self._aborted[bisect_left(self._aborted, (first,)) :]

    def prune(self, gone: Sequence[int]) -> None:
        """Forget the transactions with markers at these offsets, which are in order. The markers are about to
        be removed, and none of the transactions has a record in the log.
        """
        self._aborted = [each for each in self._aborted if not holds(gone, each.last_offset)]
        self.generation += 1

    def cut(self, log_start: int) -> None:
        """Forget the transactions with markers before log_start, which are no longer in the log."""
        del self._aborted[: bisect_left(self._aborted, (log_start,))]

    def _forget_oldest(self) -> None:
        beyond = len(self._aborted) - _REMEMBERED
        if beyond > 0:
            self.abort_markers_from = self._aborted[beyond - 1].last_offset + 1
            del self._aborted[:beyond]
        assert self.abort_markers_from <= self.abort_markers_to, "the known markers have no range"


def holds(offsets: Sequence[int], offset: int) -> bool:
    """Whether `offset` is among `offsets`, which are in order."""
    at = bisect_left(offsets, offset)
    return at < len(offsets) and offsets[at] == offset


def overlapping(aborted: list[Aborted], end: int) -> list[Aborted]:
    """The transactions with records before `end`, of `aborted` in the order of the markers. The search stops
    at a last stable offset of `end` or later: all transactions aborted after that begin after `end`.
    """
    found = []
    for each in aborted:
        if each.first_offset < end:
            found.append(each)
        if each.last_stable_offset >= end:
            break
    return found


def member_of(aborted: Aborted) -> bytes:
    """The transaction as a member of the sorted set; its score is the marker's offset."""
    return b"%d %d %d" % (aborted.producer_id, aborted.first_offset, aborted.last_stable_offset)


def parse_aborted(members: list[bytes]) -> list[Aborted]:
    """The transactions in members and scores of the sorted set (ZRANGEBYSCORE ... WITHSCORES)."""
    found = []
    for member, score in zip(members[::2], members[1::2], strict=True):
        producer_id, first, last_stable_offset = map(int, member.split())
        found.append(Aborted(int(score), first, producer_id, last_stable_offset))
    return found
