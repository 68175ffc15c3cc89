"""Integers in bytes: big-endian, Kafka's zigzag varints, and decimal text.

No arithmetic leaves 64 bits, so both forms of the kernel agree.
"""

from __future__ import annotations

from korvet.offsets import entry_fields
from korvet.records.kernel.octets import BytesPointer

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

MAX_INT64 = cython.declare(cython.longlong, 0x7FFFFFFFFFFFFFFF)
MIN_INT64 = cython.declare(cython.longlong, -MAX_INT64 - 1)
MAX_INT32 = cython.declare(cython.longlong, 0x7FFFFFFF)
TWO_TO_32 = cython.declare(cython.longlong, 1 << 32)
MAX_UINT32 = cython.declare(cython.ulonglong, 0xFFFFFFFF)
TENTH_OF_MAX_UINT64 = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF // 10)
# Digits of a decimal number that always fit 64 bits.
MAX_NUMBER_DIGITS = cython.declare(cython.Py_ssize_t, entry_fields.NUMBER_DIGITS)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def uint32(p: BytesPointer, at: cython.Py_ssize_t) -> cython.uint:
    """A big-endian unsigned integer of 4 bytes."""
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
def int16(p: BytesPointer, at: cython.Py_ssize_t) -> cython.int:
    """A big-endian signed integer of 2 bytes."""
    value: cython.int = (p[at] << 8) | p[at + 1]
    return value - 0x10000 if value > 0x7FFF else value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def int32(p: BytesPointer, at: cython.Py_ssize_t) -> cython.longlong:
    """A big-endian signed integer of 4 bytes."""
    value: cython.longlong = uint32(p, at)
    return value - TWO_TO_32 if value > MAX_INT32 else value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def int64(p: BytesPointer, at: cython.Py_ssize_t) -> cython.longlong:
    """A big-endian signed integer of 8 bytes."""
    high: cython.longlong = int32(p, at)
    return high * TWO_TO_32 + uint32(p, at + 4)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_int(
    w: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong, size: cython.int
) -> cython.Py_ssize_t:
    """Write a big-endian integer of `size` bytes, two's complement. Returns the position after it."""
    i: cython.int
    for i in range(size):
        w[at + i] = (value >> (8 * (size - 1 - i))) & 255
    return at + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def varint(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of 32 bits: (value, position after it or -1)."""
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
def varlong(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """A zigzag varint of 64 bits: (value, position after it or -1)."""
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
def zigzag(value: cython.longlong) -> cython.ulonglong:
    """The unsigned number that a varint holds for a signed one."""
    if value < 0:
        return (cython.cast(cython.ulonglong, -(value + 1)) << 1) + 1
    return cython.cast(cython.ulonglong, value) << 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def varint_size(value: cython.longlong) -> cython.Py_ssize_t:
    """Bytes of a zigzag varint."""
    raw: cython.ulonglong = zigzag(value)
    size: cython.Py_ssize_t = 1
    while raw > 127:
        raw >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_varint(w: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong) -> cython.Py_ssize_t:
    """Write a zigzag varint. Returns the position after it."""
    raw: cython.ulonglong = zigzag(value)
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
def decimal_size(value: cython.ulonglong) -> cython.Py_ssize_t:
    """Digits of a decimal number."""
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
def signed_size(value: cython.longlong) -> cython.Py_ssize_t:
    """Characters of a signed decimal number."""
    if value < 0:
        return decimal_size(cython.cast(cython.ulonglong, -(value + 1)) + 1) + 1
    return decimal_size(value)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_decimal(w: cython.p_uchar, at: cython.Py_ssize_t, value: cython.ulonglong) -> cython.Py_ssize_t:
    """Write a decimal number. Returns the position after it."""
    end: cython.Py_ssize_t = at + decimal_size(value)
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
def digits(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.ulonglong, cython.Py_ssize_t]:
    """Decimal digits: (their value, position after them). -1: there are none, or the value leaves 64 bits."""
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
def number(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, limit: cython.ulonglong
) -> cython.longlong:
    """The decimal number p[at:end], up to `limit`, which fits int64; -1 for anything else."""
    value: cython.ulonglong
    stop: cython.Py_ssize_t
    if end - at > MAX_NUMBER_DIGITS:
        return -1
    value, stop = digits(p, at, end)
    if stop != end or value > limit:
        return -1
    return cython.cast(cython.longlong, value)
