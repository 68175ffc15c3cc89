"""Commits in transactions over a real server: when they count, when Redis groups follow, and a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.messages import CommitPartition, CommitRequest, CommitTopic
from korvet.groups.shard import GroupShard
from korvet.offsets.packing import pack
from korvet.offsets.partition import partition_for
from korvet.records.control import ControlMarker
from tests.coordinator.conftest import TOPIC, Running, running

if TYPE_CHECKING:
    from tests.support.redis_server import Server

PRODUCER = (7, 2)
NOTHING = -1


def write(run: Running, *times_ms: int) -> None:
    """Native entries."""
    for ms in times_ms:
        run.client.xadd(run.keys.stream(TOPIC, 0), {"n": ms}, id=f"{ms}-0")


async def end(
    run: Running,
    group: str,
    committed: bool = True,
    epoch: int = 2,
    coordinator: int = 1,
    decided_ms: int = -1,
) -> ErrorCode:
    marker = ControlMarker(PRODUCER[0], epoch, committed, coordinator, decided_ms)
    return await run.service.mark(partition_for(group), marker)


async def stands(run: Running, group: str) -> tuple[int, list[bytes]]:
    """The committed offset, and the position of the Redis group."""
    groups = run.client.xinfo_groups(run.keys.stream(TOPIC, 0))
    return (await run.committed(group)).offset, [each["last-delivered-id"] for each in groups]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("committed", [True, False])
async def test_commits_of_a_transaction(
    server: Server, prefix: str, group: str, committed: bool, restarted: bool
) -> None:
    offset = pack(20, 0)
    async with running(server, prefix) as run:
        write(run, 10, 20, 30)
        assert await run.commit(group, offset, producer=PRODUCER) is ErrorCode.none
        assert await stands(run, group) == (NOTHING, [])
        if not restarted:
            assert await end(run, group, committed) is ErrorCode.none
            assert await stands(run, group) == ((offset, [b"19-1023"]) if committed else (NOTHING, []))
    async with running(server, prefix) as run:
        if restarted:
            assert await stands(run, group) == (NOTHING, [])
            assert await end(run, group, committed) is ErrorCode.none
        assert await stands(run, group) == ((offset, [b"19-1023"]) if committed else (NOTHING, []))


async def test_a_younger_commit_outlasts_the_transaction(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        write(run, 10, 20, 30)
        assert await run.commit(group, pack(30, 0), producer=PRODUCER) is ErrorCode.none
        assert await run.commit(group, pack(20, 0)) is ErrorCode.none
        assert await end(run, group) is ErrorCode.none
        expected = (pack(20, 0), [b"19-1023"])
        assert await stands(run, group) == expected
    async with running(server, prefix) as run:
        assert await stands(run, group) == expected


async def test_a_younger_commit_outlasts_a_transaction_that_was_loaded(
    server: Server, prefix: str, group: str
) -> None:
    """The loader recognises the keys of a group and topic by the first one."""
    async with running(server, prefix) as run:
        for partition, offset, producer in ((1, 1, None), (0, 30, PRODUCER), (0, 20, None)):
            topics = (CommitTopic(TOPIC, (CommitPartition(partition, offset),)),)
            request = CommitRequest(group, topics, producer=producer)
            await run.service.call(group, GroupShard.commit, request)
    async with running(server, prefix) as run:
        assert await end(run, group) is ErrorCode.none
        assert (await run.committed(group)).offset == 20


async def test_an_offset_that_is_deleted_during_the_transaction_stays_deleted(
    server: Server, prefix: str, group: str
) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 5, producer=PRODUCER) is ErrorCode.none
        await run.service.forget_topic(TOPIC)
        assert await end(run, group) is ErrorCode.none
        assert (await run.committed(group)).offset == NOTHING
    async with running(server, prefix) as run:
        assert (await run.committed(group)).offset == NOTHING


async def test_a_marker_that_comes_too_late(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 5, producer=PRODUCER) is ErrorCode.none
        assert await end(run, group, epoch=1) is ErrorCode.invalid_producer_epoch
        assert await end(run, group, coordinator=4) is ErrorCode.none
        assert await end(run, group, False, coordinator=3) is ErrorCode.transaction_coordinator_fenced
        assert await end(run, group, False, coordinator=4) is ErrorCode.none
        assert (await run.committed(group)).offset == 5
        assert run.service.reloads == 0


async def test_a_delayed_marker_does_not_end_the_next_transaction(
    server: Server, prefix: str, group: str
) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 5, producer=PRODUCER) is ErrorCode.none
        assert await end(run, group, decided_ms=100) is ErrorCode.none
        assert await run.commit(group, 6, producer=PRODUCER) is ErrorCode.none
        assert await end(run, group, decided_ms=100) is ErrorCode.none
        assert (await run.committed(group)).offset == 5
        assert await end(run, group, decided_ms=101) is ErrorCode.none
        assert (await run.committed(group)).offset == 6
        assert run.service.reloads == 0


async def test_a_producer_of_an_older_epoch_writes_nothing(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 5, producer=PRODUCER) is ErrorCode.none
        refused = await run.commit(group, 6, producer=(PRODUCER[0], PRODUCER[1] - 1))
        assert refused is ErrorCode.coordinator_not_available
        await run.service.wait_loaded()
        assert await end(run, group) is ErrorCode.none
        assert (await run.committed(group)).offset == 5


async def test_producers_and_groups_side_by_side(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        for number in range(20):
            producer = (100 + number % 3, 0)
            assert await run.commit(f"{group}{number}", number, producer=producer) is ErrorCode.none
            assert await run.commit(f"plain{number}", number) is ErrorCode.none
        for number in range(20):
            marker = ControlMarker(100 + number % 3, 0, number % 3 != 1, 1)
            assert await run.service.mark(partition_for(f"{group}{number}"), marker) is ErrorCode.none
        for number in range(20):
            expected = NOTHING if number % 3 == 1 else number
            assert (await run.committed(f"{group}{number}")).offset == expected
            assert (await run.committed(f"plain{number}")).offset == number


async def test_an_offset_that_is_deleted_during_a_transaction_that_is_loaded_stays_deleted(
    server: Server, prefix: str, group: str
) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 5, producer=PRODUCER) is ErrorCode.none
        await run.service.forget_topic(TOPIC)
    async with running(server, prefix) as run:
        assert await end(run, group) is ErrorCode.none
        assert (await run.committed(group)).offset == NOTHING
