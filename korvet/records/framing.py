"""Decompression of what producers send, in the framings that every Kafka client can read.

Decompressors accept more than that, each one something else. A batch in another framing would stop some
consumers at its offset for good. So the broker accepts no more than the strictest client does:

    gzip    one member (RFC 1952): librdkafka reads only the first. Empty ones may follow.
    snappy  raw, or snappy-java's blocks in version 1: aiokafka refuses other versions
    lz4     one frame of independent blocks, without a dictionary (KIP-57): librdkafka and Java read only the
            first frame, Java no linked blocks, and for Java an empty block is the end
    zstd    frames, and skippable frames among them (RFC 8878)

Each client reads these; tests/clients/test_framings.py has the table.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.offsets.record_batch import GZIP, LZ4, SNAPPY
from korvet.records.batch import BatchError
from korvet.records.compression import NAMES, XERIAL_HEADER_SIZE, XERIAL_MAGIC, decompress

if TYPE_CHECKING:
    from korvet.records.batch import BytesLike

_GZIP: Final = 31
"""zlib's number for one member with its header."""
_AFTER_AN_EMPTY_MEMBER: Final = bytes(8) + b"\x1f\x8b\x08"
"""Checksum and size of a member without content, and the magic of the next one."""

_XERIAL_VERSION: Final = b"\x00\x00\x00\x01\x00\x00\x00\x01"

_LZ4_HEADER_BYTES: Final = 7
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 8
_LZ4_CONTENT_CHECKSUM: Final = 4
_LZ4_DICTIONARY: Final = 1
_LZ4_STORED: Final = 1 << 31
_LZ4_WORD: Final = struct.Struct("<I")


def unpack(codec: int, section: BytesLike, max_bytes: int) -> bytes:
    """The records section that a producer has sent, decompressed; see `decompress`.

    Raises BatchError, also invalid_record for a framing that not every client can read.
    """
    data = bytes(section)
    plain = decompress(codec, data, max_bytes)
    if codec == SNAPPY:
        if data[0] == XERIAL_MAGIC[0] and data.startswith(XERIAL_MAGIC):
            _check_snappy(data)
    elif codec == LZ4:
        _check_lz4(data)
    elif codec == GZIP:
        _check_gzip(data, len(plain))
    return plain


def _check_gzip(data: bytes, plain_bytes: int) -> None:
    """A member ends with its size. If that is the size of the whole, all other members are empty, and only
    the bytes between two members can show that there are any.
    """
    if int.from_bytes(data[-4:], "little") == plain_bytes and data.find(_AFTER_AN_EMPTY_MEMBER) < 0:
        return
    if len(zlib.decompressobj(_GZIP).decompress(data, plain_bytes)) != plain_bytes:
        _refuse(GZIP, "they don't end in the first member")


def _check_snappy(data: bytes) -> None:
    """Blocks have a header."""
    if data[len(XERIAL_MAGIC) : XERIAL_HEADER_SIZE] != _XERIAL_VERSION:
        _refuse(SNAPPY, f"the framing at byte {len(XERIAL_MAGIC)} is not of version 1")


def _check_lz4(data: bytes) -> None:
    """The decompressor has read all of it. So the headers are sound, and every frame has its end."""
    flags = data[4]
    if data[:4] != b"\x04\x22\x4d\x18":
        _refuse(LZ4, "they don't begin with a frame")
    if not flags & _LZ4_INDEPENDENT:
        _refuse(LZ4, "the blocks of the frame are linked; they have to be independent")
    if flags & _LZ4_DICTIONARY:
        _refuse(LZ4, "the frame needs a dictionary")
    at = _LZ4_HEADER_BYTES + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    while word := _LZ4_WORD.unpack_from(data, at)[0]:
        size = word & ~_LZ4_STORED
        # Compressed, an empty block takes one byte.
        if size <= (0 if word & _LZ4_STORED else 1):
            _refuse(LZ4, f"the block at byte {at} is empty")
        at += 4 + size + checksum_bytes
    at += 8 if flags & _LZ4_CONTENT_CHECKSUM else 4
    if at != len(data):
        _refuse(LZ4, f"the frame ends at byte {at} of {len(data)}; some clients read only the first frame")


def _refuse(codec: int, reason: str) -> NoReturn:
    raise BatchError("invalid_record", f"not every client can read the {NAMES[codec]} records: {reason}")
