"""Membership of consumer groups: ConsumerGroupHeartbeat and its timeouts (KIP-848).

Each heartbeat moves its member one step: subscription, group epoch, target assignment, usable partitions. As
in Kafka's coordinator, a new target is computed at most once per interval, by the heartbeat of any member.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from kio.schema.errors import ErrorCode

from korvet.groups.consumer.assignors import ASSIGNORS, AssignedMember
from korvet.groups.consumer.automaton import InvalidRegex
from korvet.groups.consumer.draft import Draft
from korvet.groups.consumer.group import ConsumerGroup
from korvet.groups.consumer.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    Member,
    MemberState,
    reconcile,
)
from korvet.groups.consumer.messages import ConsumerHeartbeatRequest, MemberHeartbeatReply, owned_topics
from korvet.groups.consumer.migration import CannotUpgrade
from korvet.groups.consumer.regex import compile_regex
from korvet.groups.consumer.topics import metadata_hash
from korvet.groups.group import Group
from korvet.groups.own_configs import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from korvet.groups.refused import Refused, check_filled, check_lengths, check_subscription, unknown_member
from korvet.groups.timers import MemberDeadlines
from korvet.offsets.group_records import ConsumerMember, ResolvedRegex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from korvet.groups.consumer.member import Owned
    from korvet.groups.consumer.messages import OwnedTopic
    from korvet.groups.consumer.migration import Migration
    from korvet.groups.context import Context
    from korvet.groups.messages import Token


class ConsumerMembership:
    """The membership side of a shard for consumer groups."""

    __slots__ = ("_context", "_migration", "_new_member_id", "_rebalances", "_sessions")

    def __init__(self, context: Context, migration: Migration, new_member_id: Callable[[], str]) -> None:
        self._context = context
        self._migration = migration
        self._new_member_id = new_member_id
        self._sessions = MemberDeadlines(context.timers)
        self._rebalances = MemberDeadlines(context.timers)

    # Heartbeats

    def heartbeat(self, request: ConsumerHeartbeatRequest, token: Token) -> None:
        """ConsumerGroupHeartbeat: the member joins, leaves, or stays and takes its next step."""
        try:
            self._check(request)
            if request.member_epoch in {LEAVE_EPOCH, STATIC_LEAVE_EPOCH}:
                reply = self._leave(request)
            else:
                reply = self._stay(request)
        except Refused as refusal:
            reply = MemberHeartbeatReply(refusal.error, refusal.message)
        self._context.reply(token, reply)

    def _check(self, request: ConsumerHeartbeatRequest) -> None:
        names, regex = request.subscribed_topic_names or (), request.subscribed_topic_regex
        check_lengths(
            GroupId=request.group_id,
            MemberId=request.member_id,
            InstanceId=request.instance_id,
            RackId=request.rack_id,
            ClientId=request.client_id,
            SubscribedTopicNames=names,
            SubscribedTopicRegex=regex,
        )
        check_filled(GroupId=request.group_id, InstanceId=request.instance_id, RackId=request.rack_id)
        if not (request.gives_member_id and request.member_epoch == JOIN_EPOCH):
            check_filled(MemberId=request.member_id)
        if request.member_epoch == JOIN_EPOCH:
            self._check_join(request)
        elif request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
            raise Refused(ErrorCode.invalid_request, "InstanceId can't be null.")
        elif request.member_epoch < STATIC_LEAVE_EPOCH:
            raise Refused(ErrorCode.invalid_request, f"MemberEpoch is invalid: {request.member_epoch}")
        check_subscription(names)
        if regex:
            _check_regex(regex)
        assignors = self._context.config.assignors
        if request.server_assignor is not None and request.server_assignor not in assignors:
            raise Refused(
                ErrorCode.unsupported_assignor,
                f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: "
                f"{', '.join(assignors)}.",
            )

    @staticmethod
    def _check_join(request: ConsumerHeartbeatRequest) -> None:
        if request.rebalance_timeout_ms == -1:
            raise Refused(ErrorCode.invalid_request, "RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise Refused(ErrorCode.invalid_request, "TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
            raise Refused(
                ErrorCode.invalid_request,
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
            )

    # Leaving

    def _leave(self, request: ConsumerHeartbeatRequest) -> MemberHeartbeatReply:
        group = self._existing(request.group_id)
        member = self._leaver(group, request)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            draft = Draft(group)
            draft.assignment(member.forgets_epochs(STATIC_LEAVE_EPOCH, member.previous_epoch))
            self._context.records += draft.records
        else:
            self.remove(group, [member.member_id])
        return MemberHeartbeatReply(ErrorCode.none, None, request.member_id, request.member_epoch)

    def _leaver(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> Member:
        if request.instance_id is None:
            return self._member(group, request.member_id)
        return self._static_member(group, request)

    def remove(self, group: ConsumerGroup, member_ids: Iterable[str]) -> None:
        """Remove members, on request or not; the group returns to the classic protocol if only members
        that use it are left.
        """
        member_ids = list(member_ids)
        for member_id in member_ids:
            self._cancel(group.group_id, member_id)
        if self._migration.must_downgrade(group, member_ids):
            self.downgrade(group, group.epoch, member_ids)
            self._migration.rebalance_soon(group.group_id)
            return
        draft = Draft(group)
        regexes = {group.members[member_id].subscription.subscribed_topic_regex for member_id in member_ids}
        for member_id in member_ids:
            draft.remove(member_id)
        self._drop_regexes(draft, regexes)
        names = draft.group.subscribed_topics
        draft.epoch(self._next_epoch(draft), metadata_hash(self._context.topics, names))
        if draft.group.is_empty:
            draft.target_epoch(draft.group.epoch, 0)
        self._context.records += draft.records

    def _next_epoch(self, draft: Draft) -> int:
        return max(draft.group.epoch + 1, self._context.least_generation)

    def downgrade(self, group: ConsumerGroup, generation: int, leaving: Iterable[str] = ()) -> None:
        """Make a classic group of the remaining members."""
        self._context.records += self._migration.downgrade(group, list(leaving), generation)
        for member_id in group.members:
            self._cancel(group.group_id, member_id)

    @staticmethod
    def _drop_regexes(draft: Draft, regexes: Iterable[str | None]) -> None:
        for regex in regexes:
            if regex and regex in draft.group.regexes and not draft.group.users_of(regex):
                draft.regex(regex, None)

    # Joining and staying

    def _stay(self, request: ConsumerHeartbeatRequest) -> MemberHeartbeatReply:
        is_join = request.member_epoch == JOIN_EPOCH
        if is_join and not request.member_id:
            request = msgspec.structs.replace(request, member_id=self._new_member_id())
        draft = self._draft(request.group_id) if is_join else Draft(self._existing(request.group_id))
        before = self._subscribe(draft, request) if is_join else self._known(draft.group, request)
        self._update(draft, request, before.subscription)
        member = self.advance(draft, request.member_id, _reported(request))
        self._context.records += draft.records
        former = self._context.classic(request.group_id)
        if former is not None:
            # Its timeouts run on until the records are replayed: they may be discarded.
            self._context.answer_all(former, ErrorCode.rebalance_in_progress)
            for other in draft.group.members.values():
                self.arm_session(request.group_id, other)
        self.arm_session(request.group_id, member)
        is_full = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.owned is not None
        )
        told = is_join or is_full or not _same_partitions(before.assigned, member.assigned)
        return MemberHeartbeatReply(
            ErrorCode.none,
            None,
            member.member_id,
            member.epoch,
            self._context.config.number(request.group_id, HEARTBEAT_INTERVAL_MS),
            owned_topics(member.assigned) if told else None,
        )

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._context.groups.get(group_id)
        if group is None:
            raise Refused(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
        if not isinstance(group, ConsumerGroup):
            raise Refused(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        return group

    def _draft(self, group_id: str) -> Draft:
        """The group that a member joins; it is created if it does not exist or has another type."""
        group = self._context.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return Draft(group)
        if group is None:
            return Draft(ConsumerGroup(group_id), [])
        if not isinstance(group, Group):
            raise Refused(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        if group.is_empty:
            return Draft(ConsumerGroup(group_id), group.tombstones())
        try:
            return self._migration.upgrade(group)
        except CannotUpgrade as error:
            raise Refused(ErrorCode.group_id_not_found, str(error)) from error

    def _subscribe(self, draft: Draft, request: ConsumerHeartbeatRequest) -> Member:
        """The joining member before the request: a new member, itself, or a static member under a new id."""
        group = draft.group
        known = group.members.get(request.member_id)
        limit = self._context.config.consumer_max_size
        owner_id = None if request.instance_id is None else group.static_members.get(request.instance_id)
        if known is None and owner_id is None and len(group.members) >= limit:
            raise Refused(
                ErrorCode.group_max_size_reached,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )
        if owner_id is not None and owner_id != request.member_id:
            owner = group.members[owner_id]
            # A client of the classic protocol does not announce that it leaves for a while.
            if owner.epoch != STATIC_LEAVE_EPOCH and not owner.is_classic:
                raise Refused(
                    ErrorCode.unreleased_instance_id,
                    f"Static member {request.member_id} with instance id {request.instance_id} cannot join "
                    f"the group because the instance id is owned by {owner_id} member.",
                )
            before = self.replace_static(draft, owner, request.member_id, JOIN_EPOCH)
            if known is not None:
                self._drop_regexes(draft, (known.subscription.subscribed_topic_regex,))
            return before
        return known or Member(request.member_id)

    def replace_static(self, draft: Draft, owner: Member, member_id: str, epoch: int) -> Member:
        """Let a static member continue under the id that it has after a restart."""
        target = draft.group.targets.get(owner.member_id, {})
        draft.remove(owner.member_id)
        self._cancel(draft.group.group_id, owner.member_id)
        draft.subscription(member_id, owner.subscription)
        draft.target(member_id, target)
        kept = msgspec.structs.replace(owner, member_id=member_id)
        kept = kept.forgets_epochs(epoch, epoch)
        draft.assignment(kept)
        return kept

    def _known(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> Member:
        if request.instance_id is None:
            member = self._member(group, request.member_id)
        else:
            member = self._static_member(group, request)
        epoch = request.member_epoch
        # The response with the new epoch may have been lost.
        is_late = epoch == member.previous_epoch and _is_within(request.owned, member.assigned)
        if epoch > member.epoch or (epoch < member.epoch and not is_late):
            than = "greater" if epoch > member.epoch else "smaller"
            raise Refused(
                ErrorCode.fenced_member_epoch,
                f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the "
                f"group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
            )
        return member

    @staticmethod
    def _member(group: ConsumerGroup, member_id: str) -> Member:
        member = group.members.get(member_id)
        if member is None:
            raise unknown_member(group.group_id, member_id)
        return member

    def _static_member(self, group: ConsumerGroup, request: ConsumerHeartbeatRequest) -> Member:
        instance_id = request.instance_id or ""
        owner_id = group.static_members.get(instance_id)
        if owner_id is None:
            raise Refused(ErrorCode.unknown_member_id, f"Instance id {instance_id} is unknown.")
        if owner_id != request.member_id:
            raise Refused(
                ErrorCode.fenced_instance_id,
                f"Static member {request.member_id} with instance id {instance_id} was fenced by member "
                f"{owner_id}.",
            )
        return group.members[owner_id]

    # Subscriptions

    def _update(self, draft: Draft, request: ConsumerHeartbeatRequest, old: ConsumerMember) -> None:
        """Update a member from its request, and bump the group's epoch if that matters to other members."""
        new = _subscription(request, old)
        if new != old:
            draft.subscription(request.member_id, new)
        # The assignment of a classic group may lack partitions, and in its first join phase, there is none.
        upgrades = self._context.classic(request.group_id) is not None
        self.refresh(draft, old, new, request.may_describe, bump=upgrades)

    def refresh(
        self,
        draft: Draft,
        old: ConsumerMember,
        new: ConsumerMember,
        may_describe: Callable[[str], bool] | None,
        *,
        bump: bool = False,
    ) -> None:
        """Bump the group's epoch if a member's topics have changed, or the existing topics, or if `bump`."""
        regex, old_regex = new.subscribed_topic_regex or "", old.subscribed_topic_regex or ""
        bump = bump or new.subscribed_topic_names != old.subscribed_topic_names or regex != old_regex
        if regex != old_regex:
            self._drop_regexes(draft, (old_regex,))
        version = self._context.topics.version
        stale = draft.group.checked_version != version
        if regex and self._must_resolve(draft.group.regexes.get(regex), version):
            stale = self._resolve(draft, regex, may_describe) or stale
        if not bump and not stale:
            return
        value = metadata_hash(self._context.topics, draft.group.subscribed_topics)
        if bump or value != draft.group.metadata_hash:
            # The next heartbeat compares again: these records may be discarded.
            draft.epoch(self._next_epoch(draft), value)
            return
        group = self._context.groups.get(draft.group.group_id)
        if isinstance(group, ConsumerGroup):
            group.checked_version = version

    def _must_resolve(self, known: ResolvedRegex | None, version: int) -> bool:
        """Whether it is time to search for the topics of an expression; not too often."""
        if known is None or self._is_outdated(known):
            return True
        is_recent = self._context.now_ms - known.timestamp < self._context.config.regex_refresh_interval_ms
        return known.metadata_version != version and not is_recent

    def _is_outdated(self, known: ResolvedRegex) -> bool:
        """Whether the member may describe other topics by now."""
        # A search in the future was before the clock was set back.
        interval_ms = self._context.config.regex_permissions_interval_ms
        return not 0 <= self._context.now_ms - known.timestamp < interval_ms

    def _resolve(self, draft: Draft, regex: str, may_describe: Callable[[str], bool] | None) -> bool:
        """Whether the topics of an expression were determined; a later heartbeat may find more."""
        found = self._context.topics.matching(regex)
        if found is None:
            return False
        known = draft.group.regexes.get(regex)
        if known is not None and known.metadata_version == found.version and not self._is_outdated(known):
            return False
        names = [name for name in found.names if may_describe is None or may_describe(name)]
        draft.regex(regex, ResolvedRegex(tuple(sorted(names)), found.version, self._context.now_ms))
        return True

    # Targets

    def advance(
        self, draft: Draft, member_id: str, reported: Mapping[bytes, frozenset[int]] | None
    ) -> Member:
        """Compute a new target if it is time, and move the member one step towards its own."""
        if draft.group.epoch > draft.group.target_epoch and self._may_assign(draft.group):
            self._assign(draft)
        group = draft.group
        member = group.members.get(member_id) or Member(member_id)
        topics = group.topic_ids(self._context.topics, member.subscription)
        if member.epoch == STATIC_LEAVE_EPOCH:
            member = member.forgets_epochs(JOIN_EPOCH, JOIN_EPOCH)

        def is_free(topic: bytes, partition: int) -> bool:
            return group.owners.get((topic, partition), member_id) == member_id

        if member.state is MemberState.UNKNOWN and reported != {}:
            raise Refused(
                ErrorCode.fenced_member_epoch,
                "The consumer group member is in a unknown state. The member must abandon all its "
                "partitions and rejoin.",
            )
        target = group.targets.get(member_id, {})
        after = reconcile(member, group.target_epoch, target, topics, reported, is_free)
        if after != group.members.get(member_id):
            draft.assignment(after)
            self._watch_revocation(group.group_id, after)
        return after

    def _may_assign(self, group: ConsumerGroup) -> bool:
        interval_ms = self._context.config.consumer_assignment_interval_ms
        return not 0 <= self._context.now_ms - group.target_timestamp_ms < interval_ms

    def _assign(self, draft: Draft) -> None:
        group = draft.group
        counts: dict[bytes, int] = {}
        members = []
        for member in group.members.values():
            topics = group.topic_ids(self._context.topics, member.subscription)
            counts |= topics
            members.append(
                AssignedMember(
                    member.member_id,
                    member.subscription.instance_id,
                    frozenset(topics),
                    group.targets.get(member.member_id, {}),
                )
            )
        targets = ASSIGNORS[self.assignor_of(group)](members, counts)
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                draft.target(member_id, target)
        draft.target_epoch(group.epoch, self._context.now_ms)

    def assignor_of(self, group: ConsumerGroup) -> str:
        """The name of the assignor that computes the group's next target."""
        assignors = self._context.config.assignors
        name = group.assignor_name(assignors[0])
        return name if name in assignors else assignors[0]

    # Time-outs

    def start_sessions(self, group: ConsumerGroup) -> None:
        """Give all members of a loaded group a fresh session."""
        for member in group.members.values():
            self.arm_session(group.group_id, member)
            self._watch_revocation(group.group_id, member)

    def keep_sessions(self, group: ConsumerGroup) -> None:
        """Start the missing timeouts of all members: the session ends when a member leaves, and the rebalance
        timeout when it gives partitions up, also if that is not recorded.
        """
        for member in group.members.values():
            place = group.group_id, member.member_id
            if place not in self._sessions:
                self.arm_session(group.group_id, member)
            if place not in self._rebalances:
                self._watch_revocation(group.group_id, member)

    def arm_session(self, group_id: str, member: Member) -> None:
        """Extend a member's session."""
        classic = member.subscription.classic_member_metadata
        timeout_ms = (
            self._context.config.number(group_id, SESSION_TIMEOUT_MS)
            if classic is None
            else classic.session_timeout_ms
        )
        expire = partial(self._expire_session, group_id, member.member_id)
        self._sessions.arm(group_id, member.member_id, self._after(timeout_ms), expire)

    def _watch_revocation(self, group_id: str, member: Member) -> None:
        """A member has its rebalance timeout to give partitions up; classic members must join again."""
        if member.is_classic:
            return
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            expire = partial(self._expire_revocation, group_id, member.member_id, member.epoch)
            timeout_ms = member.subscription.rebalance_timeout_ms
            self._rebalances.arm(group_id, member.member_id, self._after(timeout_ms), expire)
        else:
            self._rebalances.cancel(group_id, member.member_id)

    def expect(self, group_id: str, member_id: str, timeout_ms: int) -> None:
        """Limit the time of a classic member's next join or sync."""
        expire = partial(self._expire_session, group_id, member_id)
        self._rebalances.arm(group_id, member_id, self._after(timeout_ms), expire)

    def is_expected(self, group_id: str, member_id: str) -> bool:
        """Whether a timeout for a join or sync is running."""
        return (group_id, member_id) in self._rebalances

    def expect_nothing(self, group_id: str, member_id: str) -> None:
        """The classic member has joined or synced in time."""
        self._rebalances.cancel(group_id, member_id)

    def _after(self, timeout_ms: int) -> int:
        return self._context.now_ms + max(timeout_ms, 1)

    def _cancel(self, group_id: str, member_id: str) -> None:
        self._sessions.cancel(group_id, member_id)
        self._rebalances.cancel(group_id, member_id)

    def end_session(self, group: ConsumerGroup, member_id: str) -> bool:
        """End a member's session before its time. Returns whether there is such a member."""
        is_member = member_id in group.members
        self._expire_session(group.group_id, member_id)
        return is_member

    def _expire_session(self, group_id: str, member_id: str) -> None:
        self._cancel(group_id, member_id)
        group = self._context.groups.get(group_id)
        if isinstance(group, ConsumerGroup) and member_id in group.members:
            self._context.counts.expired_members += 1
            self.remove(group, [member_id])

    def _expire_revocation(self, group_id: str, member_id: str, epoch: int) -> None:
        group = self._context.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return
        member = group.members.get(member_id)
        if member is not None and member.epoch == epoch and member.state is MemberState.UNREVOKED_PARTITIONS:
            self.remove(group, [member_id])


