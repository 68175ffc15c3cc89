"""One term of a partition of `__consumer_offsets`.

In addition to the work of every coordinator's partition, Redis groups follow commits before these are
answered, and transactions end here: their offsets count from the marker on.
"""

from __future__ import annotations

import asyncio
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kio.schema.errors import ErrorCode

from korvet.coordinator.lane import CommitChange
from korvet.coordinator.refusals import GroupRequest, refuse
from korvet.coordinator.served import Claim, OnSafe, Pending, ServedPartition, Step, call
from korvet.coordinator.unsafe_groups import UnsafeGroups
from korvet.groups.consumer.messages import ConsumerDescribeRequest, ConsumerHeartbeatRequest
from korvet.groups.messages import (
    DeleteRequest,
    DescribeRequest,
    FetchReply,
    HeartbeatRequest,
    JoinRequest,
    LeaveRequest,
    ListRequest,
    Outcome,
    PutReply,
    PutRequest,
    SyncRequest,
)
from korvet.groups.shard import GroupShard
from korvet.groups.share.messages import ShareDescribeRequest, ShareHeartbeatRequest
from korvet.log.values import ProducerSequence
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue, UnknownKey
from korvet.records.control import ControlMarker
from korvet.redis.errors import FencedCoordinator, InvalidProducerEpoch, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from korvet.coordinator.projector import Projector
    from korvet.coordinator.served import EncodedRecord
    from korvet.groups.messages import Record, Reply, Token
    from korvet.groups.native import NativeGroup
    from korvet.groups.offset_table import GroupTopicPartition
    from korvet.groups.share.messages import Initialisation, SharePartition
    from korvet.log.values import Marked

Handler: TypeAlias = "Callable[[GroupShard, Any, Token, int], Outcome]"
"""A request handler of GroupShard, unbound: GroupShard.join, for example."""
Positions: TypeAlias = "dict[int, dict[GroupTopicPartition, int]]"
"""By producer: the position of the newest record per key in its open transaction."""

# Limits the wait of replies for Redis groups, whose server may not answer although that of the commits does.
_LONGEST_PROJECTION_S: Final = 1.0
# Requests that do not name one group.
_OF_ANY_GROUP: Final = (
    DescribeRequest,
    ConsumerDescribeRequest,
    ShareDescribeRequest,
    ListRequest,
    DeleteRequest,
    PutRequest,
)
# Requests that concern members, and no offsets. Their records need no replicas: a failover that takes such a
# record back also takes back all commits after it, and members that the coordinator does not know join again.
_OF_MEMBERS: Final = (
    JoinRequest,
    SyncRequest,
    HeartbeatRequest,
    LeaveRequest,
    DescribeRequest,
    ListRequest,
    ConsumerHeartbeatRequest,
    ConsumerDescribeRequest,
    ShareHeartbeatRequest,
    ShareDescribeRequest,
)
_HEARTBEATS: Final = (HeartbeatRequest, ConsumerHeartbeatRequest, ShareHeartbeatRequest)
_NO_NATIVES: Final[Mapping[GroupTopicPartition, int]] = MappingProxyType({})
# Offset commits of transactions have no sequence numbers.
NO_SEQUENCE: Final = -1
# Errors of a marker that is answered without being written; every other error ends the term.
_MARKER_ERRORS: Final = {
    FencedCoordinator: ErrorCode.transaction_coordinator_fenced,
    InvalidProducerEpoch: ErrorCode.invalid_producer_epoch,
}


class _GroupStep(Step):
    """A step and its changes of Redis groups. Transactional records and markers go in appends of their
    own.
    """

    __slots__ = ("changes", "force_drops", "natives", "put")

    def __init__(
        self,
        outcome: Outcome,
        append_key: ControlMarker | None = None,
        *,
        force_drops: bool = True,
        natives: Mapping[GroupTopicPartition, int] = _NO_NATIVES,
    ) -> None:
        super().__init__(outcome, outcome.producer or append_key)
        replies = outcome.replies
        found = replies[0][1] if len(replies) == 1 else None
        self.put = found if type(found) is PutReply else None
        """Callbacks that wait for the position of the first record."""
        self.changes: list[CommitChange] = []
        self.force_drops = force_drops
        self.natives = natives
        """Positions of the Redis groups from which commits were read."""


