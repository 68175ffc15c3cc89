"""Members of consumer groups, of the classic and of the consumer protocol (KIP-848)."""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.consumer_group_heartbeat.v0.request import ConsumerGroupHeartbeatRequest, TopicPartitions
from kio.schema.errors import ErrorCode
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v7.request import JoinGroupRequest, JoinGroupRequestProtocol
from kio.schema.leave_group.v4.request import LeaveGroupRequest, MemberIdentity
from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v9.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.sync_group.v5.request import SyncGroupRequest, SyncGroupRequestAssignment

from korvet.offsets import consumer_protocol
from robustness.history import UNKNOWN, Assign, Commit, Place, ReadCommit
from robustness.simulation.clients.client import RETRIABLE, Client, Partition, UnexpectedError
from robustness.simulation.clients.consumer import LATEST, Consumer, Position, list_offset
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from robustness.plan import GroupPlan

_SESSION_TIMEOUT: Final = timedelta(seconds=2)
_REBALANCE_TIMEOUT: Final = timedelta(seconds=2)
_HEARTBEAT_S: Final = 0.3
# Errors that say that this is no member (any more): it joins again.
_NO_MEMBER: Final = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_member_epoch,
        # A group without members and offsets is deleted after a while.
        ErrorCode.group_id_not_found,
    }
)
_NOT_COMMITTED: Final = _NO_MEMBER | {ErrorCode.rebalance_in_progress, ErrorCode.stale_member_epoch}


class Rejoin(Exception):
    """The member must join again."""


