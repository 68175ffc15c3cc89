"""The reads at the end of a run, after all faults have ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import hiredis
from kio.schema.errors import ErrorCode
from kio.schema.offset_fetch.v9.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

from korvet.offsets.packing import offset_after, offset_of
from robustness.history import UNKNOWN, Place, ReadAll, ReadCommit, ReadNativeGroup, addressed
from robustness.simulation.clients.client import RETRIABLE, Client, Partition, UnexpectedError
from robustness.simulation.clients.consumer import EARLIEST, LATEST, Consumer, Position, list_offset
from robustness.simulation.clients.native import KEYS, RedisConnection, value_of
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from robustness.history import Isolation
    from robustness.plan import TopicPlan

_ISOLATIONS: Final[tuple[Isolation, ...]] = ("read_uncommitted", "read_committed")


class FinalReader:
    """Reads everything; what cannot be read in time is left incomplete in the history."""

    def __init__(self, client: Client, deadline_s: float, release_s: float) -> None:
        """`release_s`: time in which replicas get what is written, and records are released."""
        self.client = client
        self._release_s = release_s
        self._deadline_s = deadline_s

    @property
    def _in_time(self) -> bool:
        return self.client.time() < self._deadline_s

    async def read_topic(self, topic: TopicPlan, redis_host: str) -> None:
        """Read all partitions of a topic, by Kafka's protocol and in Redis."""
        while not await self.client.refresh([topic.name]) and self._in_time:
            await self.client.pause()
        partitions = [(topic.name, number) for number in range(topic.partitions)]
        await asyncio.gather(
            *(self._read_all(partition, isolation) for partition in partitions for isolation in _ISOLATIONS)
        )
        if topic.is_native:
            for partition in partitions:
                await self._read_native(partition, redis_host)

    async def _read_all(self, partition: Partition, isolation: Isolation) -> None:
        fields: dict[str, Any] = {"topic": partition[0], "partition": partition[1], "isolation": isolation}
        self.client.note(ReadAll, "invoke", **fields)
        found = await self._records(partition, isolation)
        if found is not None:
            self.client.note(ReadAll, "ok", **fields, records=tuple(found), complete=True)

    async def _records(self, partition: Partition, isolation: Isolation) -> list[tuple[int, str]] | None:
        start, end = await self._offset(partition, EARLIEST), await self._end(partition, isolation)
        if start is None or end is None:
            return None
        consumer, position = Consumer(self.client, isolation), Position(start, -1)
        consumer.positions[partition] = position
        found: list[tuple[int, str]] = []
        while position.offset < end:
            if not self._in_time:
                return None
            found += [(record.offset, record.value) for record in await consumer.fetch_once(partition)]
        return found

    async def _offset(
        self, partition: Partition, timestamp: int, isolation: Isolation = "read_uncommitted"
    ) -> int | None:
        while self._in_time:
            found = await list_offset(self.client, partition, timestamp, isolation)
            if found is not None:
                return found
            await self.client.pause()
        return None

    async def _end(self, partition: Partition, isolation: Isolation) -> int | None:
        """The end of the log, when all transactions before it have ended, and replicas have all of it."""
        before = None
        while self._in_time:
            end = await self._offset(partition, LATEST)
            if end == before and end == await self._offset(partition, LATEST, isolation):
                return end
            before = end
            # Nobody listens to entries of Redis clients: the question made the broker wait for the replicas.
            await asyncio.sleep(self._release_s)
        return None

    async def _read_native(self, partition: Partition, redis_host: str) -> None:
        topic, number = partition
        connection = await RedisConnection.open(redis_host)
        reply = await connection.ask(b"XRANGE", KEYS.stream(topic, number), b"-", b"+")
        connection.close()
        found = tuple(addressed(each for each in map(value_of, reply) if each is not None))
        fields: dict[str, Any] = {"topic": topic, "partition": number, "reader": "native"}
        self.client.note(ReadAll, "ok", **fields, records=found, complete=True)

    async def read_group(self, group: str, topics: list[TopicPlan], redis_host: str) -> None:
        """Read the committed offsets of a group, and the Redis groups that follow them."""
        self.client.note(ReadCommit, "invoke", group=group)
        places = None
        while places is None and self._in_time:
            places = await self._committed(group, topics)
            if places is None:
                await self.client.pause()
        if places is None:
            self.client.note(ReadCommit, "fail", group=group)
            raise UnexpectedError(f"the offsets of {group} cannot be read")
        self.client.note(ReadCommit, "ok", group=group, offsets=tuple(places))
        native = {topic.name for topic in topics if topic.is_native}
        for place in places:
            if place.topic in native and place.offset != UNKNOWN:
                await self._read_native_group(group, place, redis_host)

    async def _committed(self, group: str, topics: list[TopicPlan]) -> list[Place] | None:
        asked = tuple(
            OffsetFetchRequestTopics(name=each.name, partition_indexes=tuple(range(each.partitions)))  # type: ignore[arg-type]
            for each in topics
        )
        wanted = OffsetFetchRequestGroup(group_id=group, member_id=None, topics=asked)  # type: ignore[arg-type]
        request = OffsetFetchRequest(groups=(wanted,), require_stable=True)
        try:
            answer = (await self.client.ask_coordinator(group, request)).groups[0]
        except Disconnected:
            return None
        errors = {answer.error_code} | {one.error_code for each in answer.topics for one in each.partitions}
        if errors != {ErrorCode.none}:
            if not errors <= RETRIABLE | {ErrorCode.none}:
                raise UnexpectedError(f"OffsetFetch: {errors}")
            self.client.forget_coordinator(group)
            return None
        return [
            Place(each.name, one.partition_index, one.committed_offset, one.committed_leader_epoch)
            for each in answer.topics
            for one in each.partitions
        ]

    async def _read_native_group(self, group: str, place: Place, redis_host: str) -> None:
        """The group follows commits with a delay: read until it is where it must be, or time is over."""
        key = KEYS.stream(place.topic, place.partition)
        connection = await RedisConnection.open(redis_host)
        while True:
            offset, pending = await _group_state(connection, key, group)
            if (offset >= place.offset and not any(at < place.offset for at in pending)) or not self._in_time:
                break
            await self.client.pause()
        connection.close()
        fields: dict[str, Any] = {"group": group, "topic": place.topic, "partition": place.partition}
        self.client.note(ReadNativeGroup, "ok", **fields, offset=offset, pending=tuple(pending))


async def _group_state(connection: RedisConnection, key: bytes, group: str) -> tuple[int, list[int]]:
    """The offset after the last delivered entry, and the offsets of pending entries."""
    try:
        groups = await connection.ask(b"XINFO", b"GROUPS", key)
        found = [dict(zip(each[::2], each[1::2], strict=True)) for each in groups]
        mine = next((each for each in found if each[b"name"] == group.encode()), None)
        if mine is None:
            return UNKNOWN, []
        reply = await connection.ask(b"XPENDING", key, group, b"-", b"+", 1000)
    except hiredis.ReplyError:
        return UNKNOWN, []
    pending = [offset_of(each[0].decode(), 0) for each in reply]
    return min([offset_after(mine[b"last-delivered-id"]), *pending]), pending
