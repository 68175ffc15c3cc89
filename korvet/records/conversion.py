"""Record batches for readers that do not know the codec they are stored in."""

from __future__ import annotations

import struct
from typing import Final

from korvet.records.compression import ZSTD, decompress
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
# Their size was bounded when they were produced.
_MOST_BYTES: Final = (1 << 31) - 1


def without_zstd(data: bytes) -> bytes:
    """Whole record batches, those in zstd uncompressed (KIP-110), their CRCs made anew; the others as they
    are.

    Raises BatchError where what is said to be zstd is not.
    """
    parts: list[bytes] = []
    at = 0
    while at < len(data):
        size = _PREFIX_SIZE + _LENGTH.unpack_from(data, at + _LENGTH_AT)[0]
        batch = data[at : at + size]
        parts.append(_uncompressed(batch) if batch[_CODEC_AT] & _CODEC_BITS == ZSTD else batch)
        at += size
    return b"".join(parts)


def _uncompressed(batch: bytes) -> bytes:
    records = decompress(ZSTD, memoryview(batch)[_RECORDS_AT:], _MOST_BYTES)
    attributes = int.from_bytes(batch[_ATTRIBUTES_AT:_ATTRIBUTES_END], "big") & ~_CODEC_BITS
    checked = b"".join((attributes.to_bytes(2, "big"), batch[_ATTRIBUTES_END:_RECORDS_AT], records))
    head = batch[:_LENGTH_AT] + _LENGTH.pack(_ATTRIBUTES_AT - _PREFIX_SIZE + len(checked))
    return b"".join((head, batch[_PREFIX_SIZE : _MAGIC_AT + 1], _CRC.pack(crc32c(checked)), checked))
