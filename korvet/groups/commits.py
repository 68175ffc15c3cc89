"""The committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete, DeleteGroups, deleted topics and
expiry.

Offsets change by replay only; these handlers read them and return records. Simple groups, which commit
without members (KIP-211 calls them standalone), exist as soon as one of their offsets is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.groups.group import CONSUMER_PROTOCOL_TYPE, Group
from korvet.groups.messages import (
    NO_RETENTION,
    CommitPartition,
    CommitReply,
    CommitRequest,
    CommitTopic,
    DeletedGroup,
    DeleteReply,
    DeleteRequest,
    FetchedPartition,
    FetchedTopic,
    FetchReply,
    FetchRequest,
    FetchTopic,
    OffsetDeleteReply,
    OffsetDeleteRequest,
    PartitionResult,
    Token,
    TopicResult,
)
from korvet.groups.native import Decision, decide
from korvet.groups.offset_table import value_of
from korvet.groups.share.group import ShareGroup
from korvet.groups.state import GroupState
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.offsets.wire import fits_string

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.groups.context import AnyGroup, Context
    from korvet.groups.membership import Membership
    from korvet.groups.native import NativeGroup
    from korvet.groups.offset_table import OffsetTable

NO_EXPIRY_MS = -1
LAST_TIME_MS = 2**63 - 1  # timestamps in records are int64
RETENTION_VALUE_VERSION = 1  # the only OffsetCommitValue with an expire timestamp
TOPIC_ID_VALUE_VERSION = 4  # the first OffsetCommitValue with a topic id
# Looked up by identity for each commit: hashing an Enum would cost another call.
KEEPS_SESSION = (GroupState.STABLE, GroupState.PREPARING_REBALANCE)

IsExpired = Callable[[OffsetCommitValue], bool]


class Commits:
    """The offsets side of a shard."""

    __slots__ = ("_context", "_membership", "_offsets")

    def __init__(self, context: Context, offsets: OffsetTable, membership: Membership) -> None:
        self._context = context
        self._offsets = offsets
        self._membership = membership

    # OffsetCommit

    def commit(self, request: CommitRequest, token: Token) -> None:
        """OffsetCommit, TxnOffsetCommit: one record for each accepted offset."""
        group = self._context.groups.get(request.group_id)
        in_transaction = request.producer is not None
        refuse = self._refuse_in_transaction if in_transaction else self._refuse_commit
        error = refuse(group, request)
        if error is not ErrorCode.none:
            self._context.reply(token, CommitReply(refuse_all(request.topics, error)))
            return
        if isinstance(group, Group) and group.state in KEEPS_SESSION and not in_transaction:
            self._membership.refresh_session(group, request.member_id)
        self._context.producer = request.producer
        counts, records = self._context.counts, self._context.records
        counts.commit(request.group_id)
        topics = []
        for topic in request.topics:
            results = [
                PartitionResult(partition.partition, self._commit_one(request, topic, partition))
                for partition in topic.partitions
            ]
            topics.append(TopicResult(topic.name, tuple(results), topic.topic_id))
        counts.committed_offsets += len(records)
        self._context.reply(token, CommitReply(tuple(topics)))

    @staticmethod
    def _refuse_commit(group: AnyGroup | None, request: CommitRequest) -> ErrorCode:
        """Commits without a generation are for groups without members: simple consumers, administrators."""
        if not fits_string(request.group_id):
            return ErrorCode.invalid_group_id
        if isinstance(group, ShareGroup):
            return group.refuse_commit(request)
        if request.generation_id < 0 and (group is None or group.is_empty):
            return ErrorCode.none
        if not request.knows_member_epochs and group is not None and group.has_epochs(request.member_id):
            return ErrorCode.unsupported_version
        if group is None:
            knows = request.knows_member_epochs
            return ErrorCode.group_id_not_found if knows else ErrorCode.illegal_generation
        return group.refuse_commit(request)

    @staticmethod
    def _refuse_in_transaction(group: AnyGroup | None, request: CommitRequest) -> ErrorCode:
        """Producers before KIP-447 name no member: only the transaction protects their commits."""
        if not request.group_id or not fits_string(request.group_id):
            return ErrorCode.invalid_group_id
        if isinstance(group, ShareGroup):
            return group.refuse_commit(request)
        names_member = bool(request.member_id) or request.group_instance_id is not None
        if request.generation_id < 0 and (group is None or group.is_empty):
            return ErrorCode.none
        if group is None:
            knows = request.knows_member_epochs
            return ErrorCode.group_id_not_found if knows else ErrorCode.illegal_generation
        if request.generation_id < 0 and not names_member:
            return ErrorCode.none
        error = group.refuse_commit(request)
        if error is ErrorCode.stale_member_epoch and not request.knows_member_epochs:
            return ErrorCode.illegal_generation
        return error

    def _commit_one(
        self, request: CommitRequest, topic: CommitTopic, partition: CommitPartition
    ) -> ErrorCode:
        if partition.refusal is not ErrorCode.none:
            return partition.refusal
        metadata = partition.metadata or ""
        limit = self._context.config.offset_metadata_max_units
        if exceeds_units(metadata, limit) or not fits_string(metadata):
            return ErrorCode.offset_metadata_too_large
        key = OffsetCommitKey(request.group_id, topic.name, partition.partition)
        self._context.records.append((key, self._commit_value(request, topic, partition, metadata)))
        return ErrorCode.none

    def _commit_value(
        self, request: CommitRequest, topic: CommitTopic, partition: CommitPartition, metadata: str
    ) -> OffsetCommitValue:
        now_ms, version = self._context.now_ms, self._context.config.commit_value_version
        if request.retention_time_ms != NO_RETENTION:
            return OffsetCommitValue(
                offset=partition.offset,
                metadata=metadata,
                commit_timestamp_ms=now_ms,
                expire_timestamp_ms=min(now_ms + request.retention_time_ms, LAST_TIME_MS),
                version=RETENTION_VALUE_VERSION,
            )
        return OffsetCommitValue(
            offset=partition.offset,
            leader_epoch=partition.leader_epoch,
            metadata=metadata,
            commit_timestamp_ms=now_ms,
            topic_id=topic.topic_id if version >= TOPIC_ID_VALUE_VERSION else None,
            version=version,
        )

    # Redis groups that native consumers have moved

    def export(self, groups: Iterable[NativeGroup]) -> list[NativeGroup]:
        """One record for each commit; returns those whose newest commit must be projected."""
        behind = []
        for native in groups:
            decision = self._decide(native)
            if decision is Decision.COMMIT:
                partition = CommitPartition(native.partition, native.offset)
                topic = CommitTopic(native.topic, (partition,), native.topic_id)
                value = self._commit_value(CommitRequest(native.group, (topic,)), topic, partition, "")
                self._context.records.append((OffsetCommitKey(*native.place), value))
                self._context.counts.exported_offsets += 1
            elif decision is Decision.PROJECT:
                behind.append(native)
        return behind

    def _decide(self, native: NativeGroup) -> Decision:
        if self._offsets.is_pending(*native.place):
            return Decision.WAIT  # a transaction will decide
        group = self._context.groups.get(native.group)
        if isinstance(group, ShareGroup):
            return Decision.WAIT  # Redis applications take records along with the members
        contested = group is not None and not group.is_empty and group.is_subscribed(native.topic)
        committed = self._offsets.get(*native.place)
        return decide(native, committed, self._context.now_ms, contested=contested)

    # OffsetFetch

    def fetch(self, request: FetchRequest, token: Token) -> None:
        """OffsetFetch of one group; a group that does not exist has no offsets, which is no error."""
        group = self._context.groups.get(request.group_id)
        if group is not None:
            error = group.refuse_fetch(request.member_id, request.member_epoch)
            if error is not ErrorCode.none:
                self._context.reply(token, FetchReply(request.group_id, error))
                return
        asked = request.topics
        if asked is None:
            present = self._offsets.topics(request.group_id)
            asked = tuple(FetchTopic(name, tuple(partitions)) for name, partitions in present.items())
        topics = tuple(
            FetchedTopic(
                topic.name,
                tuple(self._fetch_one(request, topic.name, partition) for partition in topic.partitions),
                topic.topic_id,
            )
            for topic in asked
        )
        self._context.reply(token, FetchReply(request.group_id, ErrorCode.none, topics))

    def _fetch_one(self, request: FetchRequest, topic: str, partition: int) -> FetchedPartition:
        if request.require_stable and self._offsets.is_pending(request.group_id, topic, partition):
            return FetchedPartition(partition, error=ErrorCode.unstable_offset_commit)
        value = self._offsets.get(request.group_id, topic, partition)
        if value is None:
            return FetchedPartition(partition)
        return FetchedPartition(partition, value.offset, value.leader_epoch, value.metadata)

    # OffsetDelete, DeleteGroups, deleted topics

    def delete_offsets(self, request: OffsetDeleteRequest, token: Token) -> None:
        """OffsetDelete of topics that no member subscribes to."""
        group = self._context.groups.get(request.group_id)
        error = self._refuse_offset_delete(group, request)
        if group is None or error is not ErrorCode.none:
            self._context.reply(token, OffsetDeleteReply(error))
            return
        results = []
        for topic in request.topics:
            subscribed = group.is_subscribed(topic.name)
            error = ErrorCode.group_subscribed_to_topic if subscribed else ErrorCode.none
            results.append(
                TopicResult(
                    topic.name, tuple(PartitionResult(p, error) for p in topic.partitions), topic.topic_id
                )
            )
            if not subscribed:
                for partition in topic.partitions:
                    self._delete_if_there(request.group_id, topic.name, partition)
        self._context.reply(token, OffsetDeleteReply(ErrorCode.none, tuple(results)))

    @staticmethod
    def _refuse_offset_delete(group: AnyGroup | None, request: OffsetDeleteRequest) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.invalid_group_id
        if group is None or isinstance(group, ShareGroup):
            return ErrorCode.group_id_not_found
        if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.non_empty_group
        return ErrorCode.none

    def _delete_if_there(self, group_id: str, topic: str, partition: int) -> None:
        has_any = self._offsets.get(group_id, topic, partition) is not None
        if has_any or self._offsets.is_pending(group_id, topic, partition):
            self._bury(group_id, topic, partition)

    def delete_groups(self, request: DeleteRequest, token: Token) -> None:
        """DeleteGroups of groups without members, with all their offsets."""
        buried: set[str] = set()
        results = []
        for group_id in request.group_ids:
            error = self._refuse_delete(group_id)
            results.append(DeletedGroup(group_id, error))
            if error is ErrorCode.none and group_id not in buried:
                buried.add(group_id)
                for place in self._offsets.places(group_id):
                    self._bury(*place)
                self._context.records += self._context.groups[group_id].tombstones()
        self._context.reply(token, DeleteReply(tuple(results)))

    def _refuse_delete(self, group_id: str) -> ErrorCode:
        group = self._context.groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        return ErrorCode.none if group.is_empty else ErrorCode.non_empty_group

    def delete_topics(self, topics: frozenset[str]) -> None:
        """Tombstones for all offsets of deleted topics, in all groups."""
        for place in self._offsets.places_of_topics(topics):
            self._bury(*place)

    # Expiry (KIP-211)

    def expire(self) -> None:
        """Remove expired offsets, and groups that have neither offsets nor members, nor members about to
        join.
        """
        for group in self._context.groups.values():
            if self._expire_offsets(group) and group.is_unused:
                self._context.records += group.tombstones()

    def _expire_offsets(self, group: AnyGroup) -> bool:
        """True if nothing is left."""
        topics = self._offsets.topics(group.group_id)
        is_expired = self._expiry_of(group)
        if is_expired is None:
            return not topics
        nothing_left = not self._offsets.has_open_transaction(group.group_id)
        for topic, partitions in topics.items():
            if group.is_subscribed(topic):
                nothing_left = False
                continue
            for partition, kept in partitions.items():
                if is_expired(value_of(kept)) and not self._offsets.is_pending(
                    group.group_id, topic, partition
                ):
                    self._context.counts.expired_offsets += 1
                    self._bury(group.group_id, topic, partition)
                else:
                    nothing_left = False
        return nothing_left

    def _expiry_of(self, group: AnyGroup) -> IsExpired | None:
        """The time from which the group's offsets expire; None if they do not expire. A commit with its
        own retention has its own time.
        """
        since_ms = group.expires_since_ms()
        if since_ms is None:
            return None
        now_ms, retention_ms = self._context.now_ms, self._context.config.offsets_retention_ms

        def is_expired(value: OffsetCommitValue) -> bool:
            if value.expire_timestamp_ms != NO_EXPIRY_MS:
                return now_ms >= value.expire_timestamp_ms
            # A native consumer of the group may commit while it is Empty.
            return now_ms - max(value.commit_timestamp_ms, since_ms) >= retention_ms

        return is_expired

    # Tombstones

    def _bury(self, group_id: str, topic: str, partition: int) -> None:
        self._context.records.append((OffsetCommitKey(group_id, topic, partition), None))


def refuse_all(topics: tuple[CommitTopic, ...], error: ErrorCode) -> tuple[TopicResult, ...]:
    """The results of a commit that is refused as a whole. As in Kafka, partitions that cannot be committed
    carry their own error.
    """
    return tuple(
        TopicResult(
            topic.name,
            tuple(
                PartitionResult(each.partition, error if each.refusal is ErrorCode.none else each.refusal)
                for each in topic.partitions
            ),
            topic.topic_id,
        )
        for topic in topics
    )


def exceeds_units(text: str, limit: int) -> bool:
    """Whether text has more than limit UTF-16 units, which is what Kafka's limit counts."""
    if 2 * len(text) <= limit:
        return False
    return len(text) + sum(char > "\uffff" for char in text) > limit
