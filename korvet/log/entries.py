"""Single questions about stream entries as records: timestamps, and the record count."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from korvet.offsets.entry_fields import BATCH, Record, read_entry
from korvet.offsets.packing import AddressError, id_parts, offset_of
from korvet.offsets.record_batch import HEADER_BYTES
from korvet.records.batch import BatchError
from korvet.records.compression import decompress
from korvet.records.kernel import find_record, parse_batch, resembles_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.records.batch import BatchHeader

_INT64_MIN: Final = -(1 << 63)
_INT32_MAX: Final = (1 << 31) - 1


def entry_timestamp(entry_id: bytes, fields: Sequence[bytes]) -> int:
    """The timestamp of an entry that is no batch (ms); an application's entry has the time of its ID."""
    ms, _ = id_parts(entry_id)
    found = read_entry(fields, ms)
    return found.timestamp_ms if isinstance(found, Record) else ms


def first_record(
    entry_id: bytes, fields: Sequence[bytes], bias: int, *, offset: int = 0, timestamp_ms: int = _INT64_MIN
) -> tuple[int, int] | None:
    """(offset, timestamp in ms) of an entry's first record from `offset` on with a timestamp of
    `timestamp_ms` or later. None if there is none, no offset names the entry, or the entry is a damaged
    batch.

    `bias` is 1 on a dense topic, else 0.
    """
    try:
        last = offset_of(entry_id, bias)
    except AddressError:
        return None
    header = batch_of(fields, last)
    if header is not None:
        return _first_in_batch(header, fields[1], offset, timestamp_ms)
    if is_damaged(fields, last):
        return None
    found = last, entry_timestamp(entry_id, fields)
    return found if last >= offset and found[1] >= timestamp_ms else None


def _first_in_batch(
    header: BatchHeader, data: bytes, offset: int, timestamp_ms: int
) -> tuple[int, int] | None:
    first = max(offset - header.base_offset, 0)
    if header.max_timestamp_ms < timestamp_ms or first > header.last_offset_delta:
        return None
    # This timestamp is that of all records if they have the append time. It also serves if the records
    # can't be read.
    found: tuple[int, int] | None = first, header.max_timestamp_ms
    if not header.log_append_time:
        with contextlib.suppress(BatchError):
            plain = None
            if header.codec:
                # The plain size was bounded when the batch was produced.
                plain = decompress(header.codec, memoryview(data)[HEADER_BYTES:], _INT32_MAX)
            found = find_record(data, 0, header, plain, first, timestamp_ms)
    return found and (header.base_offset + found[0], found[1])


def record_count(entry_id: bytes, fields: Sequence[bytes], bias: int) -> int:
    """The number of records in an entry; 1 if no offset names it."""
    try:
        header = batch_of(fields, offset_of(entry_id, bias))
    except AddressError:
        return 1
    return 1 if header is None else header.record_count


def is_damaged(fields: Sequence[bytes], last_offset: int) -> bool:
    """Whether an entry was written as a record batch, but can no longer be read as one."""
    is_batch = _is_batch_field(fields) and resembles_batch(fields[1], last_offset)
    return is_batch and batch_of(fields, last_offset) is None


def _is_batch_field(fields: Sequence[bytes]) -> bool:
    return len(fields) == 2 and fields[0] == BATCH


def batch_of(fields: Sequence[bytes], last_offset: int) -> BatchHeader | None:
    """The header of the sound batch that makes up a whole entry; None for other entries. As in the kernel,
    the batch has to end at the entry's own offset.
    """
    if not _is_batch_field(fields):
        return None
    try:
        header = parse_batch(fields[1], 0)
    except BatchError:
        return None
    ends_here = header.base_offset + header.last_offset_delta == last_offset
    return header if ends_here and header.size == len(fields[1]) else None
