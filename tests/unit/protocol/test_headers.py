"""Headers and varints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.protocol.headers import parse_header, peek_api, response_header
from korvet.protocol.primitives import MalformedRequest, read_unsigned_varint, unsigned_varint

FIXED = b"\x00\x03\x00\x0c\x00\x00\x00\x07"


def parse(frame: bytes, flexible: bool = False) -> tuple[str, int]:
    return parse_header(memoryview(frame), flexible)


def test_a_header_with_a_client_id() -> None:
    assert parse(FIXED + b"\x00\x03abcBODY") == ("abc", 13)


def test_a_client_id_that_is_not_utf8() -> None:
    assert parse(FIXED + b"\x00\x02\xc3(BODY") == ("\N{REPLACEMENT CHARACTER}(", 12)
    with pytest.raises(MalformedRequest, match="takes more than 32767 bytes"):
        parse(FIXED + b"\x2a\xab" + b"\xff" * 0x2AAB)


@pytest.mark.parametrize("length", [b"\xff\xff", b"\x00\x00", b"\x80\x00"])
def test_no_client_id_is_an_empty_one(length: bytes) -> None:
    assert parse(FIXED + length) == ("", 10)


def test_tagged_fields_are_passed_over() -> None:
    tagged = b"\x02" + b"\x00\x02xy" + b"\xac\x02\x00"
    assert parse(FIXED + b"\x00\x00" + tagged + b"BODY", True) == ("", 18)


@pytest.mark.parametrize(
    ("frame", "flexible"),
    [
        (b"", False),
        (FIXED[:7], False),
        (FIXED, False),
        (FIXED + b"\x00", False),
        (FIXED + b"\x00\x04abc", False),
        (FIXED + b"\x7f\xffabc", False),
        (FIXED + b"\x00\x00", True),
        (FIXED + b"\x00\x00\x01", True),
        (FIXED + b"\x00\x00\x01\x00", True),
        (FIXED + b"\x00\x00\x01\x00\x05abcd", True),
        (FIXED + b"\x00\x00\xff\xff\xff\xff\x0f", True),
        (FIXED + b"\x00\x00\xff\xff\xff\xff\xff\x0f", True),
    ],
)
def test_damaged_headers_are_malformed(frame: bytes, flexible: bool) -> None:
    with pytest.raises(MalformedRequest):
        parse(frame, flexible)


def test_what_every_version_of_the_header_shares() -> None:
    assert peek_api(memoryview(b"\x7f\xff\xff\xff\xff\xff\xff\xfe")) == (0x7FFF, -1, -2)


def test_response_headers() -> None:
    assert response_header(-2, flexible=False) == b"\xff\xff\xff\xfe"
    assert response_header(1, flexible=True) == b"\x00\x00\x00\x01\x00"


@given(st.integers(0, 2**35 - 1), st.binary(max_size=3))
def test_varints_come_back(value: int, behind: bytes) -> None:
    encoded = unsigned_varint(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
    assert read_unsigned_varint(memoryview(encoded + behind), 0) == (value, len(encoded))


@pytest.mark.parametrize("encoded", [b"", b"\x80", b"\xff\xff\xff\xff", b"\x80\x80\x80\x80\x80\x00"])
def test_damaged_varints_are_malformed(encoded: bytes) -> None:
    with pytest.raises(MalformedRequest):
        read_unsigned_varint(memoryview(encoded), 0)
