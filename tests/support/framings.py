"""The same records in many framings of Kafka's codecs: those that clients write, odd ones, and damaged ones.

Sources: RFC 1952 (gzip), the LZ4 frame format 1.6.4 and KIP-57, RFC 8878 (zstd), snappy's format
description and the block framing of snappy-java ("xerial").
"""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import cramjam
import lz4.block
import zstandard
from xxhash import xxh32_intdigest

from korvet.offsets.record_batch import GZIP, LZ4, SNAPPY, ZSTD

if TYPE_CHECKING:
    from collections.abc import Iterator

_U32: Final = 0xFFFFFFFF
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"skip!"
_XERIAL: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_LZ4_BLOCK: Final = 1 << 16
# Flags of an LZ4 frame.
_VERSION, _INDEPENDENT, _BLOCK_CHECKSUM = 0x40, 0x20, 0x10
_SIZE, _CHECKSUM, _RESERVED, _DICTIONARY = 8, 4, 2, 1

SEVERAL_FRAMES: Final = {
    "two frames",
    "two frames of whole records",
    "empty frame first",
    "empty frame last",
    "skippable frame first",
    "skippable frame last",
    "skippable frame between",
}
"""The framings of LZ4 and zstd with more than one frame."""

READ_BY_ALL: Final = {
    GZIP: {
        "one member",
        "stored blocks",
        "flushed blocks",
        "name and comment",
        "extra field",
        "text flag",
        "header checksum",
        "empty member last",
    },
    SNAPPY: {
        "raw",
        "blocks",
        "one large block",
        "empty block first",
        "empty block between",
        "empty block last",
    },
    LZ4: {
        "independent blocks",
        "content checksum",
        "content size",
        "block checksums",
        "all options",
        "blocks up to 256 KiB",
        "blocks up to 1024 KiB",
        "blocks up to 4096 KiB",
        "small blocks",
        "stored blocks",
    },
    ZSTD: {
        "one frame",
        "content size",
        "no content size",
        "checksum",
        "window of 2^23 bytes",
        "window of 2^27 bytes",
        "dictionary 0",
        "unused bit",
        "empty block last",
        *SEVERAL_FRAMES,
    },
}
"""The framings that a producer may send; tests/clients/test_framings.py shows that each client reads them."""


@dataclass(frozen=True, slots=True)
class Framing:
    """A records section."""

    codec: int
    name: str
    section: bytes


def framings(plain: bytes) -> list[Framing]:
    """The plain records, more than 64 KiB, in every framing."""
    makers = ((GZIP, _gzip), (SNAPPY, _snappy), (LZ4, _lz4), (ZSTD, _zstd))
    return [Framing(codec, name, section) for codec, make in makers for name, section in make(plain)]


def _gzip(plain: bytes) -> Iterator[tuple[str, bytes]]:
    whole = gzip.compress(plain, mtime=0)
    halves = [gzip.compress(plain[:1000]), gzip.compress(plain[1000:])]
    empty = gzip.compress(b"")
    body, trailer = whole[10:-8], whole[-8:]
    yield "one member", whole
    yield "stored blocks", gzip.compress(plain, 0)
    yield "flushed blocks", _flushed(plain)
    yield "name and comment", _gzip_header(0x18) + b"name\0comment\0" + body + trailer
    # It holds what is between an empty member and the next one.
    extra = bytes(8) + whole[:3]
    yield "extra field", _gzip_header(0x04) + struct.pack("<H", len(extra)) + extra + body + trailer
    yield "text flag", _gzip_header(0x01) + body + trailer
    header = _gzip_header(0x02)
    yield "header checksum", header + struct.pack("<H", zlib.crc32(header) & 0xFFFF) + body + trailer
    yield "wrong header checksum", header + b"xx" + body + trailer
    yield "reserved flag", _gzip_header(0x80) + body + trailer
    yield "two members", b"".join(halves)
    yield "empty member first", empty + whole
    yield "empty member last", whole + empty
    yield "empty members around it", empty + whole + empty
    yield "zeros after it", whole + bytes(8)
    yield "bytes after it", whole + b"after it"
    yield "one byte after it", whole + b"\x1f"
    yield "wrong checksum", whole[:-8] + struct.pack("<I", ~zlib.crc32(plain) & _U32) + whole[-4:]
    yield "wrong size", whole[:-4] + struct.pack("<I", len(plain) + 1)
    yield "no trailer", whole[:-8]
    yield "cut off", whole[:-100]
    yield "zlib", zlib.compress(plain)


