"""Records of `__consumer_offsets` and `__share_group_state` as the JSON text that Kafka's console formatters
print.

The same characters as OffsetsMessageFormatter, GroupMetadataMessageFormatter and
ShareGroupStateMessageFormatter of Kafka 4.3 (org.apache.kafka.tools.consumer), and, for records of consumer,
share and streams groups, as its CoordinatorRecordJsonConverters: one object per record without blanks, the
fields of the value's version in schema order; bytes in base64, topic IDs in URL-safe base64 without padding.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final

from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    GroupRegexKey,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownValue,
    Value,
)
from korvet.offsets.share_state import ShareStateKey, ShareStateValue, decode_share_key, decode_share_value
from korvet.offsets.wire import uuid_text

# Jackson escapes only quotes, backslashes and control characters, with upper-case hexadecimal digits (the
# json module writes lower case).
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
_ESCAPES: Final = {chr(code): f"\\u{code:04X}" for code in range(0x20)} | {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}
# The topic ID that means "none": Kafka does not print it.
_ZERO_TOPIC_ID: Final = bytes(16)


def format_offset_record(key: bytes | None, value: bytes | None) -> str | None:
    """Return an offset commit as OffsetsMessageFormatter prints it, or None for a record of another type.

    Kafka's formatter stops at a value version from the future; this one prints "unknown" as its data.
    Raises DecodeError if the record is damaged.
    """
    if key is None:
        return None
    decoded = decode_key(key)
    if not isinstance(decoded, OffsetCommitKey):
        return None
    data = (
        f'{{"group":{_string(decoded.group)},"topic":{_string(decoded.topic)},'
        f'"partition":{decoded.partition}}}'
    )
    return _record(decoded.version, data, decode_value(decoded, value))


def format_group_record(key: bytes | None, value: bytes | None) -> str | None:
    """Return group metadata as GroupMetadataMessageFormatter prints it, or None for a record of another type.

    Kafka's formatter stops at a value version from the future; this one prints "unknown" as its data.
    Raises DecodeError if the record is damaged.
    """
    if key is None:
        return None
    decoded = decode_key(key)
    if not isinstance(decoded, GroupMetadataKey):
        return None
    return _record(decoded.version, f'{{"group":{_string(decoded.group)}}}', decode_value(decoded, value))


def format_newer_group_record(key: bytes | None, value: bytes | None) -> str | None:
    """Return a record of a consumer, share or streams group as Kafka's coordinator shows it; None for another
    record.

    A value version from the future is "unknown". Raises DecodeError if the record is damaged.
    """
    if key is None:
        return None
    decoded = decode_key(key)
    if not isinstance(decoded, GroupRecordKey | GroupMemberKey | GroupRegexKey):
        return None
    names = {"groupId": decoded.group}
    if isinstance(decoded, GroupMemberKey):
        names["memberId"] = decoded.member_id
    elif isinstance(decoded, GroupRegexKey):
        names["regularExpression"] = decoded.regular_expression
    return _record(decoded.version, _json(names), decode_value(decoded, value))


def format_share_state_record(key: bytes | None, value: bytes | None) -> str | None:
    """Return the state of a share group as ShareGroupStateMessageFormatter prints it, or None for a record of
    another type.

    Kafka's formatter stops at a value version from the future; this one prints "unknown" as its data.
    Raises DecodeError if the record is damaged.
    """
    if key is None:
        return None
    decoded = decode_share_key(key)
    if not isinstance(decoded, ShareStateKey):
        return None
    names = {
        "groupId": decoded.group,
        "topicId": uuid_text(decoded.topic_id),
        "partition": decoded.partition,
    }
    return _record(decoded.version, _json(names), decode_share_value(decoded, value))


def _record(key_type: int, key_data: str, value: Value | ShareStateValue | None) -> str:
    value_text = "null" if value is None else f'{{"version":{value.version},"data":{_value_data(value)}}}'
    return f'{{"key":{{"type":{key_type},"data":{key_data}}},"value":{value_text}}}'


def _value_data(value: Value | ShareStateValue) -> str:
    if isinstance(value, UnknownValue):
        return '"unknown"'
    if isinstance(value, OffsetCommitValue):
        return _offset_commit(value)
    if isinstance(value, GroupMetadataValue):
        return _group_metadata(value)
    return _json(value.LAYOUT.json(value))


def _offset_commit(value: OffsetCommitValue) -> str:
    fields = [f'"offset":{value.offset}']
    if value.version >= 3:
        fields.append(f'"leaderEpoch":{value.leader_epoch}')
    fields.append(f'"metadata":{_string(value.metadata)}')
    fields.append(f'"commitTimestamp":{value.commit_timestamp_ms}')
    if value.version == 1:
        fields.append(f'"expireTimestamp":{value.expire_timestamp_ms}')
    if value.topic_id is not None and value.topic_id != _ZERO_TOPIC_ID:
        fields.append(f'"topicId":"{uuid_text(value.topic_id)}"')
    return "{" + ",".join(fields) + "}"


def _group_metadata(value: GroupMetadataValue) -> str:
    fields = [
        f'"protocolType":{_string(value.protocol_type)}',
        f'"generation":{value.generation}',
        f'"protocol":{_string(value.protocol)}',
        f'"leader":{_string(value.leader)}',
    ]
    if value.version >= 2:
        fields.append(f'"currentStateTimestamp":{value.current_state_timestamp_ms}')
    members = ",".join(_member(member, value.version) for member in value.members)
    fields.append(f'"members":[{members}]')
    return "{" + ",".join(fields) + "}"


def _member(member: MemberMetadata, version: int) -> str:
    fields = [f'"memberId":{_string(member.member_id)}']
    if version >= 3:
        fields.append(f'"groupInstanceId":{_string(member.group_instance_id)}')
    fields.append(f'"clientId":{_string(member.client_id)}')
    fields.append(f'"clientHost":{_string(member.client_host)}')
    if version >= 1:
        fields.append(f'"rebalanceTimeout":{member.rebalance_timeout_ms}')
    fields.append(f'"sessionTimeout":{member.session_timeout_ms}')
    fields.append(f'"subscription":"{base64.b64encode(member.subscription).decode()}"')
    fields.append(f'"assignment":"{base64.b64encode(member.assignment).decode()}"')
    return "{" + ",".join(fields) + "}"


def _json(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_string(name)}:{_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return str(value) if isinstance(value, int) else _string(value)


def _string(text: str | None) -> str:
    if text is None:
        return "null"
    return '"' + _ESCAPED.sub(lambda match: _ESCAPES[match[0]], text) + '"'
