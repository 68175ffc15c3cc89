"""Lengths as they are written by hand."""

from __future__ import annotations

import pytest

from korvet.protocol.primitives import length, read_unsigned_varint, unsigned_varint


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**31 - 1])
def test_a_length_is_read_back(value: int) -> None:
    encoded = unsigned_varint(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
    assert read_unsigned_varint(memoryview(encoded), 0) == (value, len(encoded))


def test_null_is_the_least_length() -> None:
    assert length(-1, flexible=True) == b"\x00"
    with pytest.raises(ValueError, match="byte must be in range"):
        length(-2, flexible=True)
