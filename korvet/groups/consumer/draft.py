"""The changes of one request to a group: records, and the group as it will be once they are replayed."""

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
    """`group` is the present one until the first record is written, then a copy that is ahead of it."""

    def __init__(self, group: ConsumerGroup, records: list[Record] | None = None) -> None:
        """records: what comes before, and makes way for a group that is not there yet."""
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
        """Who a member is and what it subscribes to."""
        self.write(GroupMemberKey(self.group.group_id, member_id, MEMBER), value)

    def target(self, member_id: str, value: Mapping[bytes, frozenset[int]] | None) -> None:
        """What a member shall have."""
        record = None
        if value is not None:
            record = TargetAssignment(
                tuple(TopicIdPartitions(topic, tuple(sorted(numbers))) for topic, numbers in value.items())
            )
        self.write(GroupMemberKey(self.group.group_id, member_id, TARGET), record)

    def assignment(self, member: Member) -> None:
        """What a member has."""
        key = GroupMemberKey(self.group.group_id, member.member_id, ASSIGNMENT)
        self.write(key, member.to_assignment())

    def epoch(self, epoch: int, metadata_hash: int) -> None:
        """The group's epoch."""
        self.write(GroupRecordKey(self.group.group_id, EPOCH), GroupEpoch(epoch, metadata_hash))

    def target_epoch(self, epoch: int, timestamp_ms: int) -> None:
        """The epoch of the targets, and when they were made (0: not by an assignor)."""
        self.write(GroupRecordKey(self.group.group_id, TARGET_EPOCH), TargetEpoch(epoch, timestamp_ms))

    def regex(self, regex: str, value: ResolvedRegex | None) -> None:
        """The topics that an expression stands for."""
        self.write(GroupRegexKey(self.group.group_id, regex), value)

    def remove(self, member_id: str) -> None:
        """Take a member out."""
        for kind in (ASSIGNMENT, TARGET, MEMBER):
            self.write(GroupMemberKey(self.group.group_id, member_id, kind), None)
