"""The values of consumer (KIP-848), share (KIP-932) and streams (KIP-1071) groups as data.

Key types 3 to 8, 10 to 17 and 19 to 23 of Kafka 4.4; 9 and 18 are no longer written and pass as unknown.
Values are flexible (KIP-482) and have version 0 only. `unknown_tags` keeps tagged fields that we do not know,
and known ones that a writer spelled out although they have their default, so that every record encodes to the
bytes that it came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from korvet.offsets.fields import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    Array,
    Layout,
    NullableArray,
    Struct,
    Tagged,
    TaggedNullable,
    lay_out,
)
from korvet.offsets.streams_records import (
    StreamsAssignment,
    StreamsEpoch,
    StreamsMember,
    TargetTasks,
    Topology,
)

if TYPE_CHECKING:
    from korvet.offsets.wire import TaggedFields


@dataclass(frozen=True, slots=True)
class TopicIdPartitions:
    """Partitions of a topic, which is named by its id (16 bytes)."""

    topic_id: bytes
    partitions: tuple[int, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class OwnedPartitions:
    """Partitions of a topic that a member owns, with the epochs of their assignment (None: unknown)."""

    topic_id: bytes
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = ()
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """The epoch of a consumer group (type 3), and a hash of its topics' metadata (0: none)."""

    epoch: int
    metadata_hash: int = 0
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class PartitionRacks:
    """The racks that hold a partition."""

    partition: int
    racks: tuple[str, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """The metadata of a subscribed topic that the group used."""

    topic_id: bytes
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionRacks, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The topics of a consumer group (type 4; Kafka 4.4 only removes these records)."""

    topics: tuple[TopicMetadata, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """A protocol that a member with the classic protocol supports, and its subscription."""

    name: str
    metadata: bytes
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """The state that a consumer group keeps for a member with the classic protocol."""

    session_timeout_ms: int = 0
    supported_protocols: tuple[ClassicProtocol, ...] = ()
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of a consumer group (type 5) and its subscription."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic_member_metadata: ClassicMember | None = None
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """The epoch of a group's target assignment (types 6, 12, 20), and when it was computed (ms)."""

    assignment_epoch: int
    assignment_timestamp: int = 0
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """The target assignment of a member of a consumer or share group (types 7, 13)."""

    topic_partitions: tuple[TopicIdPartitions, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ConsumerAssignment:
    """The assignment of a member of a consumer group (type 8), and the partitions that it is revoking."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[OwnedPartitions, ...]
    partitions_pending_revocation: tuple[OwnedPartitions, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ShareMember:
    """A member of a share group (type 10) and its subscription."""

    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ShareEpoch:
    """The epoch of a share group (type 11), and a hash of its topics' metadata."""

    epoch: int
    metadata_hash: int
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """The current assignment of a member of a share group (type 14)."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    assigned_partitions: tuple[TopicIdPartitions, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class NamedTopicPartitions:
    """Partitions of a topic by id and name."""

    topic_id: bytes
    topic_name: str
    partitions: tuple[int, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class NamedTopic:
    """A topic by id and name."""

    topic_id: bytes
    topic_name: str
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class SharePartitions:
    """The partitions of a share group (type 15) whose state is initializing, initialized or being deleted."""

    initializing_topics: tuple[NamedTopicPartitions, ...]
    initialized_topics: tuple[NamedTopicPartitions, ...]
    deleting_topics: tuple[NamedTopic, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression of a consumer group (type 16) matched, and when (ms)."""

    topics: tuple[str, ...]
    metadata_version: int
    timestamp: int
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


_INTS, _STRINGS = Array(INT32), Array(STRING)
_EPOCHS = Tagged(0, NullableArray(INT32), ())
_TIMESTAMP = Tagged(0, INT64, 0)
lay_out(TopicIdPartitions, topic_id=UUID, partitions=_INTS)
lay_out(OwnedPartitions, topic_id=UUID, partitions=_INTS, assignment_epochs=_EPOCHS)
lay_out(GroupEpoch, epoch=INT32, metadata_hash=Tagged(0, INT64, 0))
lay_out(PartitionRacks, partition=INT32, racks=_STRINGS)
lay_out(
    TopicMetadata,
    topic_id=UUID,
    topic_name=STRING,
    num_partitions=INT32,
    partition_metadata=Array(Struct(PartitionRacks)),
)
lay_out(PartitionMetadata, topics=Array(Struct(TopicMetadata)))
lay_out(ClassicProtocol, name=STRING, metadata=BYTES)
lay_out(ClassicMember, session_timeout_ms=INT32, supported_protocols=Array(Struct(ClassicProtocol)))
lay_out(
    ConsumerMember,
    instance_id=NULLABLE_STRING,
    rack_id=NULLABLE_STRING,
    client_id=STRING,
    client_host=STRING,
    subscribed_topic_names=_STRINGS,
    subscribed_topic_regex=NULLABLE_STRING,
    rebalance_timeout_ms=INT32,
    server_assignor=NULLABLE_STRING,
    classic_member_metadata=Tagged(0, TaggedNullable(ClassicMember), ClassicMember()),
)
lay_out(TargetEpoch, assignment_epoch=INT32, assignment_timestamp=_TIMESTAMP)
lay_out(TargetAssignment, topic_partitions=Array(Struct(TopicIdPartitions)))
lay_out(
    ConsumerAssignment,
    member_epoch=INT32,
    previous_member_epoch=INT32,
    state=INT8,
    assigned_partitions=Array(Struct(OwnedPartitions)),
    partitions_pending_revocation=Array(Struct(OwnedPartitions)),
)
lay_out(
    ShareMember,
    rack_id=NULLABLE_STRING,
    client_id=STRING,
    client_host=STRING,
    subscribed_topic_names=_STRINGS,
)
lay_out(ShareEpoch, epoch=INT32, metadata_hash=INT64)
lay_out(
    ShareAssignment,
    member_epoch=INT32,
    previous_member_epoch=INT32,
    state=INT8,
    assigned_partitions=Array(Struct(TopicIdPartitions)),
)
lay_out(NamedTopicPartitions, topic_id=UUID, topic_name=STRING, partitions=_INTS)
lay_out(NamedTopic, topic_id=UUID, topic_name=STRING)
lay_out(
    SharePartitions,
    initializing_topics=Array(Struct(NamedTopicPartitions)),
    initialized_topics=Array(Struct(NamedTopicPartitions)),
    deleting_topics=Array(Struct(NamedTopic)),
)
lay_out(ResolvedRegex, topics=_STRINGS, metadata_version=INT64, timestamp=INT64)
GroupRecordValue = (
    GroupEpoch
    | PartitionMetadata
    | ConsumerMember
    | TargetEpoch
    | TargetAssignment
    | ConsumerAssignment
    | ShareMember
    | ShareEpoch
    | ShareAssignment
    | SharePartitions
    | ResolvedRegex
    | StreamsEpoch
    | StreamsMember
    | TargetTasks
    | StreamsAssignment
    | Topology
)
VALUE_TYPES: Final[dict[int, type[Any]]] = {
    3: GroupEpoch,
    4: PartitionMetadata,
    5: ConsumerMember,
    6: TargetEpoch,
    7: TargetAssignment,
    8: ConsumerAssignment,
    10: ShareMember,
    11: ShareEpoch,
    12: TargetEpoch,
    13: TargetAssignment,
    14: ShareAssignment,
    15: SharePartitions,
    16: ResolvedRegex,
    17: StreamsEpoch,
    19: StreamsMember,
    20: TargetEpoch,
    21: TargetTasks,
    22: StreamsAssignment,
    23: Topology,
}
"""The value of each record type, in its only version."""
