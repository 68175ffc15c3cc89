"""A classic group and its members: their state, and the changes that keep it consistent.

Nothing here answers requests, sets timers or makes decisions; membership.py does.
"""

from __future__ import annotations

from dataclasses import replace
from struct import error as StructError  # noqa: N812 - it is an exception class, named against the convention
from struct import unpack_from
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.groups.messages import CommitRequest, JoinMember, JoinProtocol, JoinRequest, Record, Token
from korvet.groups.state import PREDECESSORS, GroupState, IllegalTransition
from korvet.groups.timers import Action, Deadline
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue, MemberMetadata

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONSUMER_PROTOCOL_TYPE = "consumer"  # the protocol type whose subscriptions korvet can parse
UNKNOWN_TIMESTAMP_MS = -1


class Wait:
    """A request that waits for its reply; token is None after the client disconnected."""

    __slots__ = ("token",)

    def __init__(self, token: Token) -> None:
        self.token: Token | None = token


class Member:
    """A member of a group; awaiting_join and awaiting_sync hold its waiting requests."""

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        *,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: tuple[JoinProtocol, ...],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.awaiting_join: Wait | None = None
        self.awaiting_sync: Wait | None = None
        self.is_new = False  # the member has not received its member id, so it can send no heartbeat
        self.session: Deadline | None = None

    def protocol_names(self) -> set[str]:
        """The names of the protocols that the member supports."""
        return {protocol.name for protocol in self.protocols}

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's subscription in a protocol. Raises KeyError if the member does not support it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        raise KeyError(protocol_name)

    def replaced_by(self, member_id: str) -> Member:
        """The same static member under the id that it received on its return (KIP-345)."""
        return Member(
            member_id,
            self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            protocols=self.protocols,
            assignment=self.assignment,
        )


