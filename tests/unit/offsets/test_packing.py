"""Offsets as entry IDs: the fixed vectors, the dense bias, and both ends of the range."""

from __future__ import annotations

import pytest

from korvet.offsets.packing import (
    MAX_SEQUENCE,
    SEQUENCE_BITS,
    AddressError,
    entry_id,
    id_parts,
    offset_after,
    offset_of,
    pack,
    unpack,
)

MAX_INT64 = (1 << 63) - 1


def test_the_split_is_ten_bits() -> None:
    assert (SEQUENCE_BITS, MAX_SEQUENCE) == (10, 1023)


@pytest.mark.parametrize(
    ("ms", "seq", "offset"),
    [
        (1234567890123, 0, 1264197519485952),
        (1234567890123, 1, 1264197519485953),
        (0, 1, 1),
        (0, 1023, 1023),
        (1, 0, 1024),
        ((1 << 53) - 1, 1023, MAX_INT64),
    ],
)
def test_vectors(ms: int, seq: int, offset: int) -> None:
    assert pack(ms, seq) == offset
    assert unpack(offset) == (ms, seq)
    assert entry_id(offset) == f"{ms}-{seq}"
    assert offset_of(f"{ms}-{seq}") == offset
    assert offset_of(f"{ms}-{seq}".encode()) == offset


@pytest.mark.parametrize(
    ("offset", "stored_under"),
    [(0, "0-1"), (1, "0-2"), (1022, "0-1023"), (1023, "1-0"), (MAX_INT64, f"{1 << 53}-0")],
)
def test_a_dense_topic_stores_an_offset_under_the_next_ones_id(offset: int, stored_under: str) -> None:
    assert entry_id(offset, bias=1) == stored_under
    assert offset_of(stored_under, bias=1) == offset
    assert offset_after(stored_under, bias=1) == offset + 1


@pytest.mark.parametrize(
    ("ms", "seq"), [(0, 1024), (0, -1), (-1, 0), (1 << 53, 0), (1 << 53, 1023), (1 << 64, 0)]
)
def test_pack_refuses_what_does_not_fit(ms: int, seq: int) -> None:
    with pytest.raises(AddressError):
        pack(ms, seq)


@pytest.mark.parametrize("offset", [-1, MAX_INT64 + 1])
def test_offsets_are_int64_and_not_negative(offset: int) -> None:
    with pytest.raises(AddressError):
        unpack(offset)
    with pytest.raises(AddressError):
        entry_id(offset)
    with pytest.raises(AddressError):
        entry_id(offset, bias=1)


@pytest.mark.parametrize("bias", [0, 1])
def test_an_unaddressable_entry_has_no_offset_but_one_follows_it(bias: int) -> None:
    with pytest.raises(AddressError, match="1024"):
        offset_of("5-1024", bias)
    assert offset_after("5-1024", bias) == pack(6, 0) - bias
    assert offset_after(f"5-{(1 << 64) - 1}", bias) == pack(6, 0) - bias


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("5-0", pack(5, 1)),
        ("5-1023", pack(6, 0)),
        ("5-1024", pack(6, 0)),
        (f"5-{(1 << 64) - 1}", pack(6, 0)),
        (b"0-1", 2),
        (f"{(1 << 53) - 1}-1023", 1 << 63),
    ],
)
def test_the_offset_after_an_entry(text: str | bytes, offset: int) -> None:
    assert offset_after(text) == offset
    assert offset_after(text, bias=1) == offset - 1


def test_the_first_offset_follows_the_id_zero() -> None:
    assert offset_after("0-0") == 0
    assert offset_after("0-0", bias=1) == 0


def test_the_parts_of_an_id() -> None:
    assert id_parts("5-6") == id_parts(b"5-6") == (5, 6)


def test_the_id_zero_is_before_the_first_offset_of_a_dense_topic() -> None:
    assert offset_of("0-0") == 0
    with pytest.raises(AddressError):
        offset_of("0-0", bias=1)


@pytest.mark.parametrize("text", [f"{1 << 53}-0", f"{(1 << 53) - 1}-1024", f"{(1 << 64) - 1}-0"])
def test_an_id_beyond_int64_has_no_offset(text: str) -> None:
    with pytest.raises(AddressError):
        offset_of(text)
    assert offset_after(text) > MAX_INT64


@pytest.mark.parametrize(
    "text",
    ["", "5", "5-", "-5", "5-*", "5-6-7", "+5-6", "5 -6", "1_0-0", "5-6\n", "٣-٤", f"{1 << 64}-0", b"\xff-0"],
)
def test_malformed_ids_are_refused(text: str | bytes) -> None:
    with pytest.raises(AddressError):
        offset_of(text)
    with pytest.raises(AddressError):
        offset_after(text)
