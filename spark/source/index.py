"""Korvet's sparse index of a partition: offsets by count or time without reading the records between.

`{stream}:index` is a sorted set. The score of a point is a record's offset, its member "position, records
before it, append time in ms, largest timestamp before it, largest timestamp of the span that ends there, ..."
with "-" for an unknown value. Points are about 256 records or one second apart. Entries of native
applications may have no points yet. The source uses the index only to search and to divide, never to
decide what is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from korvet.spark.source.connection import SourceConnection

# Points per ZRANGE.
POINTS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Point:
    """A record's offset, the number of records before it, and times in ms (None if unknown)."""

    offset: int
    before: int
    append_ms: int
    largest_before_ms: int | None
    largest_in_span_ms: int | None


class Index:
    """The points of one partition at the time of each call."""

    def __init__(self, connection: SourceConnection, key: str) -> None:
        self._connection = connection
        self._key = key
        self.points: int = connection.call("ZCARD", key)

    def floor(self, offset: int) -> Point | None:
        """Return the last point at or before an offset; None without one."""
        found = self._connection.call(
            "ZREVRANGEBYSCORE", self._key, str(offset), "-inf", "WITHSCORES", "LIMIT", 0, 1
        )
        return _points(found)[0] if found else None

    def last(self) -> Point | None:
        """Return the last point; None without points."""
        found = self._connection.call("ZREVRANGE", self._key, 0, 0, "WITHSCORES")
        return _points(found)[0] if found else None

    def last_where(self, tests: Sequence[Callable[[Point], bool]]) -> list[tuple[int, Point] | None]:
        """Return, for each test, the last point that passes it, with its rank; None if no point passes.

        A test must pass up to some point and fail after it (binary search). All tests share the round trips.
        """
        low, high = [-1] * len(tests), [self.points] * len(tests)
        found: list[tuple[int, Point] | None] = [None] * len(tests)
        while True:
            asked = [at for at in range(len(tests)) if high[at] - low[at] > 1]
            if not asked:
                return found
            middles = [(low[at] + high[at]) // 2 for at in asked]
            replies = self._connection.pipeline(
                [("ZRANGE", self._key, middle, middle, "WITHSCORES") for middle in middles]
            )
            for at, middle, reply in zip(asked, middles, replies, strict=True):
                point = _points(reply)[0] if reply else None
                if point is not None and tests[at](point):
                    low[at], found[at] = middle, (middle, point)
                else:
                    high[at] = middle

    def after(self, rank: int) -> Iterator[Point]:
        """Yield the points from a rank on."""
        while True:
            reply = self._connection.call("ZRANGE", self._key, rank, rank + POINTS_AT_ONCE - 1, "WITHSCORES")
            points = _points(reply)
            yield from points
            if len(points) < POINTS_AT_ONCE:
                return
            rank += POINTS_AT_ONCE

    def older_than(self, time_ms: int) -> tuple[int, Point] | None:
        """Return the last point before which all timestamps are below `time_ms`, with its rank."""

        def older(point: Point) -> bool:
            return point.largest_before_ms is None or point.largest_before_ms < time_ms

        return self.last_where([older])[0]


def _points(reply: list[bytes]) -> list[Point]:
    """The points in a reply. Raises SourceError for a malformed point."""
    return [_point(member, score) for member, score in zip(reply[::2], reply[1::2], strict=True)]


def _point(member: bytes, score: bytes) -> Point:
    parts = member.split()
    try:
        return Point(
            offset=int(float(score)),
            before=int(parts[1]),
            append_ms=int(parts[2]),
            largest_before_ms=_known(parts[3]),
            largest_in_span_ms=_known(parts[4]),
        )
    except (ValueError, IndexError):
        shown = member[:100].decode("ascii", "replace")
        raise SourceError(
            f"{shown!r} is not a point of korvet's index: another program wrote to the index"
        ) from None


def _known(text: bytes) -> int | None:
    return None if text == b"-" else int(text)
