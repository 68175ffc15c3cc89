"""Single questions about stream entries as records: timestamps, keys, markers, the record count; and the
empty batch for a gap without entries.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.offsets.entry_fields import (
    ABORT,
    BATCH,
    COMMIT,
    CONTROL,
    HEADER_PREFIX,
    KEY,
    MARKER_STRINGS,
    NULL_HEADER_PREFIX,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TIMESTAMP,
    VALUE,
)
from korvet.offsets.packing import AddressError, id_parts, offset_of
from korvet.offsets.record_batch import (
    CHECKED_HEADER,
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
)
from korvet.records.assembly import assemble_batch
from korvet.records.batch import BatchError
from korvet.records.compression import decompress
from korvet.records.kernel import find_record, parse_batch, resembles_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.records.batch import BatchHeader

# A number with more digits is beyond int64, and Python converts no more than 4,300.
_DECIMAL: Final = re.compile(rb"-?[0-9]{1,20}")
# Strings of the fields key and value, and of a timestamp field.
_KEYED: Final = 4
_STAMP: Final = 2
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1
_INT16_MAX: Final = (1 << 15) - 1
# The fields that a transaction adds, and the digits of the largest number in them.
_PRODUCER: Final = frozenset((PRODUCER_ID, PRODUCER_EPOCH))
_NUMBER_DIGITS: Final = 18
_OUTCOMES: Final = (COMMIT, ABORT)


def entry_timestamp(entry_id: bytes, fields: Sequence[bytes]) -> int:
    """The create time of a record (ms): the entry's ms + `ts` if all fields are of korvet's format, else the
    entry's ms.

    records.kernel.entries_to_batches follows the same rule.
    """
    ms, _ = id_parts(entry_id)
    once = {KEY, VALUE, TIMESTAMP, *_PRODUCER}
    timestamp = ms
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name in once:
            once.discard(name)
            if name == TIMESTAMP:
                if not _DECIMAL.fullmatch(value):
                    return ms
                timestamp = ms + int(value)
            elif name in _PRODUCER and not is_producer_field(name, value):
                return ms
        elif not name.startswith(HEADER_PREFIX) and not (name.startswith(NULL_HEADER_PREFIX) and not value):
            return ms
    if len(once & _PRODUCER) == 1:
        return ms
    return timestamp if _INT64_MIN <= timestamp <= _INT64_MAX else ms


def is_producer_field(name: bytes, value: bytes) -> bool:
    """Whether a field `pid` or `epoch` has a value that korvet writes for a record in a transaction."""
    if len(value) > _NUMBER_DIGITS or not value.isdigit():
        return False
    return name == PRODUCER_ID or int(value) <= _INT16_MAX


class Keyed(NamedTuple):
    """The part of a record that decides whether a compaction keeps it."""

    key: bytes | None
    """The record's key; None if it has none."""
    tombstone: bool
    producer_id: int
    """The producer of its transaction; -1 outside a transaction."""


def record_key(fields: Sequence[bytes]) -> Keyed | None:
    """The key of an entry's record. None for an entry with fields that korvet does not write: it is no record
    of a producer, although readers get a record for it. None for markers, too.
    """
    if len(fields) >= _KEYED and fields[0] == KEY and fields[2] == VALUE:
        rest = fields[_KEYED:]
        if not rest or (len(rest) == _STAMP and rest[0] == TIMESTAMP and _DECIMAL.fullmatch(rest[1])):
            return Keyed(fields[1], False, -1)
    once: dict[bytes, bytes | None] = dict.fromkeys((KEY, VALUE, TIMESTAMP, *_PRODUCER))
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name in once:
            if once[name] is not None or not _is_sound(name, value):
                return None
            once[name] = value
        elif not name.startswith(HEADER_PREFIX) and not (name.startswith(NULL_HEADER_PREFIX) and not value):
            return None
    producer, epoch = once[PRODUCER_ID], once[PRODUCER_EPOCH]
    if (producer is None) != (epoch is None):
        return None
    return Keyed(once[KEY], once[VALUE] is None, -1 if producer is None else int(producer))


def _is_sound(name: bytes, value: bytes) -> bool:
    if name == TIMESTAMP:
        return _DECIMAL.fullmatch(value) is not None
    return name not in _PRODUCER or is_producer_field(name, value)


def marker_producer(fields: Sequence[bytes]) -> int | None:
    """The producer whose transaction a marker entry ends; None for other entries."""
    if len(fields) != MARKER_STRINGS:
        return None
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    if found.get(CONTROL) not in _OUTCOMES or not found.keys() >= _PRODUCER:
        return None
    sound = all(is_producer_field(name, found[name]) for name in _PRODUCER)
    return int(found[PRODUCER_ID]) if sound else None


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


def empty_batch(first_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """A record batch without records that ends at `last_offset`. Kafka's cleaner leaves such a batch if it
    removes all records.

    A reader continues at last_offset + 1. The batch begins at `first_offset` if the difference of the offsets
    is an int32, else at `last_offset`.
    """
    base_offset = first_offset if last_offset - first_offset <= _INT32_MAX else last_offset
    header = CHECKED_HEADER.pack(
        0,
        last_offset - base_offset,
        NO_TIMESTAMP,
        NO_TIMESTAMP,
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        NO_SEQUENCE,
        0,
    )
    return assemble_batch(base_offset, leader_epoch, header)
