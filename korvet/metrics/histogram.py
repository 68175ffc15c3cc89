"""Durations and sizes counted in buckets."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Bounds for durations of requests and round trips."""


class Histogram:
    """Counts of values up to each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        """`bounds`: ascending; values above the last one are counted, too."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Returns how many values are up to each bound; the last one counts all values."""
        return list(accumulate(self.counts))

    def quantile(self, part: float) -> float:
        """Returns an estimate of the value that `part` (0 to 1) of the values don't exceed, by interpolation
        in its bucket; the last bound for larger values, NaN without values.
        """
        total = self.count
        if not total:
            return float("nan")
        rank, before, lower = part * total, 0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            if count and before + count >= rank:
                return lower + (bound - lower) * max(rank - before, 0.0) / count
            before += count
            lower = bound
        return self.bounds[-1]