def _check_regex(regex: str) -> None:
    try:
        compile_regex(regex)
    except InvalidRegex as error:
        raise Refused(ErrorCode.invalid_regular_expression, invalid_regex(regex, error)) from error


def invalid_regex(regex: str, error: InvalidRegex) -> str:
    """The error message for a refused expression."""
    return f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."


def _subscription(request: ConsumerHeartbeatRequest, old: ConsumerMember) -> ConsumerMember:
    """The member after its request."""
    names = request.subscribed_topic_names
    return ConsumerMember(
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_topic_names=old.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        subscribed_topic_regex=(
            old.subscribed_topic_regex
            if request.subscribed_topic_regex is None
            else request.subscribed_topic_regex
        ),
        rebalance_timeout_ms=(
            old.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        server_assignor=old.server_assignor if request.server_assignor is None else request.server_assignor,
    )


def _reported(request: ConsumerHeartbeatRequest) -> dict[bytes, frozenset[int]] | None:
    if request.owned is None:
        return None
    return {topic.topic_id: frozenset(topic.partitions) for topic in request.owned}


def _is_within(owned: tuple[OwnedTopic, ...] | None, assigned: Owned) -> bool:
    """Whether a member reports no partitions other than those assigned to it."""
    if owned is None:
        return False
    return all(number in assigned.get(topic.topic_id, {}) for topic in owned for number in topic.partitions)


def _same_partitions(left: Owned, right: Owned) -> bool:
    return left.keys() == right.keys() and all(left[topic].keys() == right[topic].keys() for topic in left)
