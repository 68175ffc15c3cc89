"""The exporter's rounds: many groups and partitions, clients at work, restarts and failures."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator import exporter
from korvet.coordinator.exporter import NativeExporter
from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    FetchRequest,
    FetchTopic,
    JoinProtocol,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    ListRequest,
    SyncAssignment,
    SyncRequest,
)
from korvet.groups.native import QUIET_MS
from korvet.groups.shard import GroupShard
from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.packing import pack
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitValue
from korvet.redis_groups.moved_groups import NativeGroups
from tests.coordinator.conftest import TOPIC, running
from tests.coordinator.native import WAIT_S, Native, after, at, native
from tests.support.polling import until_async
from tests.unit.groups.driver import subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.redis_server import Server


async def test_many_groups_of_one_stream(server: Server, prefix: str) -> None:
    async with native(server, prefix) as one:
        one.write(1, 2)
        for number in range(1_100):
            one.create(f"g{number}", "1-0")
        await one.round()
        listed = await one.run.service.list_groups(ListRequest())
        assert len(listed.groups) == 1_100
        for number in (0, 999, 1_000, 1_099):
            assert await one.committed(f"g{number}") == after(1)
        await one.assert_quiet()


async def test_a_commit_that_redis_has_lost_is_projected_again(
    server: Server, prefix: str, group: str
) -> None:
    """A failover may lose the newest record of a Redis group's synchronisation."""
    async with native(server, prefix) as one:
        one.write(*range(1, 11))
        assert await one.run.commit(group, at(2)) == ErrorCode.none
        older = one.client.hget(one.meta, f"commit:{group}")
        assert await one.run.commit(group, at(6)) == ErrorCode.none
        one.client.hset(one.meta, f"commit:{group}", older)
        one.client.xgroup_setid(one.stream, group, "3-0")
        await one.round()
        assert await one.committed(group) == at(6)
        assert one.read(group, 1) == [6]
        one.ack(group, 6)
        await one.round()
        assert await one.committed(group) == after(6)
        await one.assert_quiet()


