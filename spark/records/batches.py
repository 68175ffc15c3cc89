"""Entries that are whole record batches (storage.layout=batch; korvet.offsets.record_batch).

The compiled kernel reads the records of many batches at once. Python reads unusual batches record by record,
and all batches if there is no compiled kernel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from korvet.offsets.entry_fields import BATCH
from korvet.offsets.record_batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LENGTH_EXCLUDES_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    MAX_OFFSET_DELTA,
    NO_PRODUCER_ID,
    SMALLEST_RECORD_BYTES,
    SMALLEST_RECORD_HEADER_BYTES,
    TRANSACTIONAL,
    UNCOMPRESSED,
    read_varint,
)
from korvet.spark.records.compiled import kernel
from korvet.spark.records.compression import CODECS, UNREADABLE, decompress

try:
    from crc32c import crc32c
except ImportError:  # only a read of batches needs it
    crc32c = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from korvet.spark.records.columns import Header
    from korvet.spark.records.kernel import Rows

BytesLike = bytes | memoryview
Row = tuple[bytes | None, bytes | None, int, int, "list[Header] | None"]
"""Key, value, offset, timestamp in ms, headers or None."""

# A batch header up to the magic byte: base offset, length, leader epoch, magic.
_UP_TO_MAGIC = struct.Struct(">qiib")
# Indices of fields in an unpacked HEADER.
_CRC, _ATTRIBUTES = 4, 5
# Arrow's binary columns have int32 offsets.
_MAX_COLUMN_BYTES = 0x7FFFFFFF


@dataclass(slots=True)
class Batch:
    """One record batch.

    log_append_time: the broker set the timestamps. producer: the producer ID if the batch is part of a
    transaction, else -1. Control batches have no rows.
    """

    base_offset: int
    log_append_time: bool
    rows: list[Row]
    producer: int = -1


@dataclass(frozen=True, slots=True)
class Records:
    """Records of several batches as columns, and for each record whether the broker set its timestamp."""

    rows: Rows
    log_append_times: NDArray[np.bool_]


def batch_records(fields: Sequence[BytesLike], last_offset: int) -> int | None:
    """Return the number of records in a batch, by its header; None if the entry is not a batch."""
    head = _head(fields, last_offset)
    return None if head is None else int(head[-1])


def is_damaged(fields: Sequence[BytesLike], last_offset: int) -> bool:
    """Return whether an entry that `read_batch` can't read was written as a batch.

    It was if two of its magic byte, its length and its base offset are right. Brokers use the same rule.
    """
    if len(fields) != 2 or fields[0] != BATCH or len(fields[1]) < _UP_TO_MAGIC.size:
        return False
    base_offset, length, _, magic = _UP_TO_MAGIC.unpack_from(fields[1])
    fits = base_offset >= 0 and 0 <= last_offset - base_offset <= MAX_OFFSET_DELTA
    return [magic == MAGIC, length == len(fields[1]) - LENGTH_EXCLUDES_BYTES, fits].count(True) > 1


def read_batch(fields: Sequence[BytesLike], last_offset: int) -> Batch | None:
    """Return the batch that an entry is; None for any other entry and for an unreadable batch.

    The batch must end at `last_offset`, the entry's offset, and its CRC must be right. Raises
    ModuleNotFoundError without the package crc32c.
    """
    head = _head(fields, last_offset)
    if head is None or not _crc_is_right(fields[1], head):
        return None
    base_offset, _, _, _, _, attributes, _, base_ms, newest_ms, producer, _, _, count = head
    appended = bool(attributes & LOG_APPEND_TIME)
    if attributes & CONTROL:
        return Batch(base_offset, appended, [])
    try:
        section = decompress(attributes & CODEC_MASK, bytes(fields[1][HEADER_BYTES:]))
        rows = _rows(section, count, base_offset, base_ms)
    except UNREADABLE:
        return None
    if not attributes & TRANSACTIONAL:
        producer = NO_PRODUCER_ID
    if appended:
        rows = [(key, value, offset, newest_ms, headers) for key, value, offset, _, headers in rows]
    return Batch(base_offset, appended, rows, producer)


def read_records(batches: Sequence[memoryview], wanted: range, *, headers: bool = True) -> Records | None:
    """Return the records of the batches of a page (Page.batches), as `read_batch` does but much faster.

    Returns only records whose offsets are in `wanted`, and no headers with headers=False. None if a batch is
    unreadable or unusual, or there is no compiled kernel.
    """
    if kernel is None:
        return None
    found: list[tuple[tuple[int, ...], BytesLike]] = []
    for data in batches:
        head = HEADER.unpack_from(data)
        if head[_ATTRIBUTES] & CONTROL:
            continue
        section = _section(data, head[_ATTRIBUTES] & CODEC_MASK)
        if section is None or head[-1] * SMALLEST_RECORD_BYTES > len(section):
            return None
        found.append((head, section))
    section_bytes = sum(len(section) for _, section in found)
    if section_bytes > _MAX_COLUMN_BYTES:
        return None
    most_headers = section_bytes // SMALLEST_RECORD_HEADER_BYTES if headers else 0
    rows = kernel.Rows(sum(head[-1] for head, _ in found), section_bytes, most_headers, headers)
    limits, counts = (wanted.start, wanted.stop), [0]
    for head, section in found:
        base_offset, _, _, _, _, attributes, _, base_ms, newest_ms, producer, _, _, count = head
        append_ms = newest_ms if attributes & LOG_APPEND_TIME else None
        owner = producer if attributes & TRANSACTIONAL else NO_PRODUCER_ID
        if not rows.take_records(section, count, base_offset, base_ms, append_ms, owner, *limits):
            return None
        counts.append(rows.count)
    appended = [bool(head[_ATTRIBUTES] & LOG_APPEND_TIME) for head, _ in found]
    return Records(rows, np.repeat(np.array(appended, dtype=bool), np.diff(counts)))


def _section(batch: memoryview, codec: int) -> BytesLike | None:
    """The records of a batch, decompressed; None if they can't be."""
    packed = batch[HEADER_BYTES:]
    if codec == UNCOMPRESSED:
        return packed
    try:
        return decompress(codec, bytes(packed))
    except UNREADABLE:
        return None


