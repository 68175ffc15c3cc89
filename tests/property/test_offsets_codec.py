"""The offset domain under arbitrary input: both directions agree, and damage is always a DecodeError."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from korvet.offsets import fields
from korvet.offsets.codec import (
    DecodeError,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
    plain_commit_offset,
)
from korvet.offsets.consumer_protocol import (
    Assignment,
    Subscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from korvet.offsets.formatters import format_group_record, format_newer_group_record, format_offset_record
from korvet.offsets.group_records import VALUE_TYPES
from korvet.offsets.packing import entry_id, offset_after, offset_of, pack, unpack
from korvet.offsets.partition import partition_for
from korvet.offsets.record_types import GROUP_KEY_TYPES, MEMBER_KEY_TYPES
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
)
from tests.support.offsets_replay import OffsetsReplay

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.offsets.wire import TaggedFields

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
OFFSETS = st.integers(0, (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
BLOB = st.binary(max_size=30)


def tags(lowest: int) -> st.SearchStrategy[TaggedFields]:
    fields = st.dictionaries(st.integers(lowest, (1 << 32) - 1), BLOB, max_size=3)
    return fields.map(lambda found: tuple(sorted(found.items())))


@st.composite
def offset_commits(draw: st.DrawFn) -> OffsetCommitValue:
    version = draw(st.integers(0, 4))
    return OffsetCommitValue(
        draw(INT64),
        draw(INT32) if version >= 3 else -1,
        draw(TEXT),
        draw(INT64),
        draw(INT64) if version == 1 else -1,
        draw(st.none() | st.binary(min_size=16, max_size=16)) if version == 4 else None,
        version,
        draw(tags(1)) if version == 4 else (),
    )


@st.composite
def members(draw: st.DrawFn, version: int) -> MemberMetadata:
    session_timeout_ms = draw(INT32)
    return MemberMetadata(
        draw(TEXT),
        draw(st.none() | TEXT) if version >= 3 else None,
        draw(TEXT),
        draw(TEXT),
        draw(INT32) if version >= 1 else session_timeout_ms,
        session_timeout_ms,
        draw(BLOB),
        draw(BLOB),
        draw(tags(0)) if version == 4 else (),
    )


@st.composite
def groups(draw: st.DrawFn) -> GroupMetadataValue:
    version = draw(st.integers(0, 4))
    return GroupMetadataValue(
        draw(TEXT),
        draw(INT32),
        draw(st.none() | TEXT),
        draw(st.none() | TEXT),
        draw(INT64) if version >= 2 else -1,
        tuple(draw(st.lists(members(version), max_size=3))),
        version,
        draw(tags(0)) if version == 4 else (),
    )


OFFSET_KEYS = st.builds(OffsetCommitKey, TEXT, TEXT, INT32, st.integers(0, 1))
PLAIN_COMMITS = st.builds(OffsetCommitValue, INT64, INT32, st.just(""), INT64)
GROUP_KEYS = st.builds(GroupMetadataKey, TEXT)
OTHER_KEYS = st.builds(UnknownKey, st.integers(24, 32767) | st.integers(-32768, -1), BLOB)
NEWER_KEYS = (
    st.builds(GroupRecordKey, TEXT, st.sampled_from(sorted(GROUP_KEY_TYPES)))
    | st.builds(GroupMemberKey, TEXT, TEXT, st.sampled_from(sorted(MEMBER_KEY_TYPES)))
    | st.builds(GroupRegexKey, TEXT, TEXT)
)
KEYS = OFFSET_KEYS | GROUP_KEYS | NEWER_KEYS | OTHER_KEYS


def of_kind(kind: Any) -> st.SearchStrategy[Any]:
    """A value of a field in a newer group's record."""
    match kind:
        case fields.Array():
            return st.lists(of_kind(kind.element), max_size=2).map(tuple)
        case fields.NullableArray():
            return st.none() | of_kind(fields.Array(kind.element))
        case fields.Struct():
            return structures(kind.of)
        case fields.Nullable() | fields.TaggedNullable():
            return st.none() | structures(kind.of)
        case fields.Tagged():
            return st.just(kind.default) | of_kind(kind.kind)
    return PRIMITIVES[kind]


