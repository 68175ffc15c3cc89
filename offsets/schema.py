"""The records of `__consumer_offsets` as data.

Field order and meaning are those of Kafka's coordinator schemas (OffsetCommitKey, OffsetCommitValue,
GroupMetadataKey, GroupMetadataValue; the values of newer groups are in korvet.offsets.group_records).
`version` is the wire version that a record was decoded from and will
be encoded to; for keys it doubles as the record type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from korvet.offsets.record_types import REGEX_KEY_TYPE

if TYPE_CHECKING:
    from korvet.offsets.group_records import GroupRecordValue
    from korvet.offsets.wire import TaggedFields


@dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    """Names one committed offset (schema OffsetCommitKey, version 1; version 0 has the same layout)."""

    group: str
    topic: str
    partition: int
    version: int = 1


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    """A committed offset: "next read is `offset`" (schema OffsetCommitValue, versions 0 to 4).

    leader_epoch (-1: none) is on the wire from version 3, expire_timestamp_ms (-1: by the broker's retention)
    in version 1 only, topic_id (16 bytes, None: absent) and unknown tagged fields from version 4.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp_ms: int = 0
    expire_timestamp_ms: int = -1
    topic_id: bytes | None = None
    version: int = 3
    unknown_tags: TaggedFields = ()


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    """Names the state of one classic group (schema GroupMetadataKey, version 2)."""

    group: str
    version: int = 2


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """One member in a GroupMetadataValue.

    group_instance_id (static members, KIP-345) is on the wire from version 3, rebalance_timeout_ms from
    version 1: a decoded version 0 repeats session_timeout_ms there, as Kafka does. subscription and
    assignment are the members' own bytes; see korvet.offsets.consumer_protocol.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes
    unknown_tags: TaggedFields = ()


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    """The state of one classic group (schema GroupMetadataValue, versions 0 to 4; Kafka writes 3).

    current_state_timestamp_ms (-1: unknown) is on the wire from version 2, unknown tagged fields from version
    4.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]
    version: int = 3
    unknown_tags: TaggedFields = ()


@dataclass(frozen=True, slots=True)
class GroupRecordKey:
    """Names a property of one group; `version` is the record type."""

    group: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupMemberKey:
    """Names a property of one member of a group; `version` is the record type."""

    group: str
    member_id: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupRegexKey:
    """Names a regular expression that members of a consumer group subscribe by."""

    group: str
    regular_expression: str
    version: int = REGEX_KEY_TYPE


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key of a record type that Kafka 4.4 does not write: its type, then the other bytes."""

    version: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """A value of an unknown record type or of a future version: its version, then the other bytes."""

    version: int
    payload: bytes


Key: TypeAlias = (
    OffsetCommitKey | GroupMetadataKey | GroupRecordKey | GroupMemberKey | GroupRegexKey | UnknownKey
)
Value: TypeAlias = "OffsetCommitValue | GroupMetadataValue | GroupRecordValue | UnknownValue"
