"""Replies of XRANGE as they came, read as whole columns: no Python object for any of their entries.

Nearly all entries of a page have the fields that korvet writes, in its order: key, value, ts, headers, pid
and epoch, each there or not. Then NumPy finds where everything is, step by step for all entries at once. Each
step begins where the one before ends, and the last one of an entry has to end where the next entry begins: so
no bytes of a value are ever taken for anything else. Every other page is parsed by hiredis.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from redis.connection import DefaultParser
from redis.exceptions import ConnectionError as LinkError

try:
    import hiredis
except ModuleNotFoundError:
    # An extra of redis-py. Its own parser is slower, and has each string as an object.
    hiredis = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

WHOLE_PAGES = hiredis is not None
"""Whether PageParser can be used here."""

Entry = tuple[bytes, list[bytes]]

KEY = b"key"
VALUE = b"value"
TIMESTAMP = b"ts"
HEADER_PREFIX = b"header."
NULL_HEADER_PREFIX = b"nullheader."
PRODUCER = b"pid"
EPOCH = b"epoch"

# For fewer entries whole columns cost more than objects.
LEAST_ENTRIES = 32
# Reading goes on behind a reply's end by so much at most where its bytes are not what they look like.
PADDING = 512
# With more fields, or longer names of headers, a page is parsed.
MOST_FIELDS = 20
LONGEST_NAME = 256
# What the server is asked to say behind a page: nobody else knows it.
END_OF_PAGE = secrets.token_bytes(16)
_END = b"$%d\r\n%b\r\n" % (len(END_OF_PAGE), END_OF_PAGE)
_FIRST_BUFFER = 1 << 16
_START = b"*2\r\n$"
_LONGEST_ID = 41
_HEAD = re.compile(rb"\*([0-9]+)\r\n\*2\r\n\$[0-9]+\r\n([0-9]+-[0-9]+)\r\n")
_LONGEST_HEAD = 30 + _LONGEST_ID
# The last thing in the end of a page that looks like the beginning of an entry.
_LAST = re.compile(rb".*\r\n\*2\r\n\$[0-9]{1,2}\r\n([0-9]+-[0-9]+)\r\n", re.DOTALL)
_LONGEST_LAST = 1 << 16
_LINE_END = int.from_bytes(b"\r\n", "little")
_WORD = 8
# The digits of a length that a word holds with its line's end.
_MOST_DIGITS = 6


class _Odd(Exception):
    """This page is of another form."""


@dataclass(frozen=True, slots=True)
class Part:
    """One string of each entry: where it begins and ends; an empty place for those that do not have it."""

    data: NDArray[np.uint8]
    starts: Numbers
    ends: Numbers
    there: Flags | None = None
    """None where all entries have it."""

    def behind_first(self) -> Part:
        """The same without the first entry."""
        there = None if self.there is None else self.there[1:]
        return Part(self.data, self.starts[1:], self.ends[1:], there)

    def array(self) -> pa.Array:
        """The strings as a column of bytes, null for entries that have none."""
        return _cut(self.data, self.starts, self.ends, self.there)

    def joined(self, separator: bytes) -> bytes:
        """The strings of all entries that have it, one byte between each."""
        starts, ends = self.starts, self.ends
        if self.there is not None:
            starts, ends = starts[self.there], ends[self.there]
        if not len(starts):
            return b""
        # With the byte behind each.
        _, offsets, text = _cut(self.data, starts, ends + 1, None).buffers()
        joined = np.frombuffer(text, dtype=np.uint8).copy()
        joined[np.frombuffer(offsets, dtype=np.int32)[1 : len(starts) + 1] - 1] = separator[0]
        return joined[:-1].tobytes()

    def is_there(self) -> Flags:
        """Which entries have it."""
        return np.ones(len(self.starts), dtype=bool) if self.there is None else self.there

    def first(self) -> bytes:
        """The first entry's, which has to have it."""
        return self.data[self.starts[0] : self.ends[0]].tobytes()

    def same(self) -> bool:
        """Whether all entries have it, and the same short one."""
        size = int(self.ends[0] - self.starts[0])
        if self.there is not None or size > _WORD or np.any(self.ends - self.starts != size):
            return False
        words = _words(self.data)[self.starts] & _mask(size)
        return bool(np.all(words == words[0]))


@dataclass(frozen=True, slots=True)
class Plain:
    """A page of at least one entry, in parts. `headers` are those that all entries have, in order."""

    ids: Part
    fields: dict[bytes, Part]
    headers: tuple[tuple[bytes, Part], ...]

    def behind_first(self) -> Plain:
        """The same without the first entry."""
        return Plain(
            self.ids.behind_first(),
            {name: part.behind_first() for name, part in self.fields.items()},
            tuple((name, part.behind_first()) for name, part in self.headers),
        )