def structures(of: type[Any]) -> st.SearchStrategy[Any]:
    # Tags below 4 are known in some schema; 4 and above in none.
    contents = {name: of_kind(kind) for name, kind in of.LAYOUT.fields.items()}
    return st.deferred(lambda: st.builds(of, **contents, unknown_tags=tags(4)))


PRIMITIVES = {
    fields.INT8: st.integers(-128, 127),
    fields.INT16: st.integers(-(1 << 15), (1 << 15) - 1),
    fields.UINT16: st.integers(0, (1 << 16) - 1),
    fields.INT32: INT32,
    fields.INT64: INT64,
    fields.UUID: st.binary(min_size=16, max_size=16),
    fields.STRING: TEXT,
    fields.NULLABLE_STRING: st.none() | TEXT,
    fields.BYTES: BLOB,
}
NEWER_VALUES = {of: structures(of) for of in VALUE_TYPES.values()}
TOPICS = st.lists(st.builds(TopicPartitions, TEXT, st.lists(INT32, max_size=3).map(tuple)), max_size=3).map(
    tuple
)
SUBSCRIPTIONS = st.builds(
    Subscription,
    st.lists(TEXT, max_size=3).map(tuple),
    st.none() | BLOB,
    TOPICS,
    INT32,
    st.none() | TEXT.filter(bool),
)


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """An encoding with a byte changed, bytes cut off or added, or unchanged."""
    data = bytearray(draw(whole))
    at = draw(st.integers(0, len(data) - 1))
    match draw(st.sampled_from(["whole", "changed", "cut", "longer"])):
        case "changed":
            data[at] = draw(st.integers(0, 255))
        case "cut":
            del data[at:]
        case "longer":
            data += draw(BLOB)
    return bytes(data)


@given(OFFSETS, st.integers(0, 1))
def test_entry_ids_name_offsets_exactly(offset: int, bias: int) -> None:
    assert pack(*unpack(offset)) == offset
    assert offset_of(entry_id(offset, bias), bias) == offset
    if offset or bias:  # 0-0 is no entry
        assert offset_after(entry_id(offset, bias).encode(), bias) == offset + 1