def _crc_is_right(batch: BytesLike, head: Sequence[int]) -> bool:
    if crc32c is None:
        raise ModuleNotFoundError(
            "topics with storage.layout=batch need the package crc32c on every executor"
        )
    return crc32c(memoryview(batch)[ATTRIBUTES_AT:]) == head[_CRC]


def _head(fields: Sequence[BytesLike], last_offset: int) -> tuple[int, ...] | None:
    """The header of a batch that ends at `last_offset`; None for any other entry."""
    if len(fields) != 2 or fields[0] != BATCH or len(fields[1]) < HEADER_BYTES:
        return None
    head = HEADER.unpack_from(fields[1])
    base_offset, length, _, magic, _, attributes, delta, *_, count = head
    whole = magic == MAGIC and length == len(fields[1]) - LENGTH_EXCLUDES_BYTES
    sound = delta >= 0 and count == delta + 1 and attributes & CODEC_MASK in CODECS
    return head if whole and sound and base_offset >= 0 and base_offset + delta == last_offset else None


def _rows(data: bytes, count: int, base_offset: int, base_ms: int) -> list[Row]:
    """Raises ValueError or IndexError if the bytes are not `count` records."""
    rows: list[Row] = []
    at = 0
    for number in range(count):
        length, at = read_varint(data, at)
        end = at + length
        delta_ms, at = read_varint(data, at + 1)
        delta, at = read_varint(data, at)
        key, at = _nullable(data, at)
        value, at = _nullable(data, at)
        headers, at = _headers(data, at)
        if at != end or delta != number or end > len(data):
            raise ValueError(f"record {number} is malformed")
        rows.append((key, value, base_offset + number, base_ms + delta_ms, headers))
    if at != len(data):
        raise ValueError("there are bytes after the last record")
    return rows


def _headers(data: bytes, at: int) -> tuple[list[Header] | None, int]:
    count, at = read_varint(data, at)
    if count == 0:
        return None, at
    found: list[Header] = []
    for _ in range(count):
        name, at = _nullable(data, at)
        value, at = _nullable(data, at)
        found.append(((name or b"").decode("utf-8", "replace"), value))
    return found, at


def _nullable(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(data, at)
    if length < 0:
        return None, at
    end = at + length
    return data[at:end], end
