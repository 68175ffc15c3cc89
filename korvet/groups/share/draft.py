"""The changes of one request to a share group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.groups.drafting import Drafting
from korvet.groups.share.group import (
    ASSIGNMENT,
    EPOCH,
    MEMBER,
    STATES,
    TARGET,
    TARGET_EPOCH,
    ShareGroup,
    to_partitions,
)
from korvet.offsets.group_records import ShareEpoch, ShareMember, TargetAssignment, TargetEpoch
from korvet.offsets.schema import GroupMemberKey, GroupRecordKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.groups.share.group import Member
    from korvet.groups.share.partitions import PartitionStates


class Draft(Drafting[ShareGroup]):
    """The records that share groups have."""

    def subscription(self, member_id: str, value: ShareMember) -> None:
        """Write a member's identity and subscription."""
        self.write(GroupMemberKey(self.group.group_id, member_id, MEMBER), value)

    def target(self, member_id: str, value: Mapping[bytes, frozenset[int]]) -> None:
        """Write a member's target."""
        key = GroupMemberKey(self.group.group_id, member_id, TARGET)
        self.write(key, TargetAssignment(to_partitions(value)))

    def assignment(self, member: Member) -> None:
        """Write a member's current partitions."""
        key = GroupMemberKey(self.group.group_id, member.member_id, ASSIGNMENT)
        self.write(key, member.to_assignment())

    def epoch(self, epoch: int, metadata_hash: int) -> None:
        """Write the group's epoch."""
        self.write(GroupRecordKey(self.group.group_id, EPOCH), ShareEpoch(epoch, metadata_hash))

    def target_epoch(self, epoch: int, timestamp_ms: int) -> None:
        """Write the epoch of the targets and the time of their assignment (0: not made by an assignor)."""
        self.write(GroupRecordKey(self.group.group_id, TARGET_EPOCH), TargetEpoch(epoch, timestamp_ms))

    def states(self, value: PartitionStates) -> None:
        """Write the states of the group's partitions."""
        self.write(GroupRecordKey(self.group.group_id, STATES), value.to_record())

    def remove(self, member_id: str) -> None:
        """Write the removal of a member."""
        for kind in (ASSIGNMENT, TARGET, MEMBER):
            self.write(GroupMemberKey(self.group.group_id, member_id, kind), None)
