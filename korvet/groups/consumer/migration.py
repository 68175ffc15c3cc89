"""Groups that change their protocol while they have members: from classic to consumer when the first
member of the consumer protocol joins, and back when the last one has left (KIP-848,
group.consumer.migration.policy).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.groups.consumer.draft import Draft
from korvet.groups.consumer.group import (
    ASSIGNMENT,
    EPOCH,
    MEMBER,
    METADATA,
    TARGET,
    TARGET_EPOCH,
    ConsumerGroup,
)
from korvet.groups.consumer.member import Member, MemberState
from korvet.groups.consumer.topics import metadata_hash
from korvet.groups.group import CONSUMER_PROTOCOL_TYPE, Group
from korvet.groups.group import Member as ClassicGroupMember
from korvet.groups.messages import JoinProtocol
from korvet.groups.timers import Deadline
from korvet.offsets.consumer_protocol import (
    MAX_VERSION,
    Assignment,
    Subscription,
    TopicPartitions,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from korvet.offsets.group_records import ClassicMember, ClassicProtocol, ConsumerMember
from korvet.offsets.schema import GroupMemberKey, GroupMetadataKey, GroupRecordKey, GroupRegexKey
from korvet.offsets.wire import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from korvet.groups.consumer.member import Owned
    from korvet.groups.consumer.topics import Topics
    from korvet.groups.context import Context
    from korvet.groups.messages import Record


class CannotUpgrade(Exception):
    """A classic group that cannot change its protocol; the message is the reason."""


class Migration:
    """Turns groups of one type into the other. rebalance: begins a rebalance of a classic group."""

    __slots__ = ("_context", "_rebalance")

    def __init__(self, context: Context, rebalance: Callable[[Group], None]) -> None:
        self._context = context
        self._rebalance = rebalance

    # To the consumer protocol

    def upgrade(self, group: Group) -> Draft:
        """The classic group as a consumer group, in its current generation. Raises CannotUpgrade."""
        what = _cannot_upgrade(group)
        if not self._context.config.migration_policy.can_upgrade:
            raise CannotUpgrade(f"{what} online upgrade is disabled.")
        if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise CannotUpgrade(f"{what} the group does not use the consumer embedded protocol.")
        if len(group.members) > self._context.config.consumer_max_size:
            raise CannotUpgrade(f"{what} the group size exceeds the consumer group maximum size.")
        try:
            members = [self._upgraded(group, member) for member in group.members.values()]
        except DecodeError as error:
            raise CannotUpgrade(f"{what} its members' protocol cannot be read: {error}.") from error
        draft = Draft(ConsumerGroup(group.group_id), group.tombstones())
        for member in members:
            draft.subscription(member.member_id, member.subscription)
        names = draft.group.subscribed_topics
        draft.epoch(group.generation, metadata_hash(self._context.topics, names))
        for member in members:
            owned = {topic: frozenset(numbers) for topic, numbers in member.assigned.items()}
            draft.target(member.member_id, owned)
        draft.target_epoch(group.generation, 0)
        for member in members:
            draft.assignment(member)
        return draft

    def _upgraded(self, group: Group, member: ClassicGroupMember) -> Member:
        selected = next(
            (each for each in member.protocols if each.name == group.protocol_name), member.protocols[0]
        )
        subscription = classic_subscription(
            decode_subscription(selected.metadata),
            client_id=member.client_id,
            client_host=member.client_host,
            instance_id=member.group_instance_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            protocols=member.protocols,
        )
        assigned: Owned = {}
        if member.assignment:
            decoded = decode_assignment(member.assignment)
            if decoded.user_data:
                # Kafka Streams, for example: the broker cannot assign for it.
                raise CannotUpgrade(f"{_cannot_upgrade(group)} an unsupported custom assignor is in use.")
            topics = partitions_by_id(self._context.topics, decoded.assigned_partitions)
            for topic_id, numbers in topics.items():
                assigned[topic_id] = dict.fromkeys(sorted(numbers), group.generation)
        epoch = group.generation
        return Member(member.member_id, subscription, epoch, epoch, MemberState.STABLE, assigned)

    # Back

    def must_downgrade(self, group: ConsumerGroup, leaving: Collection[str]) -> bool:
        """Whether only members of the classic protocol would remain."""
        left = [member for member in group.members.values() if member.member_id not in leaving]
        config = self._context.config
        return (
            bool(left)
            and all(member.is_classic for member in left)
            and bool(common_protocols(left))
            and config.migration_policy.can_downgrade
            and len(left) <= config.max_size
        )

    def downgrade(self, group: ConsumerGroup, leaving: Collection[str], generation: int) -> list[Record]:
        """The records that make a classic group of the remaining members."""
        classic = Group(group.group_id, self._context.now_ms)
        classic.protocol_type, classic.generation = CONSUMER_PROTOCOL_TYPE, generation
        for member in group.members.values():
            if member.member_id not in leaving:
                classic.add(_downgraded(member))
        classic.protocol_name = classic.select_protocol()
        assignments = {
            member_id: assignment_bytes(
                self._context.topics, group.members[member_id], member.metadata(classic.protocol_name)
            )
            for member_id, member in classic.members.items()
        }
        value = classic.to_value(assignments)
        return [*_all_tombstones(group), (GroupMetadataKey(group.group_id), value)]

    def rebalance_soon(self, group_id: str) -> None:
        """Begin a rebalance once the group is a classic one: the remaining members share the free
        partitions.
        """

        def begin() -> None:
            group = self._context.groups.get(group_id)
            if isinstance(group, Group) and group.can_rebalance():
                self._rebalance(group)

        self._context.timers.arm(Deadline(begin), self._context.now_ms)


def _cannot_upgrade(group: Group) -> str:
    return f"Cannot upgrade classic group {group.group_id} to consumer group because"


def classic_subscription(
    subscription: Subscription,
    *,
    client_id: str,
    client_host: str,
    instance_id: str | None,
    rebalance_timeout_ms: int,
    session_timeout_ms: int,
    protocols: tuple[JoinProtocol, ...],
) -> ConsumerMember:
    """The state that a consumer group keeps of a member that uses the classic protocol."""
    return ConsumerMember(
        instance_id=instance_id,
        rack_id=subscription.rack_id,
        client_id=client_id,
        client_host=client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        subscribed_topic_regex="",
        rebalance_timeout_ms=rebalance_timeout_ms,
        server_assignor=None,
        classic_member_metadata=ClassicMember(
            session_timeout_ms, tuple(ClassicProtocol(each.name, each.metadata) for each in protocols)
        ),
    )


def common_protocols(members: Iterable[Member]) -> set[str]:
    """The names of the protocols that all of these members of the classic protocol support."""
    supported = [
        {protocol.name for protocol in member.subscription.classic_member_metadata.supported_protocols}
        for member in members
        if member.subscription.classic_member_metadata is not None
    ]
    return set.intersection(*supported) if supported else set()


def assignment_bytes(topics: Topics, member: Member, subscription: bytes) -> bytes:
    """The member's partitions as a ConsumerProtocolAssignment, in the version of its subscription. The newest
    version stands for later ones, as in Kafka.
    """
    partitions = []
    for topic_id, numbers in member.assigned.items():
        topic = topics.by_id(topic_id)
        if topic is not None:
            partitions.append(TopicPartitions(topic.name, tuple(sorted(numbers))))
    # Only the version is read: an assignment protocol may have metadata of its own.
    version = int.from_bytes(subscription[:2], "big", signed=True)
    return encode_assignment(Assignment(tuple(partitions), version=max(0, min(version, MAX_VERSION))))


def partitions_by_id(topics: Topics, partitions: tuple[TopicPartitions, ...]) -> dict[bytes, frozenset[int]]:
    """Partitions of existing topics, by topic id."""
    found: dict[bytes, frozenset[int]] = {}
    for each in partitions:
        topic = topics.get(each.topic)
        if topic is not None:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()).union(each.partitions)
    return found


def _downgraded(member: Member) -> ClassicGroupMember:
    known, classic = member.subscription, member.subscription.classic_member_metadata
    assert classic is not None
    return ClassicGroupMember(
        member.member_id,
        known.instance_id,
        client_id=known.client_id,
        client_host=known.client_host,
        rebalance_timeout_ms=known.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=tuple(JoinProtocol(each.name, each.metadata) for each in classic.supported_protocols),
    )


def _all_tombstones(group: ConsumerGroup) -> list[Record]:
    """In the order of Kafka's createGroupTombstoneRecords: no remaining record refers to a deleted one."""
    name = group.group_id
    return [
        *[(GroupMemberKey(name, member_id, ASSIGNMENT), None) for member_id in group.members],
        *[(GroupMemberKey(name, member_id, TARGET), None) for member_id in group.targets],
        (GroupRecordKey(name, TARGET_EPOCH), None),
        *[(GroupMemberKey(name, member_id, MEMBER), None) for member_id in group.members],
        *[(GroupRegexKey(name, regex), None) for regex in group.regexes],
        (GroupRecordKey(name, METADATA), None),
        (GroupRecordKey(name, EPOCH), None),
    ]
