"""The offsets of stream entries that are records."""

from __future__ import annotations

from korvet.records.batch import BatchError, BytesLike
from korvet.records.kernel.entry_ids import EntryStart, entry_start, is_addressable, packed
from korvet.records.kernel.fields import Fields, is_marker, read_fields
from korvet.records.kernel.octets import BytesPointer, buffer_pointer
from korvet.records.kernel.resp import ARRAY_TYPE, bulk, length_line
from korvet.records.kernel.whole_batches import is_named_batch

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]


def record_runs(
    reply: BytesLike, start: int, end: int, *, bias: int, before: int, is_committed: bool
) -> tuple[list[int], list[bytes], int] | None:
    """The entries of one raw XRANGE reply (RESP2), reply[start:end], that are records.

    Returns the first and the last offset of each run of consecutive offsets; the IDs of the transaction
    markers, which are in no run; and the bytes of the largest entry in the reply. None if there is another
    entry: one without an offset, one at or after the offset `before`, one with the only field `batch`, which
    may be a record batch, or if `is_committed` a record of a transaction. Raises BatchError("corrupt") if the
    bytes are no XRANGE reply.
    """
    if not 0 <= start < end <= len(reply):
        raise BatchError("corrupt", f"bytes {start} to {end} of {len(reply)} are no XRANGE reply")
    view: cython.const[cython.uchar][::1] = reply
    p: BytesPointer = buffer_pointer(view)
    stop: cython.Py_ssize_t = end
    at: cython.Py_ssize_t
    entry: EntryStart
    fields: Fields
    offset: cython.longlong
    first: cython.longlong = -1
    last: cython.longlong = -1
    largest: cython.Py_ssize_t = 0
    limit: cython.longlong = before
    shift: cython.longlong = bias
    committed: cython.bint = is_committed
    left: cython.longlong
    bounds: list = []
    markers: list = []
    left, at = length_line(p, start, stop, ARRAY_TYPE)
    while left > 0 and at >= 0:
        entry = entry_start(p, at, stop)
        if entry.fields_at < 0:
            break
        fields = read_fields(p, entry.fields_at, stop, entry.strings, 0)
        if fields.end < 0:
            break
        if not is_addressable(entry) or _may_be_batch(p, entry, stop):
            return None
        offset = packed(entry.ms, entry.sequence) - shift
        if offset >= limit or (committed and fields.is_korvet_entry and fields.producer >= 0):
            return None
        if is_marker(fields):
            markers.append(b"%d-%d" % (entry.ms, entry.sequence))
        elif offset == last + 1 and first >= 0:
            last = offset
        else:
            if first >= 0:
                bounds += (first, last)
            first = last = offset
        largest = max(largest, fields.end - at)
        at = fields.end
        left -= 1
    if left != 0 or at != stop:
        raise BatchError("corrupt", f"bytes {start} to {end} of {len(reply)} are no XRANGE reply")
    if first >= 0:
        bounds += (first, last)
    return bounds, markers, int(largest)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _may_be_batch(p: BytesPointer, entry: EntryStart, end: cython.Py_ssize_t) -> cython.bint:
    """Whether `batch` is the only field of an entry that read_fields has checked."""
    n: cython.longlong
    at: cython.Py_ssize_t
    if entry.strings != 2:
        return False
    n, at = bulk(p, entry.fields_at, end)
    return is_named_batch(p, at, n)
