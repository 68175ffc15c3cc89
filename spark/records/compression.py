"""Decompression of a batch's records, with PyArrow's codecs."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]

from korvet.offsets.record_batch import GZIP, LZ4, SNAPPY, UNCOMPRESSED, ZSTD

if TYPE_CHECKING:
    from collections.abc import Callable

UNREADABLE = (ValueError, IndexError, OverflowError, EOFError, OSError, zlib.error, pa.ArrowException)
"""What `decompress` raises for damaged data."""

# The header of the Java clients' snappy framing: magic, version, compatible version.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


def decompress(codec: int, data: bytes) -> bytes:
    """Return the decompressed data. Raises one of UNREADABLE; KeyError for a codec that is not in CODECS."""
    return _DECOMPRESS[codec](data)


def _streamed(codec: str) -> Callable[[bytes], bytes]:
    def decompressed(data: bytes) -> bytes:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            return bytes(stream.read())

    return decompressed


def _snappy(data: bytes) -> bytes:
    """Raw snappy, or the block framing of the Java clients: a header, then blocks with their sizes."""
    if not data.startswith(_XERIAL_MAGIC):
        return _snappy_block(data)
    parts = []
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        parts.append(_snappy_block(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return b"".join(parts)


def _snappy_block(block: bytes) -> bytes:
    """Decompress one block. It begins with its decompressed size, an unsigned varint."""
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
CODECS = frozenset(_DECOMPRESS)
"""The codecs in a batch's attributes that can be decompressed."""
