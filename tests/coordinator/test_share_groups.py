"""Share groups over a real server: their partitions begin, and nothing else moves their Redis groups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator.share_partitions import RedisSharePartitions
from korvet.groups.config import GroupConfig
from korvet.groups.shard import GroupShard
from korvet.groups.share.messages import ShareDescribeRequest, ShareHeartbeatRequest, SharePartition
from korvet.redis.errors import StorageFault
from tests.coordinator.conftest import TOPIC, running
from tests.coordinator.native import WAIT_S, Native, native
from tests.support.polling import until_async

if TYPE_CHECKING:
    from korvet.groups.consumer.messages import MemberHeartbeatReply
    from tests.coordinator.conftest import Running
    from tests.support.redis_server import Server

CONFIG = GroupConfig(share_assignment_interval_ms=0)


class FakePartitions:
    """States that are made when the test lets them."""

    def __init__(self) -> None:
        self.initialised: list[tuple[SharePartition, str]] = []
        self.removed: list[SharePartition] = []
        self.restarted: list[tuple[SharePartition, int]] = []
        self.let = asyncio.Event()
        self.error: Exception | None = None

    async def initialise(self, place: SharePartition, reset: str) -> None:
        self.initialised.append((place, reset))
        await self.let.wait()
        if self.error is not None:
            raise self.error

    async def restart(self, place: SharePartition, offset: int) -> None:
        if self.error is not None:
            raise self.error
        self.restarted.append((place, offset))

    async def view(self, place: SharePartition) -> None:
        """There is nothing in Redis."""

    async def remove(self, place: SharePartition) -> None:
        if self.error is not None:
            raise self.error
        self.removed.append(place)


async def beat(run: Running, group: str, epoch: int = 0, member_id: str = "m") -> MemberHeartbeatReply:
    names = (TOPIC,) if epoch == 0 else None
    request = ShareHeartbeatRequest(group, member_id, epoch, None, names)
    reply: MemberHeartbeatReply = await run.service.call(group, GroupShard.share_heartbeat, request)
    assert reply.error is ErrorCode.none, reply.error_message
    return reply


async def assigned(run: Running, group: str) -> list[int]:
    reply = await run.service.call(group, GroupShard.describe_sharing, ShareDescribeRequest((group,)))
    return [
        number
        for member in reply.groups[0].members
        for each in member.assignment
        for number in each.partitions
    ]


async def shared(run: Running, group: str) -> int:
    """Join, and return the epoch in which the member has its partition."""
    epoch = (await beat(run, group)).member_epoch

    async def has_partition() -> bool:
        nonlocal epoch
        epoch = (await beat(run, group, epoch)).member_epoch
        return bool(await assigned(run, group))

    await until_async(has_partition, WAIT_S, "the partition is initialised")
    return epoch


async def test_partitions_are_initialised_before_members_get_them(
    server: Server, prefix: str, group: str
) -> None:
    fake = FakePartitions()
    async with running(server, prefix, config=CONFIG, share_partitions=fake) as run:
        epoch = (await beat(run, group)).member_epoch
        await until_async(_async(lambda: bool(fake.initialised)), WAIT_S, "the initialisation has begun")
        assert await beat(run, group, epoch)
        assert await assigned(run, group) == []
        topic = run.store.catalogue.get(TOPIC)
        assert topic is not None
        place = SharePartition(group, topic.topic_id.bytes, TOPIC, 0)
        assert fake.initialised == [(place, "latest")]
        fake.let.set()

        async def has_partition() -> bool:
            nonlocal epoch
            epoch = (await beat(run, group, epoch)).member_epoch
            return await assigned(run, group) == [0]

        await until_async(has_partition, WAIT_S, "the member has the partition")
        assert len(fake.initialised) == 1
        assert await run.service.delete_group(group) is ErrorCode.non_empty_group
        await beat(run, group, -1)
        assert await run.service.delete_group(group) is ErrorCode.none
        assert fake.removed == [place]
        assert await run.service.delete_group(group) is ErrorCode.group_id_not_found


async def test_a_failed_initialisation_is_repeated(server: Server, prefix: str, group: str) -> None:
    fake = FakePartitions()
    fake.error = StorageFault("no room")
    fake.let.set()
    async with running(server, prefix, config=CONFIG, share_partitions=fake) as run:
        epoch = (await beat(run, group)).member_epoch

        async def is_tried_again() -> bool:
            await beat(run, group, epoch)
            return len(fake.initialised) > 1

        await until_async(is_tried_again, WAIT_S, "the initialisation has begun again")
        assert await assigned(run, group) == []
        fake.error = None
        await shared(run, group)


async def test_a_group_whose_states_remain_is_not_deleted(server: Server, prefix: str, group: str) -> None:
    fake = FakePartitions()
    fake.let.set()
    async with running(server, prefix, config=CONFIG, share_partitions=fake) as run:
        await shared(run, group)
        await beat(run, group, -1)
        fake.error = StorageFault("no room")
        assert await run.service.delete_group(group) is ErrorCode.coordinator_not_available
        fake.error = None
        assert await run.service.delete_group(group) is ErrorCode.none
        assert len(fake.removed) == 1


async def test_offsets_that_cannot_be_changed_are_changed_later(
    server: Server, prefix: str, group: str
) -> None:
    fake = FakePartitions()
    fake.error = StorageFault("no room")
    async with running(server, prefix, config=CONFIG, share_partitions=fake) as run:
        topic = run.store.catalogue.get(TOPIC)
        assert topic is not None
        place = SharePartition(group, topic.topic_id.bytes, TOPIC, 0)
        sharing = run.service.sharing
        assert (await sharing.restart(group, {place: 5})).error is ErrorCode.coordinator_not_available
        assert (await sharing.of(group)).places == ()
        fake.error = None
        assert (await sharing.restart(group, {place: 6})).error is ErrorCode.none
        assert fake.restarted == [(place, 6)]
        assert (await sharing.of(group)).places == (place,)
        names = frozenset({TOPIC})
        fake.error = StorageFault("no room")
        assert (await sharing.remove(group, names)).error is ErrorCode.coordinator_not_available
        fake.error = None
        assert (await sharing.remove(group, names)).places == (place,)
        assert fake.removed == [place]
        assert (await sharing.remove(group, names)).places == ()
        assert await run.service.delete_group(group) is ErrorCode.none


async def test_an_interrupted_initialisation_goes_on_elsewhere(
    server: Server, prefix: str, group: str
) -> None:
    fake = FakePartitions()
    async with running(server, prefix, config=CONFIG, share_partitions=fake) as run:
        epoch = (await beat(run, group)).member_epoch
        await until_async(_async(lambda: bool(fake.initialised)), WAIT_S, "the initialisation has begun")
    again = FakePartitions()
    again.let.set()
    async with running(server, prefix, config=CONFIG, share_partitions=again) as run:
        await beat(run, group, epoch)
        await shared(run, group)
        assert [reset for _, reset in again.initialised] == ["latest"]


# Redis groups


@pytest.mark.parametrize(
    ("reset", "left"),
    [("latest", []), ("earliest", [5, 6, 7]), ("by_duration:PT1H", []), ("by_duration:P40000D", [5, 6, 7])],
)
async def test_a_redis_group_begins_where_the_config_says(
    server: Server, prefix: str, group: str, reset: str, left: list[int]
) -> None:
    config = GroupConfig(share_assignment_interval_ms=0)
    config.own.replace({group: {"share.auto.offset.reset": reset}})
    async with native(server, prefix, config=config) as one:
        one.write(5, 6, 7)
        await shared(one.run, group)
        assert one.read(group) == left
        one.write(8)
        assert one.read(group) == [8]
        await beat(one.run, group, -1)
        assert await one.run.service.delete_group(group) is ErrorCode.none
        assert one.names() == set()


async def test_a_partition_without_records_is_initialised(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix, config=CONFIG) as one:
        await shared(one.run, group)
        one.write(5)
        assert one.read(group) == [5]


async def test_making_and_removing_may_be_repeated(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix, config=CONFIG) as one:
        store = one.run.store
        topic = store.catalogue.get(TOPIC)
        assert topic is not None
        states = RedisSharePartitions(store.commands, store.logs, store.catalogue)
        place = SharePartition(group, topic.topic_id.bytes, TOPIC, 0)
        await states.remove(place)
        one.write(5, 6)
        await states.initialise(place, "earliest")
        assert one.read(group, 1) == [5]
        await states.initialise(place, "latest")
        assert one.read(group) == [6]
        await states.remove(place)
        await states.remove(place)
        assert one.names() == set()
        gone = SharePartition(group, b"x" * 16, TOPIC, 0)
        await states.initialise(gone, "latest")
        await states.remove(gone)
        assert one.names() == set()


async def test_nothing_of_a_share_group_becomes_a_commit(server: Server, prefix: str, group: str) -> None:
    """Native consumers of the group take from the same queue."""
    async with native(server, prefix, config=CONFIG) as one:
        epoch = await shared(one.run, group)
        one.write(5, 6, 7)
        assert one.read(group, 2) == [5, 6]
        one.ack(group, 5)
        await one.assert_quiet()
        assert await one.committed(group) == -1
        assert (await beat(one.run, group, epoch)).error is ErrorCode.none
        assert one.read(group) == [7]


async def test_a_loaded_share_group_is_left_alone(server: Server, prefix: str, group: str) -> None:
    """Also if a commit of a former group of that name is still noted at the Redis group."""
    async with native(server, prefix, config=CONFIG) as one:
        one.write(5, 6, 7)
        assert await one.run.commit(group, 5 << 10) == ErrorCode.none
        await one.settled()
        noted = one.client.hget(one.meta, f"commit:{group}")
        await one.delete_group(group)
        await one.settled()
        await shared(one.run, group)
        one.write(8, 9)
        assert one.read(group, 1) == [8]
        one.client.hset(one.meta, f"commit:{group}", noted)
    async with running(server, prefix, config=CONFIG) as run:
        again = Native(run)
        await again.settled()
        assert again.read(group) == [9]
        pending: Any = again.client.xpending(again.stream, group)
        assert pending["pending"] == 2
        assert again.client.hget(again.meta, f"commit:{group}") is None


def _async(check: Any) -> Any:
    async def checked() -> bool:
        return bool(check())

    return checked
