"""XRANGE replies (RESP2): the elements of an array of entries."""

from __future__ import annotations

import cython  # the uncompiled form is for tests only

from korvet.offsets import packing
from korvet.spark.records.kernel.memory import BytesPointer, number

# First bytes of a bulk string and of an array in RESP.
BULK_MARK = cython.declare(cython.longlong, 36)
ARRAY_MARK = cython.declare(cython.longlong, 42)
MAX_INT32 = cython.declare(cython.longlong, 0x7FFFFFFF)
SEQUENCE_BITS = cython.declare(cython.longlong, packing.SEQUENCE_BITS)
MAX_SEQUENCE = cython.declare(cython.longlong, packing.MAX_SEQUENCE)
MAX_ADDRESSABLE_MS = cython.declare(cython.longlong, packing.MAX_MS)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def length_line(
    p: BytesPointer,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    mark: cython.int,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The first line of an element, `mark` and a number below 2^31: (number, position after it or -1)."""
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
def bulk(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t]:
    """A bulk string with its line end: (position of its bytes, length or -1)."""
    size: cython.longlong
    size, at = length_line(p, at, end, BULK_MARK)
    if at < 0 or end - at < size + 2 or p[at + size] != 13 or p[at + size + 1] != 10:
        return 0, -1
    return at, size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def entry_start(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t, cython.longlong, cython.Py_ssize_t]:
    """The start of an entry: (packed ID, position of the ID, number of strings, their position or -1).

    The packed ID is -1 if the entry has no offset. The strings are field names and values.
    """
    n: cython.Py_ssize_t
    dash: cython.Py_ssize_t
    ms: cython.longlong
    sequence: cython.longlong
    strings: cython.longlong
    id_at: cython.Py_ssize_t
    parts: cython.longlong
    parts, at = length_line(p, at, end, ARRAY_MARK)
    if at < 0 or parts != 2:
        return 0, 0, 0, -1
    id_at, n = bulk(p, at, end)
    if n < 0:
        return 0, 0, 0, -1
    dash = 0
    while dash < n and p[id_at + dash] != 45:
        dash += 1
    ms = number(p, id_at, dash)
    if dash == n or ms < 0:
        return 0, 0, 0, -1
    sequence = number(p, id_at + dash + 1, n - dash - 1)
    strings, at = length_line(p, id_at + n + 2, end, ARRAY_MARK)
    if sequence < 0 or at < 0 or strings < 2 or strings & 1:
        return 0, 0, 0, -1
    if ms > MAX_ADDRESSABLE_MS or sequence > MAX_SEQUENCE:
        return -1, id_at, strings, at
    return (ms << SEQUENCE_BITS) | sequence, id_at, strings, at
