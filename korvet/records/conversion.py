"""Record batches for readers that do not know the codec they are stored in."""

from __future__ import annotations

import struct
from typing import Final

from korvet.records.batch import BatchError
from korvet.records.compression import ZSTD, decompress, named_size
from korvet.records.kernel import crc32c

# RecordBatch, magic 2 (KIP-98).
_LENGTH_AT: Final = 8
_PREFIX_SIZE: Final = 12
_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 21
_CODEC_AT: Final = 22
_ATTRIBUTES_END: Final = 23
_RECORDS_AT: Final = 61
_CODEC_BITS: Final = 7
_LENGTH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")


def convertible(data: bytes, limit_bytes: int, most_bytes: int) -> tuple[int, int]:
    """How far `without_zstd` is to go in these whole record batches for a reader who wants `limit_bytes`, one
    batch at least: the end, and the bytes that the batches in zstd before it decompress to at the most.

    `most_bytes` bounds one batch.
    """
    at = size_bytes = plain_bytes = 0
    while at < len(data):
        end = at + _PREFIX_SIZE + _LENGTH.unpack_from(data, at + _LENGTH_AT)[0]
        size = end - at
        if data[at + _CODEC_AT] & _CODEC_BITS == ZSTD:
            size = min(named_size(ZSTD, memoryview(data)[at + _RECORDS_AT : end]) or most_bytes, most_bytes)
        size_bytes += size
        if at and size_bytes > limit_bytes:
            break
        if data[at + _CODEC_AT] & _CODEC_BITS == ZSTD:
            plain_bytes += size
        at = end
    return at, plain_bytes


def without_zstd(data: bytes, most_bytes: int) -> bytes:
    """Whole record batches, those in zstd uncompressed (KIP-110), their CRCs made anew; the others as they
    are. Up to the first batch that does not decompress to `most_bytes` or less.

    Raises BatchError where that is the first one of all.
    """
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        size = _PREFIX_SIZE + _LENGTH.unpack_from(data, at + _LENGTH_AT)[0]
        batch = data[at : at + size]
        try:
            parts.append(
                _uncompressed(batch, most_bytes) if batch[_CODEC_AT] & _CODEC_BITS == ZSTD else batch
            )
        except BatchError:
            if not parts:
                raise
            break
        at += size
    return b"".join(parts)


def _uncompressed(batch: bytes, most_bytes: int) -> bytes:
    records = decompress(ZSTD, memoryview(batch)[_RECORDS_AT:], most_bytes)
    attributes = int.from_bytes(batch[_ATTRIBUTES_AT:_ATTRIBUTES_END], "big") & ~_CODEC_BITS
    checked = b"".join((attributes.to_bytes(2, "big"), batch[_ATTRIBUTES_END:_RECORDS_AT], records))
    head = batch[:_LENGTH_AT] + _LENGTH.pack(_ATTRIBUTES_AT - _PREFIX_SIZE + len(checked))
    return b"".join((head, batch[_PREFIX_SIZE : _MAGIC_AT + 1], _CRC.pack(crc32c(checked)), checked))
