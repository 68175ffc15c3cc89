"""Membership of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their timeouts.

Behaves as Kafka's group coordinator does for classic groups: KIP-394 (member ids are given out before members
join), KIP-345 (static members), KIP-559 (protocol type and name in replies), KIP-814 (skipped assignment).

Kafka's coordinator leaves some requests without a reply. This one answers them, because replies on a
connection keep their order: a waiting join or sync ends with REBALANCE_IN_PROGRESS when its member asks
again, and the waiting sync of a leaving member with UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.groups.group import Group, Member, deadline_of, rebalance_timeout_of
from korvet.groups.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
    LeftMember,
    SyncReply,
    SyncRequest,
    Token,
)
from korvet.groups.share.group import ShareGroup
from korvet.groups.state import GroupState
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue
from korvet.offsets.wire import fits_string

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.groups.context import Context

NO_MEMBER_ID = ""
SUFFIX_ROOM = " " * 37  # "-" and a UUID
ONE_TICK_MS = 1  # Limits the time until a deadline that another deadline sets, so that every tick ends.

HEARTBEAT_REPLIES = {error: HeartbeatReply(error) for error in ErrorCode}
AFTER_JOIN = frozenset({GroupState.COMPLETING_REBALANCE, GroupState.STABLE})


def refuse_strings(request: JoinRequest) -> ErrorCode:
    """The error if the group's record cannot hold a member's strings; NONE if it can. The member id is
    derived from the instance id or client id.
    """
    if not fits_string(request.group_id):
        return ErrorCode.invalid_group_id
    instance_id = request.group_instance_id
    name = request.client_id if instance_id is None else instance_id
    texts = (request.client_id, name + SUFFIX_ROOM, request.protocol_type)
    if all(map(fits_string, texts)) and all(fits_string(protocol.name) for protocol in request.protocols):
        return ErrorCode.none
    return ErrorCode.invalid_request


class Membership:
    """The membership side of a shard."""

    __slots__ = ("_context", "_new_member_suffix")

    def __init__(self, context: Context, new_member_suffix: Callable[[], str]) -> None:
        self._context = context
        self._new_member_suffix = new_member_suffix

    # JoinGroup

    def join(self, request: JoinRequest, token: Token) -> None:
        """JoinGroup: the reply comes when all members have joined, or at once."""
        refusal = self._refuse_join(request)
        if refusal is not ErrorCode.none:
            self._context.reply(token, JoinReply(refusal, request.member_id))
            return
        group = self._context.classic(request.group_id)
        is_new_group = group is None
        if group is None:
            former = self._context.groups.get(request.group_id)
            group = self._context.groups[request.group_id] = Group(request.group_id, self._context.now_ms)
            if former is not None:
                # A consumer group without members.
                group.predecessor = former.tombstones()
        if not self._accepts(group, request.member_id):
            group.remove(request.member_id)
            self._context.reply(token, JoinReply(ErrorCode.group_max_size_reached))
        elif request.member_id == NO_MEMBER_ID:
            self._join_new(group, request, token)
        else:
            self._join_known(group, request, token)
        if is_new_group:
            self._record(group, GroupMetadataValue("", 0, None, None, self._context.now_ms, ()))

    def _refuse_join(self, request: JoinRequest) -> ErrorCode:
        config = self._context.config
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if not config.min_session_timeout_ms <= request.session_timeout_ms <= config.max_session_timeout_ms:
            return ErrorCode.invalid_session_timeout
        if isinstance(self._context.groups.get(request.group_id), ShareGroup):
            return ErrorCode.inconsistent_group_protocol
        if request.member_id != NO_MEMBER_ID and self._context.classic(request.group_id) is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none

    def _accepts(self, group: Group, member_id: str) -> bool:
        """Whether the group has room for a joining member.

        During a rebalance, only members that have joined count, so that a group above the limit (which may
        have been lowered) loses its last ones.
        """
        member = group.members.get(member_id)
        limit = self._context.config.max_size
        if group.state is GroupState.PREPARING_REBALANCE:
            return (member is not None and member.awaiting_join is not None) or group.awaiting_joins < limit
        return group.state is GroupState.EMPTY or member is not None or len(group.members) < limit

    def _join_new(self, group: Group, request: JoinRequest, token: Token) -> None:
        if not group.supports(request.protocol_type, request.protocols):
            self._context.reply(token, JoinReply(ErrorCode.inconsistent_group_protocol))
            return
        instance_id = request.group_instance_id
        member_id = f"{request.client_id if instance_id is None else instance_id}-{self._new_member_suffix()}"
        if instance_id is not None and instance_id in group.static_members:
            self._replace_static(
                group, group.members[group.static_members[instance_id]], member_id, request, token
            )
        elif instance_id is None and request.needs_member_id:
            self._give_member_id(group, member_id, request, token)
        else:
            self._add_member(group, member_id, request, token)

    def _give_member_id(self, group: Group, member_id: str, request: JoinRequest, token: Token) -> None:
        deadline = group.pending_joins[member_id] = deadline_of(
            None, partial(self._expire_pending, group, member_id)
        )
        self._context.timers.arm(deadline, self._context.now_ms + request.session_timeout_ms)
        self._context.reply(token, JoinReply(ErrorCode.member_id_required, member_id))

    def _join_known(self, group: Group, request: JoinRequest, token: Token) -> None:
        member_id = request.member_id
        if not group.supports(request.protocol_type, request.protocols):
            self._context.reply(token, JoinReply(ErrorCode.inconsistent_group_protocol, member_id))
            return
        if member_id in group.pending_joins and request.group_instance_id is None:
            self._add_member(group, member_id, request, token)
            return
        error = group.check_member(member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            self._context.reply(token, JoinReply(error, member_id))
            return
        member = group.members[member_id]
        if self._must_rebalance_for(group, member, request):
            self._update_member(group, member, request, token)
            self._rebalance_or_complete_join(group)
        else:
            # The reply to the first join may have been lost; a leader that has synced comes here only before
            # Stable.
            is_leader = group.leader_id == member_id
            self._context.reply(token, self._generation_reply(group, member_id, tell_members=is_leader))

    @staticmethod
    def _must_rebalance_for(group: Group, member: Member, request: JoinRequest) -> bool:
        """Whether a member's return belongs to a rebalance or begins one.

        A leader that joins a stable group again wants a new assignment.
        """
        if group.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
            return True
        return group.state is GroupState.STABLE and group.leader_id == member.member_id

    def _add_member(self, group: Group, member_id: str, request: JoinRequest, token: Token) -> None:
        pending = group.pending_joins.pop(member_id, None)
        if pending is not None:
            pending.cancel()
        member = Member(
            member_id,
            request.group_instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=rebalance_timeout_of(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
        )
        member.is_new = True
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True  # the initial rebalance is extended
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member)
        self._await_join(group, member, token)
        # The member does not know its id before the reply, so it cannot send heartbeats; and a client that
        # disconnected while waiting returns as another member. This limit keeps such leftovers from piling
        # up.
        self._arm_session(group, member, self._context.config.new_member_join_timeout_ms)
        self._rebalance_or_complete_join(group)

    def _update_member(self, group: Group, member: Member, request: JoinRequest, token: Token) -> None:
        group.update(member, request.protocols, rebalance_timeout_of(request), request.session_timeout_ms)
        self._await_join(group, member, token)

    def _replace_static(
        self, group: Group, old: Member, member_id: str, request: JoinRequest, token: Token
    ) -> None:
        """A static member has returned after a restart: it replaces its former self (KIP-345)."""
        former_leader = group.leader_id
        self._context.answer_join(group, old, JoinReply(ErrorCode.fenced_instance_id, old.member_id))
        self._context.answer_sync(old, SyncReply(ErrorCode.fenced_instance_id))
        member = old.replaced_by(member_id)
        group.replace_static(old, member)
        self._arm_session(group, member, member.session_timeout_ms)
        self._update_member(group, member, request, token)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._keep_generation(group, member, former_leader, can_skip=request.can_skip_assignment)
            return
        renamed = group.renamed_record(member)
        if renamed is not None:
            # After a load during the rebalance, the old id would fence the new one.
            self._record(group, renamed)
        if group.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(group)
        else:
            # While the leader assigns, it may assign to the old id, and the new one would get nothing.
            self._prepare_rebalance(group)

    def _keep_generation(
        self, group: Group, member: Member, former_leader: str | None, *, can_skip: bool
    ) -> None:
        """Answer a returned static member without a rebalance, and record its new id.

        Before KIP-814, a returned leader gets the former id as leader; otherwise it would assign again.
        """
        is_leader = group.leader_id == member.member_id
        reply = self._generation_reply(
            group,
            member.member_id,
            tell_members=can_skip and is_leader,
            skip_assignment=can_skip and is_leader,
        )
        if not can_skip:
            reply = JoinReply(
                reply.error,
                reply.member_id,
                reply.generation_id,
                reply.protocol_type,
                reply.protocol_name,
                former_leader or "",
            )
        self._record(group, group.to_value({m.member_id: m.assignment for m in group.members.values()}))
        self._context.answer_join(group, member, reply)

    @staticmethod
    def _generation_reply(
        group: Group, member_id: str, *, tell_members: bool, skip_assignment: bool = False
    ) -> JoinReply:
        return JoinReply(
            ErrorCode.none,
            member_id,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            group.leader_id or "",
            skip_assignment,
            group.joined_members() if tell_members else (),
        )

    # The join phase

    def rebalance(self, group: Group) -> None:
        """Begin a rebalance that no member has asked for."""
        self._prepare_rebalance(group)

    def _rebalance_or_complete_join(self, group: Group) -> None:
        if group.can_rebalance():
            self._prepare_rebalance(group)
        else:
            self._maybe_complete_join(group)

    def _maybe_complete_join(self, group: Group) -> None:
        """Complete the join phase when all members have joined; an initial one waits until its time is
        up, because more members may come.
        """
        is_preparing = group.state is GroupState.PREPARING_REBALANCE
        if is_preparing and group.previous_state is not GroupState.EMPTY and group.all_joined():
            self._complete_join(group)

    def _prepare_rebalance(self, group: Group) -> None:
        if group.state is GroupState.COMPLETING_REBALANCE:
            self._interrupt_syncs(group)
        self._end_sync_phase(group)
        is_initial = group.state is GroupState.EMPTY
        self._context.begin_rebalance(group)
        group.transition(GroupState.PREPARING_REBALANCE, self._context.now_ms)
        if is_initial:
            self._begin_initial_delay(group)
        elif group.all_joined():
            self._complete_join(group)
        else:
            self._arm_join(group, max(group.rebalance_timeout_ms(), ONE_TICK_MS))

    def _begin_initial_delay(self, group: Group) -> None:
        delay_ms = self._context.config.initial_rebalance_delay_ms
        group.new_member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        self._arm_join(group, delay_ms)

    def _join_time_is_up(self, group: Group) -> None:
        if self._context.groups.get(group.group_id) is not group:
            return
        remaining_ms = group.initial_remaining_ms
        if remaining_ms and group.new_member_added:
            group.new_member_added = False
            spent_ms = group.initial_delay_ms
            group.initial_delay_ms = min(self._context.config.initial_rebalance_delay_ms, remaining_ms)
            group.initial_remaining_ms = max(remaining_ms - spent_ms, 0)
            self._arm_join(group, group.initial_delay_ms)
        else:
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """Begin the next generation without the dynamic members that have not joined again."""
        group.initial_remaining_ms = None
        if group.join_deadline is not None:
            group.join_deadline.cancel()
        for member in list(group.members.values()):
            if member.awaiting_join is None and member.group_instance_id is None:
                self._context.counts.expired_members += 1
                group.remove(member.member_id)
        if group.members and not group.elect_joined_leader():
            # Only static members, none of which has joined: wait until one does or their sessions end.
            self._arm_join(group, max(group.rebalance_timeout_ms(), ONE_TICK_MS))
            return
        group.next_generation(self._context.now_ms, self._context.least_generation)
        if group.state is GroupState.EMPTY:
            group.rebalancing_since_ms = None
            self._record(group, group.to_value({}))
        else:
            self._begin_sync_phase(group)

    def _begin_sync_phase(self, group: Group) -> None:
        for member in group.members.values():
            is_leader = group.leader_id == member.member_id
            if member.awaiting_join is not None:
                reply = self._generation_reply(group, member.member_id, tell_members=is_leader)
                self._context.answer_join(group, member, reply)
            self._arm_session(group, member, member.session_timeout_ms)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        group.sync_deadline = deadline_of(group.sync_deadline, partial(self._sync_time_is_up, group))
        timeout_ms = max(group.rebalance_timeout_ms(), ONE_TICK_MS)
        self._context.timers.arm(group.sync_deadline, self._context.now_ms + timeout_ms)

    # SyncGroup

    def sync(self, request: SyncRequest, token: Token) -> None:
        """SyncGroup: the reply comes when the leader has sent the assignment, or at once."""
        group = self._context.classic(request.group_id)
        error = self._refuse_sync(group, request)
        if group is None or error is not ErrorCode.none:
            self._context.reply(token, SyncReply(error))
            return
        member = group.members[request.member_id]
        group.pending_syncs.discard(request.member_id)
        if not group.pending_syncs and group.sync_deadline is not None:
            group.sync_deadline.cancel()
        if group.state is GroupState.STABLE:
            self._context.reply(token, self._assignment_reply(group, member.assignment))
            return
        self._context.answer_sync(member, SyncReply(ErrorCode.rebalance_in_progress))
        member.awaiting_sync = self._context.wait(token)
        if group.leader_id == request.member_id:
            self._assign(group, request)

    def _refuse_sync(self, group: Group | None, request: SyncRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if group is None or group.state is GroupState.EMPTY:
            return ErrorCode.unknown_member_id
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.illegal_generation
        if differ(request.protocol_type, group.protocol_type) or differ(
            request.protocol_name, group.protocol_name
        ):
            return ErrorCode.inconsistent_group_protocol
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _assign(self, group: Group, request: SyncRequest) -> None:
        """Write the leader's assignment and distribute it; the record's replay makes the group Stable."""
        given = {item.member_id: item.assignment for item in request.assignments}
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        self._record(group, group.to_value(assignments))
        for member in group.members.values():
            if self._context.answer_sync(
                member, self._assignment_reply(group, assignments[member.member_id])
            ):
                self._arm_session(group, member, member.session_timeout_ms)

    @staticmethod
    def _assignment_reply(group: Group, assignment: bytes) -> SyncReply:
        return SyncReply(ErrorCode.none, group.protocol_type, group.protocol_name, assignment)

    def _interrupt_syncs(self, group: Group) -> None:
        for member in group.members.values():
            member.assignment = b""
            if self._context.answer_sync(member, SyncReply(ErrorCode.rebalance_in_progress)):
                self._arm_session(group, member, member.session_timeout_ms)

    @staticmethod
    def _end_sync_phase(group: Group) -> None:
        group.pending_syncs.clear()
        if group.sync_deadline is not None:
            group.sync_deadline.cancel()

    def _sync_time_is_up(self, group: Group) -> None:
        """Remove members that have not fetched their assignment in time."""
        if self._context.groups.get(group.group_id) is not group or group.state not in AFTER_JOIN:
            return
        if group.pending_syncs:
            self._context.counts.expired_members += len(group.pending_syncs)
            for member_id in sorted(group.pending_syncs):
                self._drop(group, member_id)
            self._prepare_rebalance(group)

    # Heartbeat

    def heartbeat(self, request: HeartbeatRequest, token: Token) -> None:
        """Heartbeat: extends the member's session, and informs the member of a rebalance."""
        self._context.reply(token, HEARTBEAT_REPLIES[self._heartbeat(request)])

    def _heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.invalid_group_id
        group = self._context.classic(request.group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.illegal_generation
        self.refresh_session(group, request.member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def refresh_session(self, group: Group, member_id: str) -> None:
        """Extend a member's session."""
        member = group.members[member_id]
        self._arm_session(group, member, member.session_timeout_ms)

    # LeaveGroup

    def leave(self, request: LeaveRequest, token: Token) -> None:
        """LeaveGroup: removes members at once."""
        if not request.group_id:
            self._context.reply(token, LeaveReply(ErrorCode.invalid_group_id))
            return
        group = self._context.classic(request.group_id)
        left = tuple(
            LeftMember(
                leaving.member_id,
                leaving.group_instance_id,
                ErrorCode.unknown_member_id if group is None else self._leave_one(group, leaving),
            )
            for leaving in request.members
        )
        if group is not None and any(member.error is ErrorCode.none for member in left):
            if group.state in AFTER_JOIN:
                self._prepare_rebalance(group)
            else:
                self._maybe_complete_join(group)
        self._context.reply(token, LeaveReply(ErrorCode.none, left))

    def _leave_one(self, group: Group, leaving: LeavingMember) -> ErrorCode:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == NO_MEMBER_ID:
            owner = None if instance_id is None else group.static_members.get(instance_id)
            if owner is None:
                return ErrorCode.unknown_member_id
            member_id = owner
        elif member_id not in group.pending_joins:
            error = group.check_member(member_id, instance_id)
            if error is not ErrorCode.none:
                return error
        self._drop(group, member_id)
        return ErrorCode.none

    # Time-outs

    def start_sessions(self, group: Group) -> None:
        """Give all members of a loaded group a fresh session, and rebalance a group that is too large now."""
        for member in group.members.values():
            self._arm_session(group, member, member.session_timeout_ms)
        if len(group.members) > self._context.config.max_size:
            self._prepare_rebalance(group)

    def keep_sessions(self, group: Group) -> None:
        """Start a session for each member without one: the session of a member that waits for a reply may
        have ended, and the reply may not be sent.
        """
        for member in group.members.values():
            if member.session is None or not member.session.is_armed:
                self._arm_session(group, member, member.session_timeout_ms)

    def _expire_pending(self, group: Group, member_id: str) -> None:
        """The owner of a member id has not returned with it in time."""
        is_present = self._context.groups.get(group.group_id) is group
        if is_present and group.pending_joins.pop(member_id, None) is not None:
            self._complete_join_without(group)

    def _expire_session(self, group: Group, member: Member) -> None:
        """A member's session has expired; a member that waits for a reply stays, unless it never received
        its id.
        """
        if group.members.get(member.member_id) is not member:
            return
        if not member.is_new and (member.awaiting_join is not None or member.awaiting_sync is not None):
            return
        self._context.counts.expired_members += 1
        self._drop(group, member.member_id)
        if group.state in AFTER_JOIN:
            self._prepare_rebalance(group)
        else:
            self._complete_join_without(group)

    def end_session(self, group: Group, member_id: str) -> bool:
        """End a member's session before its time. Returns whether there is such a member."""
        member = group.members.get(member_id)
        if member is None:
            return False
        if member.session is not None:
            member.session.cancel()
        self._expire_session(group, member)
        return True

    def _complete_join_without(self, group: Group) -> None:
        if group.state is GroupState.PREPARING_REBALANCE and group.all_joined():
            self._complete_join(group)

    def _drop(self, group: Group, member_id: str) -> None:
        """Remove a member or pending member and answer its waiting requests."""
        member = group.remove(member_id)
        if member is not None:
            self._context.answer_join(group, member, JoinReply(ErrorCode.unknown_member_id))
            self._context.answer_sync(member, SyncReply(ErrorCode.unknown_member_id))

    # Shared steps

    def _await_join(self, group: Group, member: Member, token: Token) -> None:
        superseded = JoinReply(ErrorCode.rebalance_in_progress, member.member_id)
        self._context.answer_join(group, member, superseded)
        member.awaiting_join = self._context.wait(token)
        group.awaiting_joins += 1

    def _arm_session(self, group: Group, member: Member, timeout_ms: int) -> None:
        if member.session is None:
            member.session = deadline_of(None, partial(self._expire_session, group, member))
        self._context.timers.arm(member.session, self._context.now_ms + timeout_ms)

    def _arm_join(self, group: Group, timeout_ms: int) -> None:
        group.join_deadline = deadline_of(group.join_deadline, partial(self._join_time_is_up, group))
        self._context.timers.arm(group.join_deadline, self._context.now_ms + timeout_ms)

    def _record(self, group: Group, value: GroupMetadataValue) -> None:
        group.unconfirmed.append(value)
        self._context.records += group.predecessor
        self._context.records.append((GroupMetadataKey(group.group_id), value))


def differ(said: str | None, known: str | None) -> bool:
    """Whether a request contradicts the group's protocol; None contradicts nothing."""
    return said is not None and known is not None and said != known