class Group:
    """A classic group. state_timestamp_ms is the time of its last change of state, or -1 if an old record
    lacks it.
    """

    __slots__ = (
        "awaiting_joins",
        "generation",
        "group_id",
        "has_record",
        "initial_delay_ms",
        "initial_remaining_ms",
        "join_deadline",
        "last_record",
        "leader_id",
        "members",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "predecessor",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "rebalancing_since_ms",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
        "supporters",
        "sync_deadline",
        "unconfirmed",
    )

    group_type: Final = "classic"

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # group instance id -> member id
        self.supporters: dict[str, int] = {}  # protocol name -> number of members that support it
        self.awaiting_joins = 0
        self.pending_joins: dict[
            str, Deadline
        ] = {}  # member ids given out whose owners have not returned (KIP-394)
        self.pending_syncs: set[str] = set()
        self.subscribed_topics: frozenset[str] | None = None  # None: unknown
        self.new_member_added = False
        self.rebalancing_since_ms: int | None = None  # None while the group is stable or Empty
        self.initial_delay_ms = 0
        self.initial_remaining_ms: int | None = None  # set while the initial rebalance may be extended
        self.join_deadline: Deadline | None = None
        self.sync_deadline: Deadline | None = None
        self.predecessor: list[Record] = []  # tombstones of a former consumer group, until they are replayed
        self.has_record = False  # None for a simple group, which is known only by its offsets
        self.last_record: GroupMetadataValue | None = None  # the newest one, if it has static members
        self.unconfirmed: list[GroupMetadataValue] = []  # records of this shard that are not replayed yet

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue) -> Group:
        """The group that a record describes: Stable if it has members, else Empty."""
        group = cls(group_id, value.current_state_timestamp_ms)
        group.recorded(value)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol_name = (value.protocol or "") if value.members else value.protocol
        group.leader_id = value.leader
        if value.members:
            group.state = GroupState.STABLE
        # A record of another writer may name a member twice: the last one counts, as in Kafka.
        for stored in {member.member_id: member for member in value.members}.values():
            rebalance_ms = stored.rebalance_timeout_ms
            group.add(
                Member(
                    stored.member_id,
                    stored.group_instance_id,
                    client_id=stored.client_id,
                    client_host=stored.client_host,
                    rebalance_timeout_ms=stored.session_timeout_ms if rebalance_ms < 0 else rebalance_ms,
                    session_timeout_ms=stored.session_timeout_ms,
                    protocols=(JoinProtocol(group.protocol_name or "", stored.subscription),),
                    assignment=stored.assignment,
                )
            )
        group.read_subscriptions()
        return group

    def to_value(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """The record of this group with these assignments by member id (schema GroupMetadataValue v3)."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp_ms=self.state_timestamp_ms,
            members=tuple(
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.group_instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments[member.member_id],
                )
                for member in self.members.values()
            ),
        )

    def recorded(self, value: GroupMetadataValue) -> None:
        """Note that this record of the group is replayed."""
        self.has_record = True
        self.predecessor = []
        is_static = any(member.group_instance_id is not None for member in value.members)
        self.last_record = value if is_static else None

    def renamed_record(self, member: Member) -> GroupMetadataValue | None:
        """The newest record with the present id of a static member; None if it does not have the member."""
        record, instance_id = self.last_record, member.group_instance_id
        if record is None or instance_id is None:
            return None
        former = next((each for each in record.members if each.group_instance_id == instance_id), None)
        if former is None:
            return None
        renamed = replace(former, member_id=member.member_id)
        members = tuple(renamed if each is former else each for each in record.members)
        leader = member.member_id if record.leader == former.member_id else record.leader
        return replace(record, leader=leader, members=members)

    def transition(self, state: GroupState, now_ms: int) -> None:
        """Change the state. Raises IllegalTransition if the current state is not a legal predecessor."""
        if self.state not in PREDECESSORS[state]:
            raise IllegalTransition(f"group {self.group_id!r}: {self.state.value} to {state.value}")
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    def can_rebalance(self) -> bool:
        """Whether a rebalance may begin now."""
        return self.state in PREDECESSORS[GroupState.PREPARING_REBALANCE]

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        return self.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        """Whether the group has no members and no member id that may still return (KIP-394)."""
        return self.is_empty and not self.pending_joins

    @property
    def state_name(self) -> str:
        """The state as DescribeGroups and ListGroups show it."""
        return self.state.value

    def tombstones(self) -> list[Record]:
        """The tombstone of the group, and those of its predecessor."""
        return [*self.predecessor, (GroupMetadataKey(self.group_id), None)]

    # Commits

    def refuse_commit(self, request: CommitRequest) -> ErrorCode:
        """Whether a member may commit: in the current generation, but not while the leader assigns,
        unless in a transaction.
        """
        error = self.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.none:
            return error
        if request.generation_id != self.generation:
            return ErrorCode.illegal_generation
        if self.state is GroupState.COMPLETING_REBALANCE and request.producer is None:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def has_epochs(self, member_id: str) -> bool:
        """Whether the member commits with member epochs, as members of consumer groups do."""
        del member_id
        return False

    def refuse_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Every member may fetch: Kafka checks the member only in consumer groups."""
        del member_id, member_epoch
        return ErrorCode.none

    def expires_since_ms(self) -> int | None:
        """The time from which the group's offsets expire (KIP-211); None if they do not expire.

        For a group that had members: the retention time after it became Empty, which is returned. For topics
        that no member of a stable group of consumers reads, and for a simple group: the retention time after
        the commit (-1).
        """
        if self.protocol_type is None:
            return UNKNOWN_TIMESTAMP_MS
        if self.state is GroupState.EMPTY:
            return self.state_timestamp_ms
        knows_topics = self.subscribed_topics is not None
        return UNKNOWN_TIMESTAMP_MS if self.state is GroupState.STABLE and knows_topics else None

    # Members

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader and sets the protocol type."""
        if self.leader_id is None:
            self.leader_id = member.member_id
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count_support(member, 1)

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or pending member; the returned one may still have waiting requests."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count_support(member, -1)
            if member.awaiting_join is not None:
                self.awaiting_joins -= 1
            if member.session is not None:
                member.session.cancel()
            if member.group_instance_id is not None:
                self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        pending = self.pending_joins.pop(member_id, None)
        if pending is not None:
            pending.cancel()
        self.pending_syncs.discard(member_id)
        return member

    def replace_static(self, old: Member, new: Member) -> None:
        """Replace a member by another one, with all of its roles: leader, pending sync, assignment."""
        del self.members[old.member_id]
        self.members[new.member_id] = new
        if old.session is not None:
            old.session.cancel()
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        if old.member_id in self.pending_syncs:
            self.pending_syncs.remove(old.member_id)
            self.pending_syncs.add(new.member_id)
        if new.group_instance_id is not None:
            self.static_members[new.group_instance_id] = new.member_id

    def update(
        self,
        member: Member,
        protocols: tuple[JoinProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Update a member from its new JoinGroup request."""
        self._count_support(member, -1)
        member.protocols = protocols
        self._count_support(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Whether a member's request comes from a current member that has not been replaced."""
        if group_instance_id is not None:
            owner = self.static_members.get(group_instance_id)
            if owner is None:
                return ErrorCode.unknown_member_id
            if owner != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def rebalance_timeout_ms(self) -> int:
        """The rebalance timeout: the longest that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def all_joined(self) -> bool:
        """Whether the join phase is complete: all members have joined and all given ids are in use."""
        return len(self.members) == self.awaiting_joins and not self.pending_joins

    # Protocols

    def supports(self, protocol_type: str, protocols: Sequence[JoinProtocol]) -> bool:
        """Whether a member with these protocols can join: one of them must suit all members."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        count = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.supporters.get(protocol.name, 0) == count for protocol in protocols
        )

    def select_protocol(self) -> str:
        """The protocol with the most votes; each member votes for the first on its list that all members
        support.
        """
        candidates = {name for name, count in self.supporters.items() if count == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next(protocol.name for protocol in member.protocols if protocol.name in candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def _count_support(self, member: Member, change: int) -> None:
        for name in member.protocol_names():
            self.supporters[name] = self.supporters.get(name, 0) + change
            if not self.supporters[name]:
                del self.supporters[name]

    # Generations

    def elect_joined_leader(self) -> bool:
        """Ensure that the leader has joined; False if no member has."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.awaiting_join is not None:
            return True
        joined = next((m.member_id for m in self.members.values() if m.awaiting_join is not None), None)
        if joined is not None:
            self.leader_id = joined
        return joined is not None

    def next_generation(self, now_ms: int, least: int = 0) -> None:
        """Begin the next generation, `least` at least, with the members present, or become Empty."""
        self.generation = max(self.generation + 1, least)
        self.pending_syncs.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition(GroupState.EMPTY, now_ms)
        self.read_subscriptions()

    def joined_members(self) -> tuple[JoinMember, ...]:
        """The members in the form that the leader receives."""
        return tuple(
            JoinMember(member.member_id, member.group_instance_id, member.metadata(self.protocol_name))
            for member in self.members.values()
        )

    # Subscriptions

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member reads the topic; True if that cannot be known for a group of consumers."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL_TYPE
        return topic in self.subscribed_topics

    def read_subscriptions(self) -> None:
        """Determine the topics that this generation's members subscribe to."""
        self.subscribed_topics = self._subscribed_topics()

    def _subscribed_topics(self) -> frozenset[str] | None:
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            names = subscribed_topics(member.metadata(self.protocol_name))
            if names is None:
                return None
            topics |= names
        return frozenset(topics)


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics in a ConsumerProtocolSubscription; None if the bytes are something else. All versions
    begin like version 0.
    """
    try:
        version, count = unpack_from(">hi", metadata, 0)
        if version < 0 or count < 0:
            return None
        topics, position = set(), 6
        for _ in range(count):
            (length,) = unpack_from(">h", metadata, position)
            position += 2 + length
            if length < 0 or position > len(metadata):
                return None
            topics.add(metadata[position - length : position].decode("utf-8", "replace"))
    except StructError:
        return None
    return topics


def rebalance_timeout_of(request: JoinRequest) -> int:
    """The member's rebalance timeout in ms; version 0 of JoinGroup has the session timeout only."""
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def deadline_of(present: Deadline | None, action: Action) -> Deadline:
    """The existing deadline, or a new one for `action`."""
    return Deadline(action) if present is None else present
