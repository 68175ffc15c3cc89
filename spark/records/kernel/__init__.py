# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""XRANGE replies and the records of batches to Arrow's columns, in one pass over the bytes.

One source has two forms: Cython compiles all modules as one unit (pure-Python mode; setup.py), and tests run
them as they are, which is too slow for anything else. The unit contains the modules of korvet.records.kernel
that read entries and records, so executors need no other part of korvet.records.

All bytes are untrusted: lengths are checked before a read, and the room before a write. An unusual input is
refused as a whole and left to korvet.spark.records.entries, which makes the same rows in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython  # the uncompiled form is for tests only

from korvet.records.kernel.entry_ids import EntryStart, entry_start, is_addressable, packed
from korvet.records.kernel.fields import Fields, read_fields
from korvet.records.kernel.octets import BytesPointer, buffer_pointer
from korvet.records.kernel.resp import ARRAY_TYPE, length_line
from korvet.records.kernel.whole_batches import WholeBatch, whole_batch
from korvet.spark.records.kernel.rows import Rows, entry_id
from korvet.spark.records.kernel.strings import Strings

if TYPE_CHECKING:
    from korvet.spark.records.kernel.rows import BytesLike

__all__ = ["ACCELERATED", "Rows", "Strings", "batches_in"]

ACCELERATED: bool = cython.compiled


def batches_in(
    reply: BytesLike, size: int, skipped: int, bias: int
) -> tuple[list[tuple[int, int]], bytes] | None:
    """The entries of reply[:size], an XRANGE reply (RESP2), if each one is a sound record batch.

    Returns, for each entry with an offset after the first `skipped` entries, where its batch starts and ends;
    and the ID of the last entry. None if an entry is no such batch.
    """
    view: cython.const[cython.uchar][::1] = reply
    if size < 1 or size > len(reply):
        return None
    p: BytesPointer = buffer_pointer(view)
    end: cython.Py_ssize_t = size
    entries: cython.longlong
    number: cython.longlong
    at: cython.Py_ssize_t
    last_at: cython.Py_ssize_t = 0
    entry: EntryStart
    fields: Fields
    whole: WholeBatch
    found: list[tuple[int, int]] = []
    entries, at = length_line(p, 0, end, ARRAY_TYPE)
    if at < 0 or entries < 1:
        return None
    for number in range(entries):
        last_at = at
        entry = entry_start(p, at, end)
        if entry.fields_at < 0:
            return None
        fields = read_fields(p, entry.fields_at, end, entry.strings, 0)
        if fields.end < 0:
            return None
        at = fields.end
        if is_addressable(entry):
            whole = whole_batch(p, entry, end, packed(entry.ms, entry.sequence) - bias)
            if whole.at < 0:
                return None
            if number >= skipped:
                found.append((whole.at, whole.at + whole.size))
    return (found, entry_id(p, last_at, end)) if at == end else None
