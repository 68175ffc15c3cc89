"""Record batches for readers that do not know zstd: batch by batch, bounded."""

from __future__ import annotations

import cramjam
import pytest

from korvet.records.batch import BatchError
from korvet.records.compression import GZIP, LZ4, SNAPPY, ZSTD, compress, named_size
from korvet.records.conversion import convertible, without_zstd
from tests.api.batches import batch, gzipped, read

MIB = 1 << 20


def zstd(value: bytes) -> bytes:
    return batch([(b"k", value)], attributes=ZSTD, compress=lambda plain: compress(ZSTD, plain))


def test_batches_are_converted_up_to_what_the_reader_wants() -> None:
    one, other = zstd(bytes(MIB)), gzipped([(b"g", b"v")])
    data = one + other + one + one
    end, plain_bytes = convertible(data, 2 * MIB, 10 * MIB)
    assert (end, plain_bytes // MIB) == (len(one + other), 1)
    end, plain_bytes = convertible(data, 5 * MIB, 10 * MIB)
    assert (end, plain_bytes // MIB) == (len(data), 3)
    converted = without_zstd(data[:end], 10 * MIB)
    assert [len(value or b"") for _, _, value in read(converted)] == [MIB, 1, MIB, MIB]


def test_the_first_batch_is_converted_whatever_its_size() -> None:
    one = zstd(bytes(3 * MIB))
    assert convertible(one + one, 1, 10 * MIB)[0] == len(one)


def test_without_zstd_there_is_nothing_to_convert() -> None:
    data = gzipped([(b"k", b"v")]) * 3
    assert convertible(data, MIB, MIB) == (len(data), 0)
    assert without_zstd(data, 10) == data


def test_what_is_too_large_ends_the_batches_or_is_refused() -> None:
    small, large = zstd(b"v"), zstd(bytes(3 * MIB))
    assert len(read(without_zstd(small + large, MIB))) == 1
    with pytest.raises(BatchError):
        without_zstd(large + small, MIB)
    with pytest.raises(BatchError):
        without_zstd(batch(attributes=ZSTD, compress=lambda _: b"no zstd"), MIB)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 3 * MIB])
def test_what_codecs_name(size: int) -> None:
    plain = bytes(size)
    assert (named_size(ZSTD, compress(ZSTD, plain)) or 0) == size
    assert (named_size(SNAPPY, compress(SNAPPY, plain)) or 0) == size
    assert (named_size(SNAPPY, bytes(cramjam.snappy.compress_raw(plain))) or 0) == size
    assert named_size(GZIP, compress(GZIP, plain)) is None
    assert named_size(LZ4, compress(LZ4, plain)) is None


@pytest.mark.parametrize("codec", [SNAPPY, ZSTD])
def test_damaged_data_names_anything_or_nothing(codec: int) -> None:
    packed = compress(codec, b"some plain text " * 5000)
    for cut in range(40):
        named_size(codec, packed[:cut])
        named_size(codec, packed[:cut] + b"\xff" * 20)
