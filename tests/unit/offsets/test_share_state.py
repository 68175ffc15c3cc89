"""Records of `__share_group_state`: those of a real Kafka, round trips, and damage."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.offsets.formatters import format_share_state_record
from korvet.offsets.schema import UnknownKey, UnknownValue
from korvet.offsets.share_state import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    UPDATE,
    DecodeError,
    EncodeError,
    ShareSnapshot,
    ShareStateKey,
    ShareUpdate,
    StateBatch,
    decode_share_key,
    decode_share_value,
    encode_share_key,
    encode_share_value,
    share_state_partition_for,
)

# Kafka 4.4.0 wrote these for a group that accepted, released and rejected some of 20 records: the first
# state, the acknowledgements of all, and those of the records that were released.
SNAPSHOT_KEY = bytes.fromhex("000000026731da3516282cd04e969031096125bf38a700000000")
UPDATE_KEY = bytes.fromhex("000100026731da3516282cd04e969031096125bf38a700000000")
FIRST = bytes.fromhex("0000000000000000000200000000ffffffffffffffff000001a22d459b02000001a22d459b020100")
LATER = bytes.fromhex(
    "0000000000000000000000000000000000000b00000000000000000000000000000002020001000000000000000003000000000000"
    "00030000010000000000000000040000000000000004020001000000000000000005000000000000000600000100000000000000"
    "00070000000000000007020001000000000000000008000000000000000804000100000000000000000900000000000000"
    "0b02000100000000000000000c000000000000000d04000100000000000000000e000000000000000e0200010000000000000000"
    "0f0000000000000013000001000100040000000c"
)
LAST = bytes.fromhex(
    "0000000000000000000000000000000000030700000000000000030000000000000003000002000000000000000005000000000000"
    "0005020002000000000000000006000000000000000600000200000000000000000f000000000000000f00000200000000000000"
    "001000000000000000100200020000000000000000110000000000000013000002000100040000000b"
)
KEY = ShareStateKey("g1", bytes.fromhex("da3516282cd04e969031096125bf38a7"), 0)

INT8, INT16, INT32, INT64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64))
TAGS = st.dictionaries(st.integers(1, 300), st.binary(max_size=4), max_size=2).map(
    lambda tags: tuple(sorted(tags.items()))
)
KEYS = st.builds(
    ShareStateKey, st.text(max_size=9), st.binary(min_size=16, max_size=16), INT32, st.sampled_from((0, 1))
) | st.builds(UnknownKey, INT16.filter(lambda version: version not in (0, 1)), st.binary(max_size=9))
BATCHES = st.lists(st.builds(StateBatch, INT64, INT64, INT8, INT16, TAGS), max_size=3).map(tuple)
SNAPSHOTS = st.builds(
    ShareSnapshot, INT32, INT32, INT32, INT64, INT64, INT64, BATCHES, INT32, unknown_tags=TAGS
)
UPDATES = st.builds(ShareUpdate, INT32, INT32, INT64, BATCHES, INT32, unknown_tags=TAGS)
UNKNOWN = st.builds(UnknownValue, INT16.filter(bool), st.binary(max_size=9))


def test_records_of_kafka() -> None:
    key, update = decode_share_key(SNAPSHOT_KEY), decode_share_key(UPDATE_KEY)
    assert (key, update) == (KEY, ShareStateKey("g1", KEY.topic_id, 0, UPDATE))
    time_ms = 1_796_055_866_114
    assert decode_share_value(key, FIRST) == ShareSnapshot(0, 2, 0, -1, time_ms, time_ms, ())
    assert decode_share_value(update, LAST) == ShareUpdate(
        0,
        0,
        3,
        (
            StateBatch(3, 3, AVAILABLE, 2),
            StateBatch(5, 5, ACKNOWLEDGED, 2),
            StateBatch(6, 6, AVAILABLE, 2),
            StateBatch(15, 15, AVAILABLE, 2),
            StateBatch(16, 16, ACKNOWLEDGED, 2),
            StateBatch(17, 19, AVAILABLE, 2),
        ),
        11,
    )
    later = decode_share_value(update, LATER)
    assert isinstance(later, ShareUpdate)
    archived = [batch for batch in later.state_batches if batch.delivery_state == ARCHIVED]
    assert archived == [StateBatch(8, 8, ARCHIVED, 1), StateBatch(12, 13, ARCHIVED, 1)]
    assert decode_share_value(key, None) is None
    for of, value in ((key, FIRST), (update, LATER), (update, LAST)):
        decoded = decode_share_value(of, value)
        assert decoded is not None
        assert encode_share_value(decoded) == value
    assert [encode_share_key(each) for each in (key, update)] == [SNAPSHOT_KEY, UPDATE_KEY]


def test_the_text_of_kafkas_formatter() -> None:
    state = '"data":{"groupId":"g1","topicId":"2jUWKCzQTpaQMQlhJb84pw","partition":0}}'
    assert format_share_state_record(SNAPSHOT_KEY, FIRST) == (
        '{"key":{"type":0,' + state + ',"value":{"version":0,"data":{"snapshotEpoch":0,"stateEpoch":2,'
        '"leaderEpoch":0,"startOffset":-1,"createTimestamp":1796055866114,"writeTimestamp":1796055866114,'
        '"stateBatches":[]}}}'
    )
    text = format_share_state_record(UPDATE_KEY, LATER)
    assert text is not None
    assert text.startswith(
        '{"key":{"type":1,' + state + ',"value":{"version":0,"data":{"snapshotEpoch":0,"leaderEpoch":0,'
        '"startOffset":0,"deliveryCompleteCount":12,"stateBatches":[{"firstOffset":0,"lastOffset":2,'
        '"deliveryState":2,"deliveryCount":1},{"firstOffset":3,'
    )
    assert len(json.loads(text)["value"]["data"]["stateBatches"]) == 10
    assert format_share_state_record(SNAPSHOT_KEY, None) == '{"key":{"type":0,' + state + ',"value":null}'
    assert format_share_state_record(SNAPSHOT_KEY, b"\0\1?") == (
        '{"key":{"type":0,' + state + ',"value":{"version":1,"data":"unknown"}}'
    )
    assert format_share_state_record(b"\0\2?", None) is None
    assert format_share_state_record(None, None) is None


@pytest.mark.parametrize(
    ("group", "topic_id", "partitions"),
    [
        ("g1", "da3516282cd04e969031096125bf38a7", [0, 4]),
        ("g2", "5a22979935fb4528b4a5cd3a247a8bc0", [0, 4]),
        ("g3", "4a85ed25caa14af6900a08ce5a323645", [0, 1]),
    ],
)
def test_partitions_as_kafka_chose_them(group: str, topic_id: str, partitions: list[int]) -> None:
    keys = [ShareStateKey(group, bytes.fromhex(topic_id), number) for number in (0, 1)]
    assert [share_state_partition_for(key, 5) for key in keys] == partitions


@given(KEYS)
def test_keys_survive_both_ways(key: ShareStateKey | UnknownKey) -> None:
    assert decode_share_key(encode_share_key(key)) == key


@given(SNAPSHOTS | UPDATES | UNKNOWN)
def test_values_survive_both_ways(value: ShareSnapshot | ShareUpdate | UnknownValue) -> None:
    key = ShareStateKey("g", bytes(16), 0, UPDATE if isinstance(value, ShareUpdate) else 0)
    assert decode_share_value(key, encode_share_value(value)) == value


@given(st.data(), SNAPSHOTS | UPDATES)
def test_damage_is_told_or_kept(data: st.DataObject, value: ShareSnapshot | ShareUpdate) -> None:
    key = ShareStateKey("g", bytes(16), 0, UPDATE if isinstance(value, ShareUpdate) else 0)
    encoded = encode_share_value(value)
    at = data.draw(st.integers(0, len(encoded) - 1))
    damaged = encoded[:at] + bytes([encoded[at] ^ data.draw(st.integers(1, 255))]) + encoded[at + 1 :]
    for wrong in (damaged, encoded[:at]):
        try:
            decoded = decode_share_value(key, wrong)
        except DecodeError:
            continue
        assert decoded is not None
        assert encode_share_value(decoded) == wrong


def test_damaged_keys_are_told() -> None:
    for damaged in (b"\0", SNAPSHOT_KEY[:-1], SNAPSHOT_KEY + b"\0"):
        with pytest.raises(DecodeError):
            decode_share_key(damaged)


def test_what_has_no_encoding() -> None:
    for key in (ShareStateKey("g", bytes(15), 0), ShareStateKey("g", bytes(16), 0, 2)):
        with pytest.raises(EncodeError):
            encode_share_key(key)
    for value in (ShareUpdate(1 << 31, 0, 0, ()), ShareUpdate(0, 0, 0, (), version=1)):
        with pytest.raises(EncodeError):
            encode_share_value(value)
