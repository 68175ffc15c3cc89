"""Kafka's compression codecs for the records of a batch, with a bound on the decompressed size.

Stored batches may have any framing that the libraries know: releases before framing.py accepted them.

The bound holds while decompressing: the output buffers have a limited size, so a small malicious batch costs
neither the memory nor the time of its full expansion.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import cramjam

from korvet.offsets.record_batch import GZIP, LZ4, SNAPPY, UNCOMPRESSED, ZSTD
from korvet.records.batch import BatchError, BytesLike

NAMES = MappingProxyType({UNCOMPRESSED: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"})

Decompressor = Callable[[bytes, bytearray], int]
DECOMPRESSORS: MappingProxyType[int, Decompressor] = MappingProxyType(
    {
        GZIP: cramjam.gzip.decompress_into,
        LZ4: cramjam.lz4.decompress_into,
        ZSTD: cramjam.zstd.decompress_into,
    }
)

FIRST_GUESS_FACTOR = 4
"""Records rarely shrink to less than a quarter. A wrong guess costs a second run, not a wrong result."""
SMALLEST_GUESS_SIZE = 1 << 16
BUFFER_FULL = "failed to write whole buffer"
"""The library's message if the output does not fit."""

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_SIZE = 16
"""Magic, then version and lowest compatible version, four bytes each."""
XERIAL_BLOCK_SIZE = 1 << 15

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_HEADER_SIZE = 18
"""Magic, and a frame header in its longest form."""


def decompress(codec: int, data: BytesLike, max_bytes: int) -> bytes:
    """The records section of a batch with this codec (0 to 4), at most `max_bytes` long.

    Snappy is accepted raw and in the block framing of the Java and JavaScript clients; gzip, lz4 and zstd
    may hold several members or frames. `framing.unpack` is for what producers send. Raises BatchError:
    too_large, invalid_record, unsupported_codec.
    """
    if codec == UNCOMPRESSED:
        if len(data) > max_bytes:
            raise too_large(codec, max_bytes)
        return bytes(data)
    if codec == SNAPPY:
        return _snappy(bytes(data), max_bytes)
    run = DECOMPRESSORS.get(codec)
    if run is None:
        raise BatchError("unsupported_codec", f"unknown compression codec {codec}")
    return _bounded(codec, run, bytes(data), max_bytes)


def named_size(codec: int, data: BytesLike) -> int | None:
    """The decompressed size in bytes that the data itself names; None if it names none. Nothing is
    decompressed.

    Snappy's blocks name their sizes, a zstd frame may (RFC 8878, 3.1.1.1); only the first of several frames
    counts. The size is a claim: `decompress` needs a bound all the same.
    """
    if codec == SNAPPY:
        return _named_by_snappy(memoryview(data))
    return _named_by_zstd(bytes(data[:ZSTD_HEADER_SIZE])) if codec == ZSTD else None


def compress(codec: int, data: BytesLike) -> bytes:
    """The data compressed as Kafka clients do, snappy in the Java client's framing. For tests and tools.

    Raises ValueError for an unknown codec.
    """
    source = bytes(data)
    if codec == UNCOMPRESSED:
        return source
    if codec == GZIP:
        return bytes(cramjam.gzip.compress(source))
    if codec == SNAPPY:
        return _xerial(source)
    if codec == LZ4:
        # Java's clients refuse linked blocks (KIP-57).
        frame = cramjam.lz4.Compressor(content_checksum=False, block_linked=False)
        frame.compress(source)
        return bytes(frame.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(source))
    raise ValueError(f"unknown compression codec {codec}")


def _bounded(codec: int, run: Decompressor, data: bytes, max_bytes: int) -> bytes:
    size = min(max_bytes, max(SMALLEST_GUESS_SIZE, FIRST_GUESS_FACTOR * len(data)))
    while True:
        output = bytearray(size)
        try:
            written = run(data, output)
        except cramjam.DecompressionError as error:
            if BUFFER_FULL not in str(error):
                raise _damaged(codec, str(error)) from error
            if size >= max_bytes:
                raise too_large(codec, max_bytes) from error
            size = min(max_bytes, 4 * size)
        else:
            return bytes(memoryview(output)[:written])


def _named_by_snappy(data: memoryview) -> int | None:
    """A block begins with its size, a varint of at most five bytes."""
    try:
        if data[0] != XERIAL_MAGIC[0] or data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
            return int(cramjam.snappy.decompress_raw_len(data[:5]))
        size = 0
        at = XERIAL_HEADER_SIZE
        while at < len(data):
            size += int(cramjam.snappy.decompress_raw_len(data[at + 4 : at + 9]))
            at += 4 + int.from_bytes(data[at : at + 4], "big")
    except (cramjam.DecompressionError, IndexError):
        return None
    return size


def _named_by_zstd(head: bytes) -> int | None:
    if not head.startswith(ZSTD_MAGIC) or len(head) < len(ZSTD_MAGIC) + 1:
        return None
    descriptor = head[len(ZSTD_MAGIC)]
    single_segment = descriptor >> 5 & 1
    width = (single_segment, 2, 4, 8)[descriptor >> 6]
    # The window descriptor, unless there is only one segment, and the dictionary ID come before the size.
    at = len(ZSTD_MAGIC) + 1 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if not width or at + width > len(head):
        return None
    size = int.from_bytes(head[at : at + width], "little")
    return size + 256 if width == 2 else size


def _snappy(data: bytes, max_bytes: int) -> bytes:
    if not data.startswith(XERIAL_MAGIC):
        return _snappy_block(data, max_bytes, max_bytes)
    parts: list[bytes] = []
    size = 0
    at = XERIAL_HEADER_SIZE
    if len(data) < at:
        raise _damaged(SNAPPY, "its framing header is cut off")
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        at += 4
        if length == 0 or at > len(data) or length > len(data) - at:
            raise _damaged(SNAPPY, f"the block at byte {at - 4} is cut off or empty")
        block = _snappy_block(data[at : at + length], max_bytes - size, max_bytes)
        parts.append(block)
        size += len(block)
        at += length
    return b"".join(parts)


def _snappy_block(block: bytes, room: int, max_bytes: int) -> bytes:
    """A raw snappy block begins with its size, which the library enforces."""
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > room:
            raise too_large(SNAPPY, max_bytes)
        if not block:
            raise _damaged(SNAPPY, "no bytes at all")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise _damaged(SNAPPY, str(error)) from error


def _xerial(data: bytes) -> bytes:
    parts = [XERIAL_MAGIC, (1).to_bytes(4, "big"), (1).to_bytes(4, "big")]
    for at in range(0, len(data), XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + XERIAL_BLOCK_SIZE]))
        parts += [len(block).to_bytes(4, "big"), block]
    return b"".join(parts)


def _damaged(codec: int, reason: str) -> BatchError:
    return BatchError("invalid_record", f"the {NAMES[codec]} records do not decompress: {reason}")


def too_large(codec: int, max_bytes: int) -> BatchError:
    """The error for a batch whose records decompress to more than `max_bytes`."""
    return BatchError("too_large", f"the {NAMES[codec]} records decompress to more than {max_bytes} bytes")