class Reply(Sequence[Entry]):
    """The entries of one page, which is looked into when somebody wants to know more than where it begins.

    Those of a plain page become objects only when somebody asks for one.
    """

    def __init__(self, data: NDArray[np.uint8], size: int) -> None:
        """`data` holds a whole reply of that size, an array of entries, with PADDING bytes behind it."""
        self._data, self._size = data, size
        self._skipped = 0
        head = _HEAD.match(data[: min(size, _LONGEST_HEAD)].tobytes())
        self._rows = 0 if head is None else int(head[1])
        self._first_id = b"" if head is None else head[2]

    @classmethod
    def of(cls, entries: list[Entry]) -> Reply:
        """A page that has been parsed."""
        reply = cls(np.empty(0, np.uint8), 0)
        reply._size = sum(sum(map(len, fields)) for _, fields in entries)
        reply._rows, reply._first_id = len(entries), entries[0][0] if entries else b""
        reply._entries, reply.plain = entries, None
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
        """The ID of the last entry."""
        if self.plain is None:
            return self._entries[-1][0]
        ids = self.plain.ids
        return ids.data[ids.starts[-1] : ids.ends[-1]].tobytes()

    def drop_first(self) -> None:
        """Forget the first entry, before anybody has looked at any."""
        if self.plain is None:
            del self._entries[0]
        else:
            self.plain = self.plain.behind_first()
        self._skipped += 1

    @cached_property
    def plain(self) -> Plain | None:
        """The page in parts; None where it is of another form."""
        try:
            return _plain(self._data, self._size)
        except _Odd:
            return None

    @cached_property
    def _entries(self) -> list[Entry]:
        reader = hiredis.Reader()
        reader.feed(self._data[: self._size].tobytes())
        entries: list[Entry] = reader.gets()
        return entries[self._skipped :]

    def __len__(self) -> int:
        return self._rows - self._skipped

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...

    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        return self._entries[at]


def _cut(data: NDArray[np.uint8], starts: Numbers, ends: Numbers, there: Flags | None) -> pa.Array:
    """The bytes at these places, which rise, as a column."""
    rows = len(starts)
    # A column of the bytes wanted and those between them, in turn, of which every second one is taken.
    bounds = np.empty(2 * rows + 1, dtype=np.int32)
    bounds[0:-1:2], bounds[1::2] = starts, ends
    bounds[-1] = bounds[-2]
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    wanted = pa.array(np.arange(0, 2 * rows, 2), mask=None if there is None else ~there)
    return pa.Array.from_buffers(pa.binary(), 2 * rows, buffers).take(wanted)