def _gzip_header(flags: int) -> bytes:
    return b"\x1f\x8b\x08" + bytes((flags, 0, 0, 0, 0, 0, 255))


def _flushed(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    parts = []
    for at in range(0, len(plain), 10_000):
        parts += [packer.compress(plain[at : at + 10_000]), packer.flush(zlib.Z_FULL_FLUSH)]
    return b"".join((*parts, packer.flush()))


def _snappy(plain: bytes) -> Iterator[tuple[str, bytes]]:
    blocks = [_snappy_block(plain[at : at + 32768]) for at in range(0, len(plain), 32768)]
    raw = bytes(cramjam.snappy.compress_raw(plain))
    size_bytes = 3 if len(plain) < 1 << 21 else 4
    yield "raw", raw
    yield "raw, bytes after it", raw + b"after it"
    yield "raw, longer size", _varint(len(plain) + 1) + raw[size_bytes:]
    yield "raw, shorter size", _varint(len(plain) - 1) + raw[size_bytes:]
    yield "raw, cut off", raw[:-100]
    yield "blocks", _XERIAL + b"".join(blocks)
    yield "one large block", _XERIAL + _snappy_block(plain)
    yield "version 2", _XERIAL[:8] + struct.pack(">ii", 2, 1) + b"".join(blocks)
    yield "version 0", _XERIAL[:8] + struct.pack(">ii", 0, 0) + b"".join(blocks)
    yield "compatible with version 2", _XERIAL[:8] + struct.pack(">ii", 2, 2) + b"".join(blocks)
    yield "little-endian version", _XERIAL[:8] + struct.pack("<ii", 1, 1) + b"".join(blocks)
    yield "block of no bytes first", _XERIAL + bytes(4) + b"".join(blocks)
    yield "block of no bytes last", _XERIAL + b"".join(blocks) + bytes(4)
    yield "empty block first", _XERIAL + _snappy_block(b"") + b"".join(blocks)
    yield "empty block between", _XERIAL + blocks[0] + _snappy_block(b"") + b"".join(blocks[1:])
    yield "empty block last", _XERIAL + b"".join(blocks) + _snappy_block(b"")
    yield "two streams", _XERIAL + blocks[0] + _XERIAL + b"".join(blocks[1:])
    yield "header alone after it", _XERIAL + b"".join(blocks) + _XERIAL
    yield "blocks, one byte after them", _XERIAL + b"".join(blocks) + b"\x00"
    yield "blocks, bytes after them", _XERIAL + b"".join(blocks) + b"after it"
    yield "blocks, cut off", (_XERIAL + b"".join(blocks))[:-100]
    yield "snappy's own frames", bytes(cramjam.snappy.compress(plain))


def _snappy_block(plain: bytes) -> bytes:
    packed = bytes(cramjam.snappy.compress_raw(plain))
    return struct.pack(">i", len(packed)) + packed


def _varint(number: int) -> bytes:
    octets = bytearray()
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*octets, number))