class Member:
    """A member of a group: polls, commits what it has polled, and takes part in rebalances."""

    def __init__(self, client: Client, plan: GroupPlan, partitions: Mapping[str, int]) -> None:
        self.client = client
        self.plan = plan
        self.member_id = ""
        self.epoch = -1
        """The generation of the classic protocol, or the member epoch."""
        self.consumer = Consumer(client, plan.isolation, plan.name)
        self._partitions = partitions
        self._until_s = 0.0
        self._committed: dict[Partition, int] = {}

    @abstractmethod
    async def _belong(self) -> None:
        """Join, and be a member until something must be done again. Raises Disconnected and Rejoin."""

    @abstractmethod
    async def _leave(self) -> None:
        """Leave the group. Raises Disconnected."""

    async def caught_up(self) -> bool:
        """Whether this member has all partitions, and has read them to their ends."""
        positions = self.consumer.positions
        for partition in [(topic, n) for topic in self.plan.topics for n in range(self._partitions[topic])]:
            end = await list_offset(self.client, partition, LATEST, self.plan.isolation)
            if end is None or partition not in positions or positions[partition].offset < end:
                return False
        return True

    def end(self) -> None:
        """End this member soon."""
        self._until_s = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the member has to end."""
        return self.client.time() >= self._until_s

    async def run(self, until_s: float, *, leaves: bool = True) -> None:
        """Be a member until a time."""
        self._until_s = until_s
        await self.client.refresh(self.plan.topics)
        while not self.is_over:
            try:
                await self._belong()
            except Disconnected:
                await self.client.pause()
            except Rejoin:
                pass
        self.consumer.positions.clear()
        if leaves:
            with contextlib.suppress(Disconnected):
                await self._leave()
        self.client.close()

    async def _ask(self, request: Any, timeout_s: float = 1.5) -> Any:
        return await self.client.ask_coordinator(self.plan.name, request, timeout_s=timeout_s)

    def _check(self, error: ErrorCode, what: str) -> None:
        """Raises Rejoin or Disconnected after errors that a member expects."""
        if error is ErrorCode.none:
            return
        if error in _NO_MEMBER:
            self.epoch = -1
            self.consumer.positions.clear()
            raise Rejoin
        if error is ErrorCode.rebalance_in_progress:
            raise Rejoin
        if error not in RETRIABLE:
            raise UnexpectedError(f"{what} of {self.plan.name}: {error.name}")
        self.client.forget_coordinator(self.plan.name)
        raise Disconnected(error.name)

    # Offsets

    async def committed(self, partitions: Iterable[Partition]) -> dict[Partition, Position]:
        """The committed positions of partitions. Raises Disconnected and Rejoin."""
        topics = tuple(
            OffsetFetchRequestTopics(name=topic, partition_indexes=(number,))  # type: ignore[arg-type]
            for topic, number in partitions
        )
        if not topics:
            return {}
        modern = self.plan.protocol == "consumer"
        group = OffsetFetchRequestGroup(
            group_id=self.plan.name,  # type: ignore[arg-type]
            member_id=self.member_id if modern else None,
            member_epoch=self.epoch if modern else -1,  # type: ignore[arg-type]
            topics=topics,
        )
        self.client.note(ReadCommit, "invoke", group=self.plan.name)
        answer = (await self._ask(OffsetFetchRequest(groups=(group,), require_stable=True))).groups[0]
        if answer.error_code is ErrorCode.stale_member_epoch:
            raise Rejoin
        self._check(answer.error_code, "OffsetFetch")
        found, places = {}, []
        for topic in answer.topics:
            for one in topic.partitions:
                self._check(one.error_code, "OffsetFetch")
                found[topic.name, one.partition_index] = Position(
                    max(one.committed_offset, 0), one.committed_leader_epoch
                )
                places.append(Place(topic.name, one.partition_index, max(one.committed_offset, UNKNOWN)))
        self.client.note(ReadCommit, "ok", group=self.plan.name, offsets=tuple(places))
        return found

    async def take_over(self, mine: Iterable[Partition]) -> None:
        """Read these partitions from now on: those that are new from their committed offsets."""
        mine = set(mine)
        kept = {each: position for each, position in self.consumer.positions.items() if each in mine}
        self.consumer.positions = kept
        # What is read again must not be copied twice.
        self.consumer.received = [
            record for record in self.consumer.received if (record.topic, record.partition) in kept
        ]
        fresh = await self.committed(sorted(mine - set(kept)))
        self.consumer.positions = kept | fresh
        places = tuple(
            Place(*each, position.offset, position.epoch)
            for each, position in sorted(self.consumer.positions.items())
        )
        self.client.note(Assign, "info", places=places, why="rebalance", group=self.plan.name)

    def moved(self) -> tuple[Place, ...]:
        """The positions that are not committed yet."""
        return tuple(
            Place(*each, position.offset, position.epoch)
            for each, position in sorted(self.consumer.positions.items())
            if self._committed.get(each) != position.offset
        )

    def note_committed(self, places: Iterable[Place]) -> None:
        """These positions are committed."""
        self._committed.update({(place.topic, place.partition): place.offset for place in places})

    async def commit(self) -> None:
        """Commit the positions, if they have moved. Raises Disconnected and Rejoin."""
        self.consumer.received.clear()
        places = self.moved()
        if not places:
            return
        fields: dict[str, Any] = {"group": self.plan.name, "offsets": places}
        self.client.note(Commit, "invoke", **fields)
        try:
            answer = await self._ask(self._commit_request(places))
        except Disconnected:
            self.client.note(Commit, "info", **fields)
            raise
        errors = {one.error_code for topic in answer.topics for one in topic.partitions}
        if errors == {ErrorCode.none}:
            self.client.note(Commit, "ok", **fields)
            self.note_committed(places)
            return
        self.client.note(Commit, "fail" if errors <= _NOT_COMMITTED else "info", **fields)
        errors.discard(ErrorCode.stale_member_epoch)
        for error in sorted(errors):
            self._check(error, "OffsetCommit")

    def _commit_request(self, places: Iterable[Place]) -> OffsetCommitRequest:
        topics = tuple(
            OffsetCommitRequestTopic(
                name=place.topic,  # type: ignore[arg-type]
                partitions=(
                    OffsetCommitRequestPartition(
                        partition_index=place.partition,  # type: ignore[arg-type]
                        committed_offset=place.offset,  # type: ignore[arg-type]
                        committed_leader_epoch=place.epoch,  # type: ignore[arg-type]
                        committed_metadata="",
                    ),
                ),
            )
            for place in places
        )
        return OffsetCommitRequest(
            group_id=self.plan.name,  # type: ignore[arg-type]
            generation_id_or_member_epoch=self.epoch,  # type: ignore[arg-type]
            member_id=self.member_id,
            group_instance_id=None,
            topics=topics,
        )

    async def attempt(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that may fail because the coordinator does not answer; it is done again later then."""
        try:
            await work
        except Disconnected:
            await self.client.pause()


