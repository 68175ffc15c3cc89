# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: B007, PLR0915, PLR1714, RET505, TC003 - loops and branches that compile to C
"""Record batches to stream entries and back, in one pass over the bytes each way.

One source in two forms: Cython compiles it (pure-Python mode), and it runs as it stands, slower, with the
same results. Every byte that comes in is untrusted: lengths are compared before anything is read or added, no
arithmetic leaves 64 bits (so both forms agree). Positions are indices into buffers: `p` is read,
`w` written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from korvet.records.batch import (
    AppendArguments,
    AppendCommands,
    BatchError,
    BatchHeader,
    BytesLike,
    Entries,
    RecordSummary,
    Span,
)

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, _PyBytes_Resize
    from cython.cimports.cpython.ref import Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
    from cython.cimports.korvet.records._crc32c import (
        korvet_crc32c,
        korvet_crc32c_portable,
        korvet_crc32c_prepare,
    )
    from cython.cimports.libc.string import memchr, memcmp, memcpy

    korvet_crc32c_prepare()
else:
    import crc32c as _crc32c_package

__all__ = [
    "ACCELERATED",
    "AppendArguments",
    "AppendCommands",
    "BatchError",
    "BatchHeader",
    "Entries",
    "RecordSummary",
    "ReplyScanner",
    "append_reply",
    "check_records",
    "crc32c",
    "crc32c_portable",
    "encode_append",
    "encode_append_records",
    "encode_commands",
    "entries_to_batches",
    "find_invalid",
    "find_record",
    "offset_behind",
    "pack",
    "pack_arguments",
    "parse_batch",
    "place_batch",
    "resembles_batch",
]

ACCELERATED: bool = cython.compiled

MAX_INT64 = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
MIN_INT64 = cython.declare(cython.longlong, -MAX_INT64 - 1)
MAX_INT32 = cython.declare(cython.longlong, 0x7FFFFFFF)
TWO_TO_32 = cython.declare(cython.longlong, 1 << 32)
MAX_UINT32 = cython.declare(cython.ulonglong, 0xFFFFFFFF)
TENTH_OF_MAX_UINT64 = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF // 10)

# Kafka's RecordBatch, magic 2 (KIP-98): where its fields are.
LENGTH_AT = cython.declare(cython.Py_ssize_t, 8)
LEADER_EPOCH_AT = cython.declare(cython.Py_ssize_t, 12)
MAGIC_AT = cython.declare(cython.Py_ssize_t, 16)
CRC_AT = cython.declare(cython.Py_ssize_t, 17)
ATTRIBUTES_AT = cython.declare(cython.Py_ssize_t, 21)
DELTA_AT = cython.declare(cython.Py_ssize_t, 23)
COUNT_AT = cython.declare(cython.Py_ssize_t, 57)
HEADER_SIZE = cython.declare(cython.Py_ssize_t, 61)
PREFIX_SIZE = cython.declare(cython.Py_ssize_t, 12)
SMALLEST_RECORD_SIZE = cython.declare(cython.Py_ssize_t, 7)  # every part of it one byte, headers and all
NEWEST_CODEC = cython.declare(cython.longlong, 4)
# In place of a position: that of a record batch which cannot be read.
DAMAGED = cython.declare(cython.Py_ssize_t, -2)

# A script may unpack about 8,000 values; half of that leaves room for what others put in front.
MAX_FIELD_ARGUMENTS = cython.declare(cython.Py_ssize_t, 3900)

SEQUENCE_BITS = cython.declare(cython.longlong, 10)
MAX_SEQUENCE = cython.declare(cython.ulonglong, 1023)
# Records that one point of the log's index stands for.
SPAN_RECORDS = cython.declare(cython.longlong, 256)
# What begins a bulk string, an array and an integer in RESP.
BULK_MARK = cython.declare(cython.uint, 36)
ARRAY_MARK = cython.declare(cython.uint, 42)
INTEGER_MARK = cython.declare(cython.uint, 58)
# The largest entry that is found from a reply's end.
FOUND_FROM_END = cython.declare(cython.Py_ssize_t, 2048)
# More than the two line ends and the length of a bulk string need, and a number as one.
BULK_ROOM = cython.declare(cython.Py_ssize_t, 48)
# XADD, key, NOMKSTREAM: the strings of a command before its entry ID.
COMMAND_STRINGS = cython.declare(cython.longlong, 3)
# Producers' epochs are int16; digits that no number needs are none of ours.
MAX_EPOCH = cython.declare(cython.ulonglong, 0x7FFF)
MAX_NUMBER_DIGITS = cython.declare(cython.Py_ssize_t, 18)
# A marker's strings: ctl, pid and epoch with their values.
MARKER_STRINGS = cython.declare(cython.longlong, 6)
# A control record (KIP-98): key version and type, value version and coordinator epoch.
CONTROL_KEY_SIZE = cython.declare(cython.longlong, 4)
CONTROL_VALUE_SIZE = cython.declare(cython.longlong, 6)
TRANSACTIONAL = cython.declare(cython.longlong, 16)
CONTROL = cython.declare(cython.longlong, 32)
MAX_ADDRESSABLE_MS = cython.declare(cython.ulonglong, (1 << 53) - 1)

# What `_copy_short` may write behind what it copies.
SHORT = cython.declare(cython.Py_ssize_t, 32)
# Bytes that the RESP form of a record needs beyond its own size: at most so much once, and per header.
RECORD_ROOM = cython.declare(cython.Py_ssize_t, 160)
HEADER_ROOM = cython.declare(cython.Py_ssize_t, 48)
# The longest record envelope: length, attributes, timestamp delta, offset delta, key, value, header count.
ENVELOPE_ROOM = cython.declare(cython.Py_ssize_t, 48)

FIELD_TEXTS: bytes = b"$3\r\nkey\r\n$5\r\nvalue\r\n$2\r\nts\r\nheader.nullheader."
KEY_AT = cython.declare(cython.Py_ssize_t, 0)
KEY_SIZE = cython.declare(cython.Py_ssize_t, 9)
VALUE_AT = cython.declare(cython.Py_ssize_t, 9)
VALUE_SIZE = cython.declare(cython.Py_ssize_t, 11)
TS_AT = cython.declare(cython.Py_ssize_t, 20)
TS_SIZE = cython.declare(cython.Py_ssize_t, 8)
PLAIN_PREFIX_AT = cython.declare(cython.Py_ssize_t, 28)
PLAIN_PREFIX_SIZE = cython.declare(cython.Py_ssize_t, 7)
NULL_PREFIX_AT = cython.declare(cython.Py_ssize_t, 35)
NULL_PREFIX_SIZE = cython.declare(cython.Py_ssize_t, 11)

# What a transaction's replies begin with; the first is also korvet_guard's where it opens the gate.
TRANSACTION_TEXTS: bytes = b"+OK\r\n+QUEUED\r\n"
OK_AT = cython.declare(cython.Py_ssize_t, 0)
OK_SIZE = cython.declare(cython.Py_ssize_t, 5)
QUEUED_AT = cython.declare(cython.Py_ssize_t, 5)
QUEUED_SIZE = cython.declare(cython.Py_ssize_t, 9)
# The integers of an append function's reply, and which of them says that the batch is a duplicate.
REPLY_NUMBERS = cython.declare(cython.longlong, 8)
DUPLICATE = cython.declare(cython.Py_ssize_t, 5)

# For a command without large arguments.
COMMAND_ROOM = cython.declare(cython.Py_ssize_t, 512)

RECORD_FAULTS: dict[int, str] = {
    -1: "its length is cut off, malformed or beyond the batch",
    -2: "its timestamp delta is cut off or malformed",
    -3: "its offset delta is cut off, malformed or out of sequence",
    -4: "its key length is malformed or beyond the record",
    -5: "its value length is malformed or beyond the record",
    -6: "its header count is negative, malformed or beyond the record",
    -7: "it has a header without a name, or the name's length is malformed or beyond the record",
    -8: "it has a header value whose length is malformed or beyond the record",
    -9: "it has bytes behind its last header",
}


# Primitives: the only places where the two forms differ.


@cython.cfunc
@cython.inline
def _readable(view: cython.const[cython.uchar][::1]) -> cython.pointer(cython.const[cython.uchar]):
    """The bytes of a buffer that is not empty."""
    if cython.compiled:
        return cython.address(view[0])
    else:
        return memoryview(view).cast("B")


@cython.final
@cython.cclass
class _Room:
    """A bytes object that is written before anybody has it."""

    size: cython.Py_ssize_t
    _made: cython.pointer(PyObject)

    def __init__(self, size: cython.Py_ssize_t) -> None:
        self.size = size
        if cython.compiled:
            made: object = PyBytes_FromStringAndSize(cython.NULL, size)
            Py_INCREF(made)
            self._made = cython.cast(cython.pointer(PyObject), made)
        else:
            self._made = bytearray(size)

    def __dealloc__(self) -> None:
        if cython.compiled:
            Py_XDECREF(self._made)

    @cython.cfunc
    def start(self) -> cython.p_uchar:
        """Where to write, until it grows or is taken."""
        if cython.compiled:
            return cython.cast(cython.p_uchar, PyBytes_AS_STRING(cython.cast(object, self._made)))
        else:
            return self._made

    @cython.cfunc
    def grow(self, size: cython.Py_ssize_t) -> cython.p_uchar:
        """Room for `size` bytes at least; what is written stays. Returns the new start."""
        self.size = max(size, 2 * self.size)
        if cython.compiled:
            _PyBytes_Resize(cython.address(self._made), self.size)
        else:
            self._made.extend(bytes(self.size - len(self._made)))
        return self.start()

    @cython.cfunc
    def take(self, size: cython.Py_ssize_t) -> bytes:
        """The first `size` bytes; the room is gone then."""
        if cython.compiled:
            _PyBytes_Resize(cython.address(self._made), size)
            made: bytes = cython.cast(bytes, self._made)
            Py_DECREF(made)
            self._made = cython.NULL
            return made
        else:
            return bytes(self._made[:size])


@cython.cfunc
@cython.inline
def _content(data: bytes) -> cython.pointer(cython.const[cython.uchar]):
    """The bytes of a bytes object, which may be empty."""
    if cython.compiled:
        return cython.cast(cython.pointer(cython.const[cython.uchar]), PyBytes_AS_STRING(data))
    else:
        return memoryview(data)


@cython.cfunc
@cython.inline
def _octets(p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, n: cython.Py_ssize_t):
    """A bytes object of n bytes."""
    if cython.compiled:
        return (p + at)[:n]
    else:
        return bytes(p[at : at + n])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _checksum(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.uint:
    if cython.compiled:
        return korvet_crc32c(p + at, n)
    else:
        return _crc32c_package.crc32c(bytes(p[at : at + n]))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: cython.pointer(cython.const[cython.uchar]),
    source: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy n bytes; the position behind them."""
    if cython.compiled:
        memcpy(w + at, p + source, n)
    else:
        w[at : at + n] = p[source : source + n]
    return at + n


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _copy_short(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: cython.pointer(cython.const[cython.uchar]),
    source: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """As `_copy`, for what mostly has no more than SHORT bytes; what follows in `w`, where there have to be
    so many, is overwritten. `end` is that of what can be read.
    """
    if cython.compiled:
        # A copy of a known size is two instructions, and no call.
        if n <= 16 and end - source >= 16:
            memcpy(w + at, p + source, 16)
            return at + n
        if n <= 32 and end - source >= 32:
            memcpy(w + at, p + source, 32)
            return at + n
    return _copy(w, at, p, source, n)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _same(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    q: cython.pointer(cython.const[cython.uchar]),
    other: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Whether n bytes are the same here and there."""
    if cython.compiled:
        return memcmp(p + at, q + other, n) == 0
    else:
        return bytes(p[at : at + n]) == bytes(q[other : other + n])


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _line_end(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """The position behind the next line feed, or -1."""
    if cython.compiled:
        found: cython.pointer(cython.const[cython.uchar]) = cython.cast(
            cython.pointer(cython.const[cython.uchar]), memchr(p + at, 10, end - at)
        )
        if found == cython.NULL:
            return -1
        return found - p + 1
    else:
        return bytes(p[at:end]).find(b"\n") + at + 1 if b"\n" in bytes(p[at:end]) else -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _uint32(p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t) -> cython.uint:
    return (
        (cython.cast(cython.uint, p[at]) << 24)
        | (cython.cast(cython.uint, p[at + 1]) << 16)
        | (cython.cast(cython.uint, p[at + 2]) << 8)
        | p[at + 3]
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int32(p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t) -> cython.longlong:
    value: cython.longlong = _uint32(p, at)
    return value - TWO_TO_32 if value > MAX_INT32 else value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int64(p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t) -> cython.longlong:
    high: cython.longlong = _int32(p, at)
    return high * TWO_TO_32 + _uint32(p, at + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_int(
    w: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong, size: cython.int
) -> cython.Py_ssize_t:
    """A big-endian integer of `size` bytes, two's complement."""
    i: cython.int
    for i in range(size):
        w[at + i] = (value >> (8 * (size - 1 - i))) & 255
    return at + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of 32 bits: (value, position behind it or -1)."""
    raw: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    while at < end and shift < 35:
        byte = p[at]
        at += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            if raw > MAX_UINT32:
                return 0, -1
            return cython.cast(cython.longlong, raw >> 1) ^ -cython.cast(cython.longlong, raw & 1), at
        shift += 7
    return 0, -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varlong(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of 64 bits: (value, position behind it or -1)."""
    raw: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.ulonglong
    while at < end and shift < 70:
        byte = p[at]
        at += 1
        if shift == 63 and byte > 1:
            return 0, -1
        raw |= (byte & 127) << shift
        if byte < 128:
            return cython.cast(cython.longlong, raw >> 1) ^ -cython.cast(cython.longlong, raw & 1), at
        shift += 7
    return 0, -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _zigzag(value: cython.longlong) -> cython.ulonglong:
    if value < 0:
        return (cython.cast(cython.ulonglong, -(value + 1)) << 1) + 1
    return cython.cast(cython.ulonglong, value) << 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint_size(value: cython.longlong) -> cython.Py_ssize_t:
    raw: cython.ulonglong = _zigzag(value)
    size: cython.Py_ssize_t = 1
    while raw > 127:
        raw >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_varint(w: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    raw: cython.ulonglong = _zigzag(value)
    while raw > 127:
        w[at] = (raw & 127) | 128
        at += 1
        raw >>= 7
    w[at] = raw
    return at + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _decimal_size(value: cython.ulonglong) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = 1
    limit: cython.ulonglong = 10
    while size < 20 and value >= limit:
        size += 1
        limit *= 10  # the 20th step is past 64 bits and never compared
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_decimal(w: cython.p_uchar, at: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    end: cython.Py_ssize_t = at + _decimal_size(value)
    i: cython.Py_ssize_t = end
    while i > at:
        i -= 1
        w[i] = 48 + value % 10
        value //= 10
    return end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_head(
    w: cython.p_uchar, at: cython.Py_ssize_t, mark: cython.uint, length: cython.ulonglong
) -> cython.Py_ssize_t:
    """The first line of a bulk string (mark `$`) or an array (`*`), like `$12\\r\\n`."""
    w[at] = mark
    at = _put_decimal(w, at + 1, length)
    w[at] = 13
    w[at + 1] = 10
    return at + 2


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_bulk(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: cython.pointer(cython.const[cython.uchar]),
    source: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    at = _put_head(w, at, BULK_MARK, n)
    at = _copy(w, at, p, source, n)
    w[at] = 13
    w[at + 1] = 10
    return at + 2


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_number(w: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """A signed decimal number as a bulk string."""
    magnitude: cython.ulonglong
    if value < 0:
        magnitude = cython.cast(cython.ulonglong, -(value + 1)) + 1
        at = _put_head(w, at, BULK_MARK, _decimal_size(magnitude) + 1)
        w[at] = 45
        at += 1
    else:
        magnitude = value
        at = _put_head(w, at, BULK_MARK, _decimal_size(magnitude))
    at = _put_decimal(w, at, magnitude)
    w[at] = 13
    w[at + 1] = 10
    return at + 2


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _signed_size(value: cython.longlong) -> cython.Py_ssize_t:
    """Characters of a signed decimal number."""
    if value < 0:
        return _decimal_size(cython.cast(cython.ulonglong, -(value + 1)) + 1) + 1
    return _decimal_size(value)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_id_start(
    w: cython.p_uchar, at: cython.Py_ssize_t, ms: cython.ulonglong, digits: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """An entry ID as a bulk string, up to its sequence, which has so many digits."""
    at = _put_head(w, at, BULK_MARK, _decimal_size(ms) + 1 + digits)
    at = _put_decimal(w, at, ms)
    w[at] = 45
    return at + 1


def crc32c(data: BytesLike) -> int:
    """The CRC32C (Castagnoli) of a buffer, as Kafka's record batches carry it."""
    view: cython.const[cython.uchar][::1] = data
    if len(view) == 0:
        return 0
    return _checksum(_readable(view), 0, len(view))


def crc32c_portable(data: BytesLike) -> int:
    """The same without the CPU's instruction for it."""
    view: cython.const[cython.uchar][::1] = data
    if len(view) == 0:
        return 0
    if cython.compiled:
        return korvet_crc32c_portable(_readable(view), len(view))
    else:
        return _checksum(_readable(view), 0, len(view))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_place(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    base_offset: cython.longlong,
    size: cython.Py_ssize_t,
    leader_epoch: cython.longlong,
) -> cython.Py_ssize_t:
    """What a batch of `size` bytes begins with, up to its magic: base offset, length and leader epoch."""
    _put_int(w, at, base_offset, 8)
    _put_int(w, at + LENGTH_AT, size - PREFIX_SIZE, 4)
    return _put_int(w, at + LEADER_EPOCH_AT, leader_epoch, 4)


def place_batch(batch: BytesLike, base_offset: int, leader_epoch: int) -> bytes:
    """The record batch at its place in a log: what a broker says of it and the CRC does not cover is set.

    Raises BatchError (corrupt) where there is no whole header.
    """
    view: cython.const[cython.uchar][::1] = batch
    size: cython.Py_ssize_t = len(view)
    if size < HEADER_SIZE:
        raise BatchError("corrupt", f"{size} bytes are no whole batch header")
    told: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    written_to: _Room = _Room(size)
    w: cython.p_uchar = written_to.start()
    _put_place(w, 0, base_offset, size, leader_epoch)
    _copy(w, MAGIC_AT, told, MAGIC_AT, size - MAGIC_AT)
    return written_to.take(size)


# Record batch -> arguments of the append function.


def parse_batch(data: BytesLike, start: int) -> BatchHeader:
    """Check the record batch at data[start:] and read its header; the next batch starts at start + size.

    Checked: length, magic 2, CRC32C, codec, counts, producer fields. The records themselves are checked by
    `encode_append`. Raises BatchError (corrupt, unsupported_magic, unsupported_codec, invalid_record).
    """
    view: cython.const[cython.uchar][::1] = data
    at: cython.Py_ssize_t = start
    left: cython.Py_ssize_t = len(view) - at
    if at < 0 or left < HEADER_SIZE:
        raise _magic_or_short(view, at, left)
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    length: cython.longlong = _int32(p, at + LENGTH_AT)
    if p[at + MAGIC_AT] != 2:
        raise _old_magic(p[at + MAGIC_AT], start)
    if length < HEADER_SIZE - PREFIX_SIZE:
        raise BatchError("corrupt", f"batch at byte {start}: its length {length} is shorter than its header")
    if length > left - PREFIX_SIZE:
        missing = length - (left - PREFIX_SIZE)
        raise BatchError(
            "corrupt", f"batch at byte {start}: cut off, {missing} of {length} bytes are missing"
        )
    stored: cython.uint = _uint32(p, at + CRC_AT)
    computed: cython.uint = _checksum(p, at + ATTRIBUTES_AT, length + PREFIX_SIZE - ATTRIBUTES_AT)
    if stored != computed:
        raise BatchError(
            "corrupt", f"batch at byte {start}: its CRC is {stored:08x}, its bytes give {computed:08x}"
        )
    attributes: cython.int = (p[at + ATTRIBUTES_AT] << 8) | p[at + ATTRIBUTES_AT + 1]
    header = BatchHeader(
        length + PREFIX_SIZE,
        _int64(p, at),
        _int32(p, at + LEADER_EPOCH_AT),
        attributes,
        attributes & 7,
        (attributes & 16) != 0,
        (attributes & 32) != 0,
        (attributes & 8) != 0,
        _int32(p, at + 23),
        _int64(p, at + 27),
        _int64(p, at + 35),
        _int64(p, at + 43),
        _int16(p, at + 51),
        _int32(p, at + 53),
        _int32(p, at + 57),
    )
    _check_header(header, start)
    return header


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _int16(p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t) -> cython.int:
    value: cython.int = (p[at] << 8) | p[at + 1]
    return value - 0x10000 if value > 0x7FFF else value


def _magic_or_short(data: BytesLike, start: int, left: int) -> BatchError:
    """The old formats (magic 0 and 1) are shorter than our header, and deserve their own error."""
    if start >= 0 and left > 16:
        magic = bytes(data[start + 16 : start + 17])[0]
        if magic < 2:
            return _old_magic(magic, start)
    return BatchError("corrupt", f"batch at byte {start}: {max(left, 0)} bytes are no whole batch header")


def _old_magic(magic: int, start: int) -> BatchError:
    return BatchError("unsupported_magic", f"batch at byte {start}: magic {magic}, only 2 is accepted")


def _check_header(header: BatchHeader, start: int) -> None:
    """What Kafka's broker demands of a batch before it looks at the records."""
    if header.codec > NEWEST_CODEC:
        raise BatchError(
            "unsupported_codec", f"batch at byte {start}: unknown compression codec {header.codec}"
        )
    count = header.record_count
    if count <= 0:
        raise BatchError("invalid_record", f"batch at byte {start}: record count {count}")
    if header.last_offset_delta != count - 1:
        raise BatchError(
            "invalid_record",
            f"batch at byte {start}: last offset delta {header.last_offset_delta} with {count} records",
        )
    if header.codec == 0 and count > (header.size - HEADER_SIZE) // SMALLEST_RECORD_SIZE:
        raise BatchError(
            "invalid_record",
            f"batch at byte {start}: {header.size - HEADER_SIZE} bytes can't hold {count} records",
        )
    if (
        header.producer_id >= 0
        and not header.control
        and (header.base_sequence < 0 or header.producer_epoch < 0)
    ):
        raise BatchError(
            "invalid_record",
            f"batch at byte {start}: producer {header.producer_id} with epoch {header.producer_epoch}, "
            f"sequence {header.base_sequence}",
        )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _record(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    index: cython.longlong,
) -> tuple[
    cython.Py_ssize_t,  # end of the record, or a key of RECORD_FAULTS
    cython.longlong,  # timestamp delta
    cython.Py_ssize_t,  # key
    cython.longlong,  # its length, -1 for null
    cython.Py_ssize_t,  # value
    cython.longlong,  # its length, -1 for null
    cython.Py_ssize_t,  # headers
    cython.longlong,  # their number
]:
    """Read one record up to its headers."""
    length: cython.longlong
    timestamp: cython.longlong
    delta: cython.longlong
    key_length: cython.longlong
    value_length: cython.longlong
    headers: cython.longlong
    key_at: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    length, at = _varint(p, at, end)
    if at < 0 or length < 1 or length > end - at:
        return -1, 0, 0, 0, 0, 0, 0, 0
    end = at + length
    timestamp, at = _varlong(p, at + 1, end)  # one byte of attributes, unused by Kafka, in front
    if at < 0:
        return -2, 0, 0, 0, 0, 0, 0, 0
    delta, at = _varint(p, at, end)
    if at < 0 or delta != index:
        return -3, 0, 0, 0, 0, 0, 0, 0
    key_length, at = _varint(p, at, end)
    if at < 0 or key_length < -1 or key_length > end - at:
        return -4, 0, 0, 0, 0, 0, 0, 0
    key_at = at
    if key_length > 0:
        at += key_length
    value_length, at = _varint(p, at, end)
    if at < 0 or value_length < -1 or value_length > end - at:
        return -5, 0, 0, 0, 0, 0, 0, 0
    value_at = at
    if value_length > 0:
        at += value_length
    headers, at = _varint(p, at, end)
    if at < 0 or headers < 0 or headers > (end - at) // 2:
        return -6, 0, 0, 0, 0, 0, 0, 0
    return end, timestamp, key_at, key_length, value_at, value_length, at, headers


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_headers(
    w: cython.p_uchar,
    o: cython.Py_ssize_t,
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    texts: cython.pointer(cython.const[cython.uchar]),
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t]:
    """Write a record's headers: (position behind them, bytes of names and values, bytes of prefixes).

    The position is a key of RECORD_FAULTS where they are malformed.
    """
    i: cython.longlong
    name_length: cython.longlong
    length: cython.longlong
    name_at: cython.Py_ssize_t
    payload: cython.Py_ssize_t = 0
    prefixes: cython.Py_ssize_t = 0
    for i in range(count):
        name_length, at = _varint(p, at, end)
        if at < 0 or name_length < 0 or name_length > end - at:
            return -7, 0, 0
        name_at = at
        length, at = _varint(p, at + name_length, end)
        if at < 0 or length < -1 or length > end - at:
            return -8, 0, 0
        if length < 0:
            o = _put_head(w, o, BULK_MARK, NULL_PREFIX_SIZE + name_length)
            o = _copy(w, o, texts, NULL_PREFIX_AT, NULL_PREFIX_SIZE)
            prefixes += NULL_PREFIX_SIZE
            length = 0
        else:
            o = _put_head(w, o, BULK_MARK, PLAIN_PREFIX_SIZE + name_length)
            o = _copy(w, o, texts, PLAIN_PREFIX_AT, PLAIN_PREFIX_SIZE)
            prefixes += PLAIN_PREFIX_SIZE
        o = _copy(w, o, p, name_at, name_length)
        w[o] = 13
        w[o + 1] = 10
        o = _put_bulk(w, o + 2, p, at, length)
        at += length
        payload += name_length + length
    if at != end:
        return -9, 0, 0
    return o, payload, prefixes


def encode_append(
    data: BytesLike, start: int, header: BatchHeader, records: bytes | None, with_timestamps: bool
) -> AppendArguments:
    """The records of the batch at data[start:] as arguments of the append function.

    `header` is what `parse_batch` gave for that batch, `records` its decompressed records when it has a
    codec. `with_timestamps` adds each record's absolute timestamp (ms) as field `ts`, whose position is told,
    so that the script can make it relative to the entry's ms. Without it only a record that has no field at
    all gets one: "0", relative already. Raises BatchError("invalid_record").
    """
    return _encode_batch(data, start, header, records, with_timestamps, -1, b"")


def encode_commands(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    with_timestamps: bool,
    position: int,
    command: bytes,
) -> AppendCommands:
    """The records of the batch at data[start:] as XADD commands whose entry IDs are given.

    As `encode_append`; `position` is the first record's entry ID as one number (ms << 10 | sequence), the
    others follow without a gap. `command` is what stands in each command before its ID, as RESP bulk strings
    (COMMAND_STRINGS of them).
    """
    if position < 0:
        raise ValueError(f"{position} is no entry ID")
    return _encode_batch(data, start, header, records, with_timestamps, position, command)


def _encode_batch(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    with_timestamps: bool,
    position: int,
    command: bytes,
):
    data, first, end = _records_section(data, start, header, records)
    return _encode(data, first, end, header, with_timestamps, position, command)


def _records_section(
    data: BytesLike, start: int, header: BatchHeader, records: bytes | None
) -> tuple[BytesLike, int, int]:
    """Where the records of the batch at data[start:] are, decompressed: a buffer, their begin and end."""
    if start < 0 or header.size > len(data) - start:
        raise BatchError("corrupt", f"batch at byte {start}: {header.size} bytes are not there")
    if header.codec == 0:
        first, end = start + HEADER_SIZE, start + header.size
    elif records is None:
        raise BatchError(
            "invalid_record", f"batch at byte {start}: its records are compressed (codec {header.codec})"
        )
    else:
        data, first, end = records, 0, len(records)
    if header.record_count > (end - first) // SMALLEST_RECORD_SIZE:
        raise BatchError(
            "invalid_record", f"{end - first} bytes of records can't hold {header.record_count} records"
        )
    return data, first, end


def check_records(data: BytesLike, start: int, header: BatchHeader, records: bytes | None) -> RecordSummary:
    """Check the records of the batch at data[start:] as `encode_append` does, for a batch that is kept as it
    is.

    `header` and `records` as there. Raises BatchError("invalid_record").
    """
    data, first, end = _records_section(data, start, header, records)
    return _walk(data, first, end, header, False, 0, 0)


def find_record(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    from_index: int,
    timestamp_ms: int,
) -> tuple[int, int] | None:
    """The first record of the batch at data[start:], from `from_index` on, whose timestamp is not before that
    one: (index, timestamp in ms); None where there is none.

    `header` and `records` as for `encode_append`. Raises BatchError("invalid_record").
    """
    data, first, end = _records_section(data, start, header, records)
    found: tuple[int, int] | None = _walk(data, first, end, header, True, from_index, timestamp_ms)
    return found


def find_invalid(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    earliest_ms: int,
    latest_ms: int,
    keyed: bool,
    most: int,
) -> list[tuple[int, int, bool]]:
    """The first `most` records of the batch at data[start:] whose timestamp is out of range, or which are
    `keyed` in vain: (index, timestamp in ms, whether the key is missing). A timestamp of -1 is none.

    `header` and `records` as for `encode_append`, which has checked the records before. Raises
    BatchError("invalid_record").
    """
    data, first, end = _records_section(data, start, header, records)
    return _invalid(data, first, end, header, earliest_ms, latest_ms, keyed, most)


@cython.cfunc
def _invalid(
    data: object,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    header: object,
    earliest: cython.longlong,
    latest: cython.longlong,
    keyed: cython.bint,
    most: cython.Py_ssize_t,
):
    view: cython.const[cython.uchar][::1] = data
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    base: cython.longlong = header.base_timestamp_ms
    count: cython.longlong = header.record_count
    found: list = []
    index: cython.longlong
    timestamp: cython.longlong
    _key_at: cython.Py_ssize_t
    key_length: cython.longlong
    _value_at: cython.Py_ssize_t
    _value_length: cython.longlong
    _headers_at: cython.Py_ssize_t
    _headers: cython.longlong
    for index in range(count):
        at, timestamp, _key_at, key_length, _value_at, _value_length, _headers_at, _headers = _record(
            p, at, end, index
        )
        if at < 0:
            raise _record_fault(at, index, 0)
        timestamp += base
        keyless: cython.bint = keyed and key_length < 0
        if keyless or timestamp > latest or (timestamp < earliest and timestamp != -1):
            found.append((index, timestamp, bool(keyless)))
            if len(found) >= most:
                break
    return found


@cython.cfunc
def _walk(
    data: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    header: object,
    finding: cython.bint,
    from_index: cython.longlong,
    wanted: cython.longlong,
):
    """Check all records, or those up to the first one that is wanted."""
    view: cython.const[cython.uchar][::1] = data
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    count: cython.longlong = header.record_count
    base: cython.longlong = header.base_timestamp_ms
    keyless: cython.longlong = 0
    newest: cython.longlong = MIN_INT64
    oldest: cython.longlong = MAX_INT64
    at: cython.Py_ssize_t = start
    index: cython.longlong
    stop: cython.Py_ssize_t
    fault: cython.Py_ssize_t
    timestamp: cython.longlong
    _key_at: cython.Py_ssize_t
    key_length: cython.longlong
    _value_at: cython.Py_ssize_t
    _value_length: cython.longlong
    headers_at: cython.Py_ssize_t
    headers: cython.longlong
    for index in range(count):
        stop, timestamp, _key_at, key_length, _value_at, _value_length, headers_at, headers = _record(
            p, at, end, index
        )
        if stop < 0:
            raise _record_fault(stop, index, at - start)
        if _leaves_int64(base, timestamp):
            raise _no_timestamp(index, base, timestamp)
        fault = _pass_headers(p, headers_at, stop, headers)
        if fault < 0:
            raise _record_fault(fault, index, at - start)
        timestamp += base
        if finding and index >= from_index and timestamp >= wanted:
            return index, timestamp
        newest = max(newest, timestamp)
        oldest = min(oldest, timestamp)
        if key_length < 0:
            keyless += 1
        at = stop
    if at != end:
        raise BatchError("invalid_record", f"{end - at} bytes behind the last of {count} records")
    return None if finding else RecordSummary(newest, oldest, keyless)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _leaves_int64(base: cython.longlong, timestamp: cython.longlong) -> cython.bint:
    """Whether the sum of a batch's base timestamp and a record's delta is no int64."""
    if timestamp > 0:
        return base > MAX_INT64 - timestamp
    return timestamp < 0 and base < MIN_INT64 - timestamp


def _no_timestamp(index: int, base: int, timestamp: int) -> BatchError:
    return BatchError("invalid_record", f"record {index}: its timestamp {base} + {timestamp} is no int64")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _pass_headers(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
) -> cython.Py_ssize_t:
    """The position behind a record's headers, or a key of RECORD_FAULTS where they are malformed."""
    i: cython.longlong
    length: cython.longlong
    for i in range(count):
        length, at = _varint(p, at, end)
        if at < 0 or length < 0 or length > end - at:
            return -7
        length, at = _varint(p, at + length, end)
        if at < 0 or length < -1 or length > end - at:
            return -8
        if length > 0:
            at += length
    return at if at == end else -9


@cython.cfunc
def _encode(
    data: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    header: object,
    with_timestamps: cython.bint,
    position: cython.longlong,
    command: bytes,
):
    """Either form in one pass: arguments of the append function where `position` is negative."""
    count: cython.longlong = header.record_count
    view: cython.const[cython.uchar][::1] = data
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    texts: cython.pointer(cython.const[cython.uchar]) = _content(FIELD_TEXTS)
    told_command: cython.pointer(cython.const[cython.uchar]) = _content(command)
    command_size: cython.Py_ssize_t = len(command)
    given: cython.bint = position >= 0
    base: cython.longlong = header.base_timestamp_ms
    at: cython.Py_ssize_t = start
    o: cython.Py_ssize_t = 0
    argc: cython.longlong = 0
    payload: cython.longlong = 0
    keyless: cython.longlong = 0
    newest: cython.longlong = MIN_INT64
    oldest: cython.longlong = MAX_INT64
    told: cython.longlong = 0  # the timestamp written last, and where: most records repeat it
    told_at: cython.Py_ssize_t = 0
    told_size: cython.Py_ssize_t = 0
    lead_at: cython.Py_ssize_t = 0  # what a command begins with, up to its ID's sequence: as with `told`
    lead_size: cython.Py_ssize_t = 0
    lead_arguments: cython.longlong = -1
    lead_ms: cython.longlong = 0
    lead_digits: cython.Py_ssize_t = 0
    digits: cython.Py_ssize_t
    sequence: cython.longlong
    first_argc: cython.longlong = 0
    entry_ms: cython.longlong = 0
    entry_bytes: cython.longlong
    largest: cython.longlong = 0
    span_bytes: cython.longlong = 0
    span_newest: cython.longlong = MIN_INT64
    span_from: cython.longlong = 0
    spans: list[Span] = []
    index: cython.longlong
    stop: cython.Py_ssize_t
    timestamp: cython.longlong
    written: cython.longlong
    key_at: cython.Py_ssize_t
    key_length: cython.longlong
    value_at: cython.Py_ssize_t
    value_length: cython.longlong
    headers_at: cython.Py_ssize_t
    headers: cython.longlong
    arguments: cython.longlong
    stamp_place: cython.longlong
    mark: bytes = _producer_fields(header)
    told_mark: cython.pointer(cython.const[cython.uchar]) = _content(mark)
    mark_size: cython.Py_ssize_t = len(mark)
    mark_arguments: cython.longlong = 4 if mark_size > 0 else 0
    mark_bytes: cython.longlong = 0
    room: cython.Py_ssize_t
    bytes_of_headers: cython.Py_ssize_t
    bytes_of_prefixes: cython.Py_ssize_t
    # Enough where records are not tiny.
    around: cython.longlong = max(count, 0) * (RECORD_ROOM + command_size + mark_size)
    capacity: cython.Py_ssize_t = (end - start) + min(around, 3 * (end - start) + COMMAND_ROOM)
    written_to: _Room = _Room(capacity)
    w: cython.p_uchar = written_to.start()
    first: bytes = b""
    if mark_size > 0:
        mark_bytes = 8 + _signed_size(header.producer_id) + _signed_size(header.producer_epoch)
    for index in range(count):
        stop, timestamp, key_at, key_length, value_at, value_length, headers_at, headers = _record(
            p, at, end, index
        )
        if stop < 0:
            raise _record_fault(stop, index, at - start)
        if _leaves_int64(base, timestamp):
            raise _no_timestamp(index, base, timestamp)
        timestamp += base
        stamp_place = 0
        arguments = 2 * ((key_length >= 0) + (value_length >= 0))
        if with_timestamps:
            arguments += 2
            stamp_place = arguments
        arguments += 2 * headers + mark_arguments
        if arguments == 0:
            arguments = 2
        if arguments > MAX_FIELD_ARGUMENTS:
            raise BatchError(
                "invalid_record", f"record {index}: {headers} headers are more than an entry can take"
            )
        room = o + RECORD_ROOM + command_size + mark_size + (stop - at) + headers * HEADER_ROOM
        if capacity < room:
            w = written_to.grow(room)
            capacity = written_to.size
        if given:
            entry_ms = (position + index) >> SEQUENCE_BITS
            if index > 0:
                sequence = (position + index) & MAX_SEQUENCE
                digits = _decimal_size(sequence)
                if arguments == lead_arguments and entry_ms == lead_ms and digits == lead_digits:
                    o = _copy(w, o, w, lead_at, lead_size)
                else:
                    lead_at = o
                    lead_arguments = arguments
                    lead_ms = entry_ms
                    lead_digits = digits
                    o = _put_head(w, o, ARRAY_MARK, COMMAND_STRINGS + 1 + arguments)
                    o = _copy(w, o, told_command, 0, command_size)
                    o = _put_id_start(w, o, entry_ms, digits)
                    lead_size = o - lead_at
                o = _put_decimal(w, o, sequence)
                w[o] = 13
                w[o + 1] = 10
                o += 2
        else:
            o = _put_number(w, o, arguments)
            o = _put_number(w, o, stamp_place)
        entry_bytes = 0
        if key_length >= 0:
            o = _copy(w, o, texts, KEY_AT, KEY_SIZE)
            o = _put_bulk(w, o, p, key_at, key_length)
            payload += key_length
            entry_bytes += 3 + key_length
        else:
            keyless += 1
        if value_length >= 0:
            o = _copy(w, o, texts, VALUE_AT, VALUE_SIZE)
            o = _put_bulk(w, o, p, value_at, value_length)
            payload += value_length
            entry_bytes += 5 + value_length
        if with_timestamps:
            written = timestamp
            if given:
                # A timestamp that far before 1970 is refused afterwards: it only must not leave 64 bits here.
                written = MIN_INT64 if timestamp < MIN_INT64 + entry_ms else timestamp - entry_ms
            o = _copy(w, o, texts, TS_AT, TS_SIZE)
            if told_size == 0 or written != told:
                told_at = o
                o = _put_number(w, o, written)
                told = written
                told_size = o - told_at
            else:
                o = _copy(w, o, w, told_at, told_size)
            entry_bytes += 2 + _signed_size(written)
        elif arguments == 2 and key_length < 0 and value_length < 0 and headers == 0:
            o = _copy(w, o, texts, TS_AT, TS_SIZE)
            o = _put_number(w, o, 0)
            entry_bytes += 3
        if headers == 0:
            if headers_at != stop:
                raise _record_fault(-9, index, at - start)
        else:
            o, bytes_of_headers, bytes_of_prefixes = _put_headers(w, o, p, headers_at, stop, headers, texts)
            if o < 0:
                raise _record_fault(o, index, at - start)
            payload += bytes_of_headers
            entry_bytes += bytes_of_headers + bytes_of_prefixes
        o = _copy(w, o, told_mark, 0, mark_size)
        entry_bytes += mark_bytes
        argc += 2 + arguments
        newest = max(newest, timestamp)
        oldest = min(oldest, timestamp)
        at = stop
        if given:
            if index == 0:
                first = _octets(w, 0, o)
                first_argc = arguments
                # The others begin another bytes object.
                o = 0
                told_size = 0
            if index - span_from == SPAN_RECORDS:
                spans.append(Span(index - span_from, index - span_from, span_bytes, span_newest))
                span_from = index
                span_bytes = 0
                span_newest = MIN_INT64
            span_bytes += entry_bytes
            span_newest = max(span_newest, timestamp if with_timestamps else entry_ms)
            largest = max(largest, entry_bytes)
    if at != end:
        raise BatchError("invalid_record", f"{end - at} bytes behind the last of {count} records")
    if given:
        spans.append(Span(count - span_from, count - span_from, span_bytes, span_newest))
        return AppendCommands(
            position,
            first,
            first_argc,
            written_to.take(o),
            count,
            newest,
            oldest,
            payload,
            keyless,
            largest,
            len(first) + o,
            tuple(spans),
            count,
        )
    return AppendArguments(written_to.take(o), argc, count, newest, oldest, payload, keyless, count)


def _producer_fields(header: BatchHeader) -> bytes:
    """The fields that all records of a transactional batch end with."""
    if not header.transactional:
        return b""
    return _mark(header.producer_id, header.producer_epoch)


def _mark(producer_id: int, producer_epoch: int) -> bytes:
    producer, epoch = b"%d" % producer_id, b"%d" % producer_epoch
    return b"$3\r\npid\r\n$%d\r\n%b\r\n$5\r\nepoch\r\n$%d\r\n%b\r\n" % (
        len(producer),
        producer,
        len(epoch),
        epoch,
    )


def _record_fault(fault: int, index: int, position: int) -> BatchError:
    return BatchError(
        "invalid_record", f"record {index} (byte {position} of the records): {RECORD_FAULTS[fault]}"
    )


def encode_append_records(
    records: Sequence[tuple[bytes | None, bytes | None, int]], producer: tuple[int, int] | None = None
) -> AppendArguments:
    """The same arguments for records of our own: (key, value, timestamp in ms), without headers; `producer`
    is id and epoch where they are in a transaction.

    Raises ValueError when there is no record.
    """
    if not records:
        raise ValueError("an append needs at least one record")
    parts: list[bytes] = []
    argc = 0
    payload = 0
    keyless = 0
    mark = b"" if producer is None else _mark(*producer)
    for key, value, timestamp_ms in records:
        count = 2
        fields = b""
        if key is None:
            keyless += 1
        else:
            count += 2
            payload += len(key)
            fields = b"$3\r\nkey\r\n$%d\r\n%b\r\n" % (len(key), key)
        if value is not None:
            count += 2
            payload += len(value)
            fields += b"$5\r\nvalue\r\n$%d\r\n%b\r\n" % (len(value), value)
        stamp = b"%d" % timestamp_ms
        place, count = b"%d" % count, b"%d" % (count + (4 if mark else 0))
        # The number of field arguments, and the place of the timestamp among them.
        parts.append(
            b"$%d\r\n%b\r\n$%d\r\n%b\r\n%b$2\r\nts\r\n$%d\r\n%b\r\n%b"
            % (len(count), count, len(place), place, fields, len(stamp), stamp, mark)
        )
        argc += int(count) + 2
    timestamps = [timestamp_ms for _, _, timestamp_ms in records]
    count = len(records)
    return AppendArguments(
        b"".join(parts), argc, count, max(timestamps), min(timestamps), payload, keyless, count
    )


# XRANGE reply -> record batches.


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _length(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    mark: cython.int,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """An array's or a bulk string's first line: (length, position behind it); -2: cut off, -1: malformed."""
    # Nearly all are of one to three digits.
    if end - at > 5 and p[at] == mark and 48 <= p[at + 1] <= 57:
        if p[at + 2] == 13 and p[at + 3] == 10:
            return p[at + 1] - 48, at + 4
        if 48 <= p[at + 2] <= 57:
            if p[at + 3] == 13 and p[at + 4] == 10:
                return (p[at + 1] - 48) * 10 + p[at + 2] - 48, at + 5
            if 48 <= p[at + 3] <= 57 and p[at + 4] == 13 and p[at + 5] == 10:
                return ((p[at + 1] - 48) * 10 + p[at + 2] - 48) * 10 + p[at + 3] - 48, at + 6
    value: cython.longlong = 0
    digits: cython.int = 0
    negative: cython.bint = False
    if at >= end:
        return 0, -2
    if p[at] != mark:
        return 0, -1
    at += 1
    if at < end and p[at] == 45:
        negative = True
        at += 1
    while at < end and 48 <= p[at] <= 57:
        value = value * 10 + (p[at] - 48)
        digits += 1
        at += 1
        if digits > 18:
            return 0, -1
    if at >= end:
        return 0, -2
    if digits == 0 or p[at] != 13:
        return 0, -1
    if at + 1 >= end:
        return 0, -2
    if p[at + 1] != 10:
        return 0, -1
    if negative:
        return -value, at + 2
    return value, at + 2


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _bulk(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A whole bulk string: (length, position of its bytes or -1)."""
    length: cython.longlong
    length, at = _length(p, at, end, 36)
    if at < 0 or length < 0 or length > end - at - 2:
        return 0, -1
    return length, at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _digits(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.ulonglong, cython.Py_ssize_t]:
    """Decimal digits: (their value, position behind them); -1: there is none, or they leave 64 bits."""
    value: cython.ulonglong = 0
    digit: cython.ulonglong
    begin: cython.Py_ssize_t = at
    while at < end and 48 <= p[at] <= 57:
        digit = p[at] - 48
        if value > TENTH_OF_MAX_UINT64 or (value == TENTH_OF_MAX_UINT64 and digit > 5):
            return 0, -1
        value = value * 10 + digit
        at += 1
    return value, -1 if at == begin else at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _relative(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    ms: cython.longlong,
) -> tuple[cython.longlong, cython.bint]:
    """A `ts` value added to the entry's ms, and whether it is a number that leaves the sum in int64."""
    magnitude: cython.ulonglong
    negative: cython.bint = at < end and p[at] == 45
    behind: cython.Py_ssize_t
    magnitude, behind = _digits(p, at + negative, end)
    if behind != end:
        return 0, False
    if negative:
        if magnitude > cython.cast(cython.ulonglong, MAX_INT64):
            return 0, False
        return ms - cython.cast(cython.longlong, magnitude), True
    if magnitude > cython.cast(cython.ulonglong, MAX_INT64 - ms):
        return 0, False
    return ms + cython.cast(cython.longlong, magnitude), True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_header(p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t) -> cython.bint:
    """Seven bytes that say `header.`"""
    return (
        p[at] == 104
        and p[at + 1] == 101
        and p[at + 2] == 97
        and p[at + 3] == 100
        and p[at + 4] == 101
        and p[at + 5] == 114
        and p[at + 6] == 46
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _kind(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, n: cython.longlong
) -> cython.int:
    """Which field: 1 key, 2 value, 3 ts, 4 header.*, 5 nullheader.*, 6 pid, 7 epoch, 8 ctl; else 0."""
    if n == 5 and p[at] == 118:
        return 2 if p[at + 1] == 97 and p[at + 2] == 108 and p[at + 3] == 117 and p[at + 4] == 101 else 0
    if n == 3 and p[at] == 107:
        return 1 if p[at + 1] == 101 and p[at + 2] == 121 else 0
    if n == 3 and p[at] == 112:
        return 6 if p[at + 1] == 105 and p[at + 2] == 100 else 0
    if n == 3 and p[at] == 99:
        return 8 if p[at + 1] == 116 and p[at + 2] == 108 else 0
    if n == 5 and p[at] == 101:
        return 7 if p[at + 1] == 112 and p[at + 2] == 111 and p[at + 3] == 99 and p[at + 4] == 104 else 0
    if n == 2:
        return 3 if p[at] == 116 and p[at + 1] == 115 else 0
    if n >= PLAIN_PREFIX_SIZE and _is_header(p, at):
        return 4
    if n >= NULL_PREFIX_SIZE and p[at] == 110 and p[at + 1] == 117 and p[at + 2] == 108 and p[at + 3] == 108:
        return 5 if _is_header(p, at + 4) else 0
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    limit: cython.ulonglong,
) -> cython.longlong:
    """A decimal number up to `limit`, which int64 holds; -1 for anything else."""
    value: cython.ulonglong
    behind: cython.Py_ssize_t
    if end - at > MAX_NUMBER_DIGITS:
        return -1
    value, behind = _digits(p, at, end)
    if behind != end or value > limit:
        return -1
    return cython.cast(cython.longlong, value)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _outcome(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, n: cython.longlong
) -> cython.int:
    """What a `ctl` value says: 1 commit, 0 abort, -1 neither."""
    if n == 6 and p[at] == 99 and p[at + 1] == 111 and p[at + 2] == 109:
        return 1 if p[at + 3] == 109 and p[at + 4] == 105 and p[at + 5] == 116 else -1
    if n == 5 and p[at] == 97 and p[at + 1] == 98:
        return 0 if p[at + 2] == 111 and p[at + 3] == 114 and p[at + 4] == 116 else -1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _fields(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    ms: cython.longlong,
) -> tuple[
    cython.Py_ssize_t,  # position behind the fields; -1: no RESP
    cython.bint,  # ours?
    cython.longlong,  # timestamp
    cython.Py_ssize_t,  # key
    cython.longlong,  # its length, -1 for null
    cython.Py_ssize_t,  # value
    cython.longlong,  # its length, -1 for null
    cython.longlong,  # number of headers
    cython.Py_ssize_t,  # the first of them; nowhere without one
    cython.longlong,  # the bytes of all in a record
    cython.longlong,  # producer id of its transaction, -1 for none
    cython.longlong,  # the producer's epoch
    cython.int,  # as a marker that ends a transaction: 1 commit, 0 abort, -1 none
]:
    """Read an entry's `count` strings of fields and values."""
    i: cython.longlong
    n: cython.longlong
    length: cython.longlong
    name_at: cython.Py_ssize_t
    kind: cython.int
    ours: cython.bint = count > 0 and count % 2 == 0
    timed: cython.bint = False
    timestamp: cython.longlong = ms
    key_at: cython.Py_ssize_t = 0
    key_length: cython.longlong = -1
    value_at: cython.Py_ssize_t = 0
    value_length: cython.longlong = -1
    headers: cython.longlong = 0
    headers_at: cython.Py_ssize_t = 0
    size: cython.longlong = 0
    producer: cython.longlong = -1
    epoch: cython.longlong = -1
    control: cython.int = -1
    for i in range(count // 2):
        if headers == 0:
            headers_at = at
        n, name_at = _bulk(p, at, end)
        if name_at < 0:
            return -1, False, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
        length, at = _bulk(p, name_at + n + 2, end)
        if at < 0:
            return -1, False, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
        kind = _kind(p, name_at, n)
        if kind == 2 and value_length < 0:
            value_at = at
            value_length = length
        elif kind == 1 and key_length < 0:
            key_at = at
            key_length = length
        elif kind == 3 and not timed:
            timed = True
            if ours:
                timestamp, ours = _relative(p, at, at + length, ms)
        elif kind == 4:
            headers += 1
            n -= PLAIN_PREFIX_SIZE
            size += _varint_size(n) + n + _varint_size(length) + length
        elif kind == 5 and length == 0:
            headers += 1
            n -= NULL_PREFIX_SIZE
            size += _varint_size(n) + n + 1
        elif kind == 6 and producer < 0:
            producer = _number(p, at, at + length, cython.cast(cython.ulonglong, MAX_INT64))
            ours = ours and producer >= 0
        elif kind == 7 and epoch < 0:
            epoch = _number(p, at, at + length, MAX_EPOCH)
            ours = ours and epoch >= 0
        elif kind == 8 and control < 0 and count == MARKER_STRINGS:
            control = _outcome(p, at, length)
            ours = ours and control >= 0
        else:
            ours = False
        at += length + 2
    # One without the other is an application's own field; a marker has both, and nothing else.
    if (producer < 0) != (epoch < 0) or (control >= 0 and producer < 0):
        ours = False
    return (
        at,
        ours,
        timestamp,
        key_at,
        key_length,
        value_at,
        value_length,
        headers,
        headers_at,
        size,
        producer,
        epoch,
        control,
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_header_fields(
    w: cython.p_uchar,
    o: cython.Py_ssize_t,
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
) -> cython.Py_ssize_t:
    """Write so many headers out of fields that `_fields` has checked, from the first header on."""
    n: cython.longlong
    length: cython.longlong
    name_at: cython.Py_ssize_t
    while count > 0:
        n, name_at = _bulk(p, at, end)
        length, at = _bulk(p, name_at + n + 2, end)
        if n >= PLAIN_PREFIX_SIZE and _is_header(p, name_at):
            count -= 1
            o = _put_varint(w, o, n - PLAIN_PREFIX_SIZE)
            o = _copy_short(w, o, p, name_at + PLAIN_PREFIX_SIZE, n - PLAIN_PREFIX_SIZE, end)
            o = _put_varint(w, o, length)
            o = _copy_short(w, o, p, at, length, end)
        elif _kind(p, name_at, n) == 5:
            count -= 1
            o = _put_varint(w, o, n - NULL_PREFIX_SIZE)
            o = _copy(w, o, p, name_at + NULL_PREFIX_SIZE, n - NULL_PREFIX_SIZE)
            o = _put_varint(w, o, -1)
        at += length + 2
    return o


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_batch_header(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    first: cython.longlong,
    last: cython.longlong,
    base_timestamp: cython.longlong,
    max_timestamp: cython.longlong,
    count: cython.longlong,
    leader_epoch: cython.longlong,
    attributes: cython.int,
    producer: cython.longlong,
    epoch: cython.longlong,
    base_sequence: cython.longlong,
) -> cython.Py_ssize_t:
    """Complete the batch at w[at:end]; its records are written already. Entries tell no sequence numbers."""
    _put_place(w, at, first, end - at, leader_epoch)
    w[at + MAGIC_AT] = 2
    _put_int(w, at + ATTRIBUTES_AT, attributes, 2)
    _put_int(w, at + 23, last - first, 4)
    _put_int(w, at + 27, base_timestamp, 8)
    _put_int(w, at + 35, max_timestamp, 8)
    _put_int(w, at + 43, producer, 8)
    _put_int(w, at + 51, epoch, 2)
    _put_int(w, at + 53, -1 if attributes & CONTROL else base_sequence, 4)
    _put_int(w, at + 57, count, 4)
    _put_int(w, at + CRC_AT, _checksum(w, at + ATTRIBUTES_AT, end - at - ATTRIBUTES_AT), 4)
    return end


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _entry_id(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.ulonglong, cython.ulonglong, cython.Py_ssize_t]:
    """An entry's `*2`, its ID: (ms, sequence, position behind it or -1)."""
    ms: cython.ulonglong
    sequence: cython.ulonglong
    length: cython.longlong
    stop: cython.Py_ssize_t
    length, at = _length(p, at, end, 42)
    if at < 0 or length != 2:
        return 0, 0, -1
    length, at = _bulk(p, at, end)
    if at < 0:
        return 0, 0, -1
    stop = at + length
    ms, at = _digits(p, at, stop)
    if at < 0 or at >= stop or p[at] != 45:
        return 0, 0, -1
    sequence, at = _digits(p, at + 1, stop)
    if at != stop:
        return 0, 0, -1
    return ms, sequence, stop + 2


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _whole_batch(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    offset: cython.longlong,
) -> tuple[cython.Py_ssize_t, cython.longlong, cython.longlong]:
    """The record batch that an entry at `offset` is, the one field `batch`: (its place, bytes, records).

    It has to be a sound batch of a known codec that ends at that very offset. The place is -1 for an entry of
    an application, DAMAGED for a batch that is not sound. The entry's `count` strings at `at` have been
    checked by `_fields`.
    """
    other: cython.Py_ssize_t
    n: cython.longlong
    length: cython.longlong
    delta: cython.longlong
    if count != 2:
        return -1, 0, 0
    n, at = _bulk(p, at, end)
    if n != 5 or p[at] != 98 or p[at + 1] != 97 or p[at + 2] != 116 or p[at + 3] != 99 or p[at + 4] != 104:
        return -1, 0, 0
    length, at = _bulk(p, at + n + 2, end)
    other = DAMAGED if _resembles_batch(p, at, length, offset) else -1
    if length < HEADER_SIZE or p[at + MAGIC_AT] != 2 or _int32(p, at + LENGTH_AT) != length - PREFIX_SIZE:
        return other, 0, 0
    delta = _int32(p, at + DELTA_AT)
    if delta < 0 or _int32(p, at + COUNT_AT) != delta + 1 or (p[at + ATTRIBUTES_AT + 1] & 7) > NEWEST_CODEC:
        return other, 0, 0
    if delta > offset or _int64(p, at) != offset - delta:
        return other, 0, 0
    if _uint32(p, at + CRC_AT) != _checksum(p, at + ATTRIBUTES_AT, length - ATTRIBUTES_AT):
        return other, 0, 0
    return at, length, delta + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _resembles_batch(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    length: cython.longlong,
    offset: cython.longlong,
) -> cython.bint:
    """Whether the value of a field `batch` was a record batch when it was written, in an entry at `offset`.

    Two of three must be right, so that damage to any one of them is noticed, while no text, nor other
    binary data but by rare chance, is taken for a batch: the magic byte, the length, and a base offset that
    an entry at that offset may have.
    """
    signs: cython.int = 0
    base: cython.longlong
    if length <= MAGIC_AT:
        return False
    base = _int64(p, at)
    if p[at + MAGIC_AT] == 2:
        signs += 1
    if _int32(p, at + LENGTH_AT) == length - PREFIX_SIZE:
        signs += 1
    if base >= 0 and base <= offset and offset - base <= MAX_INT32:
        signs += 1
    return signs >= 2


def resembles_batch(value: BytesLike, offset: int) -> bool:
    """Whether the value of a field `batch` was a record batch when it was written, in an entry at that
    offset: if `parse_batch` refuses it, it is damaged.
    """
    view: cython.const[cython.uchar][::1] = value
    length: cython.Py_ssize_t = len(view)
    if length == 0:
        return False
    return bool(_resembles_batch(_readable(view), 0, length, offset))


def entries_to_batches(
    reply: BytesLike,
    start: int,
    end: int,
    *,
    bias: int,
    max_bytes: int,
    leader_epoch: int,
    log_append_time: bool,
    native: Callable[[list[bytes]], bytes],
    base_sequence: int = -1,
) -> Entries:
    """One raw XRANGE reply (RESP2), reply[start:end], as record batches.

    An entry at ms-seq gets the offset pack(ms, seq) - bias. An entry that is a whole record batch, which ends
    at that offset, is given as it is; all others are put in uncompressed ones. Those whose fields are not the
    ones that `encode_append` writes become records with a null key and the value `native(fields)`. A record
    batch that is damaged ends what is given (Entries.damaged_offset). A new batch begins where an offset
    delta would leave int32 or a timestamp delta int64, and with log_append_time where the ms changes, since
    consumers then take a batch's maximum for every record (KIP-32). `max_bytes` bounds the bytes given; one
    record is always given. `base_sequence` is what the batches made here say, as entries have none. Raises
    BatchError("corrupt") when the bytes are no XRANGE reply; no entry of one raises.
    """
    if not 0 <= start <= end <= len(reply):
        raise BatchError("corrupt", f"bytes {start} to {end} are not inside a reply of {len(reply)}")
    if start == end:
        raise _no_reply(start)
    return _batches(reply, start, end, bias, max_bytes, leader_epoch, log_append_time, native, base_sequence)


def offset_behind(reply: BytesLike, bias: int) -> int:
    """Where one whole raw XRANGE reply (RESP2) seems to end: the offset behind its last entry, or -1.

    What `entries_to_batches` tells for sure, at a small part of its price: the last entry is looked for from
    the end, so that a value which holds RESP may be taken for it. One of more than 2 KB is not found.
    """
    view: cython.const[cython.uchar][::1] = reply
    end: cython.Py_ssize_t = len(view)
    if end == 0:
        return -1
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    least: cython.Py_ssize_t = max(0, end - FOUND_FROM_END)
    at: cython.Py_ssize_t = end
    stop: cython.Py_ssize_t
    count: cython.longlong
    length: cython.longlong
    ms: cython.ulonglong
    sequence: cython.ulonglong
    while at > least:
        at -= 1
        if p[at] != ARRAY_MARK:
            continue
        ms, sequence, stop = _entry_id(p, at, end)
        if stop < 0:
            continue
        count, stop = _length(p, stop, end, ARRAY_MARK)
        while stop >= 0 and count > 0:
            length, stop = _bulk(p, stop, end)
            if stop >= 0:
                stop += length + 2
            count -= 1
        if stop == end:
            if ms >= MAX_ADDRESSABLE_MS or sequence > MAX_SEQUENCE:
                return -1
            return (
                (cython.cast(cython.longlong, ms) << SEQUENCE_BITS) | cython.cast(cython.longlong, sequence)
            ) + (1 - bias)
    return -1


@cython.cfunc
def _batches(
    reply: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bias: cython.longlong,
    max_bytes: cython.longlong,
    leader_epoch: cython.longlong,
    log_append_time: cython.bint,
    native: object,
    base_sequence: cython.longlong,
):
    view: cython.const[cython.uchar][::1] = reply
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    # Records are smaller as such than in a reply.
    capacity: cython.Py_ssize_t = max(min(end - start, max_bytes), 0) + HEADER_SIZE + SHORT
    written_to: _Room = _Room(capacity)
    w: cython.p_uchar = written_to.start()
    value: bytes = b""
    q: cython.pointer(cython.const[cython.uchar])
    attributes: cython.int = 8 if log_append_time else 0
    batch_attributes: cython.int = attributes
    batch_producer: cython.longlong = -1
    batch_epoch: cython.longlong = -1
    producer: cython.longlong
    epoch: cython.longlong
    control: cython.int
    entries: cython.longlong
    at: cython.Py_ssize_t
    o: cython.Py_ssize_t = 0
    batch_at: cython.Py_ssize_t = 0
    in_batch: cython.longlong = 0
    first: cython.longlong = -1
    base: cython.longlong = 0
    base_timestamp: cython.longlong = 0
    max_timestamp: cython.longlong = 0
    last: cython.longlong = -1
    previous: cython.longlong = -1
    next_offset: cython.longlong = -1
    total: cython.longlong = 0
    consumed: cython.longlong = 0
    skipped: cython.longlong = 0
    damaged: cython.longlong = -1
    truncated: cython.bint = False
    fresh: cython.bint
    ms: cython.ulonglong
    sequence: cython.ulonglong
    offset: cython.longlong
    count: cython.longlong
    fields_at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    ours: cython.bint
    timestamp: cython.longlong
    key_at: cython.Py_ssize_t
    key_length: cython.longlong
    value_at: cython.Py_ssize_t
    value_length: cython.longlong
    headers: cython.longlong
    headers_at: cython.Py_ssize_t
    size: cython.longlong
    body: cython.longlong
    records: cython.longlong
    entries, at = _length(p, start, end, 42)
    if at < 0:
        raise _no_reply(start)
    while consumed < entries:
        ms, sequence, fields_at = _entry_id(p, at, end)
        if fields_at < 0:
            raise _no_reply(at)
        count, fields_at = _length(p, fields_at, end, 42)
        if fields_at < 0:
            raise _no_reply(at)
        count = max(count, 0)  # an entry deleted meanwhile, as some commands show it
        if ms > MAX_ADDRESSABLE_MS or sequence > MAX_SEQUENCE:
            at = _fields(p, fields_at, end, count, 0)[0]
            if at < 0:
                raise _no_reply(fields_at)
            skipped += 1
            consumed += 1
            next_offset = MAX_INT64
            if ms < MAX_ADDRESSABLE_MS:
                next_offset = (cython.cast(cython.longlong, ms + 1) << SEQUENCE_BITS) - bias
            continue
        (
            stop,
            ours,
            timestamp,
            key_at,
            key_length,
            value_at,
            value_length,
            headers,
            headers_at,
            size,
            producer,
            epoch,
            control,
        ) = _fields(p, fields_at, end, count, ms)
        if stop < 0:
            raise _no_reply(fields_at)
        offset = (
            (cython.cast(cython.longlong, ms) << SEQUENCE_BITS) | cython.cast(cython.longlong, sequence)
        ) - bias
        if offset <= previous:
            raise BatchError("corrupt", f"reply byte {at}: entry {ms}-{sequence} is out of order")
        if not ours:
            value_at, size, records = _whole_batch(p, fields_at, end, count, offset)
            if value_at == DAMAGED:
                damaged = offset
                break
            if value_at >= 0 and offset - records >= previous:
                if total > 0 and o + size > max_bytes:
                    truncated = True
                    break
                if size > capacity - o:
                    w = written_to.grow(o + size)
                    capacity = written_to.size
                if in_batch > 0:
                    _put_batch_header(
                        w,
                        batch_at,
                        o,
                        base,
                        last,
                        base_timestamp,
                        max_timestamp,
                        in_batch,
                        leader_epoch,
                        batch_attributes,
                        batch_producer,
                        batch_epoch,
                        base_sequence,
                    )
                    in_batch = 0
                o = _copy(w, o, p, value_at, size)
                if total == 0:
                    first = offset - records + 1
                last = offset
                previous = offset
                next_offset = offset + 1 if offset < MAX_INT64 else MAX_INT64
                total += records
                consumed += 1
                at = stop
                continue
        q = p
        if not ours:
            value = native(_field_list(view, fields_at, end, count))
            key_length = -1
            headers = 0
            size = 0
            producer = epoch = control = -1
            value_at = 0
            value_length = len(value)
            q = _content(value)
        if not ours or log_append_time:
            timestamp = ms
        if control >= 0:
            key_length = CONTROL_KEY_SIZE
            value_length = CONTROL_VALUE_SIZE
        fresh = (
            in_batch == 0
            or producer != batch_producer
            or epoch != batch_epoch
            or control >= 0
            or batch_attributes >= CONTROL
            or offset - base > MAX_INT32
            or (timestamp >= 0 and base_timestamp < timestamp - MAX_INT64)
            or (timestamp < 0 and base_timestamp > MAX_INT64 + timestamp)
            or (log_append_time and timestamp != base_timestamp)
        )
        body = _body_size(
            0 if fresh else timestamp - base_timestamp,
            0 if fresh else offset - base,
            key_length,
            value_length,
            headers,
            size,
        )
        size = body + _varint_size(body) + (HEADER_SIZE if fresh else 0)
        if total > 0 and o + size > max_bytes:
            truncated = True
            break
        if size + SHORT > capacity - o:
            w = written_to.grow(o + size + SHORT)
            capacity = written_to.size
        if fresh:
            if in_batch > 0:
                _put_batch_header(
                    w,
                    batch_at,
                    o,
                    base,
                    last,
                    base_timestamp,
                    max_timestamp,
                    in_batch,
                    leader_epoch,
                    batch_attributes,
                    batch_producer,
                    batch_epoch,
                    base_sequence,
                )
            batch_at = o
            o += HEADER_SIZE
            base = offset
            base_timestamp = timestamp
            max_timestamp = timestamp
            in_batch = 0
            batch_producer = producer
            batch_epoch = epoch
            batch_attributes = attributes
            if producer >= 0:
                batch_attributes += TRANSACTIONAL
            if control >= 0:
                batch_attributes += CONTROL
        o = _put_varint(w, o, body)
        w[o] = 0
        o = _put_varint(w, o + 1, timestamp - base_timestamp)
        o = _put_varint(w, o, offset - base)
        o = _put_varint(w, o, key_length)
        if control >= 0:
            _put_int(w, o, control, CONTROL_KEY_SIZE)
            o = _put_varint(w, o + CONTROL_KEY_SIZE, value_length)
            # No coordinator epoch: an entry does not tell it.
            _put_int(w, o, 0, CONTROL_VALUE_SIZE)
            o += CONTROL_VALUE_SIZE
        else:
            if key_length > 0:
                o = _copy_short(w, o, p, key_at, key_length, end)
            o = _put_varint(w, o, value_length)
            if value_length > 0:
                o = _copy(w, o, q, value_at, value_length)
        o = _put_varint(w, o, headers)
        if headers > 0:
            o = _put_header_fields(w, o, p, headers_at, end, headers)
        max_timestamp = max(max_timestamp, timestamp)
        if total == 0:
            first = offset
        last = offset
        previous = offset
        next_offset = offset + 1 if offset < MAX_INT64 else MAX_INT64
        in_batch += 1
        total += 1
        consumed += 1
        at = stop
    if in_batch > 0:
        _put_batch_header(
            w,
            batch_at,
            o,
            base,
            last,
            base_timestamp,
            max_timestamp,
            in_batch,
            leader_epoch,
            batch_attributes,
            batch_producer,
            batch_epoch,
            base_sequence,
        )
    data: bytes = written_to.take(o)
    return Entries(data, total, first, last, consumed, skipped, bool(truncated), next_offset, damaged)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _body_size(
    timestamp_delta: cython.longlong,
    offset_delta: cython.longlong,
    key_length: cython.longlong,
    value_length: cython.longlong,
    headers: cython.longlong,
    size_of_headers: cython.longlong,
) -> cython.longlong:
    """A record's bytes behind its length."""
    size: cython.longlong = (
        1
        + _varint_size(timestamp_delta)
        + _varint_size(offset_delta)
        + _varint_size(key_length)
        + _varint_size(value_length)
        + _varint_size(headers)
        + size_of_headers
    )
    if key_length > 0:
        size += key_length
    if value_length > 0:
        size += value_length
    return size


def _no_reply(position: int) -> BatchError:
    return BatchError("corrupt", f"reply byte {position}: no whole XRANGE reply")


@cython.cfunc
def _field_list(
    view: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
):
    """Fields and values, checked by `_fields`, as Python objects."""
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    i: cython.longlong
    length: cython.longlong
    fields = []
    for i in range(count // 2 * 2):
        length, at = _bulk(p, at, end)
        fields.append(_octets(p, at, length))
        at += length + 2
    return fields


# RESP


def pack(*args: bytes | str | int) -> bytes:
    """One command as RESP."""
    return _pack(args, True)


def pack_arguments(*args: bytes | str | int) -> bytes:
    """Arguments of a command as RESP bulk strings, without the array's head."""
    return _pack(args, False)


@cython.cfunc
def _pack(args: tuple, with_head: cython.bint):
    capacity: cython.Py_ssize_t = COMMAND_ROOM
    written_to: _Room = _Room(capacity)
    w: cython.p_uchar = written_to.start()
    o: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    is_number: cython.bint
    if with_head:
        o = _put_head(w, o, ARRAY_MARK, len(args))
    for arg in args:
        is_number = isinstance(arg, int) and MIN_INT64 <= arg <= MAX_INT64
        data: bytes = b""
        if not is_number:
            data = arg if isinstance(arg, bytes) else str(arg).encode()
        size = len(data)
        if capacity - o < size + BULK_ROOM:
            w = written_to.grow(o + size + BULK_ROOM)
            capacity = written_to.size
        o = _put_number(w, o, arg) if is_number else _put_bulk(w, o, _content(data), 0, size)
    return written_to.take(o)


def append_reply(replies: BytesLike, added: int) -> tuple[int, ...] | None:
    """The integers that an append function has answered; None where the replies are others.

    Where `added` is not 0, `replies` are those of a MULTI with so many XADDs: OK, QUEUED for each command,
    and the array of EXEC. In it korvet_guard says OK, and korvet_seal the integers behind the IDs, or
    korvet_guard that the batch is a duplicate.
    """
    view: cython.const[cython.uchar][::1] = replies
    end: cython.Py_ssize_t = len(view)
    if end == 0:
        return None
    p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
    at: cython.Py_ssize_t = 0
    if added > 0:
        at = _executed(p, end, added)
        if at < 0:
            return None
        if p[at] == ARRAY_MARK:
            numbers = _reply_numbers(p, at, end, False)
            return numbers if numbers is not None and numbers[DUPLICATE] == 1 else None
        at = _added(p, at, end, added)
        if at < 0:
            return None
    return _reply_numbers(p, at, end, True)


@cython.cfunc
@cython.exceptval(check=False)
def _executed(
    p: cython.pointer(cython.const[cython.uchar]), end: cython.Py_ssize_t, added: cython.longlong
) -> cython.Py_ssize_t:
    """Where the first reply in EXEC's array begins; -1 where not all commands were queued and executed."""
    texts: cython.pointer(cython.const[cython.uchar]) = _content(TRANSACTION_TEXTS)
    commands: cython.longlong = added + 2
    at: cython.Py_ssize_t = OK_SIZE
    i: cython.longlong
    number: cython.longlong
    if end < OK_SIZE + commands * QUEUED_SIZE or not _same(p, 0, texts, OK_AT, OK_SIZE):
        return -1
    for i in range(commands):
        if not _same(p, at, texts, QUEUED_AT, QUEUED_SIZE):
            return -1
        at += QUEUED_SIZE
    number, at = _length(p, at, end, ARRAY_MARK)
    return at if at < end and number == commands else -1


@cython.cfunc
@cython.exceptval(check=False)
def _added(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    added: cython.longlong,
) -> cython.Py_ssize_t:
    """The position behind the guard's OK and so many entry IDs; -1 where something else stands there."""
    i: cython.longlong
    number: cython.longlong
    if end - at < OK_SIZE or not _same(p, at, _content(TRANSACTION_TEXTS), OK_AT, OK_SIZE):
        return -1
    at += OK_SIZE
    for i in range(added):
        number, at = _length(p, at, end, BULK_MARK)
        if at < 0 or number < 0 or number > end - at - 2:
            return -1
        at += number + 2
    return at


@cython.cfunc
def _reply_numbers(
    p: cython.pointer(cython.const[cython.uchar]),
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    last: cython.bint,
) -> tuple[int, ...] | None:
    """The integers of the array at a position, behind which there is nothing where it is the last; None for
    another.
    """
    i: cython.longlong
    number: cython.longlong
    number, at = _length(p, at, end, ARRAY_MARK)
    if at < 0 or number != REPLY_NUMBERS:
        return None
    numbers = []
    for i in range(REPLY_NUMBERS):
        number, at = _length(p, at, end, INTEGER_MARK)
        if at < 0:
            return None
        numbers.append(number)
    return tuple(numbers) if at == end or not last else None


@cython.cclass
class ReplyScanner:
    """Finds the end of RESP2 or RESP3 replies in a buffer that grows; nothing is scanned twice."""

    todo: cython.longlong
    done: cython.Py_ssize_t

    def __init__(self) -> None:
        self.todo = 0
        self.done = 0

    def reset(self) -> None:
        """Forget a reply that was begun: the next one is scanned from its first byte."""
        self.todo = 0
        self.done = 0

    def feed(self, buffer: BytesLike, start: int, end: int, replies: int = 1) -> int:
        """The position behind the `replies` replies (one at least) that begin at `start`, or -1 while some of
        them is not there yet.

        The same bytes may lie elsewhere in the buffer next time. Having found an end, the scanner is ready
        for what comes next. Raises BatchError("corrupt") when the bytes are no RESP; reset() is then needed.
        """
        if not 0 <= start <= end <= len(buffer):
            raise BatchError("corrupt", f"bytes {start} to {end} are not inside a buffer of {len(buffer)}")
        if start == end:
            return -1
        view: cython.const[cython.uchar][::1] = buffer
        p: cython.pointer(cython.const[cython.uchar]) = _readable(view)
        stop: cython.Py_ssize_t = end
        at: cython.Py_ssize_t = start + self.done
        found: cython.Py_ssize_t
        more: cython.longlong
        if self.todo == 0:
            self.todo = replies
        while self.todo > 0:
            more, found = _element(p, at, stop)
            if found == -2:
                self.done = at - start
                return -1
            if found < 0 or more > MAX_INT64 - self.todo:
                raise BatchError("corrupt", f"buffer byte {at}: no RESP reply")
            self.todo += more - 1
            at = found
        self.done = 0
        return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _element(
    p: cython.pointer(cython.const[cython.uchar]), at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """One element without its children: (their number, position behind it); -2: cut off, -1: malformed."""
    mark: cython.int
    length: cython.longlong
    if at >= end:
        return 0, -2
    mark = p[at]
    if mark == 36 or mark == 61 or mark == 33:  # $ bulk string, = verbatim string, ! bulk error
        length, at = _length(p, at, end, mark)
        if at < 0:
            return 0, at
        if length < 0:
            return 0, at
        if length > end - at - 2:
            return 0, -2
        return 0, at + length + 2
    if (
        mark == 42 or mark == 126 or mark == 62 or mark == 37 or mark == 124
    ):  # * array, ~ set, > push, % map, |
        length, at = _length(p, at, end, mark)
        if at < 0 or length < 0:
            return 0, at
        if mark == 37:
            return 2 * length, at
        if mark == 124:  # attributes stand in front of the element that they describe
            return 2 * length + 1, at
        return length, at
    # simple string, error, integer, null, double, boolean, big number
    if mark == 43 or mark == 45 or mark == 58 or mark == 95 or mark == 44 or mark == 35 or mark == 40:
        at = _line_end(p, at, end)
        return 0, -2 if at < 0 else at
    return 0, -1
