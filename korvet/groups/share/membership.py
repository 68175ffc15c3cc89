"""Membership of share groups: ShareGroupHeartbeat and its timeouts (KIP-932).

A member gets its target at once: nobody else has to give partitions up first. As in Kafka, a new target is
computed at most once per interval, by the heartbeat of any member, and contains only initialised partitions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.groups.consumer.messages import MemberHeartbeatReply, owned_topics
from korvet.groups.consumer.topics import metadata_hash
from korvet.groups.own_configs import (
    SHARE_ASSIGNMENT_INTERVAL_MS,
    SHARE_HEARTBEAT_INTERVAL_MS,
    SHARE_SESSION_TIMEOUT_MS,
)
from korvet.groups.refused import Refused, check_filled, check_lengths, check_subscription, unknown_member
from korvet.groups.share.assignor import Sharer, assign_simple
from korvet.groups.share.draft import Draft
from korvet.groups.share.group import JOIN_EPOCH, LEAVE_EPOCH, Member, ShareGroup
from korvet.groups.timers import MemberDeadlines
from korvet.offsets.group_records import ShareMember

if TYPE_CHECKING:
    from korvet.groups.context import Context
    from korvet.groups.messages import Token
    from korvet.groups.share.messages import ShareHeartbeatRequest
    from korvet.groups.share.states import States

LONGEST_MEMBER_ID: Final = 36
"""The length of a UUID in characters: longer IDs of members are refused."""


class ShareMembership:
    """The membership side of a shard for share groups."""

    __slots__ = ("_context", "_sessions", "_states")

    def __init__(self, context: Context, states: States) -> None:
        self._context = context
        self._states = states
        self._sessions = MemberDeadlines(context.timers)

    # Heartbeats

    def heartbeat(self, request: ShareHeartbeatRequest, token: Token) -> None:
        """ShareGroupHeartbeat: the member joins, leaves, or stays and takes its target."""
        try:
            _check(request)
            reply = self._leave(request) if request.member_epoch == LEAVE_EPOCH else self._stay(request)
        except Refused as refusal:
            reply = MemberHeartbeatReply(refusal.error, refusal.message)
        self._context.reply(token, reply)

    def _leave(self, request: ShareHeartbeatRequest) -> MemberHeartbeatReply:
        group = self._existing(request.group_id, f"Group {request.group_id} not found.")
        _member_of(group, request.member_id)
        self.remove(group, request.member_id)
        return MemberHeartbeatReply(ErrorCode.none, None, request.member_id, request.member_epoch)

    def remove(self, group: ShareGroup, member_id: str) -> None:
        """Remove a member, on request or not."""
        self._sessions.cancel(group.group_id, member_id)
        draft = Draft(group)
        draft.remove(member_id)
        draft.epoch(self._next_epoch(draft), self._hash(draft))
        if draft.group.is_empty:
            draft.target_epoch(draft.group.epoch, 0)
        self._context.records += draft.records

    def _stay(self, request: ShareHeartbeatRequest) -> MemberHeartbeatReply:
        is_join = request.member_epoch == JOIN_EPOCH
        draft = self._draft(request.group_id, is_join=is_join)
        before = self._known(draft.group, request)
        changed = self._subscribe(draft, request, before.subscription)
        if draft.group.epoch > draft.group.target_epoch and self._may_assign(draft.group):
            self._assign(draft)
        member = self._move(draft, request.member_id, changed=changed)
        self._states.initialise(draft)
        self._context.records += draft.records
        self._arm_session(request.group_id, request.member_id)
        told = is_join or request.subscribed_topic_names is not None or before.assigned != member.assigned
        return MemberHeartbeatReply(
            ErrorCode.none,
            None,
            member.member_id,
            member.epoch,
            self._context.config.number(request.group_id, SHARE_HEARTBEAT_INTERVAL_MS),
            owned_topics(member.assigned) if told else None,
        )

    def _existing(self, group_id: str, missing: str) -> ShareGroup:
        group = self._context.groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.group_id_not_found, missing)
        if not isinstance(group, ShareGroup):
            raise Refused(ErrorCode.group_id_not_found, f"Group {group_id} is not a share group.")
        return group

    def _draft(self, group_id: str, *, is_join: bool) -> Draft:
        if is_join and group_id not in self._context.groups:
            return Draft(ShareGroup(group_id), [])
        return Draft(self._existing(group_id, f"Share group {group_id} not found."))

    def _known(self, group: ShareGroup, request: ShareHeartbeatRequest) -> Member:
        """The member before the request, also if it is a new one."""
        limit = self._context.config.share_max_size
        if request.member_id not in group.members and len(group.members) >= limit:
            raise Refused(
                ErrorCode.group_max_size_reached,
                f"The share group has reached its maximum capacity of {limit} members.",
            )
        if request.member_epoch == JOIN_EPOCH:
            return group.members.get(request.member_id) or Member(request.member_id)
        member = _member_of(group, request.member_id)
        epoch = request.member_epoch
        # The response with the new epoch may have been lost.
        if epoch not in {member.epoch, member.previous_epoch}:
            than = "greater" if epoch > member.epoch else "smaller"
            why = (
                ""
                if epoch > member.epoch
                else (f", and it does not match the previous member epoch ({member.previous_epoch})")
            )
            raise Refused(
                ErrorCode.fenced_member_epoch,
                f"The share group member has a {than} member epoch ({epoch}) than the one known by the group "
                f"coordinator ({member.epoch}){why}. The member must abandon all its partitions and rejoin.",
            )
        return member

    # Subscriptions and targets

    def _subscribe(self, draft: Draft, request: ShareHeartbeatRequest, old: ShareMember) -> bool:
        """Update a member from its request; returns whether that, or a change of the topics or of their
        states, has bumped the group's epoch.
        """
        group = self._context.groups.get(request.group_id)
        version = self._context.topics.version
        is_checked = draft.group.checked_version == version
        bump = not is_checked and draft.group.is_stable and draft.group.has_unassigned(self._context.topics)
        new = _subscription(request, old)
        if new != old:
            draft.subscription(request.member_id, new)
            bump = bump or new.subscribed_topic_names != old.subscribed_topic_names
        if not bump and is_checked:
            return False
        value = self._hash(draft)
        if bump or value != draft.group.metadata_hash:
            # The next heartbeat compares again: these records may be discarded.
            draft.epoch(self._next_epoch(draft), value)
            return True
        if isinstance(group, ShareGroup):
            group.checked_version = version
        return False

    def _next_epoch(self, draft: Draft) -> int:
        return max(draft.group.epoch + 1, self._context.least_generation)

    def _hash(self, draft: Draft) -> int:
        return metadata_hash(self._context.topics, draft.group.subscribed_topics)

    def _may_assign(self, group: ShareGroup) -> bool:
        interval_ms = self._context.config.number(group.group_id, SHARE_ASSIGNMENT_INTERVAL_MS)
        return not 0 <= self._context.now_ms - group.target_timestamp_ms < interval_ms

    def _assign(self, draft: Draft) -> None:
        group = draft.group
        sharers = [
            Sharer(member.member_id, self._topics_of(member), group.targets.get(member.member_id, {}))
            for member in group.members.values()
        ]
        for member_id, target in assign_simple(sharers, group.assignable(self._context.topics)).items():
            if group.targets.get(member_id) != target:
                draft.target(member_id, target)
        draft.target_epoch(group.epoch, self._context.now_ms)

    def _topics_of(self, member: Member) -> frozenset[bytes]:
        """The ids of the existing topics that a member subscribes to."""
        found = (self._context.topics.get(name) for name in member.subscription.subscribed_topic_names)
        return frozenset(topic.topic_id for topic in found if topic is not None)

    def _move(self, draft: Draft, member_id: str, *, changed: bool) -> Member:
        """Give the member its target, as far as it subscribes to the topics."""
        group = draft.group
        member = group.members.get(member_id) or Member(member_id)
        if member.epoch == group.target_epoch and not changed:
            return member
        topics = self._topics_of(member)
        target = group.targets.get(member_id, {})
        assigned = {topic_id: numbers for topic_id, numbers in target.items() if topic_id in topics}
        after = member.at(group.target_epoch, assigned)
        if after != member:
            draft.assignment(after)
        return after

    # Time-outs

    def keep_sessions(self, group: ShareGroup) -> None:
        """Start the missing sessions of all members: those of a loaded group, or of members whose removal
        is not recorded.
        """
        for member_id in group.members:
            if (group.group_id, member_id) not in self._sessions:
                self._arm_session(group.group_id, member_id)

    def _arm_session(self, group_id: str, member_id: str) -> None:
        at_ms = self._context.now_ms + self._context.config.number(group_id, SHARE_SESSION_TIMEOUT_MS)
        self._sessions.arm(group_id, member_id, at_ms, partial(self._expire_session, group_id, member_id))

    def end_session(self, group: ShareGroup, member_id: str) -> bool:
        """End a member's session before its time. Returns whether there is such a member."""
        is_member = member_id in group.members
        self._expire_session(group.group_id, member_id)
        return is_member

    def _expire_session(self, group_id: str, member_id: str) -> None:
        self._sessions.cancel(group_id, member_id)
        group = self._context.groups.get(group_id)
        if isinstance(group, ShareGroup) and member_id in group.members:
            self._context.counts.expired_members += 1
            self.remove(group, member_id)