class ClassicMember(Member):
    """A member that joins by JoinGroup and SyncGroup, with eager rebalances."""

    async def _belong(self) -> None:
        assigned = await self._join()
        await self.take_over(assigned)
        try:
            async with asyncio.timeout(None) as scope:
                heart = asyncio.create_task(self._beat(scope))
                try:
                    await self._consume()
                finally:
                    heart.cancel()
                    await asyncio.wait([heart])
        except TimeoutError:
            pass
        if not heart.cancelled():
            heart.result()

    async def _consume(self) -> None:
        next_commit_s = self.client.time() + self.plan.commit_interval_ms / 1000
        while not self.is_over:
            await self.consumer.poll()
            if self.client.time() >= next_commit_s:
                await self.attempt(self.commit())
                next_commit_s = self.client.time() + self.plan.commit_interval_ms / 1000
        await self.attempt(self.commit())

    async def _join(self) -> list[Partition]:
        """Returns the assigned partitions."""
        topics = tuple(self.plan.topics)
        subscription = consumer_protocol.encode_subscription(consumer_protocol.Subscription(topics))
        request = JoinGroupRequest(
            group_id=self.plan.name,  # type: ignore[arg-type]
            session_timeout=_SESSION_TIMEOUT,  # type: ignore[arg-type]
            rebalance_timeout=_REBALANCE_TIMEOUT,  # type: ignore[arg-type]
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name="range", metadata=subscription),),
        )
        joined = await self._ask(request, 4.0)
        if joined.error_code in (ErrorCode.member_id_required, ErrorCode.unknown_member_id):
            self.member_id = joined.member_id if joined.error_code is ErrorCode.member_id_required else ""
            self.consumer.positions.clear()
            raise Rejoin
        self._check(joined.error_code, "JoinGroup")
        self.member_id, self.epoch = joined.member_id, joined.generation_id
        self.consumer.positions.clear()
        assignments = ()
        if joined.leader == self.member_id:
            assignments = self._assign(sorted(member.member_id for member in joined.members))
        synced = await self._ask(
            SyncGroupRequest(
                group_id=self.plan.name,  # type: ignore[arg-type]
                generation_id=self.epoch,  # type: ignore[arg-type]
                member_id=self.member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocol_name="range",
                assignments=assignments,
            ),
            4.0,
        )
        self._check(synced.error_code, "SyncGroup")
        assigned = consumer_protocol.decode_assignment(synced.assignment).assigned_partitions
        return [(each.topic, number) for each in assigned for number in each.partitions]

    def _assign(self, members: list[str]) -> tuple[SyncGroupRequestAssignment, ...]:
        everything = [(topic, n) for topic in self.plan.topics for n in range(self._partitions[topic])]
        found = []
        for index, member in enumerate(members):
            mine = everything[index :: len(members)]
            parts = tuple(consumer_protocol.TopicPartitions(topic, (number,)) for topic, number in mine)
            encoded = consumer_protocol.encode_assignment(consumer_protocol.Assignment(parts))
            found.append(SyncGroupRequestAssignment(member_id=member, assignment=encoded))
        return tuple(found)

    async def _beat(self, scope: asyncio.Timeout) -> None:
        """Send heartbeats; ends the scope if the member has to join again."""
        while True:
            await asyncio.sleep(_HEARTBEAT_S)
            request = HeartbeatRequest(
                group_id=self.plan.name,  # type: ignore[arg-type]
                generation_id=self.epoch,  # type: ignore[arg-type]
                member_id=self.member_id,
                group_instance_id=None,
            )
            try:
                self._check((await self._ask(request)).error_code, "Heartbeat")
            except Disconnected:
                continue
            except Rejoin:
                scope.reschedule(self.client.time())
                return

    async def _leave(self) -> None:
        if self.member_id:
            members = (MemberIdentity(member_id=self.member_id, group_instance_id=None),)
            await self._ask(LeaveGroupRequest(group_id=self.plan.name, members=members))  # type: ignore[arg-type]


