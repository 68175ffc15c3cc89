"""The input and output of a group shard: requests, replies, and the outcome of handling one.

Fields have the meaning of Kafka's message schemas of the same APIs. What depends on a request's version is a
flag here, so that nothing in this package knows version numbers. Replies use None for an absent string; the
protocol rim turns that into "" if a version has no null.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from kio.schema.errors import ErrorCode

from korvet.groups.consumer.messages import ConsumerDescribeReply, MemberHeartbeatReply
from korvet.groups.share.messages import (
    Initialisation,
    ShareDescribeReply,
    StatesReply,
)

if TYPE_CHECKING:
    from korvet.offsets.schema import Key, Value


Record: TypeAlias = "tuple[Key, Value | None]"


"""A record to append: its key, and its value or None for a tombstone."""


Token: TypeAlias = Hashable


"""The caller's name for a waiting request; unique among waiting requests."""


NO_GENERATION = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1
NO_RETENTION = -1


class JoinProtocol(msgspec.Struct, frozen=True):
    """One assignment protocol that a member supports, and the member's subscription in it."""

    name: str
    metadata: bytes


class JoinRequest(msgspec.Struct, frozen=True):
    """JoinGroup (v0 to v9).

    rebalance_timeout_ms: -1 if the version has none (v0); the session timeout counts instead. client_host: as
    Kafka writes it, "/" and the address. needs_member_id: a dynamic member must return with the member id
    that it received (KIP-394, v4 and above). can_skip_assignment: a restarted static leader may receive the
    members without having to assign (KIP-814, v9 and above).
    """

    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[JoinProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    group_instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    needs_member_id: bool = False
    can_skip_assignment: bool = False


class JoinMember(msgspec.Struct, frozen=True):
    """A member for the leader: its subscription in the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinReply(msgspec.Struct, frozen=True):
    """The answer to a JoinRequest; members are given to the leader only."""

    error: ErrorCode
    member_id: str = ""
    generation_id: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinMember, ...] = ()


class SyncAssignment(msgspec.Struct, frozen=True):
    """The leader's assignment for one member."""

    member_id: str
    assignment: bytes


class SyncRequest(msgspec.Struct, frozen=True):
    """SyncGroup (v0 to v5); protocol type and name are None below v5 (KIP-559)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[SyncAssignment, ...] = ()


class SyncReply(msgspec.Struct, frozen=True):
    """The answer to a SyncRequest."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatRequest(msgspec.Struct, frozen=True):
    """Heartbeat (v0 to v4)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatReply(msgspec.Struct, frozen=True):
    """The answer to a HeartbeatRequest."""

    error: ErrorCode


class LeavingMember(msgspec.Struct, frozen=True):
    """A member to remove: a member id, or with member_id "" a group instance id (an administrator's
    request).
    """

    member_id: str
    group_instance_id: str | None = None


class LeaveRequest(msgspec.Struct, frozen=True):
    """LeaveGroup (v0 to v5; v0 to v2 name one member)."""

    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(msgspec.Struct, frozen=True):
    """The result for one LeavingMember."""

    member_id: str
    group_instance_id: str | None
    error: ErrorCode


class LeaveReply(msgspec.Struct, frozen=True):
    """The answer to a LeaveRequest; members in the order of the request."""

    error: ErrorCode
    members: tuple[LeftMember, ...] = ()

    @property
    def first_error(self) -> ErrorCode:
        """The one error of versions 0 to 2, which have no list of members."""
        if self.error is not ErrorCode.none or not self.members:
            return self.error
        return self.members[0].error


class CommitPartition(msgspec.Struct, frozen=True, gc=False):
    """An offset to commit.

    refusal: an error found outside the group (an unknown topic, a missing permission); it is returned
    whatever the group's own checks find, and nothing is written.
    """

    partition: int
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = None
    refusal: ErrorCode = ErrorCode.none


class CommitTopic(msgspec.Struct, frozen=True, gc=False):
    """The offsets to commit for one topic; topic_id (16 bytes) is written in OffsetCommitValue version 4."""

    name: str
    partitions: tuple[CommitPartition, ...]
    topic_id: bytes | None = None


class CommitRequest(msgspec.Struct, frozen=True):
    """OffsetCommit (v2 to v10).

    retention_time_ms: -1 for the broker's retention; only v2 to v4 have other values. knows_member_epochs: v9
    and above, which members of consumer groups must use (KIP-848), and TxnOffsetCommit v6 and above; a fenced
    commit to an unknown group is then GROUP_ID_NOT_FOUND instead of ILLEGAL_GENERATION. producer: id and
    epoch of a TxnOffsetCommit, which all members may use.
    """

    group_id: str
    topics: tuple[CommitTopic, ...]
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = NO_RETENTION
    knows_member_epochs: bool = False
    producer: tuple[int, int] | None = None


class PartitionResult(msgspec.Struct, frozen=True, gc=False):
    """The error of one partition."""

    partition: int
    error: ErrorCode


class TopicResult(msgspec.Struct, frozen=True):
    """The errors of one topic's partitions, in the order of the request."""

    name: str
    partitions: tuple[PartitionResult, ...]
    topic_id: bytes | None = None


class CommitReply(msgspec.Struct, frozen=True):
    """The answer to a CommitRequest: topics and partitions in the order of the request."""

    topics: tuple[TopicResult, ...]


class FetchTopic(msgspec.Struct, frozen=True):
    """The partitions of one topic in an OffsetFetch."""

    name: str
    partitions: tuple[int, ...]
    topic_id: bytes | None = None


class FetchRequest(msgspec.Struct, frozen=True):
    """One group of an OffsetFetch (v1 to v10); topics None asks for all offsets of the group.

    member_id and member_epoch (v9 and above) are checked for consumer groups only; None and -1 if absent.
    """

    group_id: str
    topics: tuple[FetchTopic, ...] | None = None
    require_stable: bool = False
    member_id: str | None = None
    member_epoch: int = NO_GENERATION


class FetchedPartition(msgspec.Struct, frozen=True):
    """A committed offset, or -1 with metadata "" if there is none."""

    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    error: ErrorCode = ErrorCode.none


class FetchedTopic(msgspec.Struct, frozen=True):
    """The committed offsets of one topic."""

    name: str
    partitions: tuple[FetchedPartition, ...]
    topic_id: bytes | None = None


class FetchReply(msgspec.Struct, frozen=True):
    """The answer to a FetchRequest."""

    group_id: str
    error: ErrorCode
    topics: tuple[FetchedTopic, ...] = ()


class DescribeRequest(msgspec.Struct, frozen=True):
    """DescribeGroups (v0 to v6); knows_group_id_not_found: v6 and above (KIP-1043)."""

    group_ids: tuple[str, ...]
    knows_group_id_not_found: bool = False


class DescribedMember(msgspec.Struct, frozen=True):
    """A member of a described group; metadata is given only while the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(msgspec.Struct, frozen=True):
    """A described group; a group that does not exist is "Dead"."""

    group_id: str
    error: ErrorCode
    error_message: str | None
    state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedMember, ...]


class DescribeReply(msgspec.Struct, frozen=True):
    """The answer to a DescribeRequest, in its order."""

    groups: tuple[DescribedGroup, ...]


class ListRequest(msgspec.Struct, frozen=True):
    """ListGroups (v0 to v5): states (KIP-518) and types (KIP-848) to list; empty lists all;
    case-insensitive.
    """

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class ListedGroup(msgspec.Struct, frozen=True):
    """A listed group."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class ListReply(msgspec.Struct, frozen=True):
    """The answer to a ListRequest."""

    groups: tuple[ListedGroup, ...]
    error: ErrorCode = ErrorCode.none


class DeleteRequest(msgspec.Struct, frozen=True):
    """DeleteGroups (v0 to v2)."""

    group_ids: tuple[str, ...]


class DeletedGroup(msgspec.Struct, frozen=True):
    """The result of deleting one group."""

    group_id: str
    error: ErrorCode


class DeleteReply(msgspec.Struct, frozen=True):
    """The answer to a DeleteRequest, in its order."""

    groups: tuple[DeletedGroup, ...]


class OffsetDeleteRequest(msgspec.Struct, frozen=True):
    """OffsetDelete (v0)."""

    group_id: str
    topics: tuple[FetchTopic, ...]


class OffsetDeleteReply(msgspec.Struct, frozen=True):
    """The answer to an OffsetDeleteRequest; without topics if it has an error."""

    error: ErrorCode
    topics: tuple[TopicResult, ...] = ()


class PutRequest(msgspec.Struct, frozen=True):
    """Records that a tool has produced to a partition, decoded and checked: applied completely or not at
    all.
    """

    records: tuple[Record, ...]


class PutReply(msgspec.Struct):
    """The answer to a PutRequest. `base_offset`: the first record's offset, once it is appended."""

    error: ErrorCode
    base_offset: int = -1


Reply: TypeAlias = (
    JoinReply
    | SyncReply
    | HeartbeatReply
    | LeaveReply
    | CommitReply
    | FetchReply
    | DescribeReply
    | ListReply
    | DeleteReply
    | OffsetDeleteReply
    | MemberHeartbeatReply
    | ConsumerDescribeReply
    | ShareDescribeReply
    | StatesReply
    | PutReply
)


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a handler: records to replay and append, in order, and replies to send once all of them
    are safe.

    A reply without records may depend on records of earlier outcomes, so it must not overtake them. producer:
    id and epoch of the producer whose transaction contains the records (all of them or none).
    initialisations: partitions of share groups to initialise once the records are safe.
    """

    records: list[Record] = msgspec.field(default_factory=list)
    replies: list[tuple[Token, Reply]] = msgspec.field(default_factory=list)
    producer: tuple[int, int] | None = None
    initialisations: list[Initialisation] = msgspec.field(default_factory=list)
