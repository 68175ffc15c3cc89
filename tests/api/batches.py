"""Record batches built byte by byte, with full control of every field."""

from __future__ import annotations

import gzip
import struct
import time
from typing import TYPE_CHECKING, Any

import crc32c
from aiokafka.record import MemoryRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# key, value
Pair = tuple[bytes | None, bytes | None]

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def varint(value: int) -> bytes:
    """Encodes a zig-zag varint, as used in records."""
    value = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def record(delta: int, key: bytes | None, value: bytes | None, timestamp_delta: int = 0) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(delta) + sized(key) + sized(value) + varint(0)
    return varint(len(body)) + body


def batch(
    pairs: Sequence[Pair] = ((b"k", b"v"),),
    *,
    timestamp_ms: int | None = None,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    magic: int = 2,
    compress: Callable[[bytes], bytes] | None = None,
    count: int | None = None,
    crc: int | None = None,
    base_offset: int = 0,
) -> bytes:
    """Returns one batch.

    `producer` is (ID, epoch, base sequence); `count` and `crc` are correct by default.
    """
    base_ms = now_ms() if timestamp_ms is None else timestamp_ms
    payload = b"".join(record(delta, key, value) for delta, (key, value) in enumerate(pairs))
    if compress is not None:
        payload = compress(payload)
    size = len(pairs) if count is None else count
    checked = struct.pack(">hiqqqhii", attributes, size - 1, base_ms, base_ms, *producer, size) + payload
    sum_ = crc32c.crc32c(checked) if crc is None else crc
    return struct.pack(">qiiBI", base_offset, 9 + len(checked), 0, magic, sum_) + checked


def gzipped(pairs: Sequence[Pair], **options: Any) -> bytes:
    return batch(pairs, attributes=GZIP, compress=gzip.compress, **options)


def read(records: bytes | None) -> list[tuple[int, bytes | None, bytes | None]]:
    """Returns (offset, key, value) of all fetched records, decoded by aiokafka, which checks the CRCs."""
    found = []
    batches = MemoryRecords(records or b"")
    while batches.has_next():
        part = batches.next_batch()
        assert part.validate_crc()
        found += [(each.offset, each.key, each.value) for each in part]
    return found
