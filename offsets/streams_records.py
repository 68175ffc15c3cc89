"""Records of streams groups (KIP-1071) in `__consumer_offsets`: types 17 and 19 to 23 of Kafka 4.4.

`unknown_tags` is explained in korvet.offsets.group_records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from korvet.offsets.fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    Array,
    Layout,
    Nullable,
    NullableArray,
    Struct,
    Tagged,
    lay_out,
)

if TYPE_CHECKING:
    from korvet.offsets.wire import TaggedFields


@dataclass(frozen=True, slots=True)
class NameValue:
    """A key and its value."""

    key: str
    value: str
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class StreamsEpoch:
    """The epochs of a streams group (type 17), and the configuration of its last assignment."""

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
    """The address at which a member answers interactive queries."""

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
    """Tasks of one subtopology that a member owns, and the epochs in which they were assigned."""

    subtopology_id: str
    partitions: tuple[int, ...]
    assignment_epochs: tuple[int, ...] | None = ()
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class TargetTasks:
    """The target assignment of a member of a streams group (type 21)."""

    active_tasks: tuple[TaskIds, ...]
    standby_tasks: tuple[TaskIds, ...]
    warmup_tasks: tuple[TaskIds, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class StreamsAssignment:
    """The current assignment of a member of a streams group (type 22), and the tasks that it is revoking."""

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
    """A topic that a streams application creates for itself."""

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
    """A part of a streams application that shares only topics that it writes with the other parts."""

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
    """The topology of a streams group (type 23): what its application reads and writes."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]
    version: int = 0
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


_INTS, _STRINGS = Array(INT32), Array(STRING)
_EPOCHS = Tagged(0, NullableArray(INT32), ())
lay_out(NameValue, key=STRING, value=STRING)
lay_out(
    StreamsEpoch,
    epoch=INT32,
    metadata_hash=INT64,
    validated_topology_epoch=Tagged(0, INT32, -1),
    last_assignment_configs=Tagged(1, NullableArray(Struct(NameValue)), ()),
    stored_description_topology_epoch=Tagged(2, INT32, -1),
    failed_description_topology_epoch=Tagged(3, INT32, -1),
)
lay_out(Endpoint, host=STRING, port=UINT16)
lay_out(
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
lay_out(TaskIds, subtopology_id=STRING, partitions=_INTS)
lay_out(OwnedTasks, subtopology_id=STRING, partitions=_INTS, assignment_epochs=_EPOCHS)
_TASKS, _OWNED_TASKS = Array(Struct(TaskIds)), Array(Struct(OwnedTasks))
lay_out(TargetTasks, active_tasks=_TASKS, standby_tasks=_TASKS, warmup_tasks=_TASKS)
lay_out(
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
lay_out(
    InternalTopic,
    name=STRING,
    partitions=INT32,
    replication_factor=INT16,
    topic_configs=Array(Struct(NameValue)),
)
_INDEXES = Array(INT16)
lay_out(
    CopartitionGroup,
    source_topics=_INDEXES,
    source_topic_regex=_INDEXES,
    repartition_source_topics=_INDEXES,
)
lay_out(
    Subtopology,
    subtopology_id=STRING,
    source_topics=_STRINGS,
    source_topic_regex=_STRINGS,
    state_changelog_topics=Array(Struct(InternalTopic)),
    repartition_sink_topics=_STRINGS,
    repartition_source_topics=Array(Struct(InternalTopic)),
    copartition_groups=Array(Struct(CopartitionGroup)),
)
lay_out(Topology, epoch=INT32, subtopologies=Array(Struct(Subtopology)))
