"""A consumer of assigned partitions: it fetches, validates leader epochs, and drops aborted records."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

from robustness.history import OffsetForEpoch, Poll, Record, Truncated
from robustness.simulation.clients import records
from robustness.simulation.clients.client import RETRIABLE, Client, Partition, UnexpectedError
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from robustness.history import Isolation

LATEST: Final = -1
EARLIEST: Final = -2
_MAX_WAIT: Final = timedelta(milliseconds=200)
_MAX_BYTES: Final = 4096


class Position:
    """The next offset to read of a partition. A new assignment has a new object."""

    def __init__(self, offset: int, epoch: int) -> None:
        self.offset = offset
        self.epoch = epoch
        """The epoch of the record before it; -1 if unknown."""
        self.validated_epoch = -1
        """The leader epoch in which the position was found to be valid."""


class Consumer:
    """Reads the partitions in `positions`."""

    def __init__(self, client: Client, isolation: Isolation, group: str | None = None) -> None:
        self.client = client
        self.isolation: Isolation = isolation
        self.positions: dict[Partition, Position] = {}
        self.received: list[Record] = []
        """What was received, for who takes it from here."""
        self._group = group

    async def poll(self) -> None:
        """Fetch once from all leaders, and write what was received to the history."""
        by_host: dict[str, list[Partition]] = defaultdict(list)
        for partition, position in list(self.positions.items()):
            leader = self.client.leaders.get(partition)
            if leader is None or not await self._validate(partition, position):
                await self.client.refresh([partition[0]])
                continue
            by_host[leader.host].append(partition)
        if not by_host:
            await self.client.pause()
            return
        answers = await asyncio.gather(*(self._fetch(*each) for each in by_host.items()))
        received = [record for answer in answers for record in answer]
        if received:
            self.received += received
            self.client.note(
                Poll,
                "ok",
                isolation=self.isolation,
                records=tuple(received),
                group=self._group,
                validates=True,
            )

    async def fetch_once(self, partition: Partition) -> list[Record]:
        """Fetch one partition once, without an event."""
        leader = self.client.leaders.get(partition)
        if leader is None:
            await self._refresh([partition])
            return []
        return await self._fetch(leader.host, [partition])

    async def _fetch(self, host: str, partitions: list[Partition]) -> list[Record]:
        asked = {each: self.positions[each] for each in partitions if each in self.positions}
        try:
            answer = await self.client.ask(host, self._request(asked), "fetch")
        except Disconnected:
            await self._refresh(partitions)
            return []
        received: list[Record] = []
        stale = []
        for topic in answer.responses:
            for data in topic.partitions:
                partition = (topic.topic, data.partition_index)
                position = self.positions.get(partition)
                if position is None or position is not asked.get(partition):
                    continue
                if data.error_code is ErrorCode.none:
                    received += take(partition, position, data, self.isolation)
                elif data.error_code is ErrorCode.offset_out_of_range:
                    await self._reset(partition, position)
                elif data.error_code in RETRIABLE:
                    stale.append(partition)
                else:
                    raise UnexpectedError(f"Fetch from {partition}: {data.error_code.name}")
        if stale:
            await self._refresh(stale)
            await self.client.pause()
        return received

    async def _refresh(self, partitions: list[Partition]) -> None:
        await self.client.refresh(sorted({topic for topic, _ in partitions}))

    def _request(self, asked: dict[Partition, Position]) -> FetchRequest:
        topics = tuple(
            FetchTopic(
                topic=topic,  # type: ignore[arg-type]
                partitions=(
                    FetchPartition(
                        partition=number,  # type: ignore[arg-type]
                        current_leader_epoch=self.client.leaders[topic, number].epoch,  # type: ignore[arg-type]
                        fetch_offset=position.offset,  # type: ignore[arg-type]
                        partition_max_bytes=_MAX_BYTES,  # type: ignore[arg-type]
                    ),
                ),
            )
            for (topic, number), position in asked.items()
        )
        return FetchRequest(
            max_wait=_MAX_WAIT,  # type: ignore[arg-type]
            min_bytes=1,  # type: ignore[arg-type]
            isolation_level=int(self.isolation == "read_committed"),  # type: ignore[arg-type]
            topics=topics,
            forgotten_topics_data=(),
        )

    async def _validate(self, partition: Partition, position: Position) -> bool:
        """Returns whether the position is valid in the epoch of the leader; it is changed if it is not."""
        leader = self.client.leaders[partition]
        if leader.epoch <= position.validated_epoch:
            return True
        if position.epoch < 0:
            position.validated_epoch = leader.epoch
            return True
        topic, number = partition
        fields: dict[str, Any] = {"topic": topic, "partition": number, "epoch": position.epoch}
        self.client.note(OffsetForEpoch, "invoke", **fields)
        asked = OffsetForLeaderPartition(
            partition=number,  # type: ignore[arg-type]
            current_leader_epoch=leader.epoch,  # type: ignore[arg-type]
            leader_epoch=position.epoch,  # type: ignore[arg-type]
        )
        request = OffsetForLeaderEpochRequest(
            topics=(OffsetForLeaderTopic(topic=topic, partitions=(asked,)),)  # type: ignore[arg-type]
        )
        try:
            answer = (await self.client.ask(leader.host, request)).topics[0].partitions[0]
        except Disconnected:
            self.client.note(OffsetForEpoch, "info", **fields)
            return False
        if answer.error_code is not ErrorCode.none:
            if answer.error_code not in RETRIABLE:
                raise UnexpectedError(f"OffsetForLeaderEpoch of {partition}: {answer.error_code.name}")
            self.client.note(OffsetForEpoch, "fail", **fields, error=answer.error_code.name)
            return False
        found = {"answered": answer.leader_epoch, "end": answer.end_offset}
        self.client.note(OffsetForEpoch, "ok", **fields, **found)
        if answer.end_offset < 0:
            return await self._reset(partition, position)
        if answer.end_offset < position.offset:
            self._truncated(partition, position, answer.end_offset, answer.leader_epoch)
        position.validated_epoch = leader.epoch
        return True

    async def _reset(self, partition: Partition, position: Position) -> bool:
        """Go to the start of the log (auto.offset.reset=earliest)."""
        start = await list_offset(self.client, partition, EARLIEST)
        if start is None:
            return False
        self._truncated(partition, position, start, -1)
        return True

    def _truncated(self, partition: Partition, position: Position, offset: int, epoch: int) -> None:
        if self.positions.get(partition) is position:
            topic, number = partition
            self.client.note(Truncated, "info", topic=topic, partition=number, offset=offset)
            position.offset, position.epoch = offset, epoch


async def list_offset(
    client: Client, partition: Partition, timestamp: int, isolation: Isolation = "read_uncommitted"
) -> int | None:
    """Returns the first (EARLIEST) or next (LATEST) offset; None if the leader does not answer now."""
    topic, number = partition
    leader = client.leaders.get(partition)
    if leader is None:
        await client.refresh([topic])
        return None
    asked = ListOffsetsPartition(
        partition_index=number,  # type: ignore[arg-type]
        current_leader_epoch=leader.epoch,  # type: ignore[arg-type]
        timestamp=timestamp,  # type: ignore[arg-type]
    )
    request = ListOffsetsRequest(
        replica_id=-1,  # type: ignore[arg-type]
        isolation_level=int(isolation == "read_committed"),  # type: ignore[arg-type]
        topics=(ListOffsetsTopic(name=topic, partitions=(asked,)),),  # type: ignore[arg-type]
    )
    try:
        answer = (await client.ask(leader.host, request)).topics[0].partitions[0]
    except Disconnected:
        await client.refresh([topic])
        return None
    if answer.error_code is ErrorCode.none:
        return int(answer.offset)
    if answer.error_code not in RETRIABLE:
        raise UnexpectedError(f"ListOffsets of {partition}: {answer.error_code.name}")
    await client.refresh([topic])
    return None


def take(partition: Partition, position: Position, data: Any, isolation: Isolation) -> Iterator[Record]:
    """Yields the records of a fetched partition that the application gets, and moves the position."""
    topic, number = partition
    aborted = sorted(
        ((each.first_offset, each.producer_id) for each in data.aborted_transactions or ()), reverse=True
    )
    open_aborted: set[int] = set()
    for batch in records.decode(data.records):
        while aborted and aborted[-1][0] < batch.next_offset:
            open_aborted.add(aborted.pop()[1])
        if batch.control_type == 0:
            open_aborted.discard(batch.producer_id)
        is_dropped = (
            isolation == "read_committed" and batch.is_transactional and batch.producer_id in open_aborted
        )
        for offset, value in batch.records:
            if offset >= position.offset and not is_dropped:
                assert value is not None
                yield Record(topic, number, offset, value.decode(), batch.leader_epoch)
        if batch.next_offset > position.offset:
            position.offset, position.epoch = batch.next_offset, batch.leader_epoch
