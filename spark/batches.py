"""Entries that are whole record batches (storage.layout=batch), in Kafka's format, magic 2 (KIP-98).

Pure Python, pyarrow's codecs and crc32c: an executor needs none of korvet's compiled parts.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

try:
    from crc32c import crc32c
except ImportError:  # only what reads batches needs it
    crc32c = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

Header = tuple[str, bytes | None]
Row = tuple[bytes | None, bytes | None, int, int, list[Header] | None]
"""Key, value, offset, timestamp in ms, headers or None."""

BATCH = b"batch"
# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, largest
# timestamp, producer id and epoch, base sequence, record count.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH_EXCLUDES = 12
_MAGIC = 2
_CODEC_BITS = 7
_LOG_APPEND_TIME_BIT = 8
_TRANSACTIONAL_BIT = 16
_CONTROL_BIT = 32
_ATTRIBUTES_AT = 21  # where the part of a batch begins that its CRC covers
_CRC, _ATTRIBUTES = 4, 5  # among the header's parts
# Bytes of the longest varint, and more: positions behind the records may be looked at.
_PADDING = bytes(16)
_VARINT_BYTES = 10
# After so many equally long records more of them are looked for at once, which costs as much as reading ten.
_ALIKE = 3
_MAX_COLUMN_BYTES = 0x7FFFFFFF
# Timestamps that far from zero are left to arithmetic that can't overflow.
_PLAIN_MS = 1 << 61
# The key of a control record (ControlRecordType): version, type.
_CONTROL_KEY = struct.Struct(">hh")
_ABORT, _COMMIT = 0, 1
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


@dataclass(slots=True)
class Records:
    """The records of several batches, as columns; rows of all of them belong together.

    `producers` holds -1 where a record is in no transaction; `headers` is None where no record has any.
    """

    keys: pa.Array
    values: pa.Array
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    headers: list[list[Header] | None] | None
    log_append_times: NDArray[np.bool_]
    producers: NDArray[np.int64]


def batch_records(fields: Sequence[bytes], last_offset: int) -> int | None:
    """How many records an entry at this offset is, by its batch's header; None where it is no batch."""
    head = _head(fields, last_offset)
    return None if head is None else int(head[-1])


def read_batch(fields: Sequence[bytes], last_offset: int) -> Batch | None:
    """The batch that an entry is as a whole; None for any other entry, one that can't be read included.

    It has to end at `last_offset`, the entry's own, and its CRC has to be right.
    """
    head = _head(fields, last_offset)
    if head is None or not _crc_is_right(fields[1], head):
        return None
    base_offset, _, _, _, _, attributes, _, base_ms, newest_ms, producer, _, _, count = head
    appended = bool(attributes & _LOG_APPEND_TIME_BIT)
    try:
        section = _DECOMPRESS[attributes & _CODEC_BITS](fields[1][_HEADER.size :])
        rows = _rows(section, count, base_offset, base_ms)
    except _UNREADABLE:
        return None
    if not attributes & _TRANSACTIONAL_BIT:
        producer = -1
    if attributes & _CONTROL_BIT:
        return Batch(base_offset, appended, [], producer, _outcome(rows))
    if appended:
        rows = [(key, value, offset, newest_ms, headers) for key, value, offset, _, headers in rows]
    return Batch(base_offset, appended, rows, producer)


def _outcome(rows: Sequence[Row]) -> bool | None:
    """What a control batch says of its producer's transaction; None for other controls."""
    key = rows[0][0] if rows else None
    if key is None or len(key) < _CONTROL_KEY.size:
        return None
    return {_ABORT: False, _COMMIT: True}.get(_CONTROL_KEY.unpack_from(key)[1])


