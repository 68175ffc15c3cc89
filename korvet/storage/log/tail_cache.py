"""The newest record batches of each partition, as their producers sent them: consumers that keep up are
served from here, without Redis.

A TailCache covers one contiguous range of offsets and knows it whole: every record that Redis has in the
range is in a batch here, and what is between the batches is empty. Each append proves that anew, as Redis
tells where the log ended before it; where that is not the end of the range, somebody else has written in
between, and the range begins anew.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from korvet.offsets.record_batch import CODEC_AT, CODEC_MASK, TRANSACTIONAL, ZSTD

if TYPE_CHECKING:
    from korvet.records.batch import AppendArguments, AppendCommands, BatchHeader

__all__ = ["DEFAULT_BYTES", "TailBudget", "TailCache", "as_stored"]

DEFAULT_BYTES: Final = 256 * 1024 * 1024
# What a batch costs beside its bytes: the object's head and its places in a list and three arrays.
BATCH_OVERHEAD_BYTES: Final = 112
# Batches smaller than this on average are joined: a segment of its own costs the transport more than a copy.
_JOINED_BELOW_BYTES: Final = 512
# Places of batches that are gone are given back once there are so many, and they are half of all.
_DEAD_PLACES: Final = 64


def as_stored(header: BatchHeader, form: AppendArguments | AppendCommands) -> bool:
    """Whether readers of a producer's batch see in it the very records that its stream entries hold.

    Not where it says that its timestamps are the broker's (KIP-32), has any other attribute than a codec and
    a transaction, or tells another maximum timestamp than its records have: the CRC covers all that, so it
    can't be corrected.
    """
    known = header.codec | (TRANSACTIONAL if header.transactional else 0)
    return header.attributes == known and header.max_timestamp_ms == form.max_timestamp_ms


class TailBudget:
    """The bytes that the tail caches of a process hold together; the batch that was appended first gives way,
    whatever partition it is of.
    """

    __slots__ = ("_filled", "_oldest", "held_bytes", "limit_bytes", "turn")

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        """limit_bytes 0 keeps nothing."""
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.turn = 0
        """Of the batch that was appended last, which is larger than that of any before it."""
        # Caches that hold something.
        self._filled = 0
        # A heap with one place for each of them, at the turn of its oldest batch or of one before that.
        # Caches that have been emptied may still have theirs.
        self._oldest: list[tuple[int, TailCache]] = []

    def filled(self, cache: TailCache, turn: int) -> None:
        """A cache that was empty holds a batch of this turn."""
        self._filled += 1
        if not cache.has_place:
            cache.has_place = True
            heappush(self._oldest, (turn, cache))

    def emptied(self) -> None:
        """A cache holds nothing any more."""
        self._filled -= 1
        if len(self._oldest) > 2 * self._filled + _DEAD_PLACES:
            self._forget_empty()

    def make_room(self) -> None:
        """Have caches give away their oldest batches until the limit is kept."""
        while self.held_bytes > self.limit_bytes:
            turn, cache = self._oldest[0]
            oldest_turn = cache.oldest_turn
            if oldest_turn is None:
                cache.has_place = False
                heappop(self._oldest)
            elif oldest_turn > turn:
                heapreplace(self._oldest, (oldest_turn, cache))
            else:
                cache.drop_oldest()

    def clear(self) -> None:
        """Empty all caches: what Redis holds may have changed."""
        for _, cache in self._oldest:
            cache.clear()
        self._forget_empty()

    def _forget_empty(self) -> None:
        kept = []
        for place in self._oldest:
            cache = place[1]
            cache.has_place = cache.oldest_turn is not None
            if cache.has_place:
                kept.append(place)
        heapify(kept)
        self._oldest = kept


class TailCache:
    """The batches of one partition in the offsets from `start` to `end`, `end` not included."""

    __slots__ = (
        "_batches",
        "_budget",
        "_ends",
        "_first",
        "_through",
        "_turns",
        "_zstd_end",
        "end",
        "has_place",
        "held_bytes",
        "start",
    )

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self.start = -1
        """The first offset that is known here; -1 while nothing is."""
        self.end = -1
        """The first offset that is not known here; -1 while nothing is."""
        self.held_bytes = 0
        self.has_place = False
        """Whether the budget knows it; the budget's to set."""
        self._batches: list[bytes] = []
        # The offset behind each batch, the sum of its size and those before it, and its turn in the budget;
        # all of them only grow.
        self._ends = array("q")
        self._through = array("q")
        self._turns = array("q")
        # Where the batches begin in these lists; what is before it is gone.
        self._first = 0
        # No batch from this offset on needs zstd.
        self._zstd_end = -1

    @property
    def oldest_turn(self) -> int | None:
        """The turn of the first batch; None where there is no batch."""
        return self._turns[self._first] if self.held_bytes else None

    def extend(self, base_offset: int, record_count: int, previous_end: int, batch: bytes | None) -> None:
        """The records base_offset to base_offset + record_count - 1 were appended, where the log ended at
        previous_end.

        `batch` is the record batch (magic 2) of them that Redis would give back; None where there is none.
        """
        if previous_end != self.end:
            self.clear(previous_end)
        end = base_offset + record_count
        budget = self._budget
        cost = 0 if batch is None else len(batch) + BATCH_OVERHEAD_BYTES
        if batch is None or cost > budget.limit_bytes:
            self.clear(end)
            return
        turn = budget.turn = budget.turn + 1
        if not self.held_bytes:
            budget.filled(self, turn)
        self._batches.append(batch)
        self._turns.append(turn)
        self._ends.append(end)
        self._through.append((self._through[-1] if self._through else 0) + len(batch))
        self.end = end
        if batch[CODEC_AT] & CODEC_MASK == ZSTD:
            self._zstd_end = end
        self.held_bytes += cost
        budget.held_bytes += cost
        if budget.held_bytes > budget.limit_bytes:
            budget.make_room()

    def read(
        self, offset: int, max_bytes: int, room_bytes: int | None, *, zstd: bool = True
    ) -> list[bytes] | None:
        """Whole batches from the one that holds `offset`, or the next, up to max_bytes; None where the offset
        is not known here.

        The first batch is given even if it is larger, unless it is larger than room_bytes: then there is none
        (None is room for any). Without `zstd` the reader can't take batches compressed so, and they are as
        good as unknown.
        """
        if not self.start <= offset < self.end or (offset < self._zstd_end and not zstd):
            return None
        first = bisect_right(self._ends, offset, self._first)
        size = len(self._batches[first])
        before = self._through[first] - size
        last = bisect_right(self._through, before + max_bytes, first)
        if last <= first + 1:
            return [self._batches[first]] if last > first or room_bytes is None or size <= room_bytes else []
        batches = self._batches[first:last]
        if self._through[last - 1] - before < _JOINED_BELOW_BYTES * len(batches):
            return [b"".join(batches)]
        return batches

    def cut(self, log_start: int) -> None:
        """Nothing before log_start is in the log any more."""
        if log_start <= self.start:
            return
        behind = bisect_right(self._ends, log_start, self._first)
        if behind > self._first:
            self._drop_before(behind)
        self.start = min(log_start, self.end)

    def clear(self, at: int = -1) -> None:
        """Begin anew with nothing; the next append is known to follow where the log then ended at `at`."""
        self._budget.held_bytes -= self.held_bytes
        self.held_bytes = 0
        if self._batches:
            self._batches = []
            self._ends = array("q")
            self._through = array("q")
            self._turns = array("q")
            self._first = 0
            self._budget.emptied()
        self.start = self.end = self._zstd_end = at

    def drop_oldest(self) -> None:
        """Give away the first batch; there must be one."""
        self._drop_before(self._first + 1)

    def _drop_before(self, behind: int) -> None:
        """Give away the batches before this place, which are some."""
        if behind == len(self._ends):
            self.clear(self.end)
            return
        first = self._first
        before = self._through[first] - len(self._batches[first])
        cost = self._through[behind - 1] - before + (behind - first) * BATCH_OVERHEAD_BYTES
        self.start = self._ends[behind - 1]
        self.held_bytes -= cost
        self._budget.held_bytes -= cost
        if behind >= _DEAD_PLACES and behind * 2 > len(self._batches):
            del self._batches[:behind], self._ends[:behind], self._through[:behind], self._turns[:behind]
            self._first = 0
        else:
            self._batches[first:behind] = [b""] * (behind - first)
            self._first = behind