def _words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The eight bytes from each place on, as a number."""
    return np.ndarray((len(data) - _WORD + 1,), "<u8", data.data, strides=(1,))


def _mask(size: int) -> np.uint64:
    return np.uint64((1 << 8 * size) - 1)


def _plain(data: NDArray[np.uint8], size: int) -> Plain:
    """Where everything is in a reply. Raises _Odd."""
    head = re.match(rb"\*(\d+)\r\n", data[: min(size, 16)].tobytes())
    if head is None or int(head[1]) < LEAST_ENTRIES:
        raise _Odd
    return _Walk(data, size, _starts(data, size, int(head[1]))).plain()


def _starts(data: NDArray[np.uint8], size: int, rows: int) -> Numbers:
    """Where the entries seem to begin: at an array of two, the first of which begins with a digit."""
    stars = np.flatnonzero(data[:size] == _START[0])
    starts: Numbers = stars[_words(data)[stars] & _mask(len(_START)) == int.from_bytes(_START, "little")]
    # Behind a length of one or two digits; the fields of an entry with one field begin with a letter.
    behind, next_one = data[starts + 8], data[starts + 9]
    behind = np.where(behind == ord("\n"), next_one, behind)
    starts = starts[(behind >= ord("0")) & (behind <= ord("9"))]
    if len(starts) != rows:
        raise _Odd
    return starts


class _Walk:
    """Goes through all entries of a page at once, one string after the other."""

    def __init__(self, data: NDArray[np.uint8], size: int, starts: Numbers) -> None:
        self._data, self._size, self._starts = data, size, starts
        self._words = _words(data)

    def plain(self) -> Plain:
        """What is where. Raises _Odd."""
        sizes, at = self._number(self._starts + len(_START))
        ids = Part(self._data, at, at + sizes)
        at = self._line_behind(ids.ends)
        if not self._same(at, b"*").all():
            raise _Odd
        strings, at = self._number(at + 1)
        fields: dict[bytes, Part] = {}
        headers: list[tuple[bytes, Part]] = []
        for name in (KEY, VALUE, TIMESTAMP, *self._header_names(int(at[0])), PRODUCER, EPOCH):
            part = self._field(at, name)
            if part is None:
                continue
            if part.there is None:
                at, strings = self._line_behind(part.ends), strings - 2
            else:
                at, strings = np.where(part.there, self._line_behind(part.ends), at), strings - 2 * part.there
            if not name.startswith((HEADER_PREFIX, NULL_HEADER_PREFIX)):
                fields[name] = part
            elif part.there is None:
                headers.append((name, part))
            else:
                raise _Odd
            if not strings.any():
                break
        if strings.any() or np.any(at != np.append(self._starts[1:], self._size)):
            raise _Odd
        return Plain(ids, fields, tuple(headers))

    def _field(self, at: Numbers, name: bytes) -> Part | None:
        """The string behind a field's name, where an entry has that field next; None where none has it."""
        head = b"$%d\r\n%b\r\n$" % (len(name), name)
        behind = int(at[0]) + len(head)
        length = self._data[behind : behind + _WORD].tobytes().partition(b"\r\n")[0]
        if length.isdigit():
            # Often the same in all entries.
            line = head + length + b"\r\n"
            if self._same(at, line).all():
                starts = at + len(line)
                return Part(self._data, starts, starts + int(length))
        there = self._same(at, head)
        if there.all():
            sizes, starts = self._number(at + len(head))
            return Part(self._data, starts, starts + sizes)
        if not there.any():
            return None
        starts, ends = at.copy(), at.copy()
        sizes, starts[there] = self._number(at[there] + len(head))
        ends[there] = starts[there] + sizes
        return Part(self._data, starts, ends, there)

    def _header_names(self, at: int) -> list[bytes]:
        """The headers of the entry whose fields begin here, in order, among which there may be others."""
        names = []
        for _ in range(MOST_FIELDS):
            name_at, name_ends = self._one_string(at)
            value_at, at = self._one_string(name_ends + 2)
            if value_at < 0 or name_ends - name_at > LONGEST_NAME:
                break
            name = self._data[name_at:name_ends].tobytes()
            if name.startswith((HEADER_PREFIX, NULL_HEADER_PREFIX)):
                names.append(name)
            at += 2
        return names

    def _one_string(self, at: int) -> tuple[int, int]:
        """Where the string at this place begins and ends; -1 where there is none."""
        found = re.match(rb"\$(\d{1,6})\r\n", self._data[at : at + 2 * _WORD].tobytes())
        if found is None:
            return -1, -1
        return at + found.end(), at + found.end() + int(found[1])

    def _line_behind(self, at: Numbers) -> Numbers:
        """Behind the line's end that is at these places, not behind the reply's."""
        return np.minimum(at + 2, self._size)

    def _same(self, at: Numbers, text: bytes) -> Flags:
        """Where these bytes are."""
        found = np.ones(len(at), dtype=bool)
        for begin in range(0, len(text), _WORD):
            part = text[begin : begin + _WORD]
            words = self._words[at + begin if begin else at]
            if len(part) < _WORD:
                words &= _mask(len(part))
            found &= words == int.from_bytes(part, "little")
            if not found.any():
                break
        return found

    def _number(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """The decimal numbers that begin at these places, and where their lines end. Raises _Odd."""
        words = self._words[at]
        digits = int(words[0]).to_bytes(_WORD, "little").find(b"\r\n")
        if not 0 < digits <= _MOST_DIGITS:
            raise _Odd
        mask = _mask(digits + 2)
        lines = words & mask
        if np.all(lines == lines[0]):
            return np.full(len(at), _decimal(lines[:1], digits)[0]), at + digits + 2
        # Often all have as many digits.
        if np.all(lines >> np.uint64(8 * digits) == _LINE_END):
            return _decimal(lines, digits), at + digits + 2
        numbers, sizes = np.zeros_like(at), np.zeros_like(at)
        for digits in range(1, _MOST_DIGITS + 1):
            rows = (sizes == 0) & ((words >> np.uint64(8 * digits)) & _mask(2) == _LINE_END)
            if rows.any():
                numbers[rows], sizes[rows] = _decimal(words[rows], digits), digits
        if not sizes.all():
            raise _Odd
        return numbers, at + sizes + 2


def _decimal(words: NDArray[np.uint64], digits: int) -> Numbers:
    """The numbers that words begin with. Raises _Odd where there is anything but digits."""
    numbers = np.zeros(len(words), dtype=np.uint64)
    for place in range(digits):
        digit = ((words >> np.uint64(8 * place)) & np.uint64(255)) - np.uint64(ord("0"))
        if (digit > 9).any():
            raise _Odd
        numbers = numbers * np.uint64(10) + digit
    return numbers.astype(np.int64)


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
        """All up to the end of a page, with room behind it."""
        data, size = np.empty(self._buffer_bytes + PADDING, dtype=np.uint8), 0
        while data[max(0, size - len(_END)) : size].tobytes() != _END:
            if size + PADDING >= len(data):
                larger = np.empty(2 * len(data), dtype=np.uint8)
                larger[:size] = data[:size]
                data = larger
            received = self._sock.recv_into(data.data[size : len(data) - PADDING])
            if received == 0:
                raise LinkError("the server closed the connection")
            size += received
        self._buffer_bytes = max(_FIRST_BUFFER, size + size // 4)
        return data, size


def read_page(connection: Any) -> Any:
    """What a connection of redis-py answers next, as a Reply. Raises as its read_response does."""
    connection._parser.page_is_next = True  # redis-py has no other way to it
    return connection.read_response(disable_decoding=True)
