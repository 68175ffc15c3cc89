"""A member of a consumer group, and the steps from its current partitions to its target.

A member that must give partitions up keeps its epoch until it no longer reports them (UNREVOKED). Then it
moves to the epoch of the target with those partitions that no other member has; while some are missing, it
waits for them (UNRELEASED). So two members never have the same partition.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from korvet.offsets.group_records import ConsumerAssignment, ConsumerMember, OwnedPartitions

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2

Owned: TypeAlias = "dict[bytes, dict[int, int]]"
"""The epochs in which partitions were assigned: topic id -> partition -> epoch."""

IsFree: TypeAlias = "Callable[[bytes, int], bool]"


class MemberState(IntEnum):
    """The progress of a member; the values are those of ConsumerGroupCurrentMemberAssignmentValue."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


NO_SUBSCRIPTION: Final = ConsumerMember(None, None, "", "", (), "", -1, None)


class Member(msgspec.Struct, frozen=True):
    """A member; `subscription` is its record of type 5, the other fields are those of type 8."""

    member_id: str
    subscription: ConsumerMember = NO_SUBSCRIPTION
    epoch: int = JOIN_EPOCH
    previous_epoch: int = LEAVE_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Owned = {}
    revoking: Owned = {}

    @property
    def is_classic(self) -> bool:
        """Whether the member uses the classic protocol."""
        return self.subscription.classic_member_metadata is not None

    def with_assignment(self, value: ConsumerAssignment | None) -> Member:
        """The member after a record of type 8 or its tombstone."""
        if value is None:
            return Member(self.member_id, self.subscription, LEAVE_EPOCH, LEAVE_EPOCH)
        try:
            state = MemberState(value.state)
        except ValueError:
            state = MemberState.UNKNOWN
        return Member(
            self.member_id,
            self.subscription,
            value.member_epoch,
            value.previous_member_epoch,
            state,
            _owned(value.assigned_partitions, value.member_epoch),
            _owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def to_assignment(self) -> ConsumerAssignment:
        """The record of type 8."""
        return ConsumerAssignment(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_records(self.assigned),
            partitions_pending_revocation=_records(self.revoking),
        )

    def forgets_epochs(self, epoch: int, previous_epoch: int) -> Member:
        """The stable member in another epoch, with its partitions assigned in epoch 0: for static members
        that leave and return.
        """
        assigned = {topic: dict.fromkeys(partitions, 0) for topic, partitions in self.assigned.items()}
        return Member(
            self.member_id, self.subscription, epoch, previous_epoch, MemberState.STABLE, assigned, {}
        )

    def at(self, epoch: int, state: MemberState, assigned: Owned, revoking: Owned | None = None) -> Member:
        """The member, one step further."""
        return Member(self.member_id, self.subscription, epoch, self.epoch, state, assigned, revoking or {})


def reconcile(
    member: Member,
    target_epoch: int,
    target: Mapping[bytes, frozenset[int]],
    subscribed: Container[bytes],
    reported: Mapping[bytes, Container[int]] | None,
    is_free: IsFree,
) -> Member:
    """The member after the next step towards its target; unchanged if it must wait or has reached the target.

    subscribed: the ids of its topics. reported: the partitions that it reports as owned, None if it reports
    none. is_free: whether no other member has a partition.
    """
    consistent = all(topic in subscribed for topic in member.assigned)
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member if consistent else _without_unsubscribed(member, subscribed, reported)
    if member.state is MemberState.UNREVOKED_PARTITIONS and _still_has(member.revoking, reported):
        return member if consistent else _without_unsubscribed(member, subscribed, reported)
    assigned: Owned = {}
    revoking: Owned = {}
    added: Owned = {}
    waits = False
    for topic in {**target, **member.assigned}:
        wanted = target.get(topic, frozenset()) if topic in subscribed else frozenset()
        current = member.assigned.get(topic, {})
        _put(assigned, topic, {number: epoch for number, epoch in current.items() if number in wanted})
        _put(revoking, topic, {number: epoch for number, epoch in current.items() if number not in wanted})
        missing = sorted(wanted.difference(current))
        free = [number for number in missing if is_free(topic, number)]
        waits = waits or len(free) < len(missing)
        _put(added, topic, dict.fromkeys(free, target_epoch))
    if revoking and _still_has(revoking, reported):
        return member.at(member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    for topic, numbers in added.items():
        assigned[topic] = assigned.get(topic, {}) | numbers
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return member.at(target_epoch, state, assigned)


def _without_unsubscribed(
    member: Member, subscribed: Container[bytes], reported: Mapping[bytes, Container[int]] | None
) -> Member:
    """Remove partitions of topics that it no longer subscribes to, without waiting for a new target."""
    assigned = {topic: numbers for topic, numbers in member.assigned.items() if topic in subscribed}
    revoking = dict(member.revoking)
    for topic, numbers in member.assigned.items():
        if topic not in subscribed:
            revoking[topic] = revoking.get(topic, {}) | numbers
    if _still_has(revoking, reported):
        return member.at(member.epoch, MemberState.UNREVOKED_PARTITIONS, assigned, revoking)
    return member.at(member.epoch, member.state, assigned, member.revoking)


def _still_has(revoking: Owned, reported: Mapping[bytes, Container[int]] | None) -> bool:
    """Whether the member may still use partitions that it must give up: until it reports that it does not."""
    if reported is None:
        return True
    return any(
        number in reported[topic]
        for topic, numbers in revoking.items()
        if topic in reported
        for number in numbers
    )


def _put(owned: Owned, topic: bytes, numbers: dict[int, int]) -> None:
    if numbers:
        owned[topic] = numbers


def _owned(records: tuple[OwnedPartitions, ...], epoch: int) -> Owned:
    """Partitions without epochs, as brokers before Kafka 4.2 wrote them, count as assigned in `epoch`."""
    return {
        record.topic_id: dict(zip(record.partitions, record.assignment_epochs, strict=True))
        if record.assignment_epochs and len(record.assignment_epochs) == len(record.partitions)
        else dict.fromkeys(record.partitions, epoch)
        for record in records
    }


def _records(owned: Owned) -> tuple[OwnedPartitions, ...]:
    return tuple(
        OwnedPartitions(topic, tuple(sorted(numbers)), tuple(numbers[number] for number in sorted(numbers)))
        for topic, numbers in owned.items()
    )
