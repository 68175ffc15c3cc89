# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""XRANGE replies and the records of batches to Arrow's columns, in one pass over the bytes.

One source has two forms: Cython compiles all modules as one unit (pure-Python mode; setup.py), and tests run
them as they are, which is too slow for anything else.

All bytes are untrusted: lengths are checked before a read, and the room before a write. An unusual input is
refused as a whole and left to korvet.spark.records.entries, which makes the same rows in Python.

The compiled form passes structs by value, the other one by reference: a function that changes a struct
returns it, and its caller uses only the returned one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython  # the uncompiled form is for tests only

from korvet.spark.records.kernel.fields import BATCH
from korvet.spark.records.kernel.memory import BytesPointer, buffer_pointer, text_of_line, word_at
from korvet.spark.records.kernel.replies import ARRAY_MARK, bulk, entry_start, length_line
from korvet.spark.records.kernel.rows import Rows
from korvet.spark.records.kernel.strings import Strings

if TYPE_CHECKING:
    from korvet.spark.records.kernel.rows import BytesLike

__all__ = ["ACCELERATED", "Rows", "Strings", "batches_in"]

ACCELERATED: bool = cython.compiled


def batches_in(
    reply: BytesLike, size: int, skipped: int, bias: int
) -> tuple[list[tuple[int, int, int]], bytes] | None:
    """The entries of reply[:size], an XRANGE reply (RESP2), if each one is a record batch.

    Returns, for each entry with an offset after the first `skipped` entries, the offset and where its value
    starts and ends; and the ID of the last entry. None if an entry has another field than `batch`, or is
    unusual.
    """
    view: cython.const[cython.uchar][::1] = reply
    if size < 1 or size > len(reply):
        return None
    p: BytesPointer = buffer_pointer(view)
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
    entries, at = length_line(p, 0, end, ARRAY_MARK)
    if at < 0 or entries < 1:
        return None
    for number in range(entries):
        position, id_at, strings, at = entry_start(p, at, end)
        if at < 0 or strings != 2:
            return None
        at, name_size = bulk(p, at, end)
        if name_size != 5 or word_at(p, at, name_size) != BATCH:
            return None
        value_at, value_size = bulk(p, at + name_size + 2, end)
        if value_size < 0:
            return None
        at = value_at + value_size + 2
        if position >= 0 and number >= skipped:
            found.append((position - bias, value_at, value_at + value_size))
    return (found, text_of_line(p, id_at)) if at == end else None
