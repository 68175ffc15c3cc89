"""A share group as its records describe it: everything here changes by `replay` alone.

Records arrive directly after their request was handled, or when a partition is loaded. Then these are the
newest of each key in log order, so the records of one member may have any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.groups.share.partitions import PartitionStates
from korvet.offsets.group_records import (
    ShareAssignment,
    ShareEpoch,
    ShareMember,
    SharePartitions,
    TargetAssignment,
    TargetEpoch,
    TopicIdPartitions,
)
from korvet.offsets.schema import GroupMemberKey, GroupRecordKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.groups.consumer.assignors import Target
    from korvet.groups.consumer.topics import Topics
    from korvet.groups.messages import CommitRequest, Record
    from korvet.offsets.schema import Key, Value

# The epoch of a group without records: the first bump writes 2.
FIRST_EPOCH: Final = 1
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
# MemberState.STABLE of consumer groups: a member of a share group has no other state.
_STABLE: Final = 0

MEMBER, EPOCH, TARGET_EPOCH, TARGET, ASSIGNMENT, STATES = 10, 11, 12, 13, 14, 15
"""Record types: a member's subscription, the group's epoch, the epoch of the target, a member's target, a
member's partitions, the states of partitions.
"""

RECORD_TYPES: Final = frozenset({MEMBER, EPOCH, TARGET_EPOCH, TARGET, ASSIGNMENT, STATES})
NO_SUBSCRIPTION: Final = ShareMember(None, "", "", ())


class Member(msgspec.Struct, frozen=True):
    """A member; `subscription` is its record of type 10, the other fields are those of type 14."""

    member_id: str
    subscription: ShareMember = NO_SUBSCRIPTION
    epoch: int = JOIN_EPOCH
    previous_epoch: int = LEAVE_EPOCH
    assigned: Target = {}

    def with_assignment(self, value: ShareAssignment | None) -> Member:
        """The member after a record of type 14 or its tombstone."""
        if value is None:
            return Member(self.member_id, self.subscription, LEAVE_EPOCH, LEAVE_EPOCH)
        assigned = {each.topic_id: frozenset(each.partitions) for each in value.assigned_partitions}
        return Member(
            self.member_id, self.subscription, value.member_epoch, value.previous_member_epoch, assigned
        )

    def to_assignment(self) -> ShareAssignment:
        """The record of type 14."""
        return ShareAssignment(self.epoch, self.previous_epoch, _STABLE, to_partitions(self.assigned))

    def at(self, epoch: int, assigned: Target) -> Member:
        """The member with these partitions in the epoch of the target."""
        previous_epoch = self.previous_epoch if epoch == self.epoch else self.epoch
        return Member(self.member_id, self.subscription, epoch, previous_epoch, assigned)


class ShareGroup:
    """The state of one group."""

    __slots__ = (
        "checked_version",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "rebalancing_since_ms",
        "states",
        "target_epoch",
        "target_timestamp_ms",
        "targets",
    )

    group_type: Final = "share"
    protocol_type: Final = "share"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Target] = {}
        self.states: PartitionStates | None = None  # None without a record
        self.rebalancing_since_ms: int | None = None  # None while the target is that of the group's epoch
        self.checked_version: int | None = None
        """The version of the topics with which states and targets were last compared; not in any record."""

    def copy(self) -> ShareGroup:
        """A copy that changes independently; members, targets and states are never changed in place."""
        other = ShareGroup(self.group_id)
        other.epoch, other.metadata_hash = self.epoch, self.metadata_hash
        other.target_epoch, other.target_timestamp_ms = self.target_epoch, self.target_timestamp_ms
        other.members, other.targets = dict(self.members), dict(self.targets)
        other.states, other.checked_version = self.states, self.checked_version
        return other

    # Replay

    def replay(self, key: Key, value: Value | None) -> None:
        """Apply a record of this group; its tombstone of type 11, which ends the group, belongs to the
        group's owner.
        """
        if isinstance(key, GroupMemberKey):
            self._replay_member(key, value)
        elif isinstance(value, ShareEpoch):
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(value, TargetEpoch):
            self.target_epoch, self.target_timestamp_ms = value.assignment_epoch, value.assignment_timestamp
            self.checked_version = None
        elif isinstance(value, SharePartitions):
            self.states, self.checked_version = PartitionStates.of(value), None
        elif isinstance(key, GroupRecordKey) and key.version == TARGET_EPOCH:
            self.target_epoch, self.target_timestamp_ms = FIRST_EPOCH, 0
        elif isinstance(key, GroupRecordKey) and key.version == STATES:
            self.states = None

    def _replay_member(self, key: GroupMemberKey, value: Value | None) -> None:
        member_id = key.member_id
        member = self.members.get(member_id)
        if isinstance(value, ShareMember):
            self.members[member_id] = msgspec.structs.replace(member or Member(member_id), subscription=value)
        elif isinstance(value, ShareAssignment):
            self.members[member_id] = (member or Member(member_id)).with_assignment(value)
        elif isinstance(value, TargetAssignment):
            self.targets[member_id] = {
                each.topic_id: frozenset(each.partitions) for each in value.topic_partitions
            }
        elif key.version == TARGET:
            self.targets.pop(member_id, None)
        elif key.version == MEMBER:
            self.members.pop(member_id, None)
        elif member is not None:
            self.members[member_id] = member.with_assignment(None)

    def drop_unknown_members(self) -> None:
        """Forget members with incomplete records, once everything is loaded."""
        for member in list(self.members.values()):
            if member.subscription is NO_SUBSCRIPTION:
                del self.members[member.member_id]

    # Queries

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """Whether the group is removed when it has no offsets: never, as it has none."""
        return False

    @property
    def is_stable(self) -> bool:
        """Whether the target is that of the group's epoch."""
        return self.epoch <= self.target_epoch

    @property
    def state_name(self) -> str:
        """The state as ListGroups and ShareGroupDescribe show it."""
        return "Stable" if self.members else "Empty"

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topic names that any member subscribes to."""
        return frozenset().union(
            *(member.subscription.subscribed_topic_names for member in self.members.values())
        )

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        return any(topic in member.subscription.subscribed_topic_names for member in self.members.values())

    def assignable(self, topics: Topics) -> dict[bytes, frozenset[int]]:
        """The initialised partitions of existing topics that members subscribe to."""
        found = {}
        if self.states is not None:
            subscribed = self.subscribed_topics
            for topic_id, topic in self.states.initialised.items():
                if topic.name in subscribed and topics.by_id(topic_id) is not None:
                    found[topic_id] = topic.partitions
        return found

    def has_unassigned(self, topics: Topics) -> bool:
        """Whether a partition that can be assigned is in no target."""
        assigned: dict[bytes, set[int]] = {}
        for target in self.targets.values():
            for topic_id, numbers in target.items():
                assigned.setdefault(topic_id, set()).update(numbers)
        return any(
            numbers - assigned.get(topic_id, set()) for topic_id, numbers in self.assignable(topics).items()
        )

    # Offsets, which share groups do not have

    def refuse_commit(self, request: CommitRequest) -> ErrorCode:
        """Nobody may commit."""
        del request
        return ErrorCode.group_id_not_found

    def refuse_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Anybody may learn that there are no offsets."""
        del member_id, member_epoch
        return ErrorCode.none

    def expires_since_ms(self) -> int | None:
        """See Group.expires_since_ms."""
        return None

    def tombstones(self) -> list[Record]:
        """The tombstones of an empty group."""
        return [(GroupRecordKey(self.group_id, kind), None) for kind in (TARGET_EPOCH, STATES, EPOCH)]


def to_partitions(target: Mapping[bytes, frozenset[int]]) -> tuple[TopicIdPartitions, ...]:
    """Partitions as records contain them."""
    return tuple(TopicIdPartitions(topic_id, tuple(sorted(numbers))) for topic_id, numbers in target.items())
