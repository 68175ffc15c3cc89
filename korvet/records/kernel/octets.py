"""Bytes in memory: pointers to read from, a buffer to write to, copies and checksums.

These functions are the only ones that differ between the two forms of the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from korvet.records.batch import BytesLike

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, _PyBytes_Resize
    from cython.cimports.cpython.ref import Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
    from cython.cimports.korvet.records.kernel._crc32c import (
        korvet_crc32c,
        korvet_crc32c_portable,
        korvet_crc32c_prepare,
    )
    from cython.cimports.libc.string import memchr, memcpy

    korvet_crc32c_prepare()
else:
    import crc32c as _crc32c_package

# Bytes to read. A position in them is an index; bytes to write are a `cython.p_uchar`.
BytesPointer = cython.typedef(cython.pointer(cython.const[cython.uchar]))

# Bytes after the copied ones that `copy_short` may overwrite.
SHORT = cython.declare(cython.Py_ssize_t, 32)

LINE_FEED = cython.declare(cython.longlong, 10)


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
def output_pointer(view: cython.uchar[::1]) -> cython.p_uchar:
    """The bytes of a writable buffer that is not empty."""
    if cython.compiled:
        return cython.address(view[0])
    else:
        return memoryview(view).cast("B")


@cython.cfunc
@cython.inline
def bytes_pointer(data: bytes) -> BytesPointer:
    """The bytes of a bytes object, which may be empty."""
    if cython.compiled:
        return cython.cast(BytesPointer, PyBytes_AS_STRING(data))
    else:
        return memoryview(data)


@cython.cfunc
@cython.inline
def bytes_at(p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t):
    """A bytes object of n bytes."""
    if cython.compiled:
        return (p + at)[:n]
    else:
        return bytes(p[at : at + n])


@cython.final
@cython.cclass
class OutputBuffer:
    """A bytes object that is written before anybody else has a reference to it."""

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
        """The first byte; valid until the buffer grows or is taken."""
        if cython.compiled:
            return cython.cast(cython.p_uchar, PyBytes_AS_STRING(cython.cast(object, self._made)))
        else:
            return self._made

    @cython.cfunc
    def grow(self, size: cython.Py_ssize_t) -> cython.p_uchar:
        """Make room for at least `size` bytes and keep those already written. Returns the new start."""
        self.size = max(size, 2 * self.size)
        if cython.compiled:
            _PyBytes_Resize(cython.address(self._made), self.size)
        else:
            self._made.extend(bytes(self.size - len(self._made)))
        return self.start()

    @cython.cfunc
    def take(self, size: cython.Py_ssize_t) -> bytes:
        """The first `size` bytes as a bytes object; the buffer is unusable afterwards."""
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
@cython.nogil
@cython.exceptval(check=False)
def checksum(p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.uint:
    """The CRC32C of n bytes."""
    if cython.compiled:
        return korvet_crc32c(p + at, n)
    else:
        return _crc32c_package.crc32c(bytes(p[at : at + n]))


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: BytesPointer,
    source: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy n bytes. Returns the position after them."""
    if cython.compiled:
        memcpy(w + at, p + source, n)
    else:
        w[at : at + n] = p[source : source + n]
    return at + n


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def copy_short(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    p: BytesPointer,
    source: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Copy n bytes that are mostly no more than SHORT, faster than `copy`. Returns the position after them.

    `w` needs room for SHORT bytes from `at` on; all of them may be overwritten. `end` is the end of the
    readable bytes.
    """
    if cython.compiled:
        # A copy of a constant size is two instructions and no call.
        if n <= 16 and end - source >= 16:
            memcpy(w + at, p + source, 16)
            return at + n
        if n <= 32 and end - source >= 32:
            memcpy(w + at, p + source, 32)
            return at + n
    return copy(w, at, p, source, n)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def after_line_feed(p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The position after the next line feed, or -1."""
    if cython.compiled:
        found: BytesPointer = cython.cast(BytesPointer, memchr(p + at, LINE_FEED, end - at))
        if found == cython.NULL:
            return -1
        return found - p + 1
    else:
        found_at = bytes(p[at:end]).find(LINE_FEED)
        return -1 if found_at < 0 else at + found_at + 1


def crc32c(data: BytesLike) -> int:
    """The CRC32C (Castagnoli) of a buffer, as Kafka's record batches carry it."""
    view: cython.const[cython.uchar][::1] = data
    if len(view) == 0:
        return 0
    return checksum(buffer_pointer(view), 0, len(view))


def crc32c_portable(data: BytesLike) -> int:
    """The CRC32C of a buffer, computed without the CPU's instruction for it."""
    view: cython.const[cython.uchar][::1] = data
    if len(view) == 0:
        return 0
    if cython.compiled:
        return korvet_crc32c_portable(buffer_pointer(view), len(view))
    else:
        return checksum(buffer_pointer(view), 0, len(view))