class Term(ServedPartition[GroupShard, _GroupStep]):
    """A served partition. `positions`: of the transactions that were found open. `initialise` is called with
    partitions of a share group: `initialised` must follow.
    """

    def __init__(
        self,
        shard: GroupShard,
        claim: Claim,
        projector: Projector,
        positions: Positions,
        initialise: Callable[[Term, Sequence[Initialisation]], None],
    ) -> None:
        super().__init__(shard, claim)
        self._initialise = initialise
        self._projector = projector
        self._positions = positions
        self._unsafe = UnsafeGroups()
        # Steps whose replies wait for Redis groups, and until when.
        self._projecting: dict[_GroupStep, float] = {}
        # Whether `_finish_late` is scheduled.
        self._looks_late = False

    def withdraw(self, token: int) -> None:
        """Send no reply to this request any more."""
        if self._waiting.pop(token, None) is not None:
            self._shard.disconnect(token)

    def tick(self) -> None:
        """Do the work that is due. Offsets that this removes have expired: Redis groups in use outlive
        them.
        """
        self._handle_event(self._shard.tick, partial(_GroupStep, force_drops=False))

    def delete_topics(self, topics: Sequence[str], on_safe: OnSafe) -> None:
        """Write tombstones for all offsets of these topics; on_safe(error) follows once they
        are safe or have failed.
        """
        self._handle_event(lambda now_ms: self._shard.delete_topics(topics, now_ms), on_safe=on_safe)

    def export(self, groups: Sequence[NativeGroup]) -> list[NativeGroup]:
        """Commit what native consumers have moved; returns those whose newest commit must be projected
        again.
        """
        behind: list[NativeGroup] = []

        def event(now_ms: int) -> Outcome:
            outcome, left = self._shard.export(groups, now_ms)
            behind.extend(left)
            return outcome

        natives = {native.place: native.at for native in groups}
        self._handle_event(event, partial(_GroupStep, natives=natives))
        return behind

    def initialised(self, places: Sequence[SharePartition], *, failed: bool) -> None:
        """The initialisation of partitions of a share group has ended."""
        if not self.closed:
            self._handle_event(partial(self._shard.initialised, places, failed=failed))

    def mark(self, marker: ControlMarker, on_safe: OnSafe) -> None:
        """End a producer's transaction, after everything earlier; on_safe(error) follows once
        Redis groups follow its commits. The error is INVALID_PRODUCER_EPOCH or
        TRANSACTION_COORDINATOR_FENCED if a newer producer or coordinator has written, and
        COORDINATOR_LOAD_IN_PROGRESS if Redis is known to take no writes.
        """
        if self._log.writes_refused:
            # See submit: this term still answers reads.
            call(on_safe, ErrorCode.coordinator_load_in_progress)
            return
        step = _GroupStep(Outcome(), marker)
        step.on_safe = on_safe
        step.unsafe = 1
        self._steps.append(step)
        self._pending.append(Pending(step, None, (b"", None, 0)))
        self._append_soon()

    @property
    def shard(self) -> GroupShard:
        """The groups and their offsets, to be read."""
        return self._shard

    def committed(self, place: GroupTopicPartition) -> OffsetCommitValue | None:
        """The newest commit of the key: the same object as long as no newer commit exists."""
        return self._shard.committed(*place)

    def unprojected(self) -> Iterator[GroupTopicPartition]:
        """The keys with commits or deletions that are on their way to the log or to the projector."""
        for pending in (*self._sent, *self._pending):
            key = None if pending.record is None else pending.record[0]
            if isinstance(key, OffsetCommitKey):
                yield key.group, key.topic, key.partition
        for step in self._steps:
            for change in step.changes:
                yield change.place

    def _step(self, outcome: Outcome) -> _GroupStep:
        return _GroupStep(outcome)

    def _rests_on_steps(self, request: GroupRequest, reply: Reply) -> bool:
        """A reply depends on the unsafe records of its own group that it can show. Replicas may lack records
        for long: without heartbeats clients give up their partitions, and librdkafka reads nothing more if
        OffsetFetch fails after the assignment has changed.
        """
        if isinstance(request, _OF_ANY_GROUP):
            return True
        shows_offsets = not isinstance(request, _HEARTBEATS)
        # OffsetFetch shows by an error only whether the group has the member that asks.
        shows_others = not (isinstance(reply, FetchReply) and reply.error is ErrorCode.none)
        unsafe, group_id = self._unsafe, request.group_id
        return (shows_offsets and unsafe.has_offsets(group_id)) or (
            shows_others and unsafe.has_others(group_id)
        )

    def _needs_replicas(self, request: GroupRequest) -> bool:
        return not isinstance(request, _OF_MEMBERS)

    def _step_needs_replicas(self, step: _GroupStep) -> bool:
        outcome = step.outcome
        waiting = (self._waiting.get(token) for token, _ in outcome.replies)
        return (
            step.append_key is not None
            or step.on_safe is not None
            or any(isinstance(key, OffsetCommitKey | UnknownKey) for key, _ in outcome.records)
            or any(self._needs_replicas(request) for request, _ in filter(None, waiting))
        )

    def _replay(self, outcome: Outcome) -> None:
        self._unsafe.add(outcome.records)
        producer = outcome.producer
        for key, value in outcome.records:
            if producer is None:
                self._shard.replay(key, value)
            else:
                self._shard.replay(key, value, producer[0])
        keys = (key for key, _ in outcome.records if isinstance(key, OffsetCommitKey))
        self._projector.changed((key.group, key.topic, key.partition) for key in keys)

    def _encode(self, record: Record) -> EncodedRecord:
        key, value = record
        return encode_key(key), None if value is None else encode_value(value)

    def _refuse(self, request: GroupRequest, error: ErrorCode) -> Reply:
        return refuse(request, error)

    def _send(self, batch: list[Pending], stamp: ProducerSequence | None = None) -> None:
        append_key = batch[0].step.append_key
        if isinstance(append_key, ControlMarker):
            self._log.mark(append_key, partial(self._marked, batch, append_key), epoch=self._claim.epoch)
        elif isinstance(append_key, tuple):
            super()._send(batch, ProducerSequence(append_key[0], append_key[1], NO_SEQUENCE, True))
        else:
            super()._send(batch, stamp)

    def _placed(self, pending: Pending, position: int) -> None:
        step: _GroupStep = pending.step
        if step.put is not None:
            step.put.base_offset, step.put = position, None
        key, value = pending.record
        if not isinstance(key, OffsetCommitKey):
            return
        place = key.group, key.topic, key.partition
        producer = step.outcome.producer
        if producer is not None:
            self._positions.setdefault(producer[0], {})[place] = position
            return
        offset = value.offset if isinstance(value, OffsetCommitValue) else None
        native = step.natives.get(place) if step.natives else None
        step.changes.append(CommitChange(*place, position, offset, step.force_drops, native))

    def _marked(self, batch: Sequence[Pending], marker: ControlMarker, result: Marked | StorageError) -> None:
        if self.closed:
            return
        error = _MARKER_ERRORS.get(type(result)) if isinstance(result, StorageError) else ErrorCode.none
        if error is None:
            assert isinstance(result, StorageError)
            self._on_failure(result)
            return
        for pending in batch:
            pending.step.error = error
            if not isinstance(result, StorageError) and result.offset >= 0:
                self._end_transaction(pending.step, marker)
        self._go_on(batch, 0 if isinstance(result, StorageError) else result.end)

    def _end_transaction(self, step: _GroupStep, marker: ControlMarker) -> None:
        """The marker is in the log: the offsets that it commits count.

        Redis takes them for the newest ones of their keys, also those that were deleted meanwhile: these are
        deleted again.
        """
        positions = self._positions.pop(marker.producer_id, {})
        for place, value in self._shard.end_transaction(marker.producer_id, committed=marker.committed):
            step.changes.append(CommitChange(*place, positions[place], value.offset))
            self._unsafe.add_offset(place[0])
            self._projector.changed((place,))
        if marker.committed:
            self._bury([place for place in positions if self._shard.committed(*place) is None])

    def _bury(self, places: Sequence[GroupTopicPartition]) -> None:
        """Write tombstones, except where these would also delete offsets of other open transactions."""
        tombstones: list[Record] = [
            (OffsetCommitKey(*place), None)
            for place in places
            if not any(place in others for others in self._positions.values())
        ]
        if tombstones:
            self._handle_event(lambda _now_ms: Outcome(tombstones), partial(_GroupStep, force_drops=False))

    def _release(self, step: _GroupStep) -> None:
        """Send the replies of what is safe; those of commits once Redis groups follow, or soon if the servers
        of the topics do not answer.
        """
        self._unsafe.remove(step.outcome.records)
        if step.outcome.initialisations:
            self._initialise(self, step.outcome.initialisations)
        if isinstance(step.append_key, ControlMarker):
            for change in step.changes:
                self._unsafe.remove_offset(change.group)
        if not step.changes:
            self._finish(step)
            return
        loop = asyncio.get_running_loop()
        self._projecting[step] = until_s = loop.time() + _LONGEST_PROJECTION_S
        if not self._looks_late:
            self._looks_late = True
            loop.call_at(until_s, self._finish_late)
        self._projector.apply(step.changes, partial(self._projected, step))

    def _projected(self, step: _GroupStep) -> None:
        if self._projecting.pop(step, None) is not None:
            self._finish(step)

    def _finish_late(self) -> None:
        """Send the replies that have waited for Redis groups long enough; these will follow."""
        loop = asyncio.get_running_loop()
        late = [step for step, until_s in self._projecting.items() if until_s <= loop.time()]
        for step in late:
            self._projected(step)
        self._looks_late = bool(self._projecting)
        if self._looks_late:
            loop.call_at(next(iter(self._projecting.values())), self._finish_late)
