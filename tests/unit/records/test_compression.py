"""Decompression: all codecs and framings, bounded."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import cramjam
import pytest
from aiokafka import codec as aiokafka_codec
from kafka import codec as kafka_codec

from korvet.records import compression
from korvet.records.batch import BatchError
from korvet.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compress, decompress

PLAIN = b"".join(b"%d, " % i for i in range(20_000))
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
BOMB_BYTES = 256 << 20


@pytest.mark.parametrize("codec", [0, *CODECS])
@pytest.mark.parametrize("plain", [b"", b"x", PLAIN])
def test_there_and_back(codec: int, plain: bytes) -> None:
    assert decompress(codec, memoryview(compress(codec, plain)), len(plain)) == plain


@pytest.mark.parametrize("codec", [0, *CODECS])
def test_one_byte_too_many(codec: int) -> None:
    with pytest.raises(BatchError) as caught:
        decompress(codec, compress(codec, PLAIN), len(PLAIN) - 1)
    assert caught.value.kind == "too_large"
    assert str(len(PLAIN) - 1) in str(caught.value)


@pytest.mark.parametrize("codec", CODECS)
def test_what_other_clients_compress(codec: int) -> None:
    names = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
    encoders = [getattr(aiokafka_codec, f"{names[codec]}_encode")]
    if getattr(kafka_codec, f"has_{names[codec]}")():
        encoders.append(getattr(kafka_codec, f"{names[codec]}_encode"))
    for encode in encoders:
        assert decompress(codec, bytes(encode(PLAIN)), len(PLAIN)) == PLAIN


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_several_members_or_frames(codec: int) -> None:
    packed = compress(codec, b"one ") + compress(codec, b"") + compress(codec, b"two")
    assert decompress(codec, packed, 100) == b"one two"
    with pytest.raises(BatchError, match="more than 6 bytes"):
        decompress(codec, packed, 6)


def test_frames_without_their_content_size() -> None:
    for codec, writer, size_flags in (
        (LZ4, cramjam.lz4.Compressor(), 0x08),
        (ZSTD, cramjam.zstd.Compressor(), 0xE0),
    ):
        writer.compress(PLAIN)
        packed = bytes(writer.finish())
        assert packed[4] & size_flags == 0, "the frame says its content size after all"
        assert decompress(codec, packed, len(PLAIN)) == PLAIN


def test_snappy_raw_and_framed() -> None:
    raw = bytes(cramjam.snappy.compress_raw(PLAIN))
    assert decompress(SNAPPY, raw, len(PLAIN)) == PLAIN
    framed = compress(SNAPPY, PLAIN)
    assert framed.startswith(b"\x82SNAPPY\0")
    assert decompress(SNAPPY, framed[:16], 0) == b""


@pytest.mark.parametrize("codec", CODECS)
def test_cut_off_anywhere(codec: int) -> None:
    packed = compress(codec, b"some bytes, " * 20)
    for size in range(len(packed)):
        if codec == SNAPPY and size == compression.XERIAL_HEADER_SIZE:
            continue  # a framed stream without blocks
        with pytest.raises(BatchError) as caught:
            decompress(codec, packed[:size], 1000)
        half_a_magic = codec == SNAPPY and 0 < size < len(
            compression.XERIAL_MAGIC
        )  # a raw block's large size
        assert caught.value.kind == ("too_large" if half_a_magic and size > 1 else "invalid_record")


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_behind_the_data(codec: int) -> None:
    with pytest.raises(BatchError) as caught:
        decompress(codec, compress(codec, PLAIN) + b"junkjunk", 1 << 20)
    assert caught.value.kind == "invalid_record"


def bomb(codec: int) -> bytes:
    piece = bytes(BOMB_BYTES // 64)
    if codec == GZIP:
        return gzip.compress(piece, 9) * 64
    if codec == SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(piece))
        return compress(SNAPPY, b"")[:16] + (len(block).to_bytes(4, "big") + block) * 64
    return compress(codec, piece) * 64


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_not_expanded(codec: int) -> None:
    packed = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(BatchError) as caught:
            decompress(codec, packed, 1 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.kind == "too_large"
    assert peak < len(packed) + (4 << 20)


def test_a_snappy_block_that_lies_about_its_size() -> None:
    for packed in (b"\xff\xff\xff\xff\x0f" + b"x" * 10, b"\x80" * 12):
        with pytest.raises(BatchError):
            decompress(SNAPPY, packed, 1 << 20)


def test_unknown_codecs() -> None:
    with pytest.raises(BatchError) as caught:
        decompress(5, b"x", 10)
    assert caught.value.kind == "unsupported_codec"
    with pytest.raises(ValueError, match="codec 5"):
        compress(5, b"x")


def test_raw_deflate_is_no_gzip() -> None:
    with pytest.raises(BatchError) as caught:
        decompress(GZIP, zlib.compress(PLAIN), 1 << 20)
    assert caught.value.kind == "invalid_record"
