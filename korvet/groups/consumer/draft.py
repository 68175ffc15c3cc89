"""The changes of one request to a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.groups.consumer.group import ASSIGNMENT, EPOCH, MEMBER, TARGET, TARGET_EPOCH, ConsumerGroup
from korvet.groups.drafting import Drafting
from korvet.offsets.group_records import (
    ConsumerMember,
    GroupEpoch,
    ResolvedRegex,
    TargetAssignment,
    TargetEpoch,
    TopicIdPartitions,
)
from korvet.offsets.schema import GroupMemberKey, GroupRecordKey, GroupRegexKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.groups.consumer.member import Member


class Draft(Drafting[ConsumerGroup]):
    """The records that consumer groups have."""

    def subscription(self, member_id: str, value: ConsumerMember | None) -> None:
        """Write a member's identity and subscription."""
        self.write(GroupMemberKey(self.group.group_id, member_id, MEMBER), value)

    def target(self, member_id: str, value: Mapping[bytes, frozenset[int]] | None) -> None:
        """Write a member's target."""
        record = None
        if value is not None:
            record = TargetAssignment(
                tuple(TopicIdPartitions(topic, tuple(sorted(numbers))) for topic, numbers in value.items())
            )
        self.write(GroupMemberKey(self.group.group_id, member_id, TARGET), record)

    def assignment(self, member: Member) -> None:
        """Write a member's current partitions."""
        key = GroupMemberKey(self.group.group_id, member.member_id, ASSIGNMENT)
        self.write(key, member.to_assignment())

    def epoch(self, epoch: int, metadata_hash: int) -> None:
        """Write the group's epoch."""
        self.write(GroupRecordKey(self.group.group_id, EPOCH), GroupEpoch(epoch, metadata_hash))

    def target_epoch(self, epoch: int, timestamp_ms: int) -> None:
        """Write the epoch of the targets and the time of their assignment (0: not made by an assignor)."""
        self.write(GroupRecordKey(self.group.group_id, TARGET_EPOCH), TargetEpoch(epoch, timestamp_ms))

    def regex(self, regex: str, value: ResolvedRegex | None) -> None:
        """Write the topics that an expression matches."""
        self.write(GroupRegexKey(self.group.group_id, regex), value)

    def remove(self, member_id: str) -> None:
        """Write the removal of a member."""
        for kind in (ASSIGNMENT, TARGET, MEMBER):
            self.write(GroupMemberKey(self.group.group_id, member_id, kind), None)