class ModernMember(Member):
    """A member that gets its partitions by heartbeats (KIP-848)."""

    def __init__(self, client: Client, plan: GroupPlan, partitions: Mapping[str, int]) -> None:
        super().__init__(client, plan, partitions)
        self.epoch = 0
        self._target: set[Partition] | None = None
        self._is_known = False
        """Whether the coordinator knows all that this member has reported."""

    async def _belong(self) -> None:
        self.epoch, self._target = 0, None
        self.consumer.positions.clear()
        await self._heartbeat()
        next_beat_s = self.client.time() + _HEARTBEAT_S
        next_commit_s = self.client.time() + self.plan.commit_interval_ms / 1000
        while not self.is_over:
            await self.consumer.poll()
            if self.client.time() >= next_commit_s:
                await self.attempt(self.commit())
                next_commit_s = self.client.time() + self.plan.commit_interval_ms / 1000
            if self.client.time() >= next_beat_s:
                await self.attempt(self._heartbeat())
                next_beat_s = self.client.time() + _HEARTBEAT_S
        await self.attempt(self.commit())

    async def _heartbeat(self) -> None:
        """Tell the coordinator what this member has, and follow the assignment. Raises Rejoin."""
        complete, self._is_known = not self._is_known or self.epoch == 0, False
        answer = await self._ask(self._heartbeat_request(complete=complete))
        if answer.error_code in (ErrorCode.unreleased_instance_id, ErrorCode.group_max_size_reached):
            raise UnexpectedError(f"ConsumerGroupHeartbeat: {answer.error_code.name}")
        self._check(answer.error_code, "ConsumerGroupHeartbeat")
        self.member_id, self.epoch, self._is_known = answer.member_id, answer.member_epoch, True
        if answer.assignment is not None:
            names = {topic_id: name for name, topic_id in self.client.topic_ids.items()}
            if any(each.topic_id not in names for each in answer.assignment.topic_partitions):
                # The coordinator sends the assignment again to a member that reports everything.
                self._is_known = False
                await self.client.refresh(self.plan.topics)
                return
            self._target = {
                (names[each.topic_id], number)
                for each in answer.assignment.topic_partitions
                for number in each.partitions
            }
        if self._target is not None and self._target != set(self.consumer.positions):
            await self._follow(self._target)

    async def _follow(self, target: set[Partition]) -> None:
        """Commit, give up partitions and take new ones over; the next heartbeat reports that."""
        if set(self.consumer.positions) - target:
            await self.commit()
        await self.take_over(target)
        self._is_known = False

    def _heartbeat_request(self, *, complete: bool) -> ConsumerGroupHeartbeatRequest:
        owned: dict[str, list[int]] = {}
        for topic, number in sorted(self.consumer.positions):
            owned.setdefault(topic, []).append(number)
        parts = tuple(
            TopicPartitions(topic_id=self.client.topic_ids[topic], partitions=tuple(numbers))  # type: ignore[arg-type]
            for topic, numbers in owned.items()
        )
        return ConsumerGroupHeartbeatRequest(
            group_id=self.plan.name,  # type: ignore[arg-type]
            member_id=self.member_id,
            member_epoch=self.epoch,  # type: ignore[arg-type]
            instance_id=None,
            rack_id=None,
            rebalance_timeout=_REBALANCE_TIMEOUT,  # type: ignore[arg-type]
            subscribed_topic_names=tuple(self.plan.topics) if complete else None,  # type: ignore[arg-type]
            server_assignor=None,
            topic_partitions=parts,
        )

    async def _leave(self) -> None:
        if self.member_id:
            self.epoch = -1
            await self._ask(self._heartbeat_request(complete=True))
