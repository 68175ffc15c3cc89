"""Members of a consumer group that use the classic protocol. While a group moves from one protocol to the
other, JoinGroup, SyncGroup, Heartbeat and LeaveGroup take the place of the new protocol's heartbeats.

A join is answered at once: its member gets its partitions by SyncGroup, and REBALANCE_IN_PROGRESS makes it
join again when its next step is due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.groups.consumer.draft import Draft
from korvet.groups.consumer.member import JOIN_EPOCH, Member, MemberState
from korvet.groups.consumer.migration import assignment_bytes, classic_subscription, partitions_by_id
from korvet.groups.group import CONSUMER_PROTOCOL_TYPE, rebalance_timeout_of
from korvet.groups.messages import HeartbeatReply, JoinReply, LeaveReply, LeftMember, SyncReply
from korvet.groups.refused import Refused
from korvet.offsets.consumer_protocol import DecodeError, decode_subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.groups.consumer.group import ConsumerGroup
    from korvet.groups.consumer.membership import ConsumerMembership
    from korvet.groups.consumer.migration import Migration
    from korvet.groups.context import Context
    from korvet.groups.messages import (
        HeartbeatRequest,
        JoinRequest,
        LeaveRequest,
        LeavingMember,
        SyncRequest,
        Token,
    )
    from korvet.offsets.consumer_protocol import Subscription


class ClassicMembers:
    """The classic APIs for consumer groups."""

    __slots__ = ("_context", "_membership", "_migration", "_new_member_suffix")

    def __init__(
        self,
        context: Context,
        membership: ConsumerMembership,
        migration: Migration,
        new_member_suffix: Callable[[], str],
    ) -> None:
        self._context = context
        self._membership = membership
        self._migration = migration
        self._new_member_suffix = new_member_suffix

    # JoinGroup

    def join(self, group: ConsumerGroup, request: JoinRequest, token: Token) -> None:
        """JoinGroup, answered at once."""
        try:
            reply = self._join(group, request)
        except Refused as refusal:
            reply = JoinReply(refusal.error, request.member_id)
        self._context.reply(token, reply)

    def _join(self, group: ConsumerGroup, request: JoinRequest) -> JoinReply:
        self._check_join(group, request)
        instance_id, member_id = request.group_instance_id, request.member_id
        if not member_id:
            name = request.client_id if instance_id is None else instance_id
            member_id = f"{name}-{self._new_member_suffix()}"
            if instance_id is None and request.needs_member_id:
                return JoinReply(ErrorCode.member_id_required, member_id)
        elif instance_id is not None and group.static_members.get(instance_id) != member_id:
            known = instance_id in group.static_members
            error = ErrorCode.fenced_instance_id if known else ErrorCode.unknown_member_id
            raise Refused(error, "the static member is another one")
        draft = Draft(group)
        owner_id = None if instance_id is None else group.static_members.get(instance_id)
        if owner_id is not None and owner_id != member_id:
            before = self._membership.replace_static(draft, group.members[owner_id], member_id, JOIN_EPOCH)
        else:
            before = group.members.get(member_id) or Member(member_id)
        member = self._update(draft, before, request, _subscription_of(request))
        self._context.records += draft.records
        generation = member.epoch
        if self._migration.must_downgrade(draft.group, ()):
            # All members are asked to join again: the other members may not have heard of a newer epoch, and
            # the group needs a leader that notices new partitions.
            generation = group.epoch
            self._migration.rebalance_soon(group.group_id)
            self._membership.downgrade(draft.group, generation)
        else:
            self._membership.arm_session(group.group_id, member)
            self._membership.expect_nothing(group.group_id, member_id)
            self._membership.expect(group.group_id, member_id, rebalance_timeout_of(request))
        protocol = request.protocols[0].name
        return JoinReply(ErrorCode.none, member_id, generation, CONSUMER_PROTOCOL_TYPE, protocol)

    def _check_join(self, group: ConsumerGroup, request: JoinRequest) -> None:
        config = self._context.config
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            raise Refused(ErrorCode.invalid_session_timeout, "the session timeout is out of range")
        is_static = request.group_instance_id in group.static_members
        is_new = request.member_id not in group.members and not is_static
        if is_new and len(group.members) >= config.consumer_max_size:
            raise Refused(ErrorCode.group_max_size_reached, "the group is full")
        names = {protocol.name for protocol in request.protocols}
        for member in group.members.values():
            classic = member.subscription.classic_member_metadata
            if classic is not None and member.member_id != request.member_id:
                names &= {protocol.name for protocol in classic.supported_protocols}
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
            raise Refused(ErrorCode.inconsistent_group_protocol, "the group has no such protocol")

    def _update(
        self, draft: Draft, before: Member, request: JoinRequest, subscription: Subscription
    ) -> Member:
        new = classic_subscription(
            subscription,
            client_id=request.client_id,
            client_host=request.client_host,
            instance_id=request.group_instance_id,
            rebalance_timeout_ms=rebalance_timeout_of(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
        )
        if new != before.subscription:
            draft.subscription(before.member_id, new)
        self._membership.refresh(draft, before.subscription, new, None)
        reported = partitions_by_id(self._context.topics, subscription.owned_partitions)
        return self._membership.advance(draft, before.member_id, reported)

    # SyncGroup

    def sync(self, group: ConsumerGroup, request: SyncRequest, token: Token) -> None:
        """SyncGroup: the partitions that the member may use."""
        try:
            reply = self._sync(group, request)
        except Refused as refusal:
            reply = SyncReply(refusal.error)
        self._context.reply(token, reply)

    def _sync(self, group: ConsumerGroup, request: SyncRequest) -> SyncReply:
        member = _classic_member(group, request.member_id, request.group_instance_id)
        classic = member.subscription.classic_member_metadata
        assert classic is not None
        if not classic.supported_protocols:
            # Not as any client writes it; the next join replaces the record.
            raise Refused(ErrorCode.rebalance_in_progress, "the member's record has no protocols")
        protocol = classic.supported_protocols[0]
        if request.generation_id != member.epoch:
            raise Refused(ErrorCode.illegal_generation, "another epoch")
        said = request.protocol_type or CONSUMER_PROTOCOL_TYPE, request.protocol_name or protocol.name
        if said != (CONSUMER_PROTOCOL_TYPE, protocol.name):
            raise Refused(ErrorCode.inconsistent_group_protocol, "another protocol")
        if group.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._ask_to_join(group, member)
            raise Refused(ErrorCode.rebalance_in_progress, "the group has a newer epoch")
        self._membership.expect_nothing(group.group_id, member.member_id)
        self._membership.arm_session(group.group_id, member)
        assignment = assignment_bytes(self._context.topics, member, protocol.metadata)
        return SyncReply(ErrorCode.none, CONSUMER_PROTOCOL_TYPE, protocol.name, assignment)

    # Heartbeat

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, token: Token) -> None:
        """Heartbeat: reports whether the member must join again."""
        try:
            member = _classic_member(group, request.member_id, request.group_instance_id)
            if request.generation_id != member.epoch:
                raise Refused(ErrorCode.illegal_generation, "another epoch")
        except Refused as refusal:
            self._context.reply(token, HeartbeatReply(refusal.error))
            return
        self._membership.arm_session(group.group_id, member)
        error = ErrorCode.none
        if self._has_next_step(group, member):
            self._ask_to_join(group, member)
            error = ErrorCode.rebalance_in_progress
        self._context.reply(token, HeartbeatReply(error))

    @staticmethod
    def _has_next_step(group: ConsumerGroup, member: Member) -> bool:
        if member.epoch < group.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        if member.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        return all(
            group.owners.get((topic, number), member.member_id) == member.member_id
            for topic, numbers in group.targets.get(member.member_id, {}).items()
            for number in numbers
        )

    def _ask_to_join(self, group: ConsumerGroup, member: Member) -> None:
        if not self._membership.is_expected(group.group_id, member.member_id):
            self._membership.expect(
                group.group_id, member.member_id, member.subscription.rebalance_timeout_ms
            )

    # LeaveGroup

    def leave(self, group: ConsumerGroup, request: LeaveRequest, token: Token) -> None:
        """LeaveGroup: administrators remove members of either protocol."""
        leaving: list[str] = []
        left = tuple(self._leave_one(group, each, leaving) for each in request.members)
        if leaving:
            self._membership.remove(group, leaving)
        self._context.reply(token, LeaveReply(ErrorCode.none, left))

    @staticmethod
    def _leave_one(group: ConsumerGroup, each: LeavingMember, leaving: list[str]) -> LeftMember:
        member_id, instance_id = each.member_id, each.group_instance_id
        if not member_id and instance_id is not None:
            member_id = group.static_members.get(instance_id, "")
        try:
            member = _member(group, member_id, instance_id)
        except Refused as refusal:
            return LeftMember(each.member_id, instance_id, refusal.error)
        if member.member_id not in leaving:
            leaving.append(member.member_id)
        return LeftMember(each.member_id, instance_id, ErrorCode.none)


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    """The member with that id, which has the instance id if one is given."""
    if instance_id is not None:
        owner_id = group.static_members.get(instance_id)
        if owner_id is None:
            raise Refused(ErrorCode.unknown_member_id, f"instance id {instance_id} is unknown")
        if owner_id != member_id:
            raise Refused(ErrorCode.fenced_instance_id, f"instance id {instance_id} is another member's")
    member = group.members.get(member_id)
    if member is None:
        raise Refused(ErrorCode.unknown_member_id, f"no member {member_id}")
    return member


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    """`_member`, if it uses the classic protocol."""
    member = _member(group, member_id, instance_id)
    if not member.is_classic:
        raise Refused(ErrorCode.unknown_member_id, f"no classic member {member_id}")
    return member


def _subscription_of(request: JoinRequest) -> Subscription:
    try:
        return decode_subscription(request.protocols[0].metadata)
    except DecodeError as error:
        raise Refused(ErrorCode.inconsistent_group_protocol, str(error)) from error
