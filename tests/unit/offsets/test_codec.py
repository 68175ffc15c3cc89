"""The codec against a real topic, exact bytes of every version, and damage."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from korvet.offsets.codec import (
    DecodeError,
    EncodeError,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from korvet.offsets.group_records import (
    VALUE_TYPES,
    ClassicMember,
    ConsumerAssignment,
    ConsumerMember,
    GroupEpoch,
    OwnedPartitions,
    TargetAssignment,
    TopicIdPartitions,
)
from korvet.offsets.record_types import GROUP_KEY_TYPES, MEMBER_KEY_TYPES, REGEX_KEY_TYPE
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    GroupRegexKey,
    Key,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    UnknownValue,
    Value,
)
from korvet.offsets.streams_records import Topology
from tests.unit.offsets.golden import CAPTURES, records

OFFSET_KEY = OffsetCommitKey("g", "orders", 3)
GROUP_KEY = GroupMetadataKey("g")
TOPIC_ID = bytes(range(16))
MEMBER = MemberMetadata("m", "i", "c", "/h", 300000, 45000, b"sub", b"asg")
MEMBER_5 = ConsumerMember(None, None, "c", "/h", (), None, 1, None)
GROUP = GroupMetadataValue("consumer", 7, "range", "m", 1234, (MEMBER,))


@pytest.mark.parametrize("capture", CAPTURES)
def test_golden_records_survive_both_ways(capture: str) -> None:
    types = set()
    for record in records(capture):
        if record.control:
            continue
        key = decode_key(record.key)
        types.add(record.type)
        assert not isinstance(key, UnknownKey)
        assert encode_key(key) == record.key
        value = decode_value(key, record.value)
        if value is None:
            assert record.value is None
            continue
        assert not isinstance(value, UnknownValue)
        assert encode_value(value) == record.value
    assert {1, 2, 3, 4, 5, 6, 7, 8} <= types


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (OffsetCommitValue(5, metadata="é", commit_timestamp_ms=9, version=0), "0000 0..5 0002c3a9 0..9"),
        (
            OffsetCommitValue(5, metadata="é", commit_timestamp_ms=9, expire_timestamp_ms=11, version=1),
            "0001 0..5 0002c3a9 0..9 0..b",
        ),
        (OffsetCommitValue(5, metadata="é", commit_timestamp_ms=9, version=2), "0002 0..5 0002c3a9 0..9"),
        (
            OffsetCommitValue(5, 1, metadata="é", commit_timestamp_ms=9, version=3),
            "0003 0..5 00000001 0002c3a9 0..9",
        ),
        (
            OffsetCommitValue(5, metadata="é", commit_timestamp_ms=9, version=4),
            "0004 0..5 ffffffff 03c3a9 0..9 00",
        ),
        (
            OffsetCommitValue(5, 1, "é", 9, topic_id=TOPIC_ID, version=4, unknown_tags=((200, b"x"),)),
            "0004 0..5 00000001 03c3a9 0..9 02 0010" + TOPIC_ID.hex() + "c80101 78",
        ),
    ],
)
def test_offset_commit_versions(value: OffsetCommitValue, encoded: str) -> None:
    # "0..5" is an int64 in hexadecimal.
    parts = [part[3:].rjust(16, "0") if part.startswith("0..") else part for part in encoded.split()]
    data = bytes.fromhex("".join(parts))
    assert encode_value(value) == data
    assert decode_value(OFFSET_KEY, data) == value
    assert decode_value(replace(OFFSET_KEY, version=0), data) == value


def test_group_metadata_versions() -> None:
    head, middle = "0008636f6e73756d6572 00000007 0005 72616e6765 0001 6d", "0001 63 0002 2f68"
    tail = "0000afc8 00000003 737562 00000003 617367"
    expected = {
        0: f"0000 {head} 00000001 0001 6d {middle} {tail}",
        1: f"0001 {head} 00000001 0001 6d {middle} 000493e0 {tail}",
        2: f"0002 {head} 00000000000004d2 00000001 0001 6d {middle} 000493e0 {tail}",
        3: f"0003 {head} 00000000000004d2 00000001 0001 6d 0001 69 {middle} 000493e0 {tail}",
        4: "0004 09636f6e73756d6572 00000007 0672616e6765 026d 00000000000004d2 02 026d 0269 0263 032f68"
        "000493e0 0000afc8 04737562 04617367 00 00",
    }
    for version, text in expected.items():
        data = bytes.fromhex(text)
        assert encode_value(replace(GROUP, version=version)) == data
        decoded = decode_value(GROUP_KEY, data)
        assert isinstance(decoded, GroupMetadataValue)
        assert encode_value(decoded) == data
        if version >= 3:
            assert decoded == replace(GROUP, version=version)


def test_what_old_group_versions_lack() -> None:
    decoded = decode_value(GROUP_KEY, encode_value(replace(GROUP, version=0)))
    assert isinstance(decoded, GroupMetadataValue)
    assert decoded.current_state_timestamp_ms == -1
    assert decoded.members[0].group_instance_id is None
    assert decoded.members[0].rebalance_timeout_ms == decoded.members[0].session_timeout_ms == 45000


def test_unknown_tags_of_group_metadata_survive() -> None:
    member = replace(MEMBER, unknown_tags=((1, b"a"), (300, b"")))
    value = replace(GROUP, version=4, members=(member, MEMBER), unknown_tags=((0, b"z"),))
    assert decode_value(GROUP_KEY, encode_value(value)) == value


def test_nullable_fields() -> None:
    member = replace(MEMBER, group_instance_id=None)
    for version in (3, 4):
        value = replace(GROUP, protocol=None, leader=None, members=(member,), version=version)
        assert decode_value(GROUP_KEY, encode_value(value)) == value


def test_tombstones() -> None:
    for key in (OFFSET_KEY, GROUP_KEY, GroupRecordKey("g", 3), UnknownKey(9, b"")):
        assert decode_value(key, None) is None


def test_unknown_records_pass_through() -> None:
    assert decode_key(b"\x00\x09abc") == UnknownKey(9, b"abc")
    assert decode_key(b"\xff\xff") == UnknownKey(-1, b"")
    assert encode_key(UnknownKey(9, b"abc")) == b"\x00\x09abc"
    for key in (UnknownKey(9, b""), OFFSET_KEY, GROUP_KEY, GroupRecordKey("g", 3), GroupRegexKey("g", "r")):
        assert decode_value(key, b"\x00\x05abc") == UnknownValue(5, b"abc")
    assert encode_value(UnknownValue(5, b"abc")) == b"\x00\x05abc"


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x01", b"\x00\x02\x00", b"\x00\x02\x00\x05g"])
def test_damaged_keys(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_key(data)


@pytest.mark.parametrize("version", range(5))
def test_every_truncation_and_extension_is_damage(version: int) -> None:
    for key, value in (
        (OFFSET_KEY, OffsetCommitValue(5, 1, "meta", 9, 10, TOPIC_ID if version == 4 else None, version)),
        (GROUP_KEY, replace(GROUP, version=version)),
    ):
        data = encode_value(value)
        for end in range(len(data)):
            with pytest.raises(DecodeError):
                decode_value(key, data[:end])
        with pytest.raises(DecodeError, match="left over"):
            decode_value(key, data + b"\x00")


V4_HEAD = struct.pack(">hqi", 4, 5, -1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">hqh", 0, 5, -1) + bytes(8), "null"),
        (struct.pack(">hqh", 0, 5, -2) + bytes(8), "length -2"),
        (struct.pack(">hqh", 0, 5, 1) + b"\xff" + bytes(8), "UTF-8"),
        (V4_HEAD + b"\x00" + bytes(9), "null"),
        (V4_HEAD + b"\x81\x00" + bytes(9), "longer"),
        (V4_HEAD + b"\xff" * 5 + bytes(9), "does not end"),
        (V4_HEAD + b"\xff\xff\xff\xff\x7f" + bytes(9), "32 bits"),
        (V4_HEAD + b"\x81\x80\x02" + bytes(32768 + 9), "length 32768"),
        (V4_HEAD + b"\x01" + bytes(8) + b"\x01\x00\x01x", "topic id"),
        (V4_HEAD + b"\x01" + bytes(8) + b"\x02\x05\x00\x05\x00", "tag 5 follows"),
        (V4_HEAD + b"\x01" + bytes(8) + b"\x02\x05\x00\x04\x00", "tag 4 follows"),
    ],
)
def test_damaged_offset_commits(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_value(OFFSET_KEY, data)


def test_a_damaged_member_count_allocates_nothing() -> None:
    empty = encode_value(replace(GROUP, members=()))
    with pytest.raises(DecodeError, match="2147483647 elements"):
        decode_value(GROUP_KEY, empty[:-4] + b"\x7f\xff\xff\xff")
    with pytest.raises(DecodeError, match="-1 elements"):
        decode_value(GROUP_KEY, empty[:-4] + b"\xff\xff\xff\xff")


@pytest.mark.parametrize("version", range(5))
def test_metadata_has_at_most_32767_bytes(version: int) -> None:
    longest = OffsetCommitValue(5, metadata="é" * 16383 + "x", version=version)
    assert decode_value(OFFSET_KEY, encode_value(longest)) == longest
    with pytest.raises(EncodeError, match="metadata has 32768 bytes"):
        encode_value(replace(longest, metadata="é" * 16384))


def test_fields_that_a_version_lacks_are_left_out() -> None:
    full = OffsetCommitValue(5, 1, "m", 9, 10, TOPIC_ID, 0)
    assert decode_value(OFFSET_KEY, encode_value(full)) == OffsetCommitValue(5, -1, "m", 9, version=0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (OffsetCommitValue(1 << 63), "offset"),
        (OffsetCommitValue(1, leader_epoch=1 << 31), "leader epoch"),
        (OffsetCommitValue(1, metadata=None), "null"),  # type: ignore[arg-type]
        (OffsetCommitValue(1, metadata="\ud800"), "UTF-8"),
        (OffsetCommitValue(1, version=5), "no version 5"),
        (OffsetCommitValue(1, version=-1), "no version -1"),
        (OffsetCommitValue(1, unknown_tags=((1, b""),)), "no tagged fields"),
        (OffsetCommitValue(1, version=4, topic_id=b"short"), "topic id"),
        (OffsetCommitValue(1, version=4, unknown_tags=((0, b""),)), "topic id"),
        (OffsetCommitValue(1, version=4, unknown_tags=((2, b""), (1, b""))), "tag 1 follows"),
        (replace(GROUP, protocol_type=None), "null"),  # type: ignore[arg-type]
        (replace(GROUP, version=5), "no version 5"),
        (replace(GROUP, members=(replace(MEMBER, subscription=None),)), "null"),  # type: ignore[arg-type]
        (replace(GROUP, members=(replace(MEMBER, unknown_tags=((1, b""),)),)), "no tagged fields"),
        (UnknownValue(1 << 15, b""), "value version"),
        (GroupEpoch(1, version=1), "no version 1"),
        (GroupEpoch(1, 5, unknown_tags=((0, b""),)), "tag 0 follows"),
        (TargetAssignment((TopicIdPartitions(b"short", ()),)), "16"),
        (TargetAssignment(None), "null"),  # type: ignore[arg-type]
        (Topology(1, (GroupEpoch(1),)), "no Subtopology"),  # type: ignore[arg-type]
    ],
)
def test_values_that_do_not_fit(value: Value, reason: str) -> None:
    with pytest.raises(EncodeError, match=reason):
        encode_value(value)


@pytest.mark.parametrize(
    "key",
    [
        OffsetCommitKey("g", "t", 1 << 31),
        OffsetCommitKey("g" * 32768, "t", 0),
        OffsetCommitKey("g", "t", 0, version=2),
        GroupMetadataKey("g", version=1),
        UnknownKey(1 << 15, b""),
        GroupRecordKey("g", 5),
        GroupMemberKey("g", "m", 3),
        GroupRegexKey("g", "r", 17),
    ],
)
def test_keys_that_do_not_fit(key: Key) -> None:
    with pytest.raises(EncodeError):
        encode_key(key)


def test_every_key_type_has_a_value_type() -> None:
    assert {*GROUP_KEY_TYPES, *MEMBER_KEY_TYPES, REGEX_KEY_TYPE} == set(VALUE_TYPES)
    assert set(VALUE_TYPES) == set(range(3, 24)) - {9, 18}


def test_a_tagged_default_that_is_spelled_out_survives() -> None:
    key = GroupRecordKey("g", 3)
    spelled = b"\0\0" + struct.pack(">i", 7) + b"\x01\x00\x08" + bytes(8)
    value = decode_value(key, spelled)
    assert value == GroupEpoch(7, 0, unknown_tags=((0, bytes(8)),))
    assert encode_value(value) == spelled
    assert encode_value(GroupEpoch(7)) == spelled[:6] + b"\0"


def test_null_is_not_the_default_of_a_tagged_field() -> None:
    """Kafka writes a member without classic metadata, and one without known epochs, with a tag."""
    assert encode_value(MEMBER_5).endswith(b"\x01\x00\x01\x00")
    assert encode_value(replace(MEMBER_5, classic_member_metadata=ClassicMember())).endswith(b"\0\0\0\1\0\0")
    owned = OwnedPartitions(TOPIC_ID, (1,), None)
    assert b"\x01\x00\x01\x00" in encode_value(ConsumerAssignment(1, 0, 0, (owned,), ()))


@pytest.mark.parametrize(
    ("key", "data", "reason"),
    [
        (GroupRecordKey("g", 3), struct.pack(">hi", 0, 7) + b"\1\0\7" + bytes(7), "8 bytes needed"),
        (GroupRecordKey("g", 3), struct.pack(">hi", 0, 7) + b"\1\0\x09" + bytes(9), "left over"),
        (GroupMemberKey("g", "m", 5), encode_value(MEMBER_5)[:-1] + b"\2", "neither there nor null"),
    ],
)
def test_damaged_group_records(key: Key, data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        decode_value(key, data)
