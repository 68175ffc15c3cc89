"""Which records of transactions count with isolationLevel=read_committed, judged by the entries alone.

A record of a transaction counts if the next marker of its producer is a commit. The search for markers runs
ahead of the read and reads each entry once. A partition is stable up to the first record of a transaction
without a marker. A read with openTransactions=pass goes on after that record: a batch leaves out what has no
marker yet, and a stream returns it with the records after which the marker was found.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import closing
from typing import TYPE_CHECKING

from korvet.offsets.entry_fields import BATCH
from korvet.spark.records.batches import may_be_transactional
from korvet.spark.records.entries import columns_of, markers_of
from korvet.spark.source.pages import pages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from korvet.spark.records.columns import Columns, Marker
    from korvet.spark.records.page import Entry
    from korvet.spark.source.connection import Connection
    from korvet.spark.source.extents import StreamRange


class Outcomes:
    """Whether the transactions of records were committed. Ask in ascending order of offsets."""

    def __init__(self, ahead: Callable[[int], Generator[list[Marker]]]) -> None:
        """`ahead` returns the markers after an offset, in order and page by page, up to the log end."""
        self._ahead = ahead
        self._markers: Generator[list[Marker]] | None = None
        self._known: dict[int, list[Marker]] = {}
        self._reached = -1
        self._at_end = False

    def committed(self, producer: int, offset: int) -> bool:
        """Return whether the record counts. It doesn't if its transaction has not ended."""
        if self._markers is None or (offset > self._reached and not self._at_end):
            self._known.clear()
            self._markers = self._ahead(offset)
        while True:
            marker = self._next(producer, offset)
            if marker is not None:
                return marker.committed
            page = next(self._markers, None)
            if page is None:
                self._at_end = True
                return False
            for found in page:
                self._known.setdefault(found.producer, []).append(found)
                self._reached = max(self._reached, found.offset)

    def close(self) -> None:
        """End the search, which may have requested a page. Call it before its connection is closed."""
        if self._markers is not None:
            self._markers.close()

    def _next(self, producer: int, offset: int) -> Marker | None:
        known = self._known.get(producer, [])
        at = bisect_left(known, offset, key=lambda marker: marker.offset)
        return known[at] if at < len(known) else None


class OpenTransactions:
    """The transactions of one partition without an end, from its entries in order."""

    def __init__(self, part: StreamRange, first_offsets: Mapping[int, int] | None = None) -> None:
        """first_offsets: those of the transactions that are open at the start of the range."""
        self._origin = part.origin
        self.reached = part.start_offset
        """All entries before this offset have been read."""
        self._first = dict(first_offsets or {})

    def follow(self, connection: Connection, part: StreamRange) -> None:
        """Read the entries of a range that starts at `reached`."""
        for page in pages(connection, part):
            self._see(page, part.end_offset)
        self.reached = max(self.reached, part.end_offset)

    def _see(self, page: Sequence[Entry], end_offset: int) -> None:
        columns = columns_of(page, self._origin, end_offset=end_offset, headers=False)
        events = _begun(columns) + [(marker.offset, marker) for marker in markers_of(page, self._origin)]
        for offset, what in sorted(events, key=lambda event: event[0]):
            if isinstance(what, int):
                self._first.setdefault(what, offset)
            else:
                self._first.pop(what.producer, None)

    @property
    def first_offsets(self) -> dict[int, int]:
        """Offset of the first record of each open transaction, by producer ID."""
        return dict(self._first)

    @property
    def first_offset(self) -> int | None:
        """Offset of the first record of all open transactions; None if there are none."""
        return min(self._first.values(), default=None)


def _begun(columns: Columns) -> list[tuple[int, int | Marker]]:
    """Offset and producer of each record that is part of a transaction."""
    if columns.producers is None:
        return []
    rows = zip(columns.offsets.tolist(), columns.producers, strict=True)
    return [(offset, producer) for offset, producer in rows if producer >= 0]


def markers_in(connection: Connection, part: StreamRange) -> Generator[list[Marker]]:
    """Yield the markers in a range, page by page."""
    with closing(pages(connection, part)) as found:
        for page in found:
            markers = markers_of(page, part.origin)
            if markers:
                yield markers


def is_transactional(entries: Sequence[Entry], part: StreamRange) -> bool:
    """Return whether the entries include records of transactions, or markers."""
    single = [entry for entry in entries if entry[1][0] != BATCH]
    if len(single) < len(entries) and any(may_be_transactional(entry[1]) for entry in entries):
        return True
    producers = columns_of(single, part.origin).producers if single else None
    return producers is not None or bool(markers_of(single, part.origin))
