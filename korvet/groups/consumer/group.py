"""A consumer group as its records describe it: everything here changes by `replay` alone.

Records arrive in two ways: directly after their request was handled, and, when a partition is loaded, the
newest of each key in log order, in which one member's records may have any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.groups.consumer.member import NO_SUBSCRIPTION, Member, MemberState
from korvet.offsets.group_records import (
    ConsumerAssignment,
    ConsumerMember,
    GroupEpoch,
    ResolvedRegex,
    TargetAssignment,
    TargetEpoch,
)
from korvet.offsets.schema import GroupMemberKey, GroupRecordKey, GroupRegexKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.groups.consumer.assignors import Target
    from korvet.groups.consumer.topics import Topics
    from korvet.groups.messages import CommitRequest, Record
    from korvet.offsets.schema import Key, Value

# The epoch of a group without records: the first bump writes 2.
FIRST_EPOCH: Final = 1

EPOCH, METADATA, MEMBER, TARGET_EPOCH, TARGET, ASSIGNMENT = 3, 4, 5, 6, 7, 8
"""Record types: the group's epoch, its topics (no longer written), a member's subscription, the epoch of
the target, a member's target, a member's partitions.
"""

PROGRESS: Final = frozenset({MEMBER, TARGET_EPOCH, ASSIGNMENT})
"""Record types that may end a rebalance."""

RECORD_TYPES: Final = frozenset({EPOCH, METADATA, MEMBER, TARGET_EPOCH, TARGET, ASSIGNMENT, 16})


class ConsumerGroup:
    """The state of one group."""

    __slots__ = (
        "_subscribed",
        "checked_version",
        "epoch",
        "group_id",
        "members",
        "metadata_hash",
        "owners",
        "rebalancing_since_ms",
        "regexes",
        "static_members",
        "target_epoch",
        "target_timestamp_ms",
        "targets",
    )

    group_type: Final = "consumer"
    protocol_type: Final = "consumer"

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # group instance id -> member id
        self.targets: dict[str, Target] = {}
        self.owners: dict[
            tuple[bytes, int], str
        ] = {}  # the member that may use a partition, or must give it up
        self.regexes: dict[str, ResolvedRegex] = {}
        self.rebalancing_since_ms: int | None = None  # None while the group is stable or Empty
        self.checked_version: int | None = None
        """The version of the topics with which the group was last compared; not in any record."""
        self._subscribed: frozenset[str] | None = None

    def copy(self) -> ConsumerGroup:
        """A copy that changes independently; members and targets are never changed in place."""
        other = ConsumerGroup(self.group_id)
        other.epoch, other.metadata_hash = self.epoch, self.metadata_hash
        other.target_epoch, other.target_timestamp_ms = self.target_epoch, self.target_timestamp_ms
        other.members, other.static_members = dict(self.members), dict(self.static_members)
        other.targets, other.owners, other.regexes = dict(self.targets), dict(self.owners), dict(self.regexes)
        other.checked_version, other._subscribed = self.checked_version, self._subscribed
        return other

    # Replay

    def replay(self, key: Key, value: Value | None) -> None:
        """Apply a record of this group; its tombstone of type 3, which ends the group, belongs to the
        group's owner.
        """
        if isinstance(key, GroupMemberKey):
            if key.version == MEMBER and (value is None or isinstance(value, ConsumerMember)):
                self._replay_member(key.member_id, value)
            elif key.version == TARGET and isinstance(value, TargetAssignment):
                self.targets[key.member_id] = {
                    each.topic_id: frozenset(each.partitions) for each in value.topic_partitions
                }
            elif key.version == TARGET:
                self.targets.pop(key.member_id, None)
            elif key.version == ASSIGNMENT and (value is None or isinstance(value, ConsumerAssignment)):
                self._replay_assignment(key.member_id, value)
        elif isinstance(key, GroupRegexKey):
            self._subscribed = None
            if isinstance(value, ResolvedRegex):
                self.regexes[key.regular_expression] = value
            else:
                self.regexes.pop(key.regular_expression, None)
        elif isinstance(value, GroupEpoch):
            self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
        elif isinstance(value, TargetEpoch):
            self.target_epoch, self.target_timestamp_ms = value.assignment_epoch, value.assignment_timestamp
        elif isinstance(key, GroupRecordKey) and key.version == TARGET_EPOCH:
            self.target_epoch, self.target_timestamp_ms = FIRST_EPOCH, 0

    def _replay_member(self, member_id: str, value: ConsumerMember | None) -> None:
        self._subscribed = None
        member = self.members.get(member_id)
        instance_id = None if member is None else member.subscription.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if value is None:
            if member is not None:
                self._disown(member)
                del self.members[member_id]
            return
        if value.instance_id is not None:
            self.static_members[value.instance_id] = member_id
        self.members[member_id] = (
            Member(member_id, value)
            if member is None
            else msgspec.structs.replace(member, subscription=value)
        )

    def _replay_assignment(self, member_id: str, value: ConsumerAssignment | None) -> None:
        member = self.members.get(member_id)
        if member is None:
            if value is None:
                return
            member = Member(member_id)
        self._disown(member)
        member = self.members[member_id] = member.with_assignment(value)
        for owned in (member.assigned, member.revoking):
            for topic, numbers in owned.items():
                for number in numbers:
                    self.owners[topic, number] = member_id

    def _disown(self, member: Member) -> None:
        for owned in (member.assigned, member.revoking):
            for topic, numbers in owned.items():
                for number in numbers:
                    if self.owners.get((topic, number)) == member.member_id:
                        del self.owners[topic, number]

    def drop_unknown_members(self) -> None:
        """Forget members with incomplete records, once everything is loaded."""
        for member in list(self.members.values()):
            if member.subscription is NO_SUBSCRIPTION:
                self._disown(member)
                del self.members[member.member_id]

    # Queries

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return not self.members

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members: a joining member is a member at once."""
        return self.is_empty

    @property
    def state_name(self) -> str:
        """The state as ListGroups and ConsumerGroupDescribe show it."""
        if not self.members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        return "Stable" if all(map(self.is_settled, self.members.values())) else "Reconciling"

    @property
    def is_stable(self) -> bool:
        """Whether no rebalance is in progress."""
        return self.state_name in {"Stable", "Empty"}

    def is_settled(self, member: Member) -> bool:
        """Whether a member has its complete target."""
        return member.state is MemberState.STABLE and member.epoch == self.target_epoch

    def topics_of(self, subscription: ConsumerMember) -> frozenset[str]:
        """The topic names that a member subscribes to, by name and by expression."""
        resolved = self.regexes.get(subscription.subscribed_topic_regex or "")
        names = frozenset(subscription.subscribed_topic_names)
        return names if resolved is None else names.union(resolved.topics)

    @property
    def subscribed_topics(self) -> frozenset[str]:
        """The topic names that any member subscribes to."""
        if self._subscribed is None:
            subscriptions = (member.subscription for member in self.members.values())
            self._subscribed = frozenset().union(*map(self.topics_of, subscriptions))
        return self._subscribed

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member subscribes to the topic."""
        return topic in self.subscribed_topics

    def users_of(self, regex: str) -> int:
        """The number of members that subscribe by this expression."""
        return sum(member.subscription.subscribed_topic_regex == regex for member in self.members.values())

    def topic_ids(self, topics: Topics, subscription: ConsumerMember) -> dict[bytes, int]:
        """The existing topics of a member: partition counts by id."""
        found = (topics.get(name) for name in sorted(self.topics_of(subscription)))
        return {topic.topic_id: topic.partitions for topic in found if topic is not None}

    def assignor_name(self, default: str) -> str:
        """The assignor that most members ask for; None if none asks."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.subscription.server_assignor is not None:
                votes[member.subscription.server_assignor] = (
                    votes.get(member.subscription.server_assignor, 0) + 1
                )
        return max(votes, key=votes.__getitem__) if votes else default

    # Commits

    def refuse_commit(self, request: CommitRequest) -> ErrorCode:
        """Whether a member may commit: in its epoch, or for partitions that it has had since (KIP-1251)."""
        member = self.members.get(request.member_id)
        if member is None:
            return ErrorCode.unknown_member_id
        if request.generation_id == member.epoch:
            return ErrorCode.none
        if member.is_classic:
            return ErrorCode.illegal_generation
        if 0 <= request.generation_id < member.epoch and all(
            _had_since(member.assigned.get(topic.topic_id or b"", {}), each.partition, request.generation_id)
            for topic in request.topics
            for each in topic.partitions
        ):
            return ErrorCode.none
        return ErrorCode.stale_member_epoch

    def has_epochs(self, member_id: str) -> bool:
        """Whether the member uses the consumer protocol, and so commits with its epoch."""
        member = self.members.get(member_id)
        return member is not None and not member.is_classic

    def refuse_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Whether OffsetFetch may be answered; a request without a member comes from an administrator."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.none
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.unknown_member_id
        if member_epoch == member.epoch:
            return ErrorCode.none
        return ErrorCode.illegal_generation if member.is_classic else ErrorCode.stale_member_epoch

    def expires_since_ms(self) -> int | None:
        """See Group.expires_since_ms: offsets expire by the time of their commits."""
        return -1

    def tombstones(self) -> list[Record]:
        """The tombstones of an empty group."""
        return [(GroupRecordKey(self.group_id, kind), None) for kind in (TARGET_EPOCH, METADATA, EPOCH)]


def _had_since(owned: Mapping[int, int], partition: int, epoch: int) -> bool:
    return partition in owned and owned[partition] <= epoch
