"""Records of `__transaction_state`: exact bytes of both versions, round trips, and damage."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.offsets.transaction_log import (
    DecodeError,
    EncodeError,
    TopicPartitions,
    TransactionLogValue,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
    transaction_partition_for,
)

INT16, INT32, INT64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))
PARTITIONS = st.none() | st.lists(
    st.builds(TopicPartitions, st.text(max_size=9), st.lists(INT32, max_size=3).map(tuple)), max_size=3
).map(tuple)
PLAIN = {
    "producer_id": INT64,
    "producer_epoch": INT16,
    "transaction_timeout_ms": INT32,
    "transaction_status": st.integers(-128, 127),
    "transaction_partitions": PARTITIONS,
    "transaction_last_update_timestamp_ms": INT64,
    "transaction_start_timestamp_ms": INT64,
}
TAGGED = {
    "previous_producer_id": INT64,
    "next_producer_id": INT64,
    "client_transaction_version": INT16,
    "next_producer_epoch": INT16,
}
VALUES = st.builds(TransactionLogValue, **PLAIN, version=st.just(0)) | st.builds(
    TransactionLogValue, **PLAIN, **TAGGED
)
ONGOING = TransactionLogValue(7, 3, 60_000, 1, (TopicPartitions("orders", (0, 2)),), 1_234, 1_000)


def test_bytes_of_a_key() -> None:
    assert encode_transaction_key("pay") == b"\x00\x00\x00\x03pay"
    assert decode_transaction_key(b"\x00\x00\x00\x03pay") == "pay"
    assert decode_transaction_key(b"\x00\x01whatever") is None


def test_bytes_of_a_plain_value() -> None:
    value = TransactionLogValue(7, 3, 60_000, 0, None, 1_234, -1, version=0)
    assert encode_transaction_value(value) == struct.pack(">hqhibiqq", 0, 7, 3, 60_000, 0, -1, 1_234, -1)


def test_bytes_of_a_flexible_value() -> None:
    head = struct.pack(">hqhib", 1, 7, 3, 60_000, 1)
    topics = b"\x02\x07orders\x03" + struct.pack(">ii", 0, 2) + b"\x00"
    times = struct.pack(">qq", 1_234, 1_000)
    assert encode_transaction_value(ONGOING) == head + topics + times + b"\x00"
    tags = (
        b"\x03"
        + b"\x00\x08"
        + struct.pack(">q", 5)
        + b"\x01\x08"
        + struct.pack(">q", 9)
        + b"\x02\x02\x00\x02"
    )
    tagged = decode_transaction_value(head + topics + times + tags)
    assert (tagged.previous_producer_id, tagged.next_producer_id, tagged.client_transaction_version) == (
        5,
        9,
        2,
    )
    assert encode_transaction_value(tagged) == head + topics + times + tags


@given(VALUES)
def test_values_survive_both_ways(value: TransactionLogValue) -> None:
    assert decode_transaction_value(encode_transaction_value(value)) == value


@given(st.data(), VALUES)
def test_damage_is_told_or_kept(data: st.DataObject, value: TransactionLogValue) -> None:
    encoded = encode_transaction_value(value)
    at = data.draw(st.integers(0, len(encoded) - 1))
    damaged = encoded[:at] + bytes([encoded[at] ^ data.draw(st.integers(1, 255))]) + encoded[at + 1 :]
    for wrong in (damaged, encoded[:at]):
        try:
            decoded = decode_transaction_value(wrong)
        except DecodeError:
            continue
        assert encode_transaction_value(decoded) == wrong


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"\x00\x02", b"\x00\x00" + b"\x00" * 14 + b"\x00\xff\xff\xff\xfe"]
)
def test_what_is_no_value(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_transaction_value(data)


def test_what_has_no_encoding() -> None:
    for value in (
        TransactionLogValue(1, 0, 1, 0, None, 0, 0, previous_producer_id=4, version=0),
        TransactionLogValue(1, 0, 1, 0, None, 0, 0, version=2),
        TransactionLogValue(1 << 63, 0, 1, 0, None, 0, 0),
    ):
        with pytest.raises(EncodeError):
            encode_transaction_value(value)


def test_ids_are_spread_as_groups_are() -> None:
    assert transaction_partition_for("testgroup", 50) == 27
