"""Which records of transactions count (isolationLevel=read_committed), as far as the entries tell.

A record of a transaction counts once the next marker of its producer says commit. Markers are looked for
ahead of what is read, each entry once. A partition is stable up to the first record of a transaction that no
marker ends yet.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from korvet.offsets.entry_fields import BATCH
from korvet.spark.records.batches import may_be_transactional
from korvet.spark.records.entries import columns_of, markers_of
from korvet.spark.source.pages import pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from korvet.spark.records.columns import Columns, Marker
    from korvet.spark.records.page import Entry
    from korvet.spark.source.connection import Connection
    from korvet.spark.source.extents import StreamRange


class Outcomes:
    """Answers, for records in rising order of offsets, whether their transactions were committed."""

    def __init__(self, ahead: Callable[[int], Iterator[list[Marker]]]) -> None:
        """`ahead` gives the markers behind an offset, in order and page by page, up to the log's end."""
        self._ahead = ahead
        self._markers: Iterator[list[Marker]] | None = None
        self._known: dict[int, list[Marker]] = {}
        self._reached = -1

    def committed(self, producer: int, offset: int) -> bool:
        """Whether the record counts; one of a transaction without an end does not."""
        if self._markers is None or offset > self._reached:
            self._known.clear()
            self._markers = self._ahead(offset)
        while True:
            marker = self._next(producer, offset)
            if marker is not None:
                return marker.committed
            page = next(self._markers, None)
            if page is None:
                return False
            for found in page:
                self._known.setdefault(found.producer, []).append(found)
                self._reached = max(self._reached, found.offset)

    def _next(self, producer: int, offset: int) -> Marker | None:
        known = self._known.get(producer, [])
        at = bisect_left(known, offset, key=lambda marker: marker.offset)
        return known[at] if at < len(known) else None


class OpenTransactions:
    """Follows the entries of one partition in order; remembers which transactions have no end yet."""

    def __init__(self, part: StreamRange) -> None:
        self._origin = part.origin
        self.reached = part.start_offset
        """All entries before this offset have been seen."""
        self._first: dict[int, int] = {}

    def follow(self, connection: Connection, part: StreamRange) -> None:
        """See the entries of a range, which goes on from `reached`."""
        for page in pages(connection, part):
            self.see(page)
        self.reached = max(self.reached, part.end_offset)

    def see(self, page: Sequence[Entry]) -> None:
        """Take in one page of entries."""
        columns = columns_of(page, self._origin)
        events = _begun(columns) + [(marker.offset, marker) for marker in markers_of(page, self._origin)]
        for offset, what in sorted(events, key=lambda event: event[0]):
            if isinstance(what, int):
                self._first.setdefault(what, offset)
            else:
                self._first.pop(what.producer, None)

    @property
    def first_offset(self) -> int | None:
        """The first record of all transactions that are open; None where none is."""
        return min(self._first.values(), default=None)


def _begun(columns: Columns) -> list[tuple[int, int | Marker]]:
    """Offset and producer of the records that are part of transactions."""
    if columns.producers is None:
        return []
    rows = zip(columns.offsets.tolist(), columns.producers, strict=True)
    return [(offset, producer) for offset, producer in rows if producer >= 0]


def markers_behind(connection: Connection, part: StreamRange) -> Iterator[list[Marker]]:
    """The markers in a range, page by page."""
    for page in pages(connection, part):
        found = markers_of(page, part.origin)
        if found:
            yield found


def is_transactional(entries: Sequence[Entry], part: StreamRange) -> bool:
    """Whether there are records of transactions, or markers, among these entries."""
    single = [entry for entry in entries if entry[1][0] != BATCH]
    if len(single) < len(entries) and any(may_be_transactional(entry[1]) for entry in entries):
        return True
    producers = columns_of(single, part.origin).producers if single else None
    return producers is not None or bool(markers_of(single, part.origin))
