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
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    Array,
    Layout,
    Nullable,
    NullableArray,
    Struct,
    Tagged,
    TaggedNullable,
)
from korvet.offsets.schema import REGEX_KEY_TYPE

if TYPE_CHECKING:
    from korvet.offsets.wire import TaggedFields

CONSUMER, SHARE, STREAMS = "consumer", "share", "streams"


@dataclass(frozen=True, slots=True)
class TopicIdPartitions:
    """Partitions of a topic, which is named by its id (16 bytes)."""

    topic_id: bytes
    partitions: tuple[int, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class OwnedPartitions:
    """Partitions of a topic as a member has them, with the epochs they were assigned in (None: not known)."""

    topic_id: bytes
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = ()
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """Of a consumer group (type 3): its epoch, and a hash of its topics' metadata (0: none)."""

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
    """A subscribed topic as the group knew it."""

    topic_id: bytes
    topic_name: str
    num_partitions: int
    partition_metadata: tuple[PartitionRacks, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """Of a consumer group (type 4; Kafka 4.4 only removes them): its topics."""

    topics: tuple[TopicMetadata, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """A protocol that a member of the classic kind supports, with its subscription."""

    name: str
    metadata: bytes
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ClassicMember:
    """What a consumer group keeps of a member that speaks the classic protocol."""

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
    """Of any of these groups (types 6, 12, 20): the epoch of its target assignment, and when it was made."""

    assignment_epoch: int
    assignment_timestamp: int = 0
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class TargetAssignment:
    """What a member of a consumer or share group (types 7, 13) shall have."""

    topic_partitions: tuple[TopicIdPartitions, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ConsumerAssignment:
    """What a member of a consumer group (type 8) has, and what it is giving up."""

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
    """Of a share group (type 11): its epoch, and a hash of its topics' metadata."""

    epoch: int
    metadata_hash: int
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """What a member of a share group (type 14) has."""

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
    """Of a share group (type 15): whose state is being set up, is there, or is being removed."""

    initializing_topics: tuple[NamedTopicPartitions, ...]
    initialized_topics: tuple[NamedTopicPartitions, ...]
    deleting_topics: tuple[NamedTopic, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a regular expression of a consumer group (type 16) stood for, and when."""

    topics: tuple[str, ...]
    metadata_version: int
    timestamp: int
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class NameValue:
    """A key and its value."""

    key: str
    value: str
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class StreamsEpoch:
    """Of a streams group (type 17): its epochs, and the configuration its assignment was made with."""

    epoch: int
    metadata_hash: int
    validated_topology_epoch: int = -1
    last_assignment_configs: tuple[NameValue, ...] | None = ()
    stored_description_topology_epoch: int = -1
    failed_description_topology_epoch: int = -1
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a member answers interactive queries."""

    host: str
    port: int
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class StreamsMember:
    """A member of a streams group (type 19)."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topology_epoch: int
    process_id: str
    user_endpoint: Endpoint | None
    client_tags: tuple[NameValue, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class TaskIds:
    """Tasks of one subtopology."""

    subtopology_id: str
    partitions: tuple[int, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class OwnedTasks:
    """Tasks of one subtopology as a member has them, with the epochs they were assigned in."""

    subtopology_id: str
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = ()
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class TargetTasks:
    """What a member of a streams group (type 21) shall have."""

    active_tasks: tuple[TaskIds, ...]
    standby_tasks: tuple[TaskIds, ...]
    warmup_tasks: tuple[TaskIds, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class StreamsAssignment:
    """What a member of a streams group (type 22) has, and what it is giving up."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    active_tasks: tuple[OwnedTasks, ...]
    standby_tasks: tuple[OwnedTasks, ...]
    warmup_tasks: tuple[OwnedTasks, ...]
    active_tasks_pending_revocation: tuple[OwnedTasks, ...]
    standby_tasks_pending_revocation: tuple[OwnedTasks, ...]
    warmup_tasks_pending_revocation: tuple[OwnedTasks, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic that a streams application makes for itself."""

    name: str
    partitions: int
    replication_factor: int
    topic_configs: tuple[NameValue, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class CopartitionGroup:
    """Topics that must have the same number of partitions, by their index in the subtopology's lists."""

    source_topics: tuple[int, ...]
    source_topic_regex: tuple[int, ...]
    repartition_source_topics: tuple[int, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of a streams application that shares no topic with the others but by writing."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    source_topic_regex: tuple[str, ...]
    state_changelog_topics: tuple[InternalTopic, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: tuple[InternalTopic, ...]
    copartition_groups: tuple[CopartitionGroup, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class Topology:
    """Of a streams group (type 23): what its application reads and writes."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


def _layout(of: Any, **fields: Any) -> None:
    of.LAYOUT = Layout(of, fields)


_INTS, _STRINGS = Array(INT32), Array(STRING)
_EPOCHS = Tagged(0, NullableArray(INT32), ())
_TIMESTAMP = Tagged(0, INT64, 0)
_layout(TopicIdPartitions, topic_id=UUID, partitions=_INTS)
_layout(OwnedPartitions, topic_id=UUID, partitions=_INTS, assignment_epochs=_EPOCHS)
_layout(GroupEpoch, epoch=INT32, metadata_hash=Tagged(0, INT64, 0))
_layout(PartitionRacks, partition=INT32, racks=_STRINGS)
_layout(
    TopicMetadata,
    topic_id=UUID,
    topic_name=STRING,
    num_partitions=INT32,
    partition_metadata=Array(Struct(PartitionRacks)),
)
_layout(PartitionMetadata, topics=Array(Struct(TopicMetadata)))
_layout(ClassicProtocol, name=STRING, metadata=BYTES)
_layout(ClassicMember, session_timeout_ms=INT32, supported_protocols=Array(Struct(ClassicProtocol)))
_layout(
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
_layout(TargetEpoch, assignment_epoch=INT32, assignment_timestamp=_TIMESTAMP)
_layout(TargetAssignment, topic_partitions=Array(Struct(TopicIdPartitions)))
_layout(
    ConsumerAssignment,
    member_epoch=INT32,
    previous_member_epoch=INT32,
    state=INT8,
    assigned_partitions=Array(Struct(OwnedPartitions)),
    partitions_pending_revocation=Array(Struct(OwnedPartitions)),
)
_layout(
    ShareMember,
    rack_id=NULLABLE_STRING,
    client_id=STRING,
    client_host=STRING,
    subscribed_topic_names=_STRINGS,
)
_layout(ShareEpoch, epoch=INT32, metadata_hash=INT64)
_layout(
    ShareAssignment,
    member_epoch=INT32,
    previous_member_epoch=INT32,
    state=INT8,
    assigned_partitions=Array(Struct(TopicIdPartitions)),
)
_layout(NamedTopicPartitions, topic_id=UUID, topic_name=STRING, partitions=_INTS)
_layout(NamedTopic, topic_id=UUID, topic_name=STRING)
_layout(
    SharePartitions,
    initializing_topics=Array(Struct(NamedTopicPartitions)),
    initialized_topics=Array(Struct(NamedTopicPartitions)),
    deleting_topics=Array(Struct(NamedTopic)),
)
_layout(ResolvedRegex, topics=_STRINGS, metadata_version=INT64, timestamp=INT64)
_layout(NameValue, key=STRING, value=STRING)
_layout(
    StreamsEpoch,
    epoch=INT32,
    metadata_hash=INT64,
    validated_topology_epoch=Tagged(0, INT32, -1),
    last_assignment_configs=Tagged(1, NullableArray(Struct(NameValue)), ()),
    stored_description_topology_epoch=Tagged(2, INT32, -1),
    failed_description_topology_epoch=Tagged(3, INT32, -1),
)
_layout(Endpoint, host=STRING, port=UINT16)
_layout(
    StreamsMember,
    instance_id=NULLABLE_STRING,
    rack_id=NULLABLE_STRING,
    client_id=STRING,
    client_host=STRING,
    rebalance_timeout_ms=INT32,
    topology_epoch=INT32,
    process_id=STRING,
    user_endpoint=Nullable(Endpoint),
    client_tags=Array(Struct(NameValue)),
)
_layout(TaskIds, subtopology_id=STRING, partitions=_INTS)
_layout(OwnedTasks, subtopology_id=STRING, partitions=_INTS, assignment_epochs=_EPOCHS)
_TASKS, _OWNED_TASKS = Array(Struct(TaskIds)), Array(Struct(OwnedTasks))
_layout(TargetTasks, active_tasks=_TASKS, standby_tasks=_TASKS, warmup_tasks=_TASKS)
_layout(
    StreamsAssignment,
    member_epoch=INT32,
    previous_member_epoch=INT32,
    state=INT8,
    active_tasks=_OWNED_TASKS,
    standby_tasks=_OWNED_TASKS,
    warmup_tasks=_OWNED_TASKS,
    active_tasks_pending_revocation=_OWNED_TASKS,
    standby_tasks_pending_revocation=_OWNED_TASKS,
    warmup_tasks_pending_revocation=_OWNED_TASKS,
)
_layout(
    InternalTopic,
    name=STRING,
    partitions=INT32,
    replication_factor=INT16,
    topic_configs=Array(Struct(NameValue)),
)
_INDEXES = Array(INT16)
_layout(
    CopartitionGroup,
    source_topics=_INDEXES,
    source_topic_regex=_INDEXES,
    repartition_source_topics=_INDEXES,
)
_layout(
    Subtopology,
    subtopology_id=STRING,
    source_topics=_STRINGS,
    source_topic_regex=_STRINGS,
    state_changelog_topics=Array(Struct(InternalTopic)),
    repartition_sink_topics=_STRINGS,
    repartition_source_topics=Array(Struct(InternalTopic)),
    copartition_groups=Array(Struct(CopartitionGroup)),
)
_layout(Topology, epoch=INT32, subtopologies=Array(Struct(Subtopology)))

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


def group_type(key_type: int) -> str:
    """The kind of group that records of this type (3 to 23) belong to."""
    if key_type < 10 or key_type == REGEX_KEY_TYPE:
        return CONSUMER
    return SHARE if key_type < REGEX_KEY_TYPE else STREAMS
