"""Which records of transactions count with isolationLevel=read_committed.

The partition's leader decides, for Kafka consumers as well as here: the hash `{stream}:meta` has the open
transactions (Extent.opened), the sorted set `{stream}:aborted` the aborted ones. A record counts unless one
of them has it. A producer ID that an application writes into its own entries means nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import StreamRange

# Transactions per ZRANGEBYSCORE.
ABORTED_AT_ONCE = 1000


class Uncounted:
    """The records of a range that don't count."""

    def __init__(self, connection: SourceConnection, part: StreamRange) -> None:
        """Read the aborted transactions with records in a range. The range has the open ones."""
        self._opened = dict(part.opened)
        # By producer, in order: first offsets, and offsets of the markers.
        self._aborted: dict[int, tuple[list[int], list[int]]] = {}
        for producer, first, marker in _aborted(connection, part):
            firsts, markers = self._aborted.setdefault(producer, ([], []))
            firsts.append(first)
            markers.append(marker)

    def __bool__(self) -> bool:
        return bool(self._opened or self._aborted)

    def has(self, producer: int, offset: int) -> bool:
        """Return whether the record of a producer at an offset doesn't count."""
        first = self._opened.get(producer)
        if first is not None and offset >= first:
            return True
        firsts, markers = self._aborted.get(producer, ((), ()))
        at = bisect_right(firsts, offset)
        return at > 0 and offset <= markers[at - 1]


def _aborted(connection: SourceConnection, part: StreamRange) -> Iterator[tuple[int, int, int]]:
    """Producer ID, first offset and offset of the marker, in the order of the markers."""
    key, reached = f"{{{part.stream}}}:aborted", str(part.start_offset)
    while True:
        found = connection.call(
            "ZRANGEBYSCORE", key, reached, "+inf", "WITHSCORES", "LIMIT", 0, ABORTED_AT_ONCE
        )
        for member, score in zip(found[::2], found[1::2], strict=True):
            producer, first, stable = map(int, member.split())
            if first < part.end_offset:
                yield producer, first, int(score)
            if stable >= part.end_offset:
                # Transactions that were aborted later begin later.
                return
        if len(found) < 2 * ABORTED_AT_ONCE:
            return
        reached = f"({found[-1].decode()}"