def _lz4(plain: bytes) -> Iterator[tuple[str, bytes]]:
    whole = lz4_frame(plain)
    empty = lz4_frame(b"")
    half = len(plain) // 2
    yield "independent blocks", whole
    yield "content checksum", lz4_frame(plain, _CHECKSUM)
    yield "wrong content checksum", lz4_frame(plain, _CHECKSUM)[:-4] + b"\x01\x02\x03\x04"
    yield "content size", lz4_frame(plain, _SIZE)
    yield "wrong content size", lz4_frame(plain, _SIZE, size=len(plain) + 1)
    yield "block checksums", lz4_frame(plain, _BLOCK_CHECKSUM)
    yield "wrong block checksum", lz4_frame(plain, _BLOCK_CHECKSUM, block_sum=1)
    yield "all options", lz4_frame(plain, _SIZE | _CHECKSUM | _BLOCK_CHECKSUM)
    for kind, size in ((5, 1 << 18), (6, 1 << 20), (7, 1 << 22)):
        yield f"blocks up to {size >> 10} KiB", lz4_frame(plain, kind=kind, block_bytes=size)
    yield "small blocks", lz4_frame(plain, block_bytes=1000)
    yield "stored blocks", lz4_frame(plain, stored=True)
    yield "block larger than it may be", lz4_frame(plain, block_bytes=1 << 17)
    yield "linked blocks", _linked(plain)
    yield "one block that may be linked", lz4_frame(plain, kind=7, block_bytes=1 << 22, linked=True)
    blocks = whole.removesuffix(bytes(4))
    yield "empty stored block first", whole[:7] + b"\x00\x00\x00\x80" + whole[7:]
    yield "empty stored block last", blocks + b"\x00\x00\x00\x80" + bytes(4)
    yield "empty block first", whole[:7] + b"\x01\x00\x00\x00\x00" + whole[7:]
    yield "empty block last", blocks + b"\x01\x00\x00\x00\x00" + bytes(4)
    yield "two frames", lz4_frame(plain[:half]) + lz4_frame(plain[half:])
    yield "two frames of whole records", lz4_frame(plain[:1000]) + lz4_frame(plain[1000:])
    yield "empty frame first", empty + whole
    yield "empty frame last", whole + empty
    yield "skippable frame first", _SKIPPABLE + whole
    yield "skippable frame last", whole + _SKIPPABLE
    yield "skippable frame between", lz4_frame(plain[:half]) + _SKIPPABLE + lz4_frame(plain[half:])
    yield "legacy frame", _lz4_legacy(plain)
    yield "dictionary", lz4_frame(plain, _DICTIONARY)
    yield "reserved flag", lz4_frame(plain, _RESERVED)
    yield "reserved bit of the block size", lz4_frame(plain, kind=4 | 8)
    yield "block size 3", lz4_frame(plain, kind=3)
    yield "version 0", lz4_frame(plain, version=0)
    yield "wrong header checksum", whole[:6] + bytes((whole[6] ^ 1,)) + whole[7:]
    old = xxh32_intdigest(whole[:6]) >> 8 & 0xFF
    yield "header checksum with the magic", whole[:6] + bytes((old,)) + whole[7:]
    yield "no end mark", whole[:-4]
    yield "cut off", whole[:-100]
    yield "zeros after it", whole + bytes(4)
    yield "bytes after it", whole + b"after it"
    yield "one byte after it", whole + b"\x00"


def lz4_frame(
    plain: bytes,
    flags: int = 0,
    *,
    kind: int = 4,
    block_bytes: int = _LZ4_BLOCK,
    size: int | None = None,
    block_sum: int = 0,
    stored: bool = False,
    linked: bool = False,
    version: int = _VERSION,
) -> bytes:
    """An LZ4 frame; `flags` are added to those of independent blocks."""
    flags |= version | (0 if linked else _INDEPENDENT)
    descriptor = bytes((flags, kind << 4))
    if flags & _SIZE:
        descriptor += struct.pack("<Q", len(plain) if size is None else size)
    if flags & _DICTIONARY:
        descriptor += struct.pack("<I", 7)
    parts = [_LZ4_MAGIC, descriptor, bytes((xxh32_intdigest(descriptor) >> 8 & 0xFF,))]
    for at in range(0, len(plain), block_bytes):
        block = plain[at : at + block_bytes]
        packed = block if stored else lz4.block.compress(block, store_size=False)
        plainly = stored or len(packed) >= len(block)
        if plainly:
            packed = block
        parts += [struct.pack("<I", len(packed) | plainly << 31), packed]
        if flags & _BLOCK_CHECKSUM:
            parts.append(struct.pack("<I", (xxh32_intdigest(packed) + block_sum) & _U32))
    parts.append(bytes(4))
    if flags & _CHECKSUM:
        parts.append(struct.pack("<I", xxh32_intdigest(plain)))
    return b"".join(parts)


