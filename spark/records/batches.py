"""Entries that are whole record batches (storage.layout=batch), in Kafka's format, magic 2 (KIP-98).

The compiled kernel reads the records of many at once. Pure Python does it record by record, for what is
unusual and where that kernel is not to be had.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from korvet.offsets.entry_fields import BATCH
from korvet.offsets.record_batch import (
    ABORT,
    ATTRIBUTES_AT,
    CODEC_MASK,
    COMMIT,
    CONTROL,
    CONTROL_KEY,
    GZIP,
    HEADER,
    LENGTH_EXCLUDES_BYTES,
    LOG_APPEND_TIME,
    LZ4,
    MAGIC,
    MAX_OFFSET_DELTA,
    NO_PRODUCER_ID,
    SMALLEST_RECORD_BYTES,
    SMALLEST_RECORD_HEADER_BYTES,
    SNAPPY,
    TRANSACTIONAL,
    UNCOMPRESSED,
    ZSTD,
)
from korvet.spark.records.compiled import kernel

try:
    from crc32c import crc32c
except ImportError:  # only what reads batches needs it
    crc32c = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from korvet.spark.records.kernel import Rows

Octets = bytes | memoryview
Header = tuple[str, bytes | None]
Row = tuple[bytes | None, bytes | None, int, int, list[Header] | None]
"""Key, value, offset, timestamp in ms, headers or None."""

# As far as the magic byte.
_PREFIX = struct.Struct(">qiib")
_CRC, _ATTRIBUTES = 4, 5  # among the header's parts
_MAX_COLUMN_BYTES = 0x7FFFFFFF
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = 16


@dataclass(slots=True)
class Batch:
    """One batch: where it begins, whether its timestamps are the broker's, and its records.

    `producer` is the producer's id where the batch is part of a transaction, else -1; `outcome` is True for
    the marker of a commit, False for that of an abort, None for records. Markers have no rows.
    """

    base_offset: int
    log_append_time: bool
    rows: list[Row]
    producer: int = -1
    outcome: bool | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """The records of several batches, as columns, and whether each one's timestamp is the broker's."""

    rows: Rows
    log_append_times: NDArray[np.bool_]


def batch_records(fields: Sequence[Octets], last_offset: int) -> int | None:
    """How many records an entry at this offset is, by its batch's header; None where it is no batch."""
    head = _head(fields, last_offset)
    return None if head is None else int(head[-1])


def is_damaged(fields: Sequence[Octets], last_offset: int) -> bool:
    """Whether an entry that `read_batch` can't read was written as a batch: two of its magic byte, its length
    and its base offset are right, as the broker tells.
    """
    if len(fields) != 2 or fields[0] != BATCH or len(fields[1]) < _PREFIX.size:
        return False
    base_offset, length, _, magic = _PREFIX.unpack_from(fields[1])
    fits = base_offset >= 0 and 0 <= last_offset - base_offset <= MAX_OFFSET_DELTA
    return [magic == MAGIC, length == len(fields[1]) - LENGTH_EXCLUDES_BYTES, fits].count(True) > 1


def may_be_transactional(fields: Sequence[Octets]) -> bool:
    """Whether an entry looks like a batch that is part of a transaction, or ends one, by its header alone."""
    head = _unpacked(fields)
    return head is not None and bool(head[_ATTRIBUTES] & (TRANSACTIONAL | CONTROL))


def read_batch(fields: Sequence[Octets], last_offset: int) -> Batch | None:
    """The batch that an entry is as a whole; None for any other entry, one that can't be read included.

    It has to end at `last_offset`, the entry's own, and its CRC has to be right.
    """
    head = _head(fields, last_offset)
    if head is None or not _crc_is_right(fields[1], head):
        return None
    base_offset, _, _, _, _, attributes, _, base_ms, newest_ms, producer, _, _, count = head
    appended = bool(attributes & LOG_APPEND_TIME)
    try:
        section = _DECOMPRESS[attributes & CODEC_MASK](bytes(fields[1][HEADER.size :]))
        rows = _rows(section, count, base_offset, base_ms)
    except _UNREADABLE:
        return None
    if not attributes & TRANSACTIONAL:
        producer = NO_PRODUCER_ID
    if attributes & CONTROL:
        return Batch(base_offset, appended, [], producer, _outcome(rows))
    if appended:
        rows = [(key, value, offset, newest_ms, headers) for key, value, offset, _, headers in rows]
    return Batch(base_offset, appended, rows, producer)


def outcome_of(fields: Sequence[Octets], last_offset: int) -> tuple[int, bool] | None:
    """The producer whose transaction a control batch ends, and whether it is committed; None for all else."""
    head = _head(fields, last_offset)
    if head is None or not head[_ATTRIBUTES] & CONTROL:
        return None
    batch = read_batch(fields, last_offset)
    return None if batch is None or batch.outcome is None else (batch.producer, batch.outcome)


def _outcome(rows: Sequence[Row]) -> bool | None:
    """What a control batch says of its producer's transaction; None for other controls."""
    key = rows[0][0] if rows else None
    if key is None or len(key) < CONTROL_KEY.size:
        return None
    return {ABORT: False, COMMIT: True}.get(CONTROL_KEY.unpack_from(key)[1])


