"""Bytes in memory: pointers, integers, varints and text. Positions are indices into a buffer."""

from __future__ import annotations

import cython  # the uncompiled form is for tests only

from korvet.offsets import entry_fields

# Bytes to read.
BytesPointer = cython.typedef(cython.pointer(cython.const[cython.uchar]))

# Decimal digits that always fit 64 bits.
MAX_DIGITS = cython.declare(cython.Py_ssize_t, entry_fields.NUMBER_DIGITS)
# Bytes of a field name that are compared as one number.
WORD = 7
WORD_BYTES = cython.declare(cython.Py_ssize_t, WORD)


@cython.cfunc
@cython.inline
def buffer_pointer(view: cython.const[cython.uchar][::1]) -> BytesPointer:
    """The bytes of a buffer that is not empty."""
    if cython.compiled:
        return cython.address(view[0])
    else:
        return memoryview(view).cast("B")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def word_at(p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.ulonglong:
    """The first seven of n bytes as a number, in little-endian order."""
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
def number(p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.longlong:
    """The number of at most 18 decimal digits; -1 for anything else."""
    number: cython.longlong = 0
    digit: cython.int
    i: cython.Py_ssize_t
    if n < 1 or n > MAX_DIGITS:
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
def varint(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of 63 bits: (value, position after it or -1)."""
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
def nullable_bytes(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t]:
    """Bytes after their length: (position of the bytes, length or -1 for null, position after them or -1)."""
    n: cython.longlong
    n, at = varint(p, at, end)
    if at < 0 or n > end - at:
        return 0, 0, -1
    if n < 0:
        return at, -1, at
    return at, n, at + n


@cython.cfunc
def text_of_line(p: BytesPointer, at: cython.Py_ssize_t) -> bytes:
    """The bytes up to the next line end, which must exist."""
    end: cython.Py_ssize_t = at
    while p[end] != 13:
        end += 1
    if cython.compiled:
        return (p + at)[: end - at]
    else:
        return bytes(p[at:end])


@cython.cfunc
@cython.exceptval(-1)
def is_utf8(p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    """Whether n bytes are UTF-8."""
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
