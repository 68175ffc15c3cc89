"""Record batches for readers that do not know the codec they are stored in."""

from __future__ import annotations

import struct
from typing import Final

from korvet.offsets.record_batch import (
    ATTRIBUTES_AT,
    CODEC_AT,
    CODEC_MASK,
    HEADER_BYTES,
    HEADER_START,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LENGTH_EXCLUDES_BYTES,
    ZSTD,
)
from korvet.records.assembly import assemble_batch
from korvet.records.batch import BatchError
from korvet.records.compression import decompress, named_size

_LENGTH: Final = struct.Struct(">i")


def convertible(data: bytes, limit_bytes: int, most_bytes: int) -> tuple[int, int]:
    """The record batches, at least one, that `without_zstd` converts for a reader who wants `limit_bytes`:
    (their end, the most bytes to which those in zstd decompress).

    `most_bytes` bounds the records of one batch.
    """
    at = size_bytes = plain_bytes = 0
    while at < len(data):
        end = at + LENGTH_EXCLUDES_BYTES + _LENGTH.unpack_from(data, at + LENGTH_AT)[0]
        size = end - at
        if data[at + CODEC_AT] & CODEC_MASK == ZSTD:
            size = min(named_size(ZSTD, memoryview(data)[at + HEADER_BYTES : end]) or most_bytes, most_bytes)
        size_bytes += size
        if at and size_bytes > limit_bytes:
            break
        if data[at + CODEC_AT] & CODEC_MASK == ZSTD:
            plain_bytes += size
        at = end
    return at, plain_bytes


def without_zstd(data: bytes, most_bytes: int) -> bytes:
    """Whole record batches, those in zstd uncompressed (KIP-110) with new CRCs; the others are unchanged.

    The first batch that does not decompress to `most_bytes` or less ends the result. Raises BatchError if
    that is the first one of all.
    """
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        size = LENGTH_EXCLUDES_BYTES + _LENGTH.unpack_from(data, at + LENGTH_AT)[0]
        batch = data[at : at + size]
        try:
            parts.append(_uncompressed(batch, most_bytes) if batch[CODEC_AT] & CODEC_MASK == ZSTD else batch)
        except BatchError:
            if not parts:
                raise
            break
        at += size
    return b"".join(parts)


def _uncompressed(batch: bytes, most_bytes: int) -> bytes:
    records = decompress(ZSTD, memoryview(batch)[HEADER_BYTES:], most_bytes)
    attributes = int.from_bytes(batch[ATTRIBUTES_AT:LAST_OFFSET_DELTA_AT], "big") & ~CODEC_MASK
    base_offset, _, leader_epoch, _, _ = HEADER_START.unpack_from(batch)
    header_rest = batch[LAST_OFFSET_DELTA_AT:HEADER_BYTES]
    return assemble_batch(base_offset, leader_epoch, attributes.to_bytes(2, "big"), header_rest, records)
