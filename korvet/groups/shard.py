"""All groups of one `__consumer_offsets` partition: the one entrance to this package.

    handler(request, token, now_ms) -> Outcome(records, replies)      replay(key, value) -> None

Theory of operation. The caller passes a request to a handler. Directly after the handler has returned, and
before any other call, the caller replays the outcome's records in order; then it appends them to the log, and
sends the replies when all records returned so far are safe there. Lasting state (offsets; a group's Stable
generation with its assignments; its removal) changes by replay alone, in the same way when a partition is
loaded and when it is served. State that need not outlive a restart (joined members, waiting requests,
timeouts) changes in the handlers. After a failed append, discard the shard and load a new one: nothing is
rolled back. A join or sync may be answered by the outcome of a later call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.groups.commits import Commits
from korvet.groups.consumer.classic import ClassicMembers
from korvet.groups.consumer.describe import describe
from korvet.groups.consumer.group import EPOCH, PROGRESS, RECORD_TYPES, ConsumerGroup
from korvet.groups.consumer.member import JOIN_EPOCH
from korvet.groups.consumer.membership import ConsumerMembership
from korvet.groups.consumer.messages import (
    ConsumerDescribeReply,
    ConsumerDescribeRequest,
    ConsumerHeartbeatRequest,
    DescribedConsumerGroup,
)
from korvet.groups.consumer.migration import Migration
from korvet.groups.consumer.topics import NoTopics
from korvet.groups.context import Context, GroupCounts
from korvet.groups.group import UNKNOWN_TIMESTAMP_MS, Group
from korvet.groups.membership import Membership, refuse_strings
from korvet.groups.messages import (
    CommitRequest,
    DeleteRequest,
    DescribedGroup,
    DescribedMember,
    DescribeReply,
    DescribeRequest,
    FetchRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    ListedGroup,
    ListReply,
    ListRequest,
    OffsetDeleteRequest,
    Outcome,
    PutReply,
    PutRequest,
    SyncRequest,
    Token,
)
from korvet.groups.offset_table import NO_PRODUCER_ID, GroupTopicPartition, KeptValue, OffsetTable
from korvet.groups.share.describe import describe as describe_share_group
from korvet.groups.share.group import EPOCH as SHARE_EPOCH
from korvet.groups.share.group import RECORD_TYPES as SHARE_RECORD_TYPES
from korvet.groups.share.group import TARGET_EPOCH as SHARE_TARGET_EPOCH
from korvet.groups.share.group import ShareGroup
from korvet.groups.share.membership import ShareMembership
from korvet.groups.share.messages import (
    DescribedShareGroup,
    EndStatesRequest,
    RemoveStatesRequest,
    RestartStatesRequest,
    ShareDescribeReply,
    ShareDescribeRequest,
    ShareHeartbeatRequest,
    SharePartition,
    StatesRequest,
)
from korvet.groups.share.states import States
from korvet.groups.state import GroupState
from korvet.groups.timers import Deadline
from korvet.offsets.group_records import GroupEpoch, ShareEpoch
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    GroupRegexKey,
    Key,
    OffsetCommitKey,
    OffsetCommitValue,
    Value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from korvet.groups.config import GroupConfig
    from korvet.groups.consumer.topics import Topics
    from korvet.groups.context import AnyGroup
    from korvet.groups.native import NativeGroup


# The tombstones of these record types end a group.
_EPOCHS: Final = frozenset({EPOCH, SHARE_EPOCH})
_PROGRESS: Final = PROGRESS | {SHARE_TARGET_EPOCH}


class NotLoaded(Exception):
    """A request came to a shard before `loaded` was called: a defect of the caller."""


class GroupShard:
    """The coordinator of the groups of one partition.

    new_member_suffix returns the random part of a new member id, and never the same one twice. topics: the
    topics that consumer groups can subscribe to (KIP-848). All times are ms since the epoch; they must not go
    back by more than timeouts tolerate.
    """

    __slots__ = (
        "_classic_members",
        "_commits",
        "_consumers",
        "_context",
        "_expiry",
        "_is_loaded",
        "_membership",
        "_offsets",
        "_sharing",
        "_states",
    )

    def __init__(
        self,
        config: GroupConfig,
        new_member_suffix: Callable[[], str],
        topics: Topics | None = None,
        least_generation: int = 0,
        counts: GroupCounts | None = None,
    ) -> None:
        """`least_generation`: new generations and group epochs are not lower. Later ones than those in
        the log may be lost, and members must not meet them again. `counts`: shared by several shards.
        """
        self._context = Context(config, NoTopics() if topics is None else topics, least_generation, counts)
        self._offsets = OffsetTable()
        self._membership = Membership(self._context, new_member_suffix)
        migration = Migration(self._context, self._membership.rebalance)
        self._consumers = ConsumerMembership(self._context, migration, new_member_suffix)
        self._classic_members = ClassicMembers(self._context, self._consumers, migration, new_member_suffix)
        self._states = States(self._context)
        self._sharing = ShareMembership(self._context, self._states)
        self._commits = Commits(self._context, self._offsets, self._membership)
        self._expiry = Deadline(self._expire)
        self._is_loaded = False

    # Requests

    def join(self, request: JoinRequest, token: Token, now_ms: int) -> Outcome:
        """JoinGroup; the JoinReply comes with this outcome or a later one."""
        self._begin(now_ms)
        self._context.counts.joins += 1
        refusal = refuse_strings(request)
        if refusal is not ErrorCode.none:
            self._context.reply(token, JoinReply(refusal, request.member_id))
            return self._context.take_outcome()
        group = self._context.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup) and not group.is_empty:
            self._classic_members.join(group, request, token)
        else:
            self._membership.join(request, token)
        return self._context.take_outcome()

    def sync(self, request: SyncRequest, token: Token, now_ms: int) -> Outcome:
        """SyncGroup; the SyncReply comes with this outcome or a later one."""
        self._begin(now_ms)
        self._context.counts.syncs += 1
        group = self._context.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            self._classic_members.sync(group, request, token)
        else:
            self._membership.sync(request, token)
        return self._context.take_outcome()

    def heartbeat(self, request: HeartbeatRequest, token: Token, now_ms: int) -> Outcome:
        """Heartbeat -> HeartbeatReply."""
        self._begin(now_ms)
        self._context.counts.heartbeats += 1
        group = self._context.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            self._classic_members.heartbeat(group, request, token)
        else:
            self._membership.heartbeat(request, token)
        return self._context.take_outcome()

    def consumer_heartbeat(self, request: ConsumerHeartbeatRequest, token: Token, now_ms: int) -> Outcome:
        """ConsumerGroupHeartbeat -> MemberHeartbeatReply."""
        self._begin(now_ms)
        self._count_heartbeat(request.member_epoch)
        self._consumers.heartbeat(request, token)
        return self._context.take_outcome()

    def share_heartbeat(self, request: ShareHeartbeatRequest, token: Token, now_ms: int) -> Outcome:
        """ShareGroupHeartbeat -> MemberHeartbeatReply."""
        self._begin(now_ms)
        self._count_heartbeat(request.member_epoch)
        self._sharing.heartbeat(request, token)
        return self._context.take_outcome()

    def leave(self, request: LeaveRequest, token: Token, now_ms: int) -> Outcome:
        """LeaveGroup -> LeaveReply."""
        self._begin(now_ms)
        self._context.counts.leaves += 1
        group = self._context.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            self._classic_members.leave(group, request, token)
        else:
            self._membership.leave(request, token)
        return self._context.take_outcome()

    def end_session(self, request: HeartbeatRequest, token: Token, now_ms: int) -> Outcome:
        """A member's session ends before its time -> HeartbeatReply."""
        self._begin(now_ms)
        group = self._context.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            is_member = self._consumers.end_session(group, request.member_id)
        elif isinstance(group, ShareGroup):
            is_member = self._sharing.end_session(group, request.member_id)
        else:
            is_member = group is not None and self._membership.end_session(group, request.member_id)
        error = ErrorCode.none if is_member else ErrorCode.unknown_member_id
        self._context.reply(token, HeartbeatReply(error))
        return self._context.take_outcome()

    def commit(self, request: CommitRequest, token: Token, now_ms: int) -> Outcome:
        """OffsetCommit, TxnOffsetCommit -> CommitReply. The group id may be empty, as in Kafka, except in
        a transaction.
        """
        self._begin(now_ms)
        self._commits.commit(request, token)
        return self._context.take_outcome()

    def fetch(self, request: FetchRequest, token: Token, now_ms: int) -> Outcome:
        """OffsetFetch of one group -> FetchReply. The group id may be empty, as in Kafka."""
        self._begin(now_ms)
        self._commits.fetch(request, token)
        return self._context.take_outcome()

    def describe(self, request: DescribeRequest, token: Token, now_ms: int) -> Outcome:
        """DescribeGroups, for groups of this partition -> DescribeReply."""
        self._begin(now_ms)
        groups = tuple(
            self._describe(group_id, request.knows_group_id_not_found) for group_id in request.group_ids
        )
        self._context.reply(token, DescribeReply(groups))
        return self._context.take_outcome()

    def describe_consumers(self, request: ConsumerDescribeRequest, token: Token, now_ms: int) -> Outcome:
        """ConsumerGroupDescribe, for groups of this partition -> ConsumerDescribeReply."""
        self._begin(now_ms)
        groups = tuple(self._describe_consumers(group_id) for group_id in request.group_ids)
        self._context.reply(token, ConsumerDescribeReply(groups))
        return self._context.take_outcome()

    def describe_sharing(self, request: ShareDescribeRequest, token: Token, now_ms: int) -> Outcome:
        """ShareGroupDescribe, for groups of this partition -> ShareDescribeReply."""
        self._begin(now_ms)
        groups = tuple(self._describe_sharing(group_id) for group_id in request.group_ids)
        self._context.reply(token, ShareDescribeReply(groups))
        return self._context.take_outcome()

    def list_groups(self, request: ListRequest, token: Token, now_ms: int) -> Outcome:
        """ListGroups of this partition -> ListReply."""
        self._begin(now_ms)
        self._context.reply(token, ListReply(tuple(self._listed(request))))
        return self._context.take_outcome()

    def delete_groups(self, request: DeleteRequest, token: Token, now_ms: int) -> Outcome:
        """DeleteGroups, for groups of this partition -> DeleteReply."""
        self._begin(now_ms)
        self._commits.delete_groups(request, token)
        return self._context.take_outcome()

    def show_states(self, request: StatesRequest, token: Token, now_ms: int) -> Outcome:
        """DescribeShareGroupOffsets -> StatesReply."""
        self._begin(now_ms)
        self._states.show(request, token)
        return self._context.take_outcome()

    def restart_states(self, request: RestartStatesRequest, token: Token, now_ms: int) -> Outcome:
        """The first step of AlterShareGroupOffsets -> StatesReply."""
        self._begin(now_ms)
        self._states.restart(request, token)
        return self._context.take_outcome()

    def remove_states(self, request: RemoveStatesRequest, token: Token, now_ms: int) -> Outcome:
        """The first step of DeleteShareGroupOffsets, and of DeleteGroups for a share group -> StatesReply."""
        self._begin(now_ms)
        self._states.remove(request, token)
        return self._context.take_outcome()

    def end_states(self, request: EndStatesRequest, token: Token, now_ms: int) -> Outcome:
        """The last step of AlterShareGroupOffsets or DeleteShareGroupOffsets -> StatesReply."""
        self._begin(now_ms)
        self._states.end(request, token)
        return self._context.take_outcome()

    def delete_offsets(self, request: OffsetDeleteRequest, token: Token, now_ms: int) -> Outcome:
        """OffsetDelete -> OffsetDeleteReply."""
        self._begin(now_ms)
        self._commits.delete_offsets(request, token)
        return self._context.take_outcome()

    def put(self, request: PutRequest, token: Token, now_ms: int) -> Outcome:
        """Produce to the topic -> PutReply: the records take effect from now on, as if read from the log.

        NON_EMPTY_GROUP if they would turn a group with members of a newer protocol into a classic one, or
        give offsets to a share group.
        """
        self._begin(now_ms)
        if any(self._is_contradicted(key, value) for key, value in request.records):
            self._context.reply(token, PutReply(ErrorCode.non_empty_group))
        else:
            self._context.records.extend(request.records)
            self._context.reply(token, PutReply(ErrorCode.none))
        return self._context.take_outcome()

    # Events

    def delete_topics(self, topics: Iterable[str], now_ms: int) -> Outcome:
        """Tombstones for the offsets of deleted topics in all groups; share groups forget them, too."""
        self._begin(now_ms)
        names = frozenset(topics)
        self._commits.delete_topics(names)
        self._states.delete_topics(names)
        return self._context.take_outcome()

    def states_of_topic(self, topic: str) -> list[SharePartition]:
        """The partitions of a topic that have, or will have, states of share groups."""
        return self._states.of_topic(topic)

    def initialised(
        self, places: Collection[SharePartition], now_ms: int, *, failed: bool = False
    ) -> Outcome:
        """The initialisations of these partitions of a share group have succeeded or failed."""
        self._begin(now_ms)
        self._states.initialised(places, failed=failed)
        return self._context.take_outcome()

    def export(self, groups: Iterable[NativeGroup], now_ms: int) -> tuple[Outcome, list[NativeGroup]]:
        """Commits of the offsets that native consumers changed, and the groups whose newest commit must be
        projected again. See korvet.groups.native for the input.
        """
        self._begin(now_ms)
        behind = self._commits.export(groups)
        return self._context.take_outcome(), behind

    @property
    def groups(self) -> Mapping[str, AnyGroup]:
        """The groups by id; read-only."""
        return self._context.groups

    def offsets(self, group_id: str) -> Mapping[str, Mapping[int, KeptValue]]:
        """The committed values of a group, by topic and partition; read-only."""
        return self._offsets.topics(group_id)

    def take_moved(self) -> set[GroupTopicPartition] | None:
        """The partitions whose committed offset has changed since the previous call; None (all) for the
        first one.
        """
        return self._offsets.take_moved()

    def committed(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        """The committed value: the same object as long as nothing newer is replayed."""
        return self._offsets.get(group_id, topic, partition)

    def take_outcome(self) -> Outcome:
        """The partial outcome of a handler that raised; for `discard`."""
        return self._context.take_outcome()

    def discard(self, outcome: Outcome, tokens: Iterable[Token] = ()) -> None:
        """Forget an outcome whose records are not replayed, and these requests if they wait."""
        kinds = GroupRecordKey | GroupMemberKey | GroupMetadataKey
        for group_id in {key.group for key, _ in outcome.records if isinstance(key, kinds)}:
            kept = self._context.groups.get(group_id)
            if isinstance(kept, ConsumerGroup):
                self._consumers.keep_sessions(kept)
            elif isinstance(kept, ShareGroup):
                self._sharing.keep_sessions(kept)
            elif kept is not None:
                kept.unconfirmed.clear()
                self._membership.keep_sessions(kept)
        for token in tokens:
            self._context.forget(token)

    def disconnect(self, token: Token) -> None:
        """The client of a waiting request disconnected: send no reply. Its membership ends with its
        session, as in Kafka.
        """
        self._context.forget(token)

    def tick(self, now_ms: int) -> Outcome:
        """Do the due work until it yields records: what is due next may depend on their replay."""
        self._begin(now_ms)
        while not self._context.records:
            deadline = self._context.timers.pop_due(now_ms)
            if deadline is None:
                break
            deadline.action()
        return self._context.take_outcome()

    def next_deadline_ms(self) -> int | None:
        """The latest time of the next `tick`; None if nothing is scheduled."""
        if self._context.replies:
            return self._context.now_ms
        return self._context.timers.next_ms()

    def shift(self, by_ms: int) -> None:
        """Move all deadlines by a step of the clock, forward or back."""
        self._context.shift(by_ms)

    # Replay

    def replay(self, key: Key, value: Value | None, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record of the log; None is a tombstone. Unknown record types and versions are skipped.

        producer_id: of a transactional record, whose value counts from `end_transaction` on.
        """
        if isinstance(key, OffsetCommitKey) and (value is None or isinstance(value, OffsetCommitValue)):
            self._replay_offset(key, value, producer_id)
        elif isinstance(key, GroupMetadataKey) and (value is None or isinstance(value, GroupMetadataValue)):
            self._replay_group(key, value)
        elif isinstance(key, GroupRecordKey | GroupMemberKey | GroupRegexKey):
            if key.version in RECORD_TYPES:
                self._replay_newer(ConsumerGroup, key, value)
            elif key.version in SHARE_RECORD_TYPES:
                self._replay_newer(ShareGroup, key, value)

    def partitions_to_load(self, group_id: str, topic: str) -> dict[int, KeptValue]:
        """For a loader with many offsets of one group and topic: a table to fill by partition, instead of one
        replay each.

        At least one offset must be put there, before a tombstone is replayed.
        """
        if group_id not in self._context.groups:
            self._context.groups[group_id] = Group(group_id, UNKNOWN_TIMESTAMP_MS)
        return self._offsets.partitions_to_load(group_id, topic)

    def end_transaction(
        self, producer_id: int, *, committed: bool
    ) -> list[tuple[GroupTopicPartition, OffsetCommitValue]]:
        """Apply a control record: returns the offsets that count from now on, and their partitions."""
        return self._offsets.end_transaction(producer_id, committed=committed)

    def loaded(self, now_ms: int) -> Outcome:
        """All records are replayed: serve. Members get fresh sessions, so that running clients notice
        nothing.
        """
        self._context.now_ms = now_ms
        self._is_loaded = True
        for group in list(self._context.groups.values()):
            if isinstance(group, ConsumerGroup):
                group.drop_unknown_members()
                self._consumers.start_sessions(group)
                continue
            if isinstance(group, ShareGroup):
                group.drop_unknown_members()
                self._sharing.keep_sessions(group)
                continue
            if not group.has_record and not self._offsets.has_any(group.group_id):
                del self._context.groups[group.group_id]  # all its offsets have been deleted since
                continue
            self._membership.start_sessions(group)
        self._context.timers.arm(
            self._expiry, now_ms + self._context.config.offsets_retention_check_interval_ms
        )
        return self._context.take_outcome()

    def _replay_offset(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int) -> None:
        self._offsets.replay(key, value, producer_id)
        if value is not None and key.group not in self._context.groups:
            self._context.groups[key.group] = Group(key.group, UNKNOWN_TIMESTAMP_MS)

    def _replay_group(self, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
        group = self._context.groups.get(key.group)
        if group is not None and not isinstance(group, Group):
            if value is None:
                return  # of the former classic group
            group = None
        if group is not None and group.unconfirmed and group.unconfirmed[0] == value:
            self._confirm(group, group.unconfirmed.pop(0))
            return
        if group is not None:
            self._context.release(group, ErrorCode.unknown_member_id)
            del self._context.groups[key.group]
        if value is not None:
            loaded = self._context.groups[key.group] = Group.from_value(key.group, value)
            if self._is_loaded:
                self._membership.start_sessions(loaded)
        elif self._offsets.topics(key.group):
            # Its offsets have outlived it: it continues as a simple group, so that they are found and will
            # expire.
            self._context.groups[key.group] = Group(key.group, UNKNOWN_TIMESTAMP_MS)
        else:
            self._context.counts.forget(key.group)

    def _replay_newer(
        self,
        kind: type[ConsumerGroup | ShareGroup],
        key: GroupRecordKey | GroupMemberKey | GroupRegexKey,
        value: Value | None,
    ) -> None:
        """A record of a consumer or share group."""
        group = self._context.groups.get(key.group)
        if not isinstance(group, kind):
            if value is None:
                return
            if isinstance(group, Group):
                self._context.release(group, ErrorCode.rebalance_in_progress)
            group = self._context.groups[key.group] = kind(key.group)
        epoch = value.epoch if isinstance(value, GroupEpoch | ShareEpoch) else 0
        if self._is_loaded and epoch > group.epoch:
            self._context.begin_rebalance(group)
        if key.version in _EPOCHS and value is None:
            del self._context.groups[key.group]
            if self._offsets.topics(key.group):
                self._context.groups[key.group] = Group(key.group, UNKNOWN_TIMESTAMP_MS)
            else:
                self._context.counts.forget(key.group)
            return
        group.replay(key, value)
        if group.rebalancing_since_ms is not None and key.version in _PROGRESS and group.is_stable:
            self._context.end_rebalance(group)

    def _confirm(self, group: Group, value: GroupMetadataValue) -> None:
        """A record of this shard: its content is known, except for the assignments of a new generation,
        which make the group Stable.
        """
        group.recorded(value)
        is_new = value.generation == group.generation and value.members
        if group.state is not GroupState.COMPLETING_REBALANCE or not is_new:
            return
        for stored in value.members:
            group.members[stored.member_id].assignment = stored.assignment
        group.transition(GroupState.STABLE, self._context.now_ms)
        self._context.end_rebalance(group)

    # Descriptions

    def _describe(self, group_id: str, knows_group_id_not_found: bool) -> DescribedGroup:
        group = self._context.groups.get(group_id)
        if not isinstance(group, Group):
            error = ErrorCode.group_id_not_found if knows_group_id_not_found else ErrorCode.none
            what = "not found" if group is None else "is not a classic group"
            message = f"Group {group_id} {what}." if knows_group_id_not_found else None
            return DescribedGroup(group_id, error, message, GroupState.DEAD.value, "", "", ())
        is_stable = group.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol_name) if is_stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        )
        protocol = (group.protocol_name or "") if is_stable else ""
        type_ = group.protocol_type or ""
        return DescribedGroup(group_id, ErrorCode.none, None, group.state.value, type_, protocol, members)

    def _listed(self, request: ListRequest) -> Iterable[ListedGroup]:
        states = {state.strip().lower() for state in request.states}
        types = {name.strip().lower() for name in request.types}
        for group in self._context.groups.values():
            if types and group.group_type not in types:
                continue
            state = group.state_name
            if not states or state.lower() in states:
                yield ListedGroup(group.group_id, group.protocol_type or "", state, group.group_type)

    def _describe_sharing(self, group_id: str) -> DescribedShareGroup:
        group = self._context.groups.get(group_id)
        if not isinstance(group, ShareGroup):
            what = "not found" if group is None else "is not a share group"
            return DescribedShareGroup(group_id, ErrorCode.group_id_not_found, f"Group {group_id} {what}.")
        return describe_share_group(group, self._context.topics)

    def _describe_consumers(self, group_id: str) -> DescribedConsumerGroup:
        group = self._context.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            what = "not found" if group is None else "is not a consumer group"
            return DescribedConsumerGroup(group_id, ErrorCode.group_id_not_found, f"Group {group_id} {what}.")
        return describe(group, self._context.topics, self._consumers.assignor_of(group))

    def _is_contradicted(self, key: Key, value: Value | None) -> bool:
        """Whether a record does not fit the present group."""
        if isinstance(key, GroupMetadataKey):
            return isinstance(self._context.groups.get(key.group), ConsumerGroup | ShareGroup)
        if isinstance(key, OffsetCommitKey) and value is not None:
            return isinstance(self._context.groups.get(key.group), ShareGroup)
        return False

    def _count_heartbeat(self, member_epoch: int) -> None:
        counts = self._context.counts
        counts.heartbeats += 1
        if member_epoch == JOIN_EPOCH:
            counts.joins += 1
        elif member_epoch < JOIN_EPOCH:
            counts.leaves += 1

    # Time

    def _begin(self, now_ms: int) -> None:
        if not self._is_loaded:
            raise NotLoaded
        self._context.now_ms = now_ms

    def _expire(self) -> None:
        self._commits.expire()
        interval_ms = self._context.config.offsets_retention_check_interval_ms
        self._context.timers.arm(self._expiry, self._context.now_ms + max(interval_ms, 1))