@pytest.mark.parametrize("first", [None, 2], ids=["its only commit", "a later commit"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_native_consumers_go_on_after_their_commit_was_lost(
    server: Server, prefix: str, group: str, first: int | None, restarts: bool
) -> None:
    """A failover of another server than the topic's may lose the record that a Redis group has followed."""
    async with native(server, prefix) as one:
        one.write(*range(1, 11))
        one.create(group)
        if first is not None:
            assert await one.run.commit(group, at(first)) == ErrorCode.none
        one.client.hset(one.meta, f"commit:{group}", f"1000 {at(4)} {at(4)} n")
        if not restarts:
            await assert_native_commits_count(one, group)
    if restarts:
        async with native(server, prefix) as one:
            await assert_native_commits_count(one, group)


async def assert_native_commits_count(one: Native, group: str) -> None:
    one.ack(group, *one.read(group, 6))
    await one.round()
    one.ack(group, *one.read(group, 1))
    await one.round()
    assert await one.committed(group) in {after(7), after(8)}
    await one.assert_quiet()
    assert one.run.service.counts.diverged_groups == 0


async def test_a_redis_group_follows_again_after_a_lost_commit(
    server: Server, prefix: str, group: str
) -> None:
    """The positions of new records may be lower than that of the lost one."""
    async with native(server, prefix) as one:
        one.write(*range(1, 11))
        assert await one.run.commit(group, at(2)) == ErrorCode.none
        one.client.hset(one.meta, f"commit:{group}", f"1000 {at(4)}")
    async with native(server, prefix) as one:
        assert await one.run.commit(group, at(6)) == ErrorCode.none
        assert one.read(group, 1) == [6]


async def test_native_consumers_go_on_after_a_negative_commit(
    server: Server, prefix: str, group: str
) -> None:
    async with native(server, prefix) as one:
        one.write(1, 2)
        assert await one.run.commit(group, -1) == ErrorCode.none
        one.ack(group, *one.read(group, 1))
        await one.round()
        assert await one.committed(group) == after(1)


async def test_kafka_consumers_at_work_lead(server: Server, prefix: str, group: str) -> None:
    now_ms = 1_800_000_000_000
    async with native(
        server, prefix, config=GroupConfig(initial_rebalance_delay_ms=0), clock=lambda: now_ms
    ) as one:
        one.write(*range(1, 21))
        protocol = JoinProtocol("range", subscription(TOPIC))
        joined = await one.run.service.call(
            group, GroupShard.join, JoinRequest(group, "", "consumer", (protocol,), 1_800_000, 1_800_000)
        )
        assignment = (SyncAssignment(joined.member_id, b"all"),)
        request = SyncRequest(group, joined.generation_id, joined.member_id, assignments=assignment)
        assert (await one.run.service.call(group, GroupShard.sync, request)).error == ErrorCode.none
        member = {"generation_id": joined.generation_id, "member_id": joined.member_id}
        assert await one.run.commit(group, at(3), **member) == ErrorCode.none
        one.ack(group, *one.read(group, 5))
        await one.assert_quiet()
        now_ms += QUIET_MS - 1
        assert await one.run.commit(group, at(4), **member) == ErrorCode.none
        one.ack(group, *one.read(group, 5))
        await one.assert_quiet()
        assert await one.committed(group) == at(4)
        assert one.read(group, 1) == [13], "no commit has taken native readers back"
        now_ms += QUIET_MS
        await one.round()
        assert await one.committed(group) == at(13)
        one.ack(group, 13)
        await one.round()
        assert await one.committed(group) == after(13), "they still rest: that commit was none of theirs"
        # And nothing waits once the consumers have left.
        assert await one.run.commit(group, at(15), **member) == ErrorCode.none
        one.ack(group, *one.read(group, 5))
        leaving = LeaveRequest(group, (LeavingMember(joined.member_id),))
        await one.run.service.call(group, GroupShard.leave, leaving)
        await one.round()
        assert await one.committed(group) == after(19)
        await one.assert_quiet()


async def test_topics_that_are_being_deleted(server: Server, prefix: str, group: str) -> None:
    """The topic's commits are tombstoned: no group may commit on it after that, though its Redis group
    was read before.
    """
    async with native(server, prefix) as one:
        service, catalogue = one.run.service, one.run.store.catalogue
        topic = catalogue.get(TOPIC)
        assert topic is not None
        one.create(group)
        with service.watch() as watch:
            assert watch is not None
            moved = await NativeGroups(one.run.store.commands).moved([(topic, 0)])
            assert len(moved) == 1
            await catalogue.mark_deleting(TOPIC)
            await service.forget_topic(TOPIC)
            assert service.export(moved, watch) == []
        await one.assert_quiet()
        assert await one.committed(group) == -1


async def test_a_lost_library_is_loaded_again(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(1)
        one.create(group, "$")
        one.client.function_flush()
        await one.round()
        assert await one.committed(group) == after(1)
        await one.assert_quiet()


async def test_many_partitions_take_turns(
    server: Server, prefix: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round reads the partitions whose groups move; the others take turns."""
    monkeypatch.setattr(exporter, "MOST_STREAMS", 5)
    monkeypatch.setattr(exporter, "STREAMS_AT_ONCE", 3)
    async with native(server, prefix) as one:
        catalogue = one.run.store.catalogue
        await catalogue.create("wide", 20)
        streams = [one.run.keys.stream("wide", partition).decode() for partition in range(20)]
        for stream in streams:
            one.client.xgroup_create(stream, group, "5-0", mkstream=True)

        async def committed() -> set[int]:
            request = FetchRequest(group, (FetchTopic("wide", tuple(range(20))),))
            reply = await one.run.service.call(group, GroupShard.fetch, request)
            return {part.partition for part in reply.topics[0].partitions if part.offset == after(5)}

        for rounds in range(1, 9):
            await one.round()
            assert len(await committed()) >= 2 * rounds
        assert await committed() == set(range(20))
        one.exporter = NativeExporter(one.run.store.commands, one.run.store.catalogue, one.run.service, 1)
        moved = 0
        for number in range(6, 20):
            one.client.xgroup_setid(streams[7], group, f"{number}-0")
            before = one.written()
            await one.round()
            assert moved == 0 or one.written() == before + 1, "it has moved lately"
            moved += one.written() - before
        assert moved >= 6


class Turmoil:
    """A Kafka client, a native consumer that only goes forward, and the exporter, all at once."""

    ENTRIES = 2_000

    def __init__(self, seed: int, group: str) -> None:
        self.chance = random.Random(seed)
        self.group = group

    async def commit(self, one: Native) -> None:
        for _ in range(self.chance.randrange(10, 40)):
            # Some commits come together, and some find nothing in flight.
            for _ in range(self.chance.choice((0, 0, 20, 40))):
                await asyncio.sleep(0)
            offset = max(await one.committed(self.group), 0) + self.chance.choice((0, 0, 1, 700, 3_000))
            if self.chance.random() < 0.1:
                offset = max(offset - self.chance.randrange(9_000), 0)
            assert await one.run.commit(self.group, offset) == ErrorCode.none

    async def consume(self, one: Native) -> None:
        held: list[int] = []
        for _ in range(self.chance.randrange(100, 300)):
            held += one.read(self.group, self.chance.randrange(1, 4))
            taken = self.chance.sample(held, self.chance.randrange(len(held) + 1))
            if taken:
                one.ack(self.group, *taken)
                held = [number for number in held if number not in taken]
            await asyncio.sleep(0)

    async def export(self, one: Native) -> None:
        for _ in range(self.chance.randrange(30, 90)):
            await one.exporter.round()

    async def rage(self, one: Native) -> None:
        """Until one of them has finished."""
        if not one.client.exists(one.stream):
            one.write(*range(1, self.ENTRIES))
            one.create(self.group)
        work = [asyncio.create_task(act(one)) for act in (self.commit, self.consume, self.export)]
        done, unfinished = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        for task in done:
            task.result()

    def commits(self, one: Native) -> list[OffsetCommitValue]:
        found = []
        for _, fields in one.client.xrange(one.run.offsets_key(self.group)):
            value = decode_value(decode_key(fields[b"key"]), fields[b"value"])
            assert isinstance(value, OffsetCommitValue)
            found.append(value)
        return found


@pytest.mark.parametrize("seed", [1, 2])
async def test_everything_at_once(server: Server, prefix: str, group: str, seed: int) -> None:
    """Brokers end in the middle of it; in the end both sides agree."""
    turmoil = Turmoil(seed, group)
    for _ in range(3):
        async with native(server, prefix) as one:
            await turmoil.rage(one)
    async with native(server, prefix) as one:
        one.ack(group, *range(1, turmoil.ENTRIES))
        await one.round()
        await one.assert_quiet()
        (info,) = one.client.xinfo_groups(one.stream)
        ms, sequence = map(int, info["last-delivered-id"].split(b"-"))
        _, offset, *stood = one.client.hget(one.meta, f"commit:{group}").split()
        assert int(offset) == await one.committed(group)
        assert int(stood[0] if stood else offset) == pack(ms, sequence) + 1
        commits = turmoil.commits(one)
        # A commit that was read from the native consumer has no metadata, and must not undo its predecessor.
        read_off = [pair for pair in itertools.pairwise(commits) if not pair[1].metadata]
        assert len(read_off) > 3
        assert all(later.offset >= earlier.offset for earlier, later in read_off)


async def test_rests_between_rounds(server: Server, prefix: str) -> None:
    """A round that took long, and appends that failed, are followed by longer rests."""
    async with native(server, prefix) as one:
        service = one.run.service
        resting = NativeExporter(one.run.store.commands, one.run.store.catalogue, service, 2_000)
        assert resting._rest_s(0.0625) == 2 - 0.0625
        assert resting._rest_s(0.5) == 9.5
        rests = []
        for _ in range(10):
            service._partitions.counts.reloads += 1
            rests.append(resting._rest_s(0))
        assert rests == [2, 2, 4, 8, 16, 32, 60, 60, 60, 60]
        assert resting._rest_s(0) == 2


async def test_a_full_redis_is_given_time(new_server: Callable[..., Server], prefix: str, group: str) -> None:
    """Nothing can be appended, so nothing is promised; the commit follows when there is room again."""
    server = new_server("--maxmemory-policy", "noeviction")
    async with native(server, prefix) as one:
        one.write(1)
        one.create(group, "$")
        server.client.config_set("maxmemory", 1)
        await one.exporter.round()
        await until_async(lambda: one.run.service.reloads > 0, WAIT_S, "the append has failed")
        server.client.config_set("maxmemory", 0)
        async with asyncio.timeout(WAIT_S):
            await one.run.service.wait_loaded()
        await one.settled()
        assert await one.committed(group) == -1
        await one.round()
        assert await one.committed(group) == after(1)
        await one.assert_quiet()


async def test_rounds_go_on_by_themselves(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(1)
        one.create(group, "$")
        running_ = asyncio.create_task(one.exporter.run())

        async def committed() -> bool:
            return await one.committed(group) == after(1)

        await until_async(committed, WAIT_S, "the group is committed")
        running_.cancel()
        await asyncio.gather(running_, return_exceptions=True)


async def test_natives_go_on_before_their_commit_is_projected(
    server: Server, prefix: str, group: str
) -> None:
    """A broker that was killed between a commit's record and its projection projects the rest later."""
    async with native(server, prefix) as one:
        one.write(1, 2, 3, 4, 5)
        one.create(group)
        await one.round()
        in_step = one.client.hget(one.meta, f"commit:{group}")
        one.ack(group, *one.read(group, 2))
        await one.round()
        assert await one.committed(group) == after(2)
        one.ack(group, *one.read(group, 2))
        one.client.hset(one.meta, f"commit:{group}", in_step)
    async with native(server, prefix) as one:
        await one.round()
        assert await one.committed(group) == after(4)
        assert one.read(group) == [5]
        await one.round()
        assert await one.committed(group) == at(5)


async def test_a_commit_behind_natives_at_rest_stays_after_a_restart(
    server: Server, prefix: str, group: str
) -> None:
    """Native consumers that have not moved do not take a Kafka client's commit back."""
    async with native(server, prefix) as one:
        one.write(1, 2, 3, 4, 5)
        assert await one.run.commit(group, at(1)) == ErrorCode.none
        one.ack(group, *one.read(group, 4))
        # Before a round has committed them.
        assert await one.run.commit(group, at(2)) == ErrorCode.none
        in_step = one.client.hget(one.meta, f"commit:{group}")
        assert await one.run.commit(group, at(3)) == ErrorCode.none
        one.client.hset(one.meta, f"commit:{group}", in_step)
    async with native(server, prefix) as one:
        await one.round()
        assert await one.committed(group) == at(3)
        assert one.read(group) == [5]


async def test_a_partition_that_is_taken_away_while_it_is_loaded(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups of the other partitions are committed nevertheless."""
    async with running(server, prefix, loaded=False) as run:
        one = Native(run)
        one.write(1, 2)
        one.create("g")
        own = partition_for("g")

        async def is_served() -> bool:
            reply = await run.service.call("g", GroupShard.fetch, FetchRequest("g", ()))
            return reply.error is ErrorCode.none

        async def is_committed() -> bool:
            await one.exporter.round()
            return await one.committed("g") == 0

        await until_async(is_served, WAIT_S, "the group's partition is loaded")
        # As a broker that joins takes them.
        monkeypatch.setattr(run.store.logs, "leader_epoch_of", lambda _, number: 0 if number == own else None)
        run.service.follow_assignment()
        await until_async(is_committed, WAIT_S, "the group is committed")