def _linked(plain: bytes) -> bytes:
    packer = cramjam.lz4.Compressor(content_checksum=False, block_linked=True)
    packer.compress(plain)
    return bytes(packer.finish())


def _lz4_legacy(plain: bytes) -> bytes:
    packed = lz4.block.compress(plain, store_size=False)
    return b"\x02\x21\x4c\x18" + struct.pack("<I", len(packed)) + packed


def _zstd(plain: bytes) -> Iterator[tuple[str, bytes]]:
    whole = bytes(cramjam.zstd.compress(plain))
    empty = bytes(cramjam.zstd.compress(b""))
    half = len(plain) // 2
    halves = [bytes(cramjam.zstd.compress(part)) for part in (plain[:half], plain[half:])]
    summed = zstandard.ZstdCompressor(write_checksum=True).compress(plain)
    yield "one frame", whole
    yield "content size", zstd_frame(plain, size=len(plain))
    yield "no content size", zstd_frame(plain)
    yield "wrong content size", zstd_frame(plain, size=len(plain) + 1)
    yield "checksum", summed
    yield "wrong checksum", summed[:-4] + b"\x01\x02\x03\x04"
    for log in (10, 23, 27, 28, 31):
        yield f"window of 2^{log} bytes", zstd_frame(plain, window_log=log)
    yield "dictionary", zstd_frame(plain, dictionary=b"\x07")
    yield "dictionary 0", zstd_frame(plain, dictionary=b"\x00")
    yield "reserved bit", zstd_frame(plain, bits=8)
    yield "unused bit", zstd_frame(plain, bits=16)
    yield "empty block last", zstd_frame(plain, last=b"\x01\x00\x00")
    yield "no last block", zstd_frame(plain, last=b"")
    yield "two frames", b"".join(halves)
    yield (
        "two frames of whole records",
        b"".join(bytes(cramjam.zstd.compress(part)) for part in (plain[:1000], plain[1000:])),
    )
    yield "empty frame first", empty + whole
    yield "empty frame last", whole + empty
    yield "skippable frame first", _SKIPPABLE + whole
    yield "skippable frame last", whole + _SKIPPABLE
    yield "skippable frame between", halves[0] + _SKIPPABLE + halves[1]
    yield "cut off", whole[:-10]
    yield "zeros after it", whole + bytes(8)
    yield "bytes after it", whole + b"after it"
    yield "one byte after it", whole + b"\x00"


def zstd_frame(
    plain: bytes,
    *,
    size: int | None = None,
    window_log: int = 20,
    dictionary: bytes = b"",
    bits: int = 0,
    last: bytes | None = None,
) -> bytes:
    """A zstd frame with a header of our own, and with `last` as the last block if it is given."""
    packed = zstandard.ZstdCompressor(write_content_size=False, write_checksum=False).compress(plain)
    window = bytes((window_log - 10 << 3,))
    body = bytearray(packed[6:])
    if last is not None:
        at = 0
        while not body[at] & 1:
            header = int.from_bytes(body[at : at + 3], "little")
            at += 3 + (1 if header >> 1 & 3 == 1 else header >> 3)
        body[at] &= 0xFE
        body += last
    descriptor = bytes((len(dictionary) | bits | (0 if size is None else 0xC0),))
    named = b"" if size is None else struct.pack("<Q", size)
    return _ZSTD_MAGIC + descriptor + window + dictionary + named + bytes(body)
