"""A native Redis consumer beside a coordinator, with the exporter driven by hand."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.coordinator.exporter import NativeExporter
from korvet.groups.messages import DeleteRequest, DescribeRequest, FetchTopic, OffsetDeleteRequest
from korvet.groups.shard import GroupShard
from korvet.offsets.packing import pack
from korvet.redis.keys import OFFSETS_TOPIC
from tests.coordinator.conftest import CONFIG, TOPIC, Running, running
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from korvet.groups.config import GroupConfig
    from korvet.groups.messages import DescribedGroup
    from tests.support.redis_server import Server


WAIT_S = 10.0


class Native:
    """A running coordinator whose exporter the test drives, and a Redis application on partition 0."""

    def __init__(self, run: Running) -> None:
        self.run = run
        self.client = run.client
        self.stream = run.keys.stream(TOPIC, 0).decode()
        self.meta = run.keys.meta(TOPIC, 0)
        self.exporter = NativeExporter(run.store.commands, run.store.catalogue, run.service, 1)

    # What a Redis application does; entries are numbered, number n is ms n, sequence 0

    def write(self, *numbers: int) -> None:
        for number in numbers:
            self.client.xadd(self.stream, {"value": str(number)}, id=f"{number}-0")

    def create(self, group: str | bytes, at: str = "0") -> None:
        self.client.xgroup_create(self.stream, group, at, mkstream=True)

    def read(self, group: str, count: int = 100) -> list[int]:
        reply = self.client.xreadgroup(group, "native", {self.stream: ">"}, count=count)
        return [int(name.partition(b"-")[0]) for name, _ in reply[0][1]] if reply else []

    def ack(self, group: str, *numbers: int) -> None:
        self.client.xack(self.stream, group, *(f"{number}-0" for number in numbers))

    def names(self) -> set[bytes]:
        return {found["name"] for found in self.client.xinfo_groups(self.stream)}

    # What becomes of it

    async def round(self) -> None:
        await self.exporter.round()
        await self.settled()

    async def settled(self) -> None:
        """All commits are in the log and projected."""
        service = self.run.service

        async def quiet() -> bool:
            on_their_way = [
                place for part in service._partitions if part.term for place in part.term.unprojected()
            ]
            return not on_their_way and not service._projector._lanes and not service._projector.expects

        await until_async(quiet, WAIT_S, "everything is projected")

    async def committed(self, group: str) -> int:
        """The committed offset; -1 for none."""
        return (await self.run.committed(group)).offset

    def written(self) -> int:
        """How many records were ever appended to the offsets topic."""
        entries = 0
        for number in range(50):
            with contextlib.suppress(Exception):
                info = self.client.xinfo_stream(self.run.keys.stream(OFFSETS_TOPIC, number))
                entries += info["entries-added"]
        return entries

    async def assert_quiet(self) -> None:
        """Nothing more is written, however often the groups are looked at."""
        before = self.written()
        for _ in range(3):
            await self.round()
        assert self.written() == before

    async def describe(self, group: str) -> DescribedGroup:
        reply = await self.run.service.call(group, GroupShard.describe, DescribeRequest((group,)))
        described: DescribedGroup = reply.groups[0]
        return described

    async def delete_group(self, group: str) -> None:
        reply = await self.run.service.call(group, GroupShard.delete_groups, DeleteRequest((group,)))
        assert reply.groups[0].error == ErrorCode.none

    async def delete_offset(self, group: str) -> None:
        request = OffsetDeleteRequest(group, (FetchTopic(TOPIC, (0,)),))
        reply = await self.run.service.call(group, GroupShard.delete_offsets, request)
        assert reply.topics[0].partitions[0].error == ErrorCode.none


@contextlib.asynccontextmanager
async def native(
    server: Server, prefix: str, *, config: GroupConfig = CONFIG, clock: Callable[[], int] | None = None
) -> AsyncIterator[Native]:
    async with running(server, prefix, config=config, clock=clock) as run:
        one = Native(run)
        await one.settled()
        yield one


def at(number: int) -> int:
    """The offset of an entry."""
    return pack(number, 0)


def after(number: int) -> int:
    """The offset behind an entry."""
    return pack(number, 0) + 1