def read_records(
    batches: Sequence[tuple[int, memoryview]], wanted: range, *, headers: bool = True
) -> Records | None:
    """What `read_batch` gives of batches, with the offsets that they end at, many times as fast; None where
    one of them can't be read, is unusual, or there is no compiled kernel.

    Only the records whose offsets are `wanted`, their headers unless these are not.
    """
    if kernel is None:
        return None
    found: list[tuple[tuple[int, ...], Octets]] = []
    for last_offset, data in batches:
        head = _head([BATCH, data], last_offset)
        if head is None or not _crc_is_right(data, head):
            return None
        if head[_ATTRIBUTES] & CONTROL:
            if read_batch([BATCH, data], last_offset) is None:
                return None
            continue
        section = _section(data, head[_ATTRIBUTES] & CODEC_MASK)
        if section is None or head[-1] * SMALLEST_RECORD_BYTES > len(section):
            return None
        found.append((head, section))
    room = sum(len(section) for _, section in found)
    if room > _MAX_COLUMN_BYTES:
        return None
    most_headers = room // SMALLEST_RECORD_HEADER_BYTES if headers else 0
    rows = kernel.Rows(sum(head[-1] for head, _ in found), room, most_headers, headers)
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


def _section(batch: memoryview, codec: int) -> Octets | None:
    """The records of a batch, decompressed; None where that can't be done."""
    packed = batch[HEADER.size :]
    if codec == UNCOMPRESSED:
        return packed
    try:
        return _DECOMPRESS[codec](bytes(packed))
    except _UNREADABLE:
        return None


def _crc_is_right(batch: Octets, head: Sequence[int]) -> bool:
    if crc32c is None:
        raise ModuleNotFoundError(
            "topics with storage.layout=batch need the package crc32c on every executor"
        )
    return crc32c(memoryview(batch)[ATTRIBUTES_AT:]) == head[_CRC]


def _unpacked(fields: Sequence[Octets]) -> tuple[int, ...] | None:
    """A batch's header, whatever it says; None where an entry has no room for one, or other fields."""
    if len(fields) != 2 or fields[0] != BATCH or len(fields[1]) < HEADER.size:
        return None
    return HEADER.unpack_from(fields[1])


def _head(fields: Sequence[Octets], last_offset: int) -> tuple[int, ...] | None:
    head = _unpacked(fields)
    if head is None:
        return None
    base_offset, length, _, magic, _, attributes, delta, *_, count = head
    whole = magic == MAGIC and length == len(fields[1]) - LENGTH_EXCLUDES_BYTES
    sound = delta >= 0 and count == delta + 1 and attributes & CODEC_MASK in _DECOMPRESS
    return head if whole and sound and base_offset >= 0 and base_offset + delta == last_offset else None


def _rows(data: bytes, count: int, base_offset: int, base_ms: int) -> list[Row]:
    """Raises ValueError or IndexError where the bytes are no such records."""
    rows: list[Row] = []
    at = 0
    for number in range(count):
        length, at = _varint(data, at)
        end = at + length
        delta_ms, at = _varint(data, at + 1)
        delta, at = _varint(data, at)
        key, at = _nullable(data, at)
        value, at = _nullable(data, at)
        headers, at = _headers(data, at)
        if at != end or delta != number or end > len(data):
            raise ValueError(f"record {number} is malformed")
        rows.append((key, value, base_offset + number, base_ms + delta_ms, headers))
    if at != len(data):
        raise ValueError("there are bytes behind the last record")
    return rows


def _headers(data: bytes, at: int) -> tuple[list[Header] | None, int]:
    count, at = _varint(data, at)
    if count == 0:
        return None, at
    found: list[Header] = []
    for _ in range(count):
        name, at = _nullable(data, at)
        value, at = _nullable(data, at)
        found.append(((name or b"").decode("utf-8", "replace"), value))
    return found, at


def _nullable(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    end = at + length
    return data[at:end], end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag varint: its value, and the position behind it."""
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    raw, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7


def _streamed(codec: str) -> Callable[[bytes], bytes]:
    def decompress(data: bytes) -> bytes:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            return bytes(stream.read())

    return decompress


def _snappy(data: bytes) -> bytes:
    """Raw, or in the block framing of the Java clients."""
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data)
    parts = []
    at = _XERIAL_HEADER_SIZE
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        parts.append(_snappy_block(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(parts)


def _snappy_block(block: bytes) -> bytes:
    """A block begins with its decompressed size, a plain varint."""
    size = shift = at = 0
    while True:
        byte = block[at]
        at += 1
        size |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return bytes(pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True))


_DECOMPRESS: dict[int, Callable[[bytes], bytes]] = {
    UNCOMPRESSED: bytes,
    GZIP: gzip.decompress,
    SNAPPY: _snappy,
    LZ4: _streamed("lz4"),
    ZSTD: _streamed("zstd"),
}
_UNREADABLE = (ValueError, IndexError, OverflowError, EOFError, OSError, zlib.error, pa.ArrowException)
