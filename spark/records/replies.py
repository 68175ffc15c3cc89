"""Replies of XRANGE as they came: kept as bytes until somebody wants the entries, or their columns.

The compiled kernel makes columns of what korvet writes, without an object for any entry. All other pages, and
all pages where that kernel is not to be had, are parsed by hiredis.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as LinkError

from korvet.spark.records.compiled import kernel

try:
    import hiredis
except ModuleNotFoundError:
    # An extra of redis-py. Its own parser is slower, and has each string as an object.
    hiredis = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from korvet.spark.records.kernel import Rows

WHOLE_PAGES = hiredis is not None
"""Whether PageParser can be used here."""

Entry = tuple[bytes, list[bytes]]

# What the server is asked to say behind a page: nobody else knows it.
END_OF_PAGE = secrets.token_bytes(16)
_END = b"$%d\r\n%b\r\n" % (len(END_OF_PAGE), END_OF_PAGE)
_FIRST_BUFFER = 1 << 16
_LONGEST_ID = 41
_HEAD = re.compile(rb"\*([0-9]+)\r\n\*2\r\n\$[0-9]+\r\n([0-9]+-[0-9]+)\r\n")
_LONGEST_HEAD = 30 + _LONGEST_ID
# The last thing in the end of a page that looks like the beginning of an entry.
_LAST = re.compile(rb".*\r\n\*2\r\n\$[0-9]{1,2}\r\n([0-9]+-[0-9]+)\r\n", re.DOTALL)
_LONGEST_LAST = 1 << 16
# An entry with one empty field, and an empty header, with what RESP has around them: no smaller ones exist.
_LEAST_ENTRY_BYTES = len(b"*2\r\n$3\r\n0-1\r\n*2\r\n$0\r\n\r\n$0\r\n\r\n")
_LEAST_HEADER_BYTES = len(b"$7\r\nheader.\r\n$0\r\n\r\n")
# What a column of Arrow's can hold.
_MAX_COLUMN_BYTES = 0x7FFFFFFF


class Reply(Sequence[Entry]):
    """The entries of one page, which is looked into when somebody wants to know more than where it begins."""

    def __init__(self, data: NDArray[np.uint8], size: int) -> None:
        """The first `size` bytes of `data` are a whole reply, an array of entries."""
        self._data, self._size = data, size
        self._skipped = 0
        head = _HEAD.match(data[: min(size, _LONGEST_HEAD)].tobytes())
        self._rows = 0 if head is None else int(head[1])
        self._first_id = b"" if head is None else head[2]
        self._last_id: bytes | None = None

    @classmethod
    def of(cls, entries: list[Entry]) -> Reply:
        """A page that has been parsed."""
        reply = cls(np.empty(0, np.uint8), 0)
        reply._size = sum(sum(map(len, fields)) for _, fields in entries)
        reply._rows, reply._first_id = len(entries), entries[0][0] if entries else b""
        reply._every = entries
        return reply

    @property
    def first_id(self) -> bytes:
        """The ID of the entry that the page began with; empty where it has none."""
        return self._first_id

    @property
    def mean_bytes(self) -> int:
        """About how large an entry is, where that is known without looking into it."""
        return self._size // max(1, self._rows)

    def probable_last_id(self) -> bytes:
        """What the ID of the last entry should be; it is not where that holds what looks like an entry."""
        found = _LAST.match(self._data[max(0, self._size - _LONGEST_LAST) : self._size].tobytes())
        return found[1] if found is not None else self.last_id

    @property
    def last_id(self) -> bytes:
        """The ID of the last entry, of those forgotten too. Soon told once its columns have been made."""
        return self._last_id or self._every[-1][0]

    def drop_first(self) -> None:
        """Forget the first entry, before anybody has looked at any."""
        self._skipped += 1

    def rows(self, bias: int, *, append_times: bool, headers: bool = True) -> Rows | None:
        """The records as columns, and the ends of transactions; the headers left out where they are not
        wanted. None where a page has more than korvet writes one by one, or there is no compiled kernel.
        """
        if kernel is None or not self._fits():
            return None
        size = self._size
        most_headers = size // _LEAST_HEADER_BYTES if headers else 0
        rows: Rows = kernel.Rows(self._rows, size, most_headers, headers)
        if not rows.take_entries(self._data, size, self._skipped, bias, append_times):
            return None
        self._last_id = rows.last_id
        return rows

    def batches(self, bias: int) -> list[tuple[int, memoryview]] | None:
        """Offset and value of all entries where each is one field `batch`; None where one is not."""
        if kernel is None or not self._fits():
            return None
        found = kernel.batches_in(self._data, self._size, self._skipped, bias)
        if found is None:
            return None
        places, self._last_id = found
        data = self._data.data
        return [(offset, data[begin:end]) for offset, begin, end in places]

    def _fits(self) -> bool:
        """Whether so many entries can be in it, and their strings in a column."""
        return 0 < self._rows <= len(self._data) // _LEAST_ENTRY_BYTES and self._size <= _MAX_COLUMN_BYTES

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


class PageParser(DefaultParser):  # type: ignore[misc, valid-type]  # redis-py chooses it when imported
    """A connection's parser that leaves a page as it comes, when told to."""

    def __init__(self, socket_read_size: int) -> None:
        super().__init__(socket_read_size)
        self.page_is_next = False
        """Set before reading a reply of entries, behind which ECHO says END_OF_PAGE."""
        self._buffer_bytes = _FIRST_BUFFER

    def read_response(self, *arguments: Any, **named: Any) -> Any:
        """The next reply; as a Reply where that is wanted and it is no error."""
        if not self.page_is_next:
            return super().read_response(*arguments, **named)
        self.page_is_next = False
        data, size = self._read_page()
        if data[0] == ord("*"):
            return Reply(data, size - len(_END))
        self._reader.feed(data[:size].tobytes())
        refusal = super().read_response(*arguments, **named)
        super().read_response(*arguments, **named)
        return refusal

    def _read_page(self) -> tuple[NDArray[np.uint8], int]:
        """All up to the end of a page, in a buffer that may be longer."""
        data, size = np.empty(self._buffer_bytes, dtype=np.uint8), 0
        while data[max(0, size - len(_END)) : size].tobytes() != _END:
            if size == len(data):
                larger = np.empty(2 * len(data), dtype=np.uint8)
                larger[:size] = data[:size]
                data = larger
            received = self._sock.recv_into(data.data[size:])
            if received == 0:
                raise LinkError("the server closed the connection")
            size += received
        self._buffer_bytes = max(_FIRST_BUFFER, size + size // 4)
        return data, size


def read_page(connection: Any) -> Any:
    """What a connection of redis-py answers next, as a Reply. Raises as its read_response does."""
    connection._parser.page_is_next = True  # redis-py has no other way to it
    return connection.read_response(disable_decoding=True)