def read_records(
    entries: Sequence[Sequence[bytes]], last_offsets: Sequence[int], wanted: range
) -> Records | None:
    """What `read_batch` gives of entries that are all batches of records, several times as fast; None where
    one of them is anything else. Only the records whose offsets are `wanted`.
    """
    heads: list[tuple[int, ...]] = []
    sections: list[bytes] = []
    for fields, last_offset in zip(entries, last_offsets, strict=True):
        head = _head(fields, last_offset)
        if head is None or not _crc_is_right(fields[1], head) or head[_ATTRIBUTES] & _CONTROL_BIT:
            return None
        heads.append(head)
        try:
            sections.append(_DECOMPRESS[head[_ATTRIBUTES] & _CODEC_BITS](fields[1][_HEADER.size :]))
        except _UNREADABLE:
            return None
    try:
        return _columns(heads, sections, wanted)
    except (ValueError, IndexError):
        return None


def _columns(heads: Sequence[tuple[int, ...]], sections: Sequence[bytes], wanted: range) -> Records:
    """Raises ValueError or IndexError where the sections hold no such records, or no plain ones."""
    data = b"".join([*sections, _PADDING])
    starts, ends = _bounds(data, [head[-1] for head in heads], sections)
    bytes_of = np.frombuffer(data, dtype=np.uint8)
    table = np.array([(h[0], h[5], h[7], h[8], h[9]) for h in heads], dtype=np.int64)
    counts = [head[-1] for head in heads]
    base_offsets, attributes, base_ms, newest_ms, producers = np.repeat(table, counts, axis=0).T
    numbers = np.concatenate([np.arange(count) for count in counts])
    deltas_ms, at = _varints(bytes_of, starts + 1)
    deltas, at = _varints(bytes_of, at)
    key_at, key_end, at = _byte_fields(bytes_of, at)
    value_at, value_end, at = _byte_fields(bytes_of, at)
    header_counts, at_headers = _varints(bytes_of, at)
    with_headers = np.flatnonzero(header_counts)
    headers: list[list[Header] | None] | None = None
    if len(with_headers):
        headers = [None] * len(starts)
        for row in with_headers.tolist():
            headers[row], at_headers[row] = _headers(data, int(at[row]))
    if (at_headers != ends).any() or (deltas != numbers).any():
        raise ValueError("a record is malformed")
    if max(np.abs(base_ms).max(), np.abs(deltas_ms).max(), np.abs(newest_ms).max()) > _PLAIN_MS:
        raise ValueError("a timestamp is no plain one")
    appended = attributes & _LOG_APPEND_TIME_BIT != 0
    offsets = base_offsets + numbers
    rows = np.flatnonzero((offsets >= wanted.start) & (offsets < wanted.stop))
    return Records(
        keys=_slices(data, key_at, key_end, rows),
        values=_slices(data, value_at, value_end, rows),
        offsets=offsets[rows],
        timestamps_ms=np.where(appended, newest_ms, base_ms + deltas_ms)[rows],
        headers=None if headers is None else [headers[row] for row in rows.tolist()],
        log_append_times=appended[rows],
        producers=np.where(attributes & _TRANSACTIONAL_BIT, producers, -1)[rows],
    )


