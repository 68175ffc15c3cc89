"""A page of entries: an XRANGE reply (RESP2), kept as bytes until its entries or columns are needed.

The compiled kernel builds columns from korvet's entries without an object for any entry. hiredis parses all
other pages, and all pages if there is no compiled kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, overload

import numpy as np

from korvet.spark.records.compiled import kernel

try:
    import hiredis
except ModuleNotFoundError:
    # hiredis is an optional extra of redis-py. Without it redis-py parses every page (korvet.spark.source).
    hiredis = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from korvet.spark.records.kernel import Rows

HAS_HIREDIS = hiredis is not None
"""Whether a page can be built from the bytes of a reply."""

Entry = tuple[bytes, list[bytes]]
"""Entry ID; flat list name, value, name, value ..."""

# The start of a reply: number of entries, ID of the first one. An ID has at most 41 bytes.
_HEAD = re.compile(rb"\*([0-9]+)\r\n\*2\r\n\$[0-9]+\r\n([0-9]+-[0-9]+)\r\n")
_MAX_HEAD_BYTES = 71
# The last byte sequence near the end of a reply that looks like the start of an entry.
_LAST = re.compile(rb".*\r\n\*2\r\n\$[0-9]{1,2}\r\n([0-9]+-[0-9]+)\r\n", re.DOTALL)
# Bytes at the end of a reply in which probable_last_id searches.
_LAST_SEARCH_BYTES = 1 << 16
# Size of the smallest entry (one empty field) and of the smallest record header in RESP2.
_MIN_ENTRY_BYTES = len(b"*2\r\n$3\r\n0-1\r\n*2\r\n$0\r\n\r\n$0\r\n\r\n")
_MIN_HEADER_BYTES = len(b"$7\r\nheader.\r\n$0\r\n\r\n")
# Arrow's binary columns have int32 offsets.
_MAX_COLUMN_BYTES = 0x7FFFFFFF


class Page(Sequence[Entry]):
    """The entries of one page, parsed on the first access to an entry."""

    def __init__(self, data: NDArray[np.uint8], size: int) -> None:
        """data[:size] is a complete reply, an array of entries."""
        self._data, self._size = data, size
        self._skipped = 0
        head = _HEAD.match(data[: min(size, _MAX_HEAD_BYTES)].tobytes())
        self._rows = 0 if head is None else int(head[1])
        self._first_id = b"" if head is None else head[2]
        self._last_id: bytes | None = None

    @classmethod
    def of(cls, entries: list[Entry]) -> Page:
        """Return the page of entries that redis-py has parsed."""
        page = cls(np.empty(0, np.uint8), 0)
        page._size = sum(sum(map(len, fields)) for _, fields in entries)
        page._rows, page._first_id = len(entries), entries[0][0] if entries else b""
        page._every = entries
        return page

    @property
    def first_id(self) -> bytes:
        """ID of the first entry, including one that drop_first removed; empty if the page has no entry."""
        return self._first_id

    @property
    def mean_bytes(self) -> int:
        """Mean size of an entry in bytes, an estimate that needs no parsing."""
        return self._size // max(1, self._rows)

    def probable_last_id(self) -> bytes:
        """Return the likely ID of the last entry, without parsing. Wrong if a value looks like an entry."""
        found = _LAST.match(self._data[max(0, self._size - _LAST_SEARCH_BYTES) : self._size].tobytes())
        return found[1] if found is not None else self.last_id

    @property
    def last_id(self) -> bytes:
        """ID of the last entry, including one that drop_first removed. Parses unless the kernel ran."""
        return self._last_id or self._every[-1][0]

    def drop_first(self) -> None:
        """Remove the first entry. Call this before any access to entries or columns."""
        self._skipped += 1

    def rows(self, bias: int, *, append_times: bool, headers: bool = True) -> Rows | None:
        """Return the records as columns. With headers=False, without headers.

        None if the page has other entries than korvet's record by record, or there is no compiled kernel.
        """
        if kernel is None or not self._fits():
            return None
        size = self._size
        most_headers = size // _MIN_HEADER_BYTES if headers else 0
        rows: Rows = kernel.Rows(self._rows, size, most_headers, headers)
        if not rows.take_entries(self._data, size, self._skipped, bias, append_times):
            return None
        self._last_id = rows.last_id
        return rows

    def batches(self, bias: int) -> list[memoryview] | None:
        """Return the record batches of all entries; None if an entry is no sound record batch.

        None too if there is no compiled kernel.
        """
        if kernel is None or not self._fits():
            return None
        found = kernel.batches_in(self._data, self._size, self._skipped, bias)
        if found is None:
            return None
        positions, self._last_id = found
        data = self._data.data
        return [data[begin:end] for begin, end in positions]

    def _fits(self) -> bool:
        """Whether the reply is large enough for its number of entries, and fits a column."""
        return 0 < self._rows <= len(self._data) // _MIN_ENTRY_BYTES and self._size <= _MAX_COLUMN_BYTES

    @cached_property
    def _every(self) -> list[Entry]:
        reader = hiredis.Reader()
        reader.feed(self._data[: self._size].tobytes())
        entries: list[Entry] = reader.gets()
        return entries

    @cached_property
    def _entries(self) -> list[Entry]:
        return self._every[self._skipped :]

    def __len__(self) -> int:
        return self._rows - self._skipped

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...

    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        return self._entries[at]
