"""The entries of a range of a stream, page by page (XRANGE)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.offsets.packing import AddressError, entry_id, offset_of
from korvet.spark.records.batches import batch_records
from korvet.spark.records.page import Page
from korvet.spark.source.errors import DataLoss

if TYPE_CHECKING:
    from collections.abc import Generator

    from korvet.spark.records.page import Entry
    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import StreamRange

# Entries of the first page. It is small because its entries may be large.
FIRST_PAGE_ENTRIES = 64
# Entries of a later page. Pages grow up to this number, or to the target size.
MAX_PAGE_ENTRIES = 2000
PAGE_TARGET_BYTES = 4 << 20


def pages(connection: SourceConnection, part: StreamRange) -> Generator[Page]:
    """Yield the entries of a range, page by page (XRANGE). A batch that starts in the range belongs to it.

    A page has about PAGE_TARGET_BYTES, estimated from the previous page. The next page is requested before
    the current one is yielded, so close the generator before any other use of the connection.

    If the range has a first_id, each request starts at the last entry of the previous page: as long as that
    entry exists, no entry after it was trimmed. Raises DataLoss if it was.
    """
    if part.end_offset <= part.start_offset:
        return
    end = b"(" + entry_id(part.end_offset, part.origin.bias).encode()
    asked = FIRST_PAGE_ENTRIES
    begins_with, guarded, repeats = part.first_id, part.first_id is not None, False

    def ask(start: str | bytes) -> None:
        connection.send_for_page("XRANGE", part.stream, start, end, "COUNT", asked)

    def ask_after(last_id: bytes) -> None:
        ask(last_id if guarded else b"(" + last_id)

    ask(entry_id(part.start_offset, part.origin.bias))
    more = True
    try:
        while more:
            page = connection.page()
            more, supposed = False, b""
            complete = page.first_id == begins_with
            if guarded and not complete:
                _check_start(connection, part, begins_with or b"")
            if len(page) == asked:
                asked = _next_count(page, asked) + guarded
                # Requested before this page is parsed, so that Redis works in that time.
                supposed = page.probable_last_id()
                ask_after(supposed)
                more = True
            empty = not len(page)
            if repeats and complete:
                page.drop_first()
            repeats = guarded
            if len(page):
                yield page
            if more and page.last_id != supposed:
                connection.page()
                ask_after(page.last_id)
            begins_with = None if empty else page.last_id
    finally:
        connection.drop_page()
    following: list[Entry] = connection.call(
        "XRANGE", part.stream, entry_id(part.end_offset, part.origin.bias), "+", "COUNT", 1
    )
    if following and _starts_before_end(following[0], part):
        yield Page.of(following)


def _check_start(connection: SourceConnection, part: StreamRange, missing: bytes) -> None:
    """Raises DataLoss unless an entry before the missing one exists, so that only that one was deleted."""
    first: list[Entry] = connection.call("XRANGE", part.stream, "-", "(" + missing.decode(), "COUNT", 1)
    if not first:
        raise DataLoss(
            f"{part.origin.topic}-{part.origin.partition} was trimmed or deleted during the read: entry "
            f"{missing.decode()} of stream {part.stream} and all entries before it are gone"
        )


def _starts_before_end(entry: Entry, part: StreamRange) -> bool:
    """Whether an entry that ends after a range is a batch that starts in it."""
    try:
        last_offset = offset_of(entry[0], part.origin.bias)
    except AddressError:
        return False
    records = batch_records(entry[1], last_offset)
    return records is not None and last_offset - records + 1 < part.end_offset


def _next_count(page: Page, count: int) -> int:
    return max(1, min(MAX_PAGE_ENTRIES, 4 * count, PAGE_TARGET_BYTES // (page.mean_bytes + 1)))