@given(st.integers(0, (1 << 53) - 2), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_offsets_after_entries_keep_the_order_of_ids(ms: int, seq: int, later: int) -> None:
    first, second = sorted((seq, later))
    assert offset_after(f"{ms}-{first}") <= offset_after(f"{ms}-{second}") <= offset_after(f"{ms + 1}-0")


@given(TEXT, st.integers(1, 200))
def test_a_group_is_in_one_of_the_partitions(group: str, partitions: int) -> None:
    assert 0 <= partition_for(group, partitions) < partitions


@given(KEYS)
def test_keys_survive_both_ways(key: Key) -> None:
    assert decode_key(encode_key(key)) == key


@given(OFFSET_KEYS, offset_commits())
def test_offset_commits_survive_both_ways(key: OffsetCommitKey, value: OffsetCommitValue) -> None:
    data = encode_value(value)
    assert decode_value(key, data) == value
    text = format_offset_record(encode_key(key), data)
    assert text is not None
    printed = json.loads(text)
    assert printed["key"]["data"] == {"group": key.group, "topic": key.topic, "partition": key.partition}
    assert printed["value"]["data"]["metadata"] == value.metadata


def outcome(decode: Callable[..., object], *arguments: object) -> object:
    """The result of a decoder, errors included."""
    try:
        return decode(*arguments)
    except DecodeError:
        return DecodeError


@given(damaged(KEYS.map(encode_key)) | BLOB)
def test_keys_decode_in_one_step_as_field_by_field(data: bytes) -> None:
    assert outcome(decode_key, data) == outcome(decode_key, memoryview(data))


@given(OFFSET_KEYS, damaged(offset_commits().map(encode_value)) | BLOB)
def test_values_decode_in_one_step_as_field_by_field(key: OffsetCommitKey, data: bytes) -> None:
    assert outcome(decode_value, key, data) == outcome(decode_value, key, memoryview(data))


@given(OFFSET_KEYS, damaged((offset_commits() | PLAIN_COMMITS).map(encode_value)) | BLOB)
def test_offset_of_a_plain_value(key: OffsetCommitKey, data: bytes) -> None:
    value = outcome(decode_value, key, data)
    is_plain = isinstance(value, OffsetCommitValue) and value.version == 3 and not value.metadata
    assert plain_commit_offset(data) == (value.offset if is_plain else None)  # type: ignore[attr-defined]


@given(GROUP_KEYS, groups())
def test_group_metadata_survives_both_ways(key: GroupMetadataKey, value: GroupMetadataValue) -> None:
    data = encode_value(value)
    assert decode_value(key, data) == value
    text = format_group_record(encode_key(key), data)
    assert text is not None
    printed = json.loads(text)
    assert [member["memberId"] for member in printed["value"]["data"]["members"]] == [
        member.member_id for member in value.members
    ]


@given(NEWER_KEYS, st.data())
def test_records_of_newer_groups_survive_both_ways(key: Any, data: st.DataObject) -> None:
    value = data.draw(NEWER_VALUES[VALUE_TYPES[key.version]])
    encoded = encode_value(value)
    assert decode_key(encode_key(key)) == key
    assert decode_value(key, encoded) == value
    text = format_newer_group_record(encode_key(key), encoded)
    assert text is not None
    assert json.loads(text)["key"]["data"]["groupId"] == key.group


@given(NEWER_KEYS, st.data())
def test_damaged_records_of_newer_groups(key: Any, data: st.DataObject) -> None:
    for candidate in (
        data.draw(damaged(NEWER_VALUES[VALUE_TYPES[key.version]].map(encode_value))),
        b"\0\0" + data.draw(st.binary(max_size=80)),
    ):
        with contextlib.suppress(DecodeError):
            value = decode_value(key, candidate)
            assert value is not None
            assert encode_value(value) == candidate


@given(
    st.none() | st.binary(max_size=60) | damaged(KEYS.map(encode_key)),
    st.none() | st.binary(max_size=60),
    st.integers(-1, 2),
    st.booleans(),
    st.booleans(),
)
def test_replay_raises_nothing_but_the_decode_error(
    key: bytes | None, value: bytes | None, producer_id: int, transactional: bool, control: bool
) -> None:
    replay = OffsetsReplay()
    with contextlib.suppress(DecodeError):
        replay.apply(0, 0, key, value, producer_id=producer_id, transactional=transactional, control=control)


@given(OTHER_KEYS, st.integers(-32768, 32767), BLOB)
def test_other_values_pass_through(key: UnknownKey, version: int, payload: bytes) -> None:
    value = UnknownValue(version, payload)
    assert decode_value(key, encode_value(value)) == value


@given(st.binary(max_size=80) | st.builds(lambda tail: b"\x00\x01" + tail, BLOB))
def test_arbitrary_keys(data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        assert encode_key(decode_key(data)) == data


@given(OFFSET_KEYS | GROUP_KEYS, st.integers(0, 4), st.binary(max_size=80))
def test_arbitrary_values(key: Key, version: int, data: bytes) -> None:
    for candidate in (data, bytes((0, version)) + data):
        with contextlib.suppress(DecodeError):
            value = decode_value(key, candidate)
            assert value is not None
            assert encode_value(value) == candidate


@given(offset_commits() | groups(), st.data())
def test_one_wrong_byte(value: OffsetCommitValue | GroupMetadataValue, data: st.DataObject) -> None:
    key: Key = OffsetCommitKey("g", "t", 0) if isinstance(value, OffsetCommitValue) else GroupMetadataKey("g")
    damaged = bytearray(encode_value(value))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError):
        decoded = decode_value(key, damaged)
        assert decoded is not None
        assert encode_value(decoded) == damaged


@given(SUBSCRIPTIONS, BLOB)
def test_member_bytes_survive_both_ways(subscription: Subscription, trailing: bytes) -> None:
    assert decode_subscription(encode_subscription(subscription) + trailing) == subscription
    for version in range(4):
        encoded = encode_subscription(replace(subscription, version=version))
        assert encode_subscription(decode_subscription(encoded)) == encoded
        assignment = Assignment(subscription.owned_partitions, subscription.user_data, version)
        assert decode_assignment(encode_assignment(assignment) + trailing) == assignment


@given(BLOB | st.builds(lambda version, tail: bytes((0, version)) + tail, st.integers(0, 9), BLOB))
def test_arbitrary_member_bytes(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(DecodeError):
            decode(data)
