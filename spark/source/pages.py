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
    from korvet.spark.source.connection import Connection
    from korvet.spark.source.extents import StreamRange

# The first page is small, since its entries may be large; then pages grow to what fits the target.
FIRST_PAGE_ENTRIES = 64
MAX_PAGE_ENTRIES = 2000
PAGE_TARGET_BYTES = 4 << 20


def pages(connection: Connection, part: StreamRange) -> Generator[Page]:
    """The entries of a range, page by page (XRANGE), a batch that begins in it and ends behind it included.
    The next page is asked for before the caller works on this one.

    The pages hold about PAGE_TARGET_BYTES, judged by the page before. Close the generator before
    the connection is used for anything else. Where the range says which entry it begins with, each page
    is asked for from the last entry of the one before: while that is there, nothing behind it was trimmed.
    Raises DataLoss once something was.
    """
    if part.end_offset <= part.start_offset:
        return
    end = b"(" + entry_id(part.end_offset, part.origin.bias).encode()
    asked = FIRST_PAGE_ENTRIES
    begins_with, guarded, repeats = part.first_id, part.first_id is not None, False

    def ask(start: str | bytes) -> None:
        connection.send_for_page("XRANGE", part.stream, start, end, "COUNT", asked)

    def ask_behind(last_id: bytes) -> None:
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
                # Before anybody looks into this one, since that takes a while.
                supposed = page.probable_last_id()
                ask_behind(supposed)
                more = True
            empty = not len(page)
            if repeats and complete:
                page.drop_first()
            repeats = guarded
            if len(page):
                yield page
            if more and page.last_id != supposed:
                connection.page()
                ask_behind(page.last_id)
            begins_with = None if empty else page.last_id
    finally:
        if more:
            connection.page()
    behind: list[Entry] = connection.call(
        "XRANGE", part.stream, entry_id(part.end_offset, part.origin.bias), "+", "COUNT", 1
    )
    if behind and _begins_before(behind[0], part):
        yield Page.of(behind)


def _check_start(connection: Connection, part: StreamRange, missing: bytes) -> None:
    """Raises DataLoss unless an entry before the missing one is left: then that one alone was deleted."""
    first: list[Entry] = connection.call("XRANGE", part.stream, "-", "(" + missing.decode(), "COUNT", 1)
    if not first:
        raise DataLoss(
            f"{part.origin.topic}-{part.origin.partition} was trimmed or deleted while it was read: entry "
            f"{missing.decode()} of stream {part.stream} is gone with all before it"
        )


def _begins_before(entry: Entry, part: StreamRange) -> bool:
    """Whether an entry that ends behind a range is a batch that begins in it."""
    try:
        last_offset = offset_of(entry[0], part.origin.bias)
    except AddressError:
        return False
    records = batch_records(entry[1], last_offset)
    return records is not None and last_offset - records + 1 < part.end_offset


def _next_count(page: Page, count: int) -> int:
    return max(1, min(MAX_PAGE_ENTRIES, 4 * count, PAGE_TARGET_BYTES // (page.mean_bytes + 1)))