def _bounds(
    data: bytes, counts: Sequence[int], sections: Sequence[bytes]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each record begins, behind its length, and where it ends."""
    at = 0
    places: list[NDArray[np.int64]] = []
    bytes_of = np.frombuffer(data, dtype=np.uint8)
    for count, section in zip(counts, sections, strict=True):
        stop = at + len(section)
        found, at = _places(data, bytes_of, at, count)
        if at != stop:
            raise ValueError("the records end elsewhere than their batch")
        places += found
    lengths, starts = _varints(bytes_of, np.concatenate(places))
    if (lengths < 0).any():
        raise ValueError("a record's length is negative")
    return starts, starts + lengths


def _places(
    data: bytes, bytes_of: NDArray[np.uint8], at: int, count: int
) -> tuple[list[NDArray[np.int64]], int]:
    """Where the lengths of a batch's records are, and the position behind the last record.

    Only a record's length says where the next one is. But where records are equally long, all their lengths
    are the same bytes, that far apart: so many are found at once.
    """
    found: list[NDArray[np.int64]] = []
    single: list[int] = []
    left, size, same = count, 0, 0
    while left:
        before, byte = size, data[at]
        if byte < 128:
            prefix, size = 1, (byte >> 1) + 1
        elif data[at + 1] < 128:
            prefix, size = 2, ((byte & 127 | data[at + 1] << 7) >> 1) + 2
        else:
            length, behind = _varint(data, at)
            prefix = behind - at
            size = max(length, 0) + prefix
        same = same + 1 if size == before else 0
        if same < _ALIKE:
            single.append(at)
            at += size
            left -= 1
            continue
        alike = _alike(bytes_of[at : at + left * size], size, prefix)
        found += [np.array(single, dtype=np.int64), at + size * np.arange(alike)]
        single, same = [], 0
        at += alike * size
        left -= alike
    return [*found, np.array(single, dtype=np.int64)], at


def _alike(data: NDArray[np.uint8], size: int, prefix: int) -> int:
    """How many pieces of that size, from the first on, begin with the same bytes as the first.

    What a piece lacks of that many bytes it does not begin with.
    """
    whole = data[: len(data) // size * size].reshape(-1, size)[:, :prefix]
    other = np.flatnonzero((whole != whole[0]).any(axis=1))
    return int(other[0]) if len(other) else len(whole)


def _varints(data: NDArray[np.uint8], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The zigzag varints at many positions, and the positions behind them."""
    at = np.minimum(at, len(data) - _VARINT_BYTES - 1)
    byte = data[at]
    raw = (byte & 127).astype(np.uint64)
    at = at + 1
    rows = np.flatnonzero(byte >= 128)
    for shift in range(7, 7 * _VARINT_BYTES, 7):
        if not len(rows):
            break
        byte = data[at[rows]]
        raw[rows] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        at[rows] += 1
        rows = rows[byte >= 128]
    if len(rows):
        raise ValueError("a varint is too long")
    found = (raw >> np.uint64(1)).view(np.int64) ^ -((raw & np.uint64(1)).view(np.int64))
    return found, at


def _byte_fields(
    data: NDArray[np.uint8], at: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Begin and end of many nullable byte fields, the end -1 for null, and the positions behind them."""
    lengths, at = _varints(data, at)
    behind = at + np.clip(lengths, 0, len(data))
    return at, np.where(lengths < 0, -1, behind), behind


def _slices(
    data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], rows: NDArray[np.int64]
) -> pa.Array:
    """These rows' bytes as a column, null where the end is negative.

    The data are taken for a column that has every row and, as a value of its own, what is between two rows.
    Raises ValueError for more data than a column holds.
    """
    if len(data) > _MAX_COLUMN_BYTES:
        raise ValueError("the records are too long for one column")
    bounds = np.empty(2 * len(starts), dtype=np.int32)
    bounds[0::2], bounds[1::2] = starts, np.maximum(starts, ends)
    every = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return every.take(pa.array(2 * rows, mask=ends[rows] < 0))


def _crc_is_right(batch: bytes, head: Sequence[int]) -> bool:
    if crc32c is None:
        raise ModuleNotFoundError(
            "topics with storage.layout=batch need the package crc32c on every executor"
        )
    return crc32c(memoryview(batch)[_ATTRIBUTES_AT:]) == head[_CRC]


def _head(fields: Sequence[bytes], last_offset: int) -> tuple[int, ...] | None:
    if len(fields) != 2 or fields[0] != BATCH or len(fields[1]) < _HEADER.size:
        return None
    head = _HEADER.unpack_from(fields[1])
    base_offset, length, _, magic, _, attributes, delta, *_, count = head
    whole = magic == _MAGIC and length == len(fields[1]) - _LENGTH_EXCLUDES
    sound = delta >= 0 and count == delta + 1 and attributes & _CODEC_BITS in _DECOMPRESS
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
    0: bytes,
    1: gzip.decompress,
    2: _snappy,
    3: _streamed("lz4"),
    4: _streamed("zstd"),
}
_UNREADABLE = (ValueError, IndexError, OverflowError, EOFError, OSError, zlib.error, pa.ArrowException)
