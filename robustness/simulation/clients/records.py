"""Record batches of simulated clients, written and read without compression."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import crc32c

from korvet.offsets.record_batch import (
    BASE_OFFSET_AND_LENGTH,
    CHECKED_HEADER,
    CONTROL,
    CONTROL_KEY,
    HEADER,
    HEADER_BYTES,
    HEADER_START,
    LENGTH_EXCLUDES_BYTES,
    MAGIC,
    TRANSACTIONAL,
)
from tests.unit.records.forms import varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Producer(NamedTuple):
    """Who produces a batch: ID, epoch and the sequence of the first record."""

    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1


class Batch(NamedTuple):
    """A fetched batch."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    producer_id: int
    is_transactional: bool
    control_type: int | None
    """0 for an abort marker, 1 for a commit marker, None for records."""
    records: list[tuple[int, bytes | None]]
    """Offset and value of each record."""


def encode(values: Sequence[bytes], now_ms: int, producer: Producer, *, transactional: bool = False) -> bytes:
    """One batch of records without keys."""
    records = b"".join(_record(delta, value) for delta, value in enumerate(values))
    attributes = TRANSACTIONAL if transactional else 0
    count = len(values)
    checked = CHECKED_HEADER.pack(attributes, count - 1, now_ms, now_ms, *producer, count) + records
    length = HEADER_START.size - LENGTH_EXCLUDES_BYTES + len(checked)
    return HEADER_START.pack(0, length, -1, MAGIC, crc32c.crc32c(checked)) + checked


def decode(data: bytes | None) -> Iterator[Batch]:
    """The batches of a fetched partition. The last one may be incomplete, and is left out then."""
    data, at = data or b"", 0
    while at + HEADER_BYTES <= len(data):
        base_offset, length = BASE_OFFSET_AND_LENGTH.unpack_from(data, at)
        end = at + LENGTH_EXCLUDES_BYTES + length
        if end > len(data):
            return
        header = HEADER.unpack_from(data, at)
        if header[3] != MAGIC or header[4] != crc32c.crc32c(data[at + HEADER_START.size : end]):
            raise AssertionError(f"a damaged batch at offset {base_offset}")
        yield _batch(header, data, at + HEADER_BYTES)
        at = end


def _batch(header: tuple[int, ...], data: bytes, at: int) -> Batch:
    base_offset, leader_epoch, attributes, last_delta = header[0], header[2], header[5], header[6]
    records: list[tuple[int, bytes | None]] = []
    control_type = None
    for _ in range(header[12]):
        size, at = _read_varint(data, at)
        end = at + size
        _, at = _read_varint(data, at + 1)
        delta, at = _read_varint(data, at)
        key, at = _read_sized(data, at)
        value, at = _read_sized(data, at)
        if attributes & CONTROL:
            assert key is not None
            control_type = CONTROL_KEY.unpack(key)[1]
        else:
            records.append((base_offset + delta, value))
        at = end
    return Batch(
        base_offset,
        base_offset + last_delta + 1,
        leader_epoch,
        header[9],
        bool(attributes & TRANSACTIONAL),
        control_type,
        records,
    )


def _record(delta: int, value: bytes) -> bytes:
    body = b"\x00\x00" + varint(delta) + b"\x01" + varint(len(value)) + value + b"\x00"
    return varint(len(body)) + body


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _read_sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _read_varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)