def _check(request: ShareHeartbeatRequest) -> None:
    """Refuse what Kafka refuses, and strings that the group's records cannot hold."""
    if not 0 < len(request.member_id) <= LONGEST_MEMBER_ID:
        raise Refused(ErrorCode.invalid_request, "Invalid member id in the request.")
    check_filled(MemberId=request.member_id, GroupId=request.group_id, RackId=request.rack_id)
    if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
        raise Refused(ErrorCode.invalid_request, "SubscribedTopicNames must be set in first request.")
    if request.member_epoch < LEAVE_EPOCH:
        raise Refused(ErrorCode.invalid_request, "MemberEpoch is invalid.")
    names = request.subscribed_topic_names or ()
    check_subscription(names)
    check_lengths(
        GroupId=request.group_id,
        MemberId=request.member_id,
        RackId=request.rack_id,
        ClientId=request.client_id,
        SubscribedTopicNames=names,
    )


def _member_of(group: ShareGroup, member_id: str) -> Member:
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(group.group_id, member_id)
    return member


def _subscription(request: ShareHeartbeatRequest, old: ShareMember) -> ShareMember:
    """The member after its request."""
    names = request.subscribed_topic_names
    return ShareMember(
        old.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        old.subscribed_topic_names if names is None else tuple(sorted(set(names))),
    )
