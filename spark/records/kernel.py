# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: PLR0915, RET505 - loops and branches that compile to C
"""Replies of XRANGE and the records of batches as they came, to Arrow's columns in one pass over the bytes.

One source in two forms: Cython compiles it (pure-Python mode), and tests run it as it stands, too slow for
anything else. Every byte that comes in is untrusted: lengths are compared before anything is read, and so is
the room before anything is written. What is unusual in any way is refused as a whole, and left to the
general way of korvet.spark.records.entries, which makes the same rows. Positions are indices into buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython  # where it is absent, only the compiled form can be used
import numpy as np

from korvet.offsets import entry_fields, packing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    BytesLike = bytes | bytearray | memoryview | NDArray[np.uint8]

if cython.compiled:
    from cython.cimports.libc.string import memcpy

__all__ = ["ACCELERATED", "Rows", "Strings", "batches_in"]

ACCELERATED: bool = cython.compiled

# What begins a bulk string and an array in RESP.
BULK_MARK = cython.declare(cython.longlong, 36)
ARRAY_MARK = cython.declare(cython.longlong, 42)
MAX_INT32 = cython.declare(cython.longlong, 0x7FFFFFFF)
# Digits that fit 64 bits whatever they are.
MOST_DIGITS = cython.declare(cython.Py_ssize_t, 18)
# A difference of times has no more digits where the sum is to have a place in Spark's calendar.
MOST_DIGITS_OF_TIME = cython.declare(cython.Py_ssize_t, 15)
SEQUENCE_BITS = cython.declare(cython.longlong, packing.SEQUENCE_BITS)
MAX_SEQUENCE = cython.declare(cython.longlong, packing.MAX_SEQUENCE)
MAX_ADDRESSABLE_MS = cython.declare(cython.longlong, packing.MAX_MS)
# The years 1 to 9999, which is all that Spark has.
MIN_SPARK_MS = cython.declare(cython.longlong, -62_135_596_800_000)
MAX_SPARK_MS = cython.declare(cython.longlong, 253_402_300_799_999)
# Records' times are base and difference: so far from zero their sum is none of Spark's, and can't overflow.
FAR_MS = cython.declare(cython.longlong, 1 << 61)

# Names of fields, and the beginnings of longer ones, as the numbers that their bytes are.
WORD = 7
WORD_BYTES = cython.declare(cython.Py_ssize_t, WORD)
KEY = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.KEY, "little"))
VALUE = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.VALUE, "little"))
TIMESTAMP = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.TIMESTAMP, "little"))
PRODUCER = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.PRODUCER_ID, "little"))
EPOCH = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.PRODUCER_EPOCH, "little"))
CONTROL = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.CONTROL, "little"))
COMMIT = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.COMMIT, "little"))
ABORT = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.ABORT, "little"))
BATCH = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.BATCH, "little"))
HEADER_PREFIX = cython.declare(cython.ulonglong, int.from_bytes(entry_fields.HEADER_PREFIX, "little"))
NULL_PREFIX = cython.declare(
    cython.ulonglong, int.from_bytes(entry_fields.NULL_HEADER_PREFIX[:WORD], "little")
)
NULL_PREFIX_END = cython.declare(
    cython.ulonglong, int.from_bytes(entry_fields.NULL_HEADER_PREFIX[WORD:], "little")
)
HEADER_PREFIX_BYTES = cython.declare(cython.Py_ssize_t, len(entry_fields.HEADER_PREFIX))
NULL_PREFIX_BYTES = cython.declare(cython.Py_ssize_t, len(entry_fields.NULL_HEADER_PREFIX))

# Which fields an entry has.
HAS_KEY = cython.declare(cython.longlong, 1)
HAS_VALUE = cython.declare(cython.longlong, 2)
HAS_TIMESTAMP = cython.declare(cython.longlong, 4)
HAS_PRODUCER = cython.declare(cython.longlong, 8)
HAS_EPOCH = cython.declare(cython.longlong, 16)
HAS_CONTROL = cython.declare(cython.longlong, 32)
HAS_HEADER = cython.declare(cython.longlong, 64)


@cython.cfunc
@cython.inline
def _readable(view: cython.const[cython.uchar][::1]) -> cython.pointer(cython.const[cython.uchar]):
    """The bytes of a buffer that is not empty."""
    if cython.compiled:
        return cython.address(view[0])
    else:
        return memoryview(view).cast("B")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _word(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.ulonglong:
    """The first seven of n bytes as a number, the first byte being its last."""
    word: cython.ulonglong = 0
    i: cython.Py_ssize_t
    byte: cython.ulonglong
    for i in range(min(n, WORD_BYTES)):
        byte = p[at + i]
        word |= byte << (8 * i)
    return word


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _line(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    mark: cython.int,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A line of this mark and a number below 2^31: (number, position behind it, or -1)."""
    number: cython.longlong = 0
    digit: cython.int
    begin: cython.Py_ssize_t = at + 1
    if at >= end or p[at] != mark:
        return 0, -1
    at = begin
    while at < end and p[at] != 13:
        digit = p[at] - 48
        if digit < 0 or digit > 9:
            return 0, -1
        number = number * 10 + digit
        if number > MAX_INT32:
            return 0, -1
        at += 1
    if at == begin or end - at < 2 or p[at + 1] != 10:
        return 0, -1
    return number, at + 2


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _bulk(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t]:
    """A bulk string, with the line's end behind it: (where it begins, its length, or -1)."""
    size: cython.longlong
    size, at = _line(p, at, end, BULK_MARK)
    if at < 0 or end - at < size + 2 or p[at + size] != 13 or p[at + size + 1] != 10:
        return 0, -1
    return at, size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _count(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.longlong:
    """The number that n digits are, 18 of them at most; -1 where they are none."""
    number: cython.longlong = 0
    digit: cython.int
    i: cython.Py_ssize_t
    if n < 1 or n > MOST_DIGITS:
        return -1
    for i in range(at, at + n):
        digit = p[i] - 48
        if digit < 0 or digit > 9:
            return -1
        number = number * 10 + digit
    return number


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _entry(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t, cython.longlong, cython.Py_ssize_t]:
    """How an entry begins: (its packed ID or -1 where it has none, where the ID is, how many strings its
    fields are, where these begin, or -1).
    """
    n: cython.Py_ssize_t
    dash: cython.Py_ssize_t
    ms: cython.longlong
    sequence: cython.longlong
    strings: cython.longlong
    id_at: cython.Py_ssize_t
    parts: cython.longlong
    parts, at = _line(p, at, end, ARRAY_MARK)
    if at < 0 or parts != 2:
        return 0, 0, 0, -1
    id_at, n = _bulk(p, at, end)
    if n < 0:
        return 0, 0, 0, -1
    dash = 0
    while dash < n and p[id_at + dash] != 45:
        dash += 1
    ms = _count(p, id_at, dash)
    if dash == n or ms < 0:
        return 0, 0, 0, -1
    sequence = _count(p, id_at + dash + 1, n - dash - 1)
    strings, at = _line(p, id_at + n + 2, end, ARRAY_MARK)
    if sequence < 0 or at < 0 or strings < 2 or strings & 1:
        return 0, 0, 0, -1
    if ms > MAX_ADDRESSABLE_MS or sequence > MAX_SEQUENCE:
        return -1, id_at, strings, at
    return (ms << SEQUENCE_BITS) | sequence, id_at, strings, at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of 63 bits: (value, position behind it, or -1)."""
    raw: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    while at < end and shift < 63:
        byte = p[at]
        at += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            return cython.cast(cython.longlong, raw >> 1) ^ -cython.cast(cython.longlong, raw & 1), at
        shift += 7
    return 0, -1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _octets_field(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t]:
    """A nullable byte field: (where it begins, its length or -1 for null, position behind it, or -1)."""
    n: cython.longlong
    n, at = _varint(p, at, end)
    if at < 0 or n > end - at:
        return 0, 0, -1
    if n < 0:
        return at, -1, at
    return at, n, at + n


@cython.cfunc
def _line_from(p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t) -> bytes:
    """What is before the line's end that comes next; there has to be one."""
    end: cython.Py_ssize_t = at
    while p[end] != 13:
        end += 1
    if cython.compiled:
        return (p + at)[: end - at]
    else:
        return bytes(p[at:end])


@cython.cfunc
@cython.exceptval(-1)
def _is_text(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Whether the bytes are UTF-8."""
    i: cython.Py_ssize_t
    for i in range(at, at + n):
        if p[i] > 127:
            break
    else:
        return True
    try:
        if cython.compiled:
            (p + at)[:n].decode()
        else:
            bytes(p[at : at + n]).decode()
    except UnicodeDecodeError:
        return False
    return True


@cython.final
@cython.cclass
class Strings:
    """A column of byte strings, some of them null, in the buffers that Arrow has for it."""

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    nulls = cython.declare(cython.Py_ssize_t, visibility="readonly")
    ends = cython.declare(object, visibility="readonly")
    validity = cython.declare(object, visibility="readonly")
    data = cython.declare(object, visibility="readonly")
    _most: cython.Py_ssize_t
    _room: cython.Py_ssize_t
    _ends: cython.int[::1]
    _validity: cython.uchar[::1]
    _data: cython.uchar[::1]

    def __init__(self, most: int, room: int) -> None:
        """Room for so many strings, and for so many bytes of all of them."""
        self.count = self.size = self.nulls = 0
        self._most, self._room = most, room
        self.ends = np.empty(most + 1, dtype=np.int32)
        self.validity = np.zeros((most + 8) // 8, dtype=np.uint8)
        self.data = np.empty(room + 1, dtype=np.uint8)
        self._ends, self._validity, self._data = self.ends, self.validity, self.data
        self._ends[0] = 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _add(
        self, p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.bint:
        """Add the n bytes at this place, null for a negative n; False where there is no room."""
        if self.count >= self._most or n > self._room - self.size:
            return False
        if n < 0:
            self.nulls += 1
        else:
            if cython.compiled:
                memcpy(cython.address(self._data[self.size]), p + at, n)
            else:
                self._data[self.size : self.size + n] = list(p[at : at + n])
            self.size += n
            self._validity[self.count >> 3] |= 1 << (self.count & 7)
        self.count += 1
        self._ends[self.count] = self.size
        return True


@cython.final
@cython.cclass
class Rows:
    """Records as columns, filled from replies or from batches.

    `markers` has the ends of transactions that were among them: offset, producer, whether it was a commit.
    `header_ends` is where each row's headers end among all, in `header_names` and `header_values`.
    `producers` is -1 where a record is part of no transaction, as all are without `transactional`.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    offsets = cython.declare(object, visibility="readonly")
    timestamps_ms = cython.declare(object, visibility="readonly")
    producers = cython.declare(object, visibility="readonly")
    transactional = cython.declare(cython.bint, visibility="readonly")
    keys = cython.declare(object, visibility="readonly")
    values = cython.declare(object, visibility="readonly")
    header_ends = cython.declare(object, visibility="readonly")
    header_names = cython.declare(object, visibility="readonly")
    header_values = cython.declare(object, visibility="readonly")
    markers = cython.declare(list, visibility="readonly")
    last_id = cython.declare(bytes, visibility="readonly")
    _most: cython.Py_ssize_t
    _with_headers: cython.bint
    _offsets: cython.longlong[::1]
    _timestamps_ms: cython.longlong[::1]
    _producers: cython.longlong[::1]
    _header_ends: cython.int[::1]
    _keys: Strings
    _values: Strings
    _header_names: Strings
    _header_values: Strings

    def __init__(self, most: int, room: int, headers: int, with_headers: bool) -> None:
        """Room for so many rows, for so many bytes in each of their columns, and for so many headers, which
        are left out unless they are wanted.
        """
        self.count = 0
        self.transactional = False
        self.markers = []
        self.last_id = b""
        self._most, self._with_headers = most, with_headers
        self.offsets, self.timestamps_ms, self.producers = (np.empty(most, dtype=np.int64) for _ in range(3))
        self._offsets, self._timestamps_ms = self.offsets, self.timestamps_ms
        self._producers = self.producers
        self.keys, self.values = Strings(most, room), Strings(most, room)
        self.header_ends = np.empty(most + 1, dtype=np.int32)
        self._header_ends = self.header_ends
        self._header_ends[0] = 0
        self.header_names = Strings(headers if with_headers else 0, room if with_headers else 0)
        self.header_values = Strings(headers if with_headers else 0, room if with_headers else 0)
        self._keys, self._values = self.keys, self.values
        self._header_names, self._header_values = self.header_names, self.header_values

    def take_entries(self, reply: BytesLike, size: int, skipped: int, bias: int, append_times: bool) -> bool:
        """Take the records of reply[:size], an XRANGE reply (RESP2), but for the first entries; and markers.

        An entry at ms-seq has the offset pack(ms, seq) - bias; those that have none are left out. With
        append_times a record's timestamp is the ms. False where an entry is no record and no marker of
        korvet's, or unusual: what has been taken is then of no use.
        """
        view: cython.const[cython.uchar][::1] = reply
        if size < 1 or size > len(reply):
            return False
        p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
        end: cython.Py_ssize_t = size
        dropped: cython.Py_ssize_t = skipped
        shift: cython.longlong = bias
        by_id: cython.bint = append_times
        entries: cython.longlong
        number: cython.longlong
        position: cython.longlong
        strings: cython.longlong
        id_at: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t
        fields_at: cython.Py_ssize_t
        entries, at = _line(p, 0, end, ARRAY_MARK)
        if at < 0 or entries < 1:
            return False
        for number in range(entries):
            position, id_at, strings, fields_at = _entry(p, at, end)
            if fields_at < 0:
                return False
            at = self._take(p, fields_at, end, strings, -1 if number < dropped else position, shift, by_id)
            if at < 0:
                return False
        if at != end:
            return False
        self.last_id = _line_from(p, id_at)
        return True

    @cython.cfunc
    @cython.exceptval(-2)
    def _take(
        self,
        p: cython.pointer(cython.const[cython.uchar]),
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        strings: cython.longlong,
        position: cython.longlong,
        bias: cython.longlong,
        append_times: cython.bint,
    ) -> cython.Py_ssize_t:
        """One entry's fields, dropped where its position is negative: the position behind them, or -1."""
        seen: cython.int = 0
        field: cython.int
        name_at: cython.Py_ssize_t
        name_size: cython.Py_ssize_t
        prefix: cython.Py_ssize_t
        value_at: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        own_key_at: cython.Py_ssize_t = 0
        own_key_size: cython.Py_ssize_t = -1
        own_value_at: cython.Py_ssize_t = 0
        own_value_size: cython.Py_ssize_t = -1
        word: cython.ulonglong
        negative: cython.Py_ssize_t
        relative_ms: cython.longlong = 0
        producer: cython.longlong = -1
        committed: cython.bint = False
        while strings > 0:
            strings -= 2
            name_at, name_size = _bulk(p, at, end)
            if name_size < 0:
                return -1
            value_at, value_size = _bulk(p, name_at + name_size + 2, end)
            if value_size < 0:
                return -1
            at = value_at + value_size + 2
            word = _word(p, name_at, name_size)
            if name_size == 5 and word == VALUE:
                field = HAS_VALUE
                own_value_at, own_value_size = value_at, value_size
            elif name_size == 3 and word == KEY:
                field = HAS_KEY
                own_key_at, own_key_size = value_at, value_size
            elif name_size == 2 and word == TIMESTAMP:
                field = HAS_TIMESTAMP
                negative = 1 if value_size > 0 and p[value_at] == 45 else 0
                if value_size - negative > MOST_DIGITS_OF_TIME:
                    return -1
                relative_ms = _count(p, value_at + negative, value_size - negative)
                if relative_ms < 0:
                    return -1
                if negative:
                    relative_ms = -relative_ms
            elif name_size == 3 and word == PRODUCER:
                field = HAS_PRODUCER
                producer = _count(p, value_at, value_size)
                if producer < 0:
                    return -1
            elif name_size == 5 and word == EPOCH:
                field = HAS_EPOCH
                if _count(p, value_at, value_size) < 0:
                    return -1
            elif name_size == 3 and word == CONTROL:
                field = HAS_CONTROL
                word = _word(p, value_at, value_size)
                committed = value_size == 6 and word == COMMIT
                if not committed and (value_size != 5 or word != ABORT):
                    return -1
            else:
                field = 0
                seen |= HAS_HEADER
                if name_size >= HEADER_PREFIX_BYTES and word == HEADER_PREFIX:
                    prefix = HEADER_PREFIX_BYTES
                elif (
                    name_size >= NULL_PREFIX_BYTES
                    and word == NULL_PREFIX
                    and _word(p, name_at + WORD_BYTES, NULL_PREFIX_BYTES - WORD_BYTES) == NULL_PREFIX_END
                ):
                    prefix, value_size = NULL_PREFIX_BYTES, -1
                else:
                    return -1
                if (
                    self._with_headers
                    and position >= 0
                    and not self._add_header(p, name_at + prefix, name_size - prefix, value_at, value_size)
                ):
                    return -1
            if seen & field:
                return -1
            seen |= field
        if seen & HAS_CONTROL:
            if seen != HAS_CONTROL | HAS_PRODUCER | HAS_EPOCH:
                return -1
            if position >= 0:
                self.markers.append((position - bias, producer, True if committed else False))  # noqa: SIM210
            return at
        if (seen & HAS_PRODUCER != 0) != (seen & HAS_EPOCH != 0):
            return -1
        if position < 0:
            return at
        if append_times:
            relative_ms = 0
        if not self._add_row(position - bias, (position >> SEQUENCE_BITS) + relative_ms, producer):
            return -1
        if not self._keys._add(p, own_key_at, own_key_size):
            return -1
        return at if self._values._add(p, own_value_at, own_value_size) else -1

    def take_records(
        self,
        section: BytesLike,
        count: int,
        base_offset: int,
        base_ms: int,
        append_ms: int | None,
        producer: int,
        first: int,
        stop: int,
    ) -> bool:
        """Take the records of a batch that has `count` of them, those with offsets from `first` to stop - 1.

        Their timestamps are all append_ms, where there is one. False where the section is no such records, or
        unusual: what has been taken is then of no use.
        """
        view: cython.const[cython.uchar][::1] = section
        end: cython.Py_ssize_t = len(section)
        if end < 1:
            return False
        p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
        records: cython.longlong = count
        number: cython.longlong
        base: cython.longlong = base_offset
        time_ms: cython.longlong = base_ms
        one_time: cython.bint = append_ms is not None
        one_ms: cython.longlong = append_ms if append_ms is not None else 0
        owner: cython.longlong = producer
        from_offset: cython.longlong = first
        to_offset: cython.longlong = stop
        at: cython.Py_ssize_t = 0
        size: cython.longlong
        wanted: cython.bint
        if time_ms > FAR_MS or time_ms < -FAR_MS or base < 0 or records > MAX_INT32:
            return False
        for number in range(records):
            size, at = _varint(p, at, end)
            if at < 0 or size < 1 or size > end - at:
                return False
            wanted = from_offset <= base + number < to_offset
            if not self._take_record(
                p, at + 1, at + size, number, base, time_ms, one_time, one_ms, owner, wanted
            ):
                return False
            at += size
        return at == end

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def _take_record(
        self,
        p: cython.pointer(cython.const[cython.uchar]),
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        number: cython.longlong,
        base: cython.longlong,
        base_ms: cython.longlong,
        one_time: cython.bint,
        one_ms: cython.longlong,
        producer: cython.longlong,
        wanted: cython.bint,
    ) -> cython.bint:
        """A record from behind its attributes to its end."""
        delta_ms: cython.longlong
        delta: cython.longlong
        headers: cython.longlong
        key_at: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        value_at: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        delta_ms, at = _varint(p, at, end)
        if at < 0 or delta_ms > FAR_MS or delta_ms < -FAR_MS:
            return False
        delta, at = _varint(p, at, end)
        if at < 0 or delta != number:
            return False
        key_at, key_size, at = _octets_field(p, at, end)
        if at < 0:
            return False
        value_at, value_size, at = _octets_field(p, at, end)
        if at < 0:
            return False
        headers, at = _varint(p, at, end)
        if at < 0 or headers < 0:
            return False
        if wanted and not (
            self._keys._add(p, key_at, key_size) and self._values._add(p, value_at, value_size)
        ):
            return False
        while headers > 0:
            headers -= 1
            key_at, key_size, at = _octets_field(p, at, end)
            if at < 0:
                return False
            value_at, value_size, at = _octets_field(p, at, end)
            if at < 0:
                return False
            if (
                wanted
                and self._with_headers
                and not self._add_header(p, key_at, max(key_size, 0), value_at, value_size)
            ):
                return False
        if at != end:
            return False
        return not wanted or self._add_row(
            base + number, one_ms if one_time else base_ms + delta_ms, producer
        )

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _add_row(
        self, offset: cython.longlong, time_ms: cython.longlong, producer: cython.longlong
    ) -> cython.bint:
        """A row without its strings; its headers have been added. False where it has no room or no time."""
        if self.count >= self._most or time_ms < MIN_SPARK_MS or time_ms > MAX_SPARK_MS:
            return False
        self._offsets[self.count] = offset
        self._timestamps_ms[self.count] = time_ms
        self._producers[self.count] = producer
        if producer >= 0:
            self.transactional = True
        self.count += 1
        self._header_ends[self.count] = self._header_names.count
        return True

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def _add_header(
        self,
        p: cython.pointer(cython.const[cython.uchar]),
        name_at: cython.Py_ssize_t,
        name_size: cython.Py_ssize_t,
        value_at: cython.Py_ssize_t,
        value_size: cython.Py_ssize_t,
    ) -> cython.bint:
        """A header of the row that comes next; its value is null where that has a negative size."""
        return (
            _is_text(p, name_at, name_size)
            and self._header_names._add(p, name_at, name_size)
            and self._header_values._add(p, value_at, value_size)
        )


def batches_in(
    reply: BytesLike, size: int, skipped: int, bias: int
) -> tuple[list[tuple[int, int, int]], bytes] | None:
    """Of reply[:size], an XRANGE reply (RESP2), all entries but the first `skipped` ones and those that have
    no offset: the offset, and where the value of their one field begins and ends; and the ID of the last
    entry. None where an entry has another field than `batch`, or more, or is unusual.
    """
    view: cython.const[cython.uchar][::1] = reply
    if size < 1 or size > len(reply):
        return None
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    end: cython.Py_ssize_t = size
    entries: cython.longlong
    number: cython.longlong
    position: cython.longlong
    strings: cython.longlong
    at: cython.Py_ssize_t
    id_at: cython.Py_ssize_t = 0
    name_size: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_size: cython.Py_ssize_t
    found: list[tuple[int, int, int]] = []
    entries, at = _line(p, 0, end, ARRAY_MARK)
    if at < 0 or entries < 1:
        return None
    for number in range(entries):
        position, id_at, strings, at = _entry(p, at, end)
        if at < 0 or strings != 2:
            return None
        at, name_size = _bulk(p, at, end)
        if name_size != 5 or _word(p, at, name_size) != BATCH:
            return None
        value_at, value_size = _bulk(p, at + name_size + 2, end)
        if value_size < 0:
            return None
        at = value_at + value_size + 2
        if position >= 0 and number >= skipped:
            found.append((position - bias, value_at, value_at + value_size))
    return (found, _line_from(p, id_at)) if at == end else None
