"""RESP, Redis's protocol: bulk strings, arrays and numbers written and read; whole commands."""

from __future__ import annotations

from korvet.records.kernel.integers import MAX_INT64, MAX_NUMBER_DIGITS, MIN_INT64, put_decimal, signed_size
from korvet.records.kernel.octets import BytesPointer, OutputBuffer, bytes_pointer, copy

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

# First bytes of elements: `$`, `*` and `:`.
BULK_TYPE = cython.declare(cython.uint, 36)
ARRAY_TYPE = cython.declare(cython.uint, 42)
INTEGER_TYPE = cython.declare(cython.uint, 58)
# Size that the line ends and the length of a bulk string never reach, nor does a number as a bulk string.
BULK_ROOM = cython.declare(cython.Py_ssize_t, 48)
# Buffer for a command without large arguments.
COMMAND_ROOM = cython.declare(cython.Py_ssize_t, 512)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_line_end(w: cython.p_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Write CR and LF. Returns the position after them."""
    w[at] = 13
    w[at + 1] = 10
    return at + 2


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_head(
    w: cython.p_uchar, at: cython.Py_ssize_t, element_type: cython.uint, length: cython.ulonglong
) -> cython.Py_ssize_t:
    """Write the first line of a bulk string or an array, like `$12\\r\\n`. Returns the position after it."""
    w[at] = element_type
    return put_line_end(w, put_decimal(w, at + 1, length))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_bulk(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: BytesPointer,
    source: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write n bytes as a bulk string. Returns the position after it."""
    at = put_head(w, at, BULK_TYPE, n)
    return put_line_end(w, copy(w, at, p, source, n))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_number(w: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a signed decimal number as a bulk string. Returns the position after it."""
    magnitude: cython.ulonglong
    at = put_head(w, at, BULK_TYPE, signed_size(value))
    if value < 0:
        magnitude = cython.cast(cython.ulonglong, -(value + 1)) + 1
        w[at] = 45
        at += 1
    else:
        magnitude = value
    return put_line_end(w, put_decimal(w, at, magnitude))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def length_line(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, element_type: cython.int
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The first line of an array or a bulk string, or an integer: (number, position after the line).

    The position is -2 if the line is cut off, -1 if it is malformed.
    """
    # Nearly all numbers have one to three digits.
    if end - at > 5 and p[at] == element_type and 48 <= p[at + 1] <= 57:
        if p[at + 2] == 13 and p[at + 3] == 10:
            return p[at + 1] - 48, at + 4
        if 48 <= p[at + 2] <= 57:
            if p[at + 3] == 13 and p[at + 4] == 10:
                return (p[at + 1] - 48) * 10 + p[at + 2] - 48, at + 5
            if 48 <= p[at + 3] <= 57 and p[at + 4] == 13 and p[at + 5] == 10:
                return ((p[at + 1] - 48) * 10 + p[at + 2] - 48) * 10 + p[at + 3] - 48, at + 6
    return any_length_line(p, at, end, element_type)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def any_length_line(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, element_type: cython.int
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """As `length_line`, for any number of digits."""
    value: cython.longlong = 0
    count: cython.int = 0
    negative: cython.bint = False
    if at >= end:
        return 0, -2
    if p[at] != element_type:
        return 0, -1
    at += 1
    if at < end and p[at] == 45:
        negative = True
        at += 1
    while at < end and 48 <= p[at] <= 57:
        value = value * 10 + (p[at] - 48)
        count += 1
        at += 1
        if count > MAX_NUMBER_DIGITS:
            return 0, -1
    if at >= end:
        return 0, -2
    if count == 0 or p[at] != 13:
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
def bulk(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A whole bulk string: (length, position of its bytes or -1)."""
    length: cython.longlong
    length, at = length_line(p, at, end, BULK_TYPE)
    if at < 0 or length < 0 or length > end - at - 2:
        return 0, -1
    return length, at


def pack_command(*args: bytes | str | int) -> bytes:
    """One command as RESP."""
    return _pack(args, True)


def pack_arguments(*args: bytes | str | int) -> bytes:
    """Arguments of a command as RESP bulk strings, without the array's first line."""
    return _pack(args, False)


@cython.cfunc
def _pack(args: tuple, with_head: cython.bint):
    capacity: cython.Py_ssize_t = COMMAND_ROOM
    buffer: OutputBuffer = OutputBuffer(capacity)
    w: cython.p_uchar = buffer.start()
    o: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    is_number: cython.bint
    if with_head:
        o = put_head(w, o, ARRAY_TYPE, len(args))
    for arg in args:
        is_number = isinstance(arg, int) and MIN_INT64 <= arg <= MAX_INT64
        data: bytes = b""
        if not is_number:
            data = arg if isinstance(arg, bytes) else str(arg).encode()
        size = len(data)
        if capacity - o < size + BULK_ROOM:
            w = buffer.grow(o + size + BULK_ROOM)
            capacity = buffer.size
        o = put_number(w, o, arg) if is_number else put_bulk(w, o, bytes_pointer(data), 0, size)
    return buffer.take(o)
