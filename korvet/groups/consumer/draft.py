"""The changes of one request to a group: records, and the group after their replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.groups.consumer.group import ASSIGNMENT, EPOCH, MEMBER, TARGET, TARGET_EPOCH
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

    from korvet.groups.consumer.group import ConsumerGroup
    from korvet.groups.consumer.member import Member
    from korvet.groups.messages import Record
    from korvet.offsets.schema import Key, Value


class Draft:
    """`group` is the current group until the first record is written, then a copy that is ahead of it."""

    def __init__(self, group: ConsumerGroup, records: list[Record] | None = None) -> None:
        """records: earlier records of the request, which precede a group that does not exist yet."""
        self.group = group
        self.records: list[Record] = [] if records is None else records
        self._is_copy = records is not None

    def write(self, key: Key, value: Value | None) -> None:
        """Add a record."""
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        self.records.append((key, value))
        self.group.replay(key, value)

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
