"""Record batches that are stored as they are: each one is the only field of an entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.records.kernel.entry_ids import EntryStart
from korvet.records.kernel.header_fields import (
    ATTRIBUTES_AT,
    CODEC_AT,
    CODEC_MASK,
    CRC_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LENGTH_EXCLUDES,
    MAGIC,
    MAGIC_AT,
    NEWEST_CODEC,
    RECORD_COUNT_AT,
)
from korvet.records.kernel.integers import MAX_INT32, int32, int64, uint32
from korvet.records.kernel.octets import BytesPointer, buffer_pointer, checksum
from korvet.records.kernel.resp import bulk

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

if TYPE_CHECKING:
    from korvet.records.batch import BytesLike

# In place of a position: a record batch that cannot be read.
DAMAGED = cython.declare(cython.Py_ssize_t, -2)

# An entry that is a whole record batch. `at` is the batch's position: -1 for an application's entry, DAMAGED
# if the batch is not sound.
WholeBatch = cython.struct(at=cython.Py_ssize_t, size=cython.longlong, records=cython.longlong)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def whole_batch(
    p: BytesPointer, entry: EntryStart, end: cython.Py_ssize_t, offset: cython.longlong
) -> WholeBatch:
    """The record batch that an entry is, whose only field is `batch`.

    A sound batch has a known codec and ends at the entry's offset. `read_fields` has checked the
    entry's strings.
    """
    whole = cython.declare(WholeBatch)
    at: cython.Py_ssize_t
    n: cython.longlong
    delta: cython.longlong
    whole.at = -1
    whole.size = 0
    whole.records = 0
    if entry.strings != 2:
        return whole
    n, at = bulk(p, entry.fields_at, end)
    if not is_named_batch(p, at, n):
        return whole
    n, at = bulk(p, at + n + 2, end)
    if is_like_batch(p, at, n, offset):
        whole.at = DAMAGED
    if n < HEADER_SIZE or p[at + MAGIC_AT] != MAGIC or int32(p, at + LENGTH_AT) != n - LENGTH_EXCLUDES:
        return whole
    delta = int32(p, at + LAST_OFFSET_DELTA_AT)
    if (
        delta < 0
        or int32(p, at + RECORD_COUNT_AT) != delta + 1
        or p[at + CODEC_AT] & CODEC_MASK > NEWEST_CODEC
    ):
        return whole
    if delta > offset or int64(p, at) != offset - delta:
        return whole
    if uint32(p, at + CRC_AT) != checksum(p, at + ATTRIBUTES_AT, n - ATTRIBUTES_AT):
        return whole
    whole.at = at
    whole.size = n
    whole.records = delta + 1
    return whole


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_named_batch(p: BytesPointer, at: cython.Py_ssize_t, n: cython.longlong) -> cython.bint:
    """Whether n bytes are the name `batch`."""
    return (
        n == 5
        and p[at] == 98
        and p[at + 1] == 97
        and p[at + 2] == 116
        and p[at + 3] == 99
        and p[at + 4] == 104
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_like_batch(
    p: BytesPointer, at: cython.Py_ssize_t, length: cython.longlong, offset: cython.longlong
) -> cython.bint:
    """See `resembles_batch`."""
    signs: cython.int = 0
    base: cython.longlong
    if length <= MAGIC_AT:
        return False
    base = int64(p, at)
    if p[at + MAGIC_AT] == MAGIC:
        signs += 1
    if int32(p, at + LENGTH_AT) == length - LENGTH_EXCLUDES:
        signs += 1
    if base >= 0 and base <= offset and offset - base <= MAX_INT32:
        signs += 1
    return signs >= 2


def resembles_batch(value: BytesLike, offset: int) -> bool:
    """Whether the value of a field `batch`, in an entry at that offset, was written as a record batch.

    If so and `parse_batch` refuses it, it is damaged. Two of three are right then: the magic byte, the
    length, and a base offset that an entry at `offset` may have. So damage to any one of them is noticed,
    while no text, and other binary data by rare chance only, is taken for a batch.
    """
    view: cython.const[cython.uchar][::1] = value
    length: cython.Py_ssize_t = len(view)
    if length == 0:
        return False
    return bool(is_like_batch(buffer_pointer(view), 0, length, offset))
