"""Columns of byte strings."""

from __future__ import annotations

import cython  # the uncompiled form is for tests only
import numpy as np

from korvet.records.kernel.octets import SHORT, BytesPointer, copy_short, output_pointer


@cython.final
@cython.cclass
class Strings:
    """A column of nullable byte strings, in Arrow's buffers."""

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
        """most: the largest number of strings. room: the largest number of bytes of all strings."""
        self.count = self.size = self.nulls = 0
        self._most, self._room = most, room
        self.ends = np.empty(most + 1, dtype=np.int32)
        self.validity = np.zeros((most + 8) // 8, dtype=np.uint8)
        self.data = np.empty(room + SHORT, dtype=np.uint8)
        self._ends, self._validity, self._data = self.ends, self.validity, self.data
        self._ends[0] = 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def add(
        self, p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Add n bytes, null if n is negative, of a buffer that ends at `end`. Returns False without room."""
        if self.count >= self._most or n > self._room - self.size:
            return False
        if n < 0:
            self.nulls += 1
        else:
            self.size = copy_short(output_pointer(self._data), self.size, p, at, n, end)
            self._validity[self.count >> 3] |= 1 << (self.count & 7)
        self.count += 1
        self._ends[self.count] = self.size
        return True
