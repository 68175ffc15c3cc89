"""Entry IDs of streams, read in replies."""

from __future__ import annotations

from korvet.offsets import packing
from korvet.records.kernel.integers import digits
from korvet.records.kernel.octets import BytesPointer
from korvet.records.kernel.resp import ARRAY_TYPE, bulk, length_line

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

SEQUENCE_BITS = cython.declare(cython.longlong, packing.SEQUENCE_BITS)
MAX_SEQUENCE = cython.declare(cython.ulonglong, packing.MAX_SEQUENCE)
MAX_ADDRESSABLE_MS = cython.declare(cython.ulonglong, packing.MAX_MS)

# An entry of a reply up to its fields: its ID, the position of its fields (-1 if the bytes are not an entry),
# and the number of their strings.
EntryStart = cython.struct(
    ms=cython.ulonglong,
    sequence=cython.ulonglong,
    fields_at=cython.Py_ssize_t,
    strings=cython.longlong,
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def entry_start(p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> EntryStart:
    """Read an entry of an XRANGE reply up to its fields."""
    entry = cython.declare(EntryStart)
    length: cython.longlong
    stop: cython.Py_ssize_t
    entry.ms = 0
    entry.sequence = 0
    entry.strings = 0
    entry.fields_at = -1
    length, at = length_line(p, at, end, ARRAY_TYPE)
    if at < 0 or length != 2:
        return entry
    length, at = bulk(p, at, end)
    if at < 0:
        return entry
    stop = at + length
    entry.ms, at = digits(p, at, stop)
    if at < 0 or at >= stop or p[at] != 45:
        return entry
    entry.sequence, at = digits(p, at + 1, stop)
    if at != stop:
        return entry
    length, at = length_line(p, stop + 2, end, ARRAY_TYPE)
    if at < 0:
        return entry
    # Some commands show a null array for an entry that was deleted.
    entry.strings = max(length, 0)
    entry.fields_at = at
    return entry


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_addressable(entry: EntryStart) -> cython.bint:
    """Whether the entry's ID has an offset."""
    return entry.ms <= MAX_ADDRESSABLE_MS and entry.sequence <= MAX_SEQUENCE


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def packed(ms: cython.ulonglong, sequence: cython.ulonglong) -> cython.longlong:
    """An addressable entry ID as one number."""
    return (cython.cast(cython.longlong, ms) << SEQUENCE_BITS) | cython.cast(cython.longlong, sequence)
