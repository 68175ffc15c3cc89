"""The newest record batches of each partition, as their producers sent them: consumers that keep up are
served from here, without Redis.

A TailCache covers one contiguous range of offsets completely: every record that Redis has in the range is in
a batch here, and no record lies between the batches. Each append proves that again, since Redis states the
log end before it. If that is not the end of the range, another writer has appended in between, and the cache
starts a new range.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from korvet.metrics.counted import Counted, counter, gauge
from korvet.offsets.record_batch import CODEC_AT, CODEC_MASK, TRANSACTIONAL, ZSTD

if TYPE_CHECKING:
    from korvet.records.batch import AppendArguments, BatchHeader

__all__ = ["DEFAULT_BYTES", "TailBudget", "TailCache", "as_stored"]

DEFAULT_BYTES: Final = 256 * 1024 * 1024
# The cost of a batch apart from its bytes: the object's header and its places in a list and three arrays.
BATCH_OVERHEAD_BYTES: Final = 112
# Batches smaller than this on average are joined: a separate segment costs the transport more than a copy.
_JOINED_BELOW_BYTES: Final = 512
# Places of dropped batches that are kept; more of them are freed once they are half of all places.
_DEAD_PLACES: Final = 64


def as_stored(header: BatchHeader, form: AppendArguments) -> bool:
    """Whether readers find in a producer's batch exactly the records that its stream entries hold.

    They do not if its timestamp type is LogAppendTime (KIP-32), if it has another attribute than a codec and
    a transaction, or if its maximum timestamp is not that of its records: the CRC covers these fields, so
    they can't be corrected.
    """
    known = header.codec | (TRANSACTIONAL if header.transactional else 0)
    return header.attributes == known and header.max_timestamp_ms == form.max_timestamp_ms


class TailBudget(Counted):
    """The bytes that the tail caches of a process hold together. The batch that was appended first is dropped
    first, regardless of its partition.
    """

    hits = counter("korvet_tail_cache_hits_total", "Reads that the tail cache answered with record batches.")
    misses = counter("korvet_tail_cache_misses_total", "Reads of records that the tail cache does not have.")
    hit_bytes = counter(
        "korvet_tail_cache_hit_bytes_total", "Bytes of the record batches out of the tail cache."
    )
    dropped = counter(
        "korvet_tail_cache_dropped_batches_total",
        "Batches that the tail cache dropped to keep its limit.",
    )
    held_bytes = gauge("korvet_tail_cache_bytes", "Bytes in the tail cache.")
    limit_bytes = gauge("korvet_tail_cache_limit_bytes", "Limit of the tail cache: tail.cache.bytes.")

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        """limit_bytes 0 turns the caches off."""
        super().__init__()
        self.limit_bytes = limit_bytes
        self.serial = 0
        """The serial number of the batch that was appended last; serials only grow."""
        # The number of caches that hold a batch.
        self._filled = 0
        # A heap with one place for each of these caches, at the serial of its oldest batch or of an earlier
        # one. Emptied caches may still have their places.
        self._oldest: list[tuple[int, TailCache]] = []

    def limit(self, limit_bytes: int) -> None:
        """Change the limit, and drop what exceeds it."""
        self.limit_bytes = limit_bytes
        self.make_room()

    def filled(self, cache: TailCache, serial: int) -> None:
        """Take over that an empty cache holds a batch now, with this serial."""
        self._filled += 1
        if not cache.has_place:
            cache.has_place = True
            heappush(self._oldest, (serial, cache))

    def emptied(self) -> None:
        """Take over that a cache holds no batch any more."""
        self._filled -= 1
        assert self._filled >= 0, f"{self._filled} caches hold a batch"
        if len(self._oldest) > 2 * self._filled + _DEAD_PLACES:
            self._forget_empty()

    def make_room(self) -> None:
        """Drop the oldest batches until the limit is kept."""
        while self.held_bytes > self.limit_bytes:
            serial, cache = self._oldest[0]
            oldest_serial = cache.oldest_serial
            if oldest_serial is None:
                cache.has_place = False
                heappop(self._oldest)
            elif oldest_serial > serial:
                heapreplace(self._oldest, (oldest_serial, cache))
            else:
                self.dropped += 1
                cache.drop_oldest()

    def clear(self) -> None:
        """Empty all caches: the contents of Redis may have changed."""
        for _, cache in self._oldest:
            cache.clear()
        self._forget_empty()

    def _forget_empty(self) -> None:
        kept = []
        for place in self._oldest:
            cache = place[1]
            cache.has_place = cache.oldest_serial is not None
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
        "_serials",
        "_through",
        "_zstd_end",
        "end",
        "has_place",
        "held_bytes",
        "start",
    )

    def __init__(self, budget: TailBudget) -> None:
        self._budget = budget
        self.start = -1
        """The first cached offset; -1 if no range is known."""
        self.end = -1
        """The offset after the last cached one; -1 if no range is known."""
        self.held_bytes = 0
        self.has_place = False
        """Whether the budget has a place for this cache. Only the budget sets it."""
        self._batches: list[bytes] = []
        # For each batch the offset after it, the sum of the sizes up to it, and its serial in the budget. All
        # three only grow.
        self._ends = array("q")
        self._through = array("q")
        self._serials = array("q")
        # The place of the first batch in these lists; the batches at earlier places were dropped.
        self._first = 0
        # No batch from this offset on is compressed with zstd.
        self._zstd_end = -1

    @property
    def oldest_serial(self) -> int | None:
        """The serial of the first batch; None without batches."""
        return self._serials[self._first] if self.held_bytes else None

    def extend(self, base_offset: int, record_count: int, previous_end: int, batch: bytes | None) -> None:
        """Take over that the records base_offset to base_offset + record_count - 1 were appended at the log
        end previous_end.

        `batch`: these records as the record batch (magic 2) that Redis would return; None if it would return
        another, or it is unknown.
        """
        assert 0 <= previous_end <= base_offset, f"{base_offset} was appended at {previous_end}"
        assert record_count > 0, f"{record_count} records were appended"
        if previous_end != self.end:
            self.clear(previous_end)
        end = base_offset + record_count
        budget = self._budget
        cost = 0 if batch is None else len(batch) + BATCH_OVERHEAD_BYTES
        if batch is None or cost > budget.limit_bytes:
            self.clear(end)
            return
        serial = budget.serial = budget.serial + 1
        if not self.held_bytes:
            budget.filled(self, serial)
        self._batches.append(batch)
        self._serials.append(serial)
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
        self,
        offset: int,
        max_bytes: int,
        remaining_bytes: int | None,
        *,
        zstd: bool = True,
        to_offset: int | None = None,
    ) -> list[bytes] | None:
        """Whole batches from the one that holds `offset`, or the next one, up to max_bytes and `to_offset`;
        None if `offset` is not cached.

        The first batch is returned even if it is larger than max_bytes, but not if it is larger than
        remaining_bytes: then the list is empty. None means no such limit. Without `zstd` the reader can't
        decompress zstd, and batches compressed with it count as not cached.
        """
        if not self.start <= offset < self.end or (offset < self._zstd_end and not zstd):
            self._budget.misses += 1
            return None
        first = bisect_right(self._ends, offset, self._first)
        assert first < len(self._batches), f"offset {offset} is in {self.start}..{self.end}, and no batch"
        size = len(self._batches[first])
        before = self._through[first] - size
        last = bisect_right(self._through, before + max_bytes, first)
        if to_offset is not None and to_offset < self.end:
            if self._ends[first] > to_offset:
                return []
            last = min(last, bisect_right(self._ends, to_offset, first))
        if last <= first + 1:
            if last <= first and remaining_bytes is not None and size > remaining_bytes:
                return []
            self._count_hit(size)
            return [self._batches[first]]
        batches = self._batches[first:last]
        size = self._through[last - 1] - before
        self._count_hit(size)
        if size < _JOINED_BELOW_BYTES * len(batches):
            return [b"".join(batches)]
        return batches

    def _count_hit(self, size_bytes: int) -> None:
        budget = self._budget
        budget.hits += 1
        budget.hit_bytes += size_bytes

    def cut(self, log_start: int) -> None:
        """Drop the batches before log_start, which are no longer in the log."""
        if log_start <= self.start:
            return
        after = bisect_right(self._ends, log_start, self._first)
        if after > self._first:
            self._drop_before(after)
        self.start = min(log_start, self.end)

    def clear(self, at: int = -1) -> None:
        """Drop all batches. The next append extends the cache only if the log end before it is `at`."""
        self._budget.held_bytes -= self.held_bytes
        assert self._budget.held_bytes >= 0, f"the caches hold {self._budget.held_bytes} bytes"
        self.held_bytes = 0
        if self._batches:
            self._batches = []
            self._ends = array("q")
            self._through = array("q")
            self._serials = array("q")
            self._first = 0
            self._budget.emptied()
        self.start = self.end = self._zstd_end = at

    def drop_oldest(self) -> None:
        """Drop the first batch; there must be one."""
        self._drop_before(self._first + 1)

    def _drop_before(self, after: int) -> None:
        """Drop the batches before this place; there must be some."""
        if after == len(self._ends):
            self.clear(self.end)
            return
        first = self._first
        assert first < after, f"nothing from {first} to {after} is dropped"
        before = self._through[first] - len(self._batches[first])
        cost = self._through[after - 1] - before + (after - first) * BATCH_OVERHEAD_BYTES
        self.start = self._ends[after - 1]
        self.held_bytes -= cost
        self._budget.held_bytes -= cost
        assert 0 < self.held_bytes <= self._budget.held_bytes, f"{self.held_bytes} bytes are left"
        assert self.start < self.end, f"{self.held_bytes} bytes are in {self.start}..{self.end}"
        if after >= _DEAD_PLACES and after * 2 > len(self._batches):
            del self._batches[:after], self._ends[:after], self._through[:after], self._serials[:after]
            self._first = 0
        else:
            self._batches[first:after] = [b""] * (after - first)
            self._first = after
