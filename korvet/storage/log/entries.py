"""What stream entries are as records, where only a little of it is asked: offsets and timestamps, and no
entry at all.
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

_DECIMAL: Final = re.compile(rb"-?[0-9]+")
# Strings of a key and a value, and of a timestamp.
_KEYED: Final = 4
_STAMP: Final = 2
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1
_INT16_MAX: Final = (1 << 15) - 1
# The fields that a transaction adds, and the digits of the largest number there.
_PRODUCER: Final = frozenset((PRODUCER_ID, PRODUCER_EPOCH))
_NUMBER_DIGITS: Final = 18
_OUTCOMES: Final = (COMMIT, ABORT)


def entry_timestamp(entry_id: bytes, fields: Sequence[bytes]) -> int:
    """When a record was made (ms): entry ms + `ts` where the fields are the ones we write, else entry ms.

    The same rule as records.kernel.entries_to_batches.
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
    """Whether a field `pid` or `epoch` says what we write there: who wrote a record in a transaction."""
    if len(value) > _NUMBER_DIGITS or not value.isdigit():
        return False
    return name == PRODUCER_ID or int(value) <= _INT16_MAX


class Keyed(NamedTuple):
    """What decides whether a record is kept in a compacted log."""

    key: bytes | None
    """None: it has none."""
    tombstone: bool
    producer_id: int
    """Of the transaction that it is in; -1 for none."""


def record_key(fields: Sequence[bytes]) -> Keyed | None:
    """What an entry is as a record; None for one with fields that we don't write: it is no record of a
    producer, whatever readers are given for it. None as well for markers.
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
    """The producer whose transaction an entry ends; None for an entry that is no marker."""
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
    """The first of an entry's records from `offset` on whose timestamp (ms) is not before that one: (offset,
    timestamp); None if there is none, no offset names the entry, or it is a damaged batch.

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
    # Of all records, where the timestamps are the broker's; or where the records can't be read.
    found: tuple[int, int] | None = first, header.max_timestamp_ms
    if not header.log_append_time:
        with contextlib.suppress(BatchError):
            plain = None
            if header.codec:
                # Its size was bounded when it was produced.
                plain = decompress(header.codec, memoryview(data)[HEADER_BYTES:], _INT32_MAX)
            found = find_record(data, 0, header, plain, first, timestamp_ms)
    return found and (header.base_offset + found[0], found[1])


def record_count(entry_id: bytes, fields: Sequence[bytes], bias: int) -> int:
    """How many records an entry is; 1 where no offset names it."""
    try:
        header = batch_of(fields, offset_of(entry_id, bias))
    except AddressError:
        return 1
    return 1 if header is None else header.record_count


def is_damaged(fields: Sequence[bytes], last_offset: int) -> bool:
    """Whether an entry was written as a record batch and cannot be read as one any more."""
    is_batch = _is_batch_field(fields) and resembles_batch(fields[1], last_offset)
    return is_batch and batch_of(fields, last_offset) is None


def _is_batch_field(fields: Sequence[bytes]) -> bool:
    return len(fields) == 2 and fields[0] == BATCH


def batch_of(fields: Sequence[bytes], last_offset: int) -> BatchHeader | None:
    """The header of the sound batch that an entry is as a whole, else None. The kernel's rule: it ends at the
    entry's own offset.
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
    """A record batch without records that ends at `last_offset`, as Kafka's cleaner leaves where all are
    gone.

    A reader goes on at last_offset + 1. The batch begins at `first_offset` where an int32 delta reaches so
    far.
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
