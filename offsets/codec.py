"""Keys and values of `__consumer_offsets` in Kafka's binary format.

Offset commits (key version 0 and 1, value versions 0 to 4), classic group metadata (key version 2, value
versions 0 to 4) and the records of consumer, share and streams groups (key versions 3 to 8, 10 to 17, 19 to
23, value version 0) are decoded; every other record type and future value versions pass through as UnknownKey
and UnknownValue. Decoding is strict: left-over bytes and non-canonical encodings are damage, so
encode(decode(x)) == x always.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

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
from korvet.offsets.wire import DecodeError, EncodeError, Reader, TaggedFields, Writer

if TYPE_CHECKING:
    from collections.abc import Container

__all__ = [
    "DecodeError",
    "EncodeError",
    "decode_key",
    "decode_value",
    "encode_key",
    "encode_value",
    "plain_commit_offset",
]

OFFSET_COMMIT_KEY_VERSIONS: Final = (0, 1)
GROUP_METADATA_KEY_VERSION: Final = 2
MAX_OFFSET_COMMIT_VALUE_VERSION: Final = 4
MAX_GROUP_METADATA_VALUE_VERSION: Final = 4
GROUP_RECORD_VALUE_VERSION: Final = 0
NEWER_KEYS: Final = (GroupRecordKey, GroupMemberKey, GroupRegexKey)
# KIP-915: from here on values are flexible (compact lengths, tagged fields), in both schemas.
FLEXIBLE_VALUE_VERSION: Final = 4

_TOPIC_ID_TAG: Final = 0
_TOPIC_ID_BYTES: Final = 16


# Nearly all records are OffsetCommitKey and OffsetCommitValue version 3, which are decoded in one step each.
# Other records are decoded field by field below, which also names what is wrong with a damaged one.
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_KEY_HEAD: Final = struct.Struct(">hh")
_VALUE_HEAD: Final = struct.Struct(">hqih")
_COMMON_VALUE_VERSION: Final = 3
_PLAIN_VERSION: Final = b"\x00\x03"
_PLAIN_VALUE_BYTES: Final = 24


def decode_key(data: bytes | bytearray | memoryview) -> Key:
    """Decode a record key. Raises DecodeError if it is empty or damaged; unknown types are no error."""
    if type(data) is bytes:
        key = _decode_commit_key(data)
        if key is not None:
            return key
    return _decode_key(data)


def _decode_commit_key(data: bytes) -> OffsetCommitKey | None:
    try:
        version, group_bytes = _KEY_HEAD.unpack_from(data)
        if version not in OFFSET_COMMIT_KEY_VERSIONS or group_bytes < 0:
            return None
        topic_at = 6 + group_bytes
        (topic_bytes,) = _INT16.unpack_from(data, topic_at - 2)
        end = topic_at + topic_bytes
        if topic_bytes < 0 or len(data) != end + 4:
            return None
        (partition,) = _INT32.unpack_from(data, end)
        group, topic = data[4 : topic_at - 2].decode(), data[topic_at:end].decode()
        return OffsetCommitKey(group, topic, partition, version)
    except (struct.error, UnicodeDecodeError):
        return None


def _decode_key(data: bytes | bytearray | memoryview) -> Key:
    reader = Reader(data)
    version = reader.int16()
    key: Key
    if version in OFFSET_COMMIT_KEY_VERSIONS:
        key = OffsetCommitKey(reader.string("group"), reader.string("topic"), reader.int32(), version)
    elif version == GROUP_METADATA_KEY_VERSION:
        key = GroupMetadataKey(reader.string("group"), version)
    elif version in GROUP_KEY_TYPES:
        key = GroupRecordKey(reader.string("group"), version)
    elif version in MEMBER_KEY_TYPES:
        key = GroupMemberKey(reader.string("group"), reader.string("member id"), version)
    elif version == REGEX_KEY_TYPE:
        key = GroupRegexKey(reader.string("group"), reader.string("regular expression"), version)
    else:
        key = UnknownKey(version, reader.rest())
    reader.finish()
    return key


def encode_key(key: Key) -> bytes:
    """Encode a record key in its own version.

    Raises EncodeError if a field does not fit, or the version is not one of this key type.
    """
    if isinstance(key, OffsetCommitKey) and key.version in OFFSET_COMMIT_KEY_VERSIONS:
        encoded = _encode_commit_key(key)
        if encoded is not None:
            return encoded
    return _encode_key(key)


def _encode_commit_key(key: OffsetCommitKey) -> bytes | None:
    try:
        group, topic = key.group.encode(), key.topic.encode()
        head = _KEY_HEAD.pack(key.version, len(group)) + group
        return head + _INT16.pack(len(topic)) + topic + _INT32.pack(key.partition)
    except (struct.error, UnicodeEncodeError):
        return None


def _encode_key(key: Key) -> bytes:
    writer = Writer()
    writer.int16(key.version, "key version")
    if isinstance(key, OffsetCommitKey):
        _check_version(key.version, OFFSET_COMMIT_KEY_VERSIONS, "OffsetCommitKey")
        writer.string(key.group, "group")
        writer.string(key.topic, "topic")
        writer.int32(key.partition, "partition")
    elif isinstance(key, GroupMetadataKey):
        _check_version(key.version, (GROUP_METADATA_KEY_VERSION,), "GroupMetadataKey")
        writer.string(key.group, "group")
    elif isinstance(key, UnknownKey):
        writer.raw(key.payload)
    else:
        _encode_group_record_key(writer, key)
    return writer.done()


def _encode_group_record_key(writer: Writer, key: GroupRecordKey | GroupMemberKey | GroupRegexKey) -> None:
    writer.string(key.group, "group")
    if isinstance(key, GroupRecordKey):
        _check_version(key.version, GROUP_KEY_TYPES, "GroupRecordKey")
    elif isinstance(key, GroupMemberKey):
        _check_version(key.version, MEMBER_KEY_TYPES, "GroupMemberKey")
        writer.string(key.member_id, "member id")
    else:
        _check_version(key.version, (REGEX_KEY_TYPE,), "GroupRegexKey")
        writer.string(key.regular_expression, "regular expression")


def decode_value(key: Key, data: bytes | bytearray | memoryview | None) -> Value | None:
    """Decode the value of the record with this key; None, a tombstone, stays None.

    Raises DecodeError if it is damaged. The value of an UnknownKey, and a version that Kafka 4.4 does not
    know, are returned as UnknownValue.
    """
    if data is None:
        return None
    if type(data) is bytes and isinstance(key, OffsetCommitKey):
        value = _decode_commit_value(data)
        if value is not None:
            return value
    return _decode_value(key, data)


def _decode_commit_value(data: bytes) -> OffsetCommitValue | None:
    try:
        version, offset, leader_epoch, metadata_bytes = _VALUE_HEAD.unpack_from(data)
        if version != _COMMON_VALUE_VERSION or metadata_bytes < 0 or len(data) != 24 + metadata_bytes:
            return None
        (commit_timestamp_ms,) = _INT64.unpack_from(data, 16 + metadata_bytes)
        metadata = data[16 : 16 + metadata_bytes].decode() if metadata_bytes else ""
        return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp_ms)
    except (struct.error, UnicodeDecodeError):
        return None


def plain_commit_offset(data: bytes) -> int | None:
    """The offset in an OffsetCommitValue of version 3 without metadata, as nearly all are; None for any other
    value, damaged or not.
    """
    if len(data) != _PLAIN_VALUE_BYTES or not data.startswith(_PLAIN_VERSION) or data[14:16] != b"\0\0":
        return None
    offset: int = _INT64.unpack_from(data, 2)[0]
    return offset


def _decode_value(key: Key, data: bytes | bytearray | memoryview) -> Value:
    reader = Reader(data)
    version = reader.int16()
    value: Value
    if isinstance(key, OffsetCommitKey) and 0 <= version <= MAX_OFFSET_COMMIT_VALUE_VERSION:
        value = _decode_offset_commit(reader, version)
    elif isinstance(key, GroupMetadataKey) and 0 <= version <= MAX_GROUP_METADATA_VALUE_VERSION:
        value = _decode_group_metadata(reader, version)
    elif version == GROUP_RECORD_VALUE_VERSION and isinstance(key, NEWER_KEYS):
        value = _decode_group_record(reader, key.version)
    else:
        value = UnknownValue(version, reader.rest())
    reader.finish()
    return value


def _decode_group_record(reader: Reader, record_type: int) -> Value:
    # Making its classes takes longer than all other imports of this package, and a broker without such groups
    # does not need them.
    from korvet.offsets.group_records import VALUE_TYPES  # noqa: PLC0415

    value: Value = VALUE_TYPES[record_type].LAYOUT.read(reader)
    return value


def encode_value(value: Value) -> bytes:
    """Encode a record value in its own version.

    Fields that the version does not have are left out, as Kafka does with ignorable fields. Raises
    EncodeError if a field does not fit (a string above 32,767 bytes, a null that is not allowed, tagged
    fields before version 4), or the version is not one of this value type.
    """
    if isinstance(value, OffsetCommitValue) and value.version == _COMMON_VALUE_VERSION:
        encoded = _encode_commit_value(value)
        if encoded is not None:
            return encoded
    return _encode_value(value)


def _encode_commit_value(value: OffsetCommitValue) -> bytes | None:
    if value.unknown_tags or not isinstance(value.metadata, str):
        return None
    try:
        metadata = value.metadata.encode()
        head = _VALUE_HEAD.pack(value.version, value.offset, value.leader_epoch, len(metadata))
        return head + metadata + _INT64.pack(value.commit_timestamp_ms)
    except (struct.error, UnicodeEncodeError):
        return None


def _encode_value(value: Value) -> bytes:
    writer = Writer()
    writer.int16(value.version, "value version")
    if isinstance(value, OffsetCommitValue):
        _encode_offset_commit(writer, value)
    elif isinstance(value, GroupMetadataValue):
        _encode_group_metadata(writer, value)
    elif isinstance(value, UnknownValue):
        writer.raw(value.payload)
    else:
        _check_version(value.version, (GROUP_RECORD_VALUE_VERSION,), type(value).__name__)
        value.LAYOUT.write(writer, value)
    return writer.done()


def _decode_offset_commit(reader: Reader, version: int) -> OffsetCommitValue:
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string("metadata", compact=version >= FLEXIBLE_VALUE_VERSION)
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else -1
    tags = reader.tagged_fields() if version >= FLEXIBLE_VALUE_VERSION else ()
    topic_id = None
    # Tags ascend, so the topic id can only be the first.
    if tags and tags[0][0] == _TOPIC_ID_TAG:
        topic_id, tags = tags[0][1], tags[1:]
        if len(topic_id) != _TOPIC_ID_BYTES:
            raise DecodeError(f"the topic id has {len(topic_id)} bytes instead of {_TOPIC_ID_BYTES}")
    return OffsetCommitValue(
        offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id, version, tags
    )


def _encode_offset_commit(writer: Writer, value: OffsetCommitValue) -> None:
    _check_version(value.version, range(MAX_OFFSET_COMMIT_VALUE_VERSION + 1), "OffsetCommitValue")
    flexible = value.version >= FLEXIBLE_VALUE_VERSION
    writer.int64(value.offset, "offset")
    if value.version >= 3:
        writer.int32(value.leader_epoch, "leader epoch")
    writer.string(value.metadata, "metadata", compact=flexible)
    writer.int64(value.commit_timestamp_ms, "commit timestamp")
    if value.version == 1:
        writer.int64(value.expire_timestamp_ms, "expire timestamp")
    tags = value.unknown_tags
    if flexible and value.topic_id is not None:
        if len(value.topic_id) != _TOPIC_ID_BYTES:
            raise EncodeError(f"the topic id has {len(value.topic_id)} bytes instead of {_TOPIC_ID_BYTES}")
        tags = ((_TOPIC_ID_TAG, value.topic_id), *tags)
    elif tags and tags[0][0] == _TOPIC_ID_TAG:
        raise EncodeError(f"tag {_TOPIC_ID_TAG} is the topic id, not an unknown tag")
    _encode_tags(writer, value.version, tags)


def _decode_group_metadata(reader: Reader, version: int) -> GroupMetadataValue:
    flexible = version >= FLEXIBLE_VALUE_VERSION
    protocol_type = reader.string("protocol type", compact=flexible)
    generation = reader.int32()
    protocol = reader.nullable_string("protocol", compact=flexible)
    leader = reader.nullable_string("leader", compact=flexible)
    timestamp_ms = reader.int64() if version >= 2 else -1
    count = reader.array_length("members", compact=flexible)
    members = tuple(_decode_member(reader, version) for _ in range(count))
    tags = reader.tagged_fields() if flexible else ()
    return GroupMetadataValue(
        protocol_type, generation, protocol, leader, timestamp_ms, members, version, tags
    )


def _decode_member(reader: Reader, version: int) -> MemberMetadata:
    flexible = version >= FLEXIBLE_VALUE_VERSION
    member_id = reader.string("member id", compact=flexible)
    instance_id = reader.nullable_string("group instance id", compact=flexible) if version >= 3 else None
    client_id = reader.string("client id", compact=flexible)
    client_host = reader.string("client host", compact=flexible)
    rebalance_timeout_ms = reader.int32() if version >= 1 else None
    session_timeout_ms = reader.int32()
    return MemberMetadata(
        member_id,
        instance_id,
        client_id,
        client_host,
        session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms,
        reader.blob("subscription", compact=flexible),
        reader.blob("assignment", compact=flexible),
        reader.tagged_fields() if flexible else (),
    )


def _encode_group_metadata(writer: Writer, value: GroupMetadataValue) -> None:
    _check_version(value.version, range(MAX_GROUP_METADATA_VALUE_VERSION + 1), "GroupMetadataValue")
    flexible = value.version >= FLEXIBLE_VALUE_VERSION
    writer.string(value.protocol_type, "protocol type", compact=flexible)
    writer.int32(value.generation, "generation")
    writer.nullable_string(value.protocol, "protocol", compact=flexible)
    writer.nullable_string(value.leader, "leader", compact=flexible)
    if value.version >= 2:
        writer.int64(value.current_state_timestamp_ms, "current state timestamp")
    writer.array_length(len(value.members), "members", compact=flexible)
    for member in value.members:
        _encode_member(writer, member, value.version)
    _encode_tags(writer, value.version, value.unknown_tags)


def _encode_member(writer: Writer, member: MemberMetadata, version: int) -> None:
    flexible = version >= FLEXIBLE_VALUE_VERSION
    writer.string(member.member_id, "member id", compact=flexible)
    if version >= 3:
        writer.nullable_string(member.group_instance_id, "group instance id", compact=flexible)
    writer.string(member.client_id, "client id", compact=flexible)
    writer.string(member.client_host, "client host", compact=flexible)
    if version >= 1:
        writer.int32(member.rebalance_timeout_ms, "rebalance timeout")
    writer.int32(member.session_timeout_ms, "session timeout")
    writer.blob(member.subscription, "subscription", compact=flexible)
    writer.blob(member.assignment, "assignment", compact=flexible)
    _encode_tags(writer, version, member.unknown_tags)


def _encode_tags(writer: Writer, version: int, tags: TaggedFields) -> None:
    if version >= FLEXIBLE_VALUE_VERSION:
        writer.tagged_fields(tags)
    elif tags:
        raise EncodeError(f"version {version} has no tagged fields")


def _check_version(version: int, known: Container[int], schema: str) -> None:
    if version not in known:
        raise EncodeError(f"{schema} has no version {version}")
