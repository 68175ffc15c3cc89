"""Redis groups that native consumers move, as commits: over a real server, the exporter driven by hand."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator import exporter
from korvet.coordinator.exporter import NativeExporter
from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    DeleteRequest,
    DescribeRequest,
    FetchRequest,
    FetchTopic,
    JoinProtocol,
    JoinRequest,
    LeaveRequest,
    LeavingMember,
    ListRequest,
    OffsetDeleteRequest,
    SyncAssignment,
    SyncRequest,
)
from korvet.groups.native import QUIET_MS
from korvet.groups.shard import GroupShard
from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.packing import pack
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitValue
from korvet.storage.keys import OFFSETS_TOPIC
from korvet.storage.redis_groups.moved_groups import NativeGroups
from tests.coordinator.conftest import CONFIG, TOPIC, Running, running
from tests.support.polling import until_async
from tests.unit.groups.driver import subscription

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from korvet.groups.messages import DescribedGroup
    from tests.storage.conftest import Server

WAIT_S = 10.0


class Native:
    """A running coordinator whose exporter the test drives, and a Redis application on partition 0."""

    def __init__(self, run: Running) -> None:
        self.run = run
        self.client = run.client
        self.stream = run.keys.stream(TOPIC, 0).decode()
        self.meta = run.keys.meta(TOPIC, 0)
        self.exporter = NativeExporter(run.store, run.service, 1)

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


async def test_a_native_group_is_a_simple_group(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(5, 6, 7, 8)
        one.create(group)
        await one.round()
        assert await one.committed(group) == 0
        assert one.read(group, 3) == [5, 6, 7]
        await one.round()
        assert await one.committed(group) == at(5)
        one.ack(group, 6)
        await one.assert_quiet()
        one.ack(group, 5)
        await one.round()
        assert await one.committed(group) == at(7)
        one.ack(group, 7)
        await one.round()
        assert await one.committed(group) == after(7)
        await one.assert_quiet()
        described = await one.describe(group)
        assert (described.error, described.state, described.protocol_type) == (ErrorCode.none, "Empty", "")
        assert described.members == ()
        listed = await one.run.service.list_groups(ListRequest())
        assert [(found.group_id, found.state) for found in listed.groups] == [(group, "Empty")]


async def test_the_record_is_an_ordinary_commit(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix, config=GroupConfig(commit_value_version=4)) as one:
        one.write(1)
        one.create(group, "$")
        await one.round()
        fetched = await one.run.committed(group)
        assert (fetched.offset, fetched.leader_epoch, fetched.metadata) == (after(1), -1, "")
        ((_, fields),) = one.client.xrange(one.run.offsets_key(group))
        topic = one.run.store.catalogue.get(TOPIC)
        assert topic is not None
        assert topic.topic_id.bytes in fields[b"value"]


async def test_native_and_kafka_alternate(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(*range(1, 101))
        assert await one.run.commit(group, 0) == ErrorCode.none
        for done in range(0, 100, 20):
            assert one.read(group, 10) == list(range(done + 1, done + 11))
            await one.round()
            assert await one.committed(group) == at(done + 1)
            one.ack(group, *range(done + 1, done + 11))
            await one.round()
            assert await one.committed(group) == after(done + 10)
            assert await one.run.commit(group, after(done + 20)) == ErrorCode.none
            await one.assert_quiet()
            assert await one.committed(group) == after(done + 20)
        assert one.read(group) == []


async def test_groups_that_follow_commits_write_nothing(server: Server, prefix: str) -> None:
    async with native(server, prefix) as one:
        one.write(1, 2, 3)
        for number in range(20):
            offset = pack(number // 5, number % 5)
            assert await one.run.commit(f"g{number}", offset) == ErrorCode.none
        assert await one.run.commit("far", 2**63 - 1) == ErrorCode.none
        await one.assert_quiet()


async def test_a_newer_commit_is_not_undone(server: Server, prefix: str, group: str) -> None:
    """The group is read, then a client commits: what was read is out of date, however it looks."""
    async with native(server, prefix) as one:
        one.write(*range(1, 11))
        service = one.run.service
        topic = one.run.store.catalogue.get(TOPIC)
        assert topic is not None
        assert await one.run.commit(group, at(5)) == ErrorCode.none
        one.client.xgroup_setid(one.stream, group, "2-0")
        for newer in (at(9), at(5)):
            with service.watch() as watch:
                assert watch is not None
                moved = await NativeGroups(one.run.store.commands).moved([(topic, 0)])
                assert [native.offset for native in moved] == [after(2)]
                written = one.written()
                assert await one.run.commit(group, newer) == ErrorCode.none
                assert service.export(moved, watch) == []
            await one.settled()
            assert await one.committed(group) == newer
            assert one.written() == written + 1
            one.client.xgroup_setid(one.stream, group, "2-0")


async def test_a_commit_on_its_way_is_waited_for(server: Server, prefix: str, group: str) -> None:
    """Neither what waits for its append nor what is yet to be projected may be overtaken."""
    async with native(server, prefix) as one:
        one.write(*range(1, 11))
        assert await one.run.commit(group, at(5)) == ErrorCode.none
        assert one.read(group, 1) == [5]
        one.ack(group, 5)
        committing = asyncio.create_task(one.run.commit(group, at(9)))
        await asyncio.sleep(0)
        for _ in range(3):
            await one.exporter.round()
        assert await committing == ErrorCode.none
        await one.settled()
        assert await one.committed(group) == at(9)
        await one.assert_quiet()


async def test_a_native_rewind_leaves_the_readers_alone(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(*range(1, 11))
        assert await one.run.commit(group, at(9)) == ErrorCode.none
        one.client.xgroup_setid(one.stream, group, "3-0")
        assert one.read(group, 2) == [4, 5]
        await one.round()
        assert await one.committed(group) == at(4)
        assert one.read(group, 1) == [6], "nothing is delivered twice"
        one.ack(group, 4)
        await one.round()
        assert await one.committed(group) == at(5)
        await one.assert_quiet()
        assert one.client.xpending(one.stream, group)["pending"] == 2


async def test_native_readers_ahead_of_a_commit_stay_there(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(*range(1, 11))
        assert await one.run.commit(group, at(2)) == ErrorCode.none
        one.ack(group, *one.read(group, 6))
        assert await one.run.commit(group, at(4)) == ErrorCode.none
        await one.assert_quiet()
        assert await one.committed(group) == at(4), "the newer of the two"
        one.ack(group, *one.read(group, 1))
        await one.round()
        assert await one.committed(group) == after(8)


async def test_a_deleted_group_does_not_come_back(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(1, 2, 3)
        one.create(group)
        one.read(group, 2)
        await one.round()
        await one.delete_group(group)
        await one.assert_quiet()
        assert group.encode() not in one.names()
        assert (await one.describe(group)).state == "Dead"
        one.create(group)
        await one.round()
        assert await one.committed(group) == 0, "another group of that name"


async def test_a_deleted_offset_does_not_come_back(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(1, 2, 3)
        one.create(group)
        one.read(group, 2)
        await one.round()
        await one.delete_offset(group)
        await one.assert_quiet()
        assert await one.committed(group) == -1
        assert group.encode() not in one.names()


@pytest.mark.parametrize("used", [True, False])
async def test_what_expired_comes_back_when_it_moves(
    server: Server, prefix: str, group: str, used: bool
) -> None:
    now_ms = 1_800_000_000_000
    config = GroupConfig(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=500)
    async with native(server, prefix, config=config, clock=lambda: now_ms) as one:
        one.write(1, 2, 3)
        one.create(group)
        if used:
            one.ack(group, *one.read(group, 1))
        await one.round()
        assert await one.committed(group) == (after(1) if used else 0)
        now_ms += 5_000
        one.run.service._partitions._ring(partition_for(group))
        await one.settled()
        await one.assert_quiet()
        assert await one.committed(group) == -1
        assert (await one.describe(group)).state == "Dead"
        assert group.encode() in one.names(), "the application's group is not ours to destroy"
        one.ack(group, *one.read(group, 1))
        await one.round()
        assert await one.committed(group) == after(2 if used else 1)
        await one.assert_quiet()
        # And a mark does not keep a client's commit from the Redis group.
        now_ms += 5_000
        one.run.service._partitions._ring(partition_for(group))
        await one.settled()
        assert await one.run.commit(group, after(3)) == ErrorCode.none
        assert one.read(group) == []
        await one.assert_quiet()


async def test_what_expired_stays_so_after_a_restart(server: Server, prefix: str, group: str) -> None:
    now_ms = 1_800_000_000_000
    config = GroupConfig(offsets_retention_ms=1_000, offsets_retention_check_interval_ms=500)
    async with native(server, prefix, config=config, clock=lambda: now_ms) as one:
        one.write(1, 2)
        one.create(group)
        await one.round()
        now_ms += 5_000
        one.run.service._partitions._ring(partition_for(group))
        await one.settled()
    async with native(server, prefix, config=config, clock=lambda: now_ms) as one:
        await one.assert_quiet()
        assert await one.committed(group) == -1


async def test_groups_of_a_deletion_cut_short(server: Server, prefix: str, group: str) -> None:
    """The tombstone is written, then the broker dies: the next one sees that the group stays deleted."""
    async with native(server, prefix) as one:
        one.write(1, 2)
        one.create(group)
        one.read(group, 1)
        await one.round()
        field = one.client.hget(one.meta, f"commit:{group}")
        await one.delete_group(group)
    server.client.xgroup_create(one.stream, group, "0")
    server.client.xreadgroup(group, "native", {one.stream: ">"}, count=1)
    server.client.hset(one.meta, f"commit:{group}", field)
    async with native(server, prefix) as one:
        await one.assert_quiet()
        assert await one.committed(group) == -1
        one.ack(group, 1)
        await one.round()
        assert await one.committed(group) == after(1)


async def test_a_commit_whose_projection_was_cut_short(
    server: Server, prefix: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with native(server, prefix) as one:
        one.write(1, 2, 3)
        one.create(group)
        one.ack(group, *one.read(group, 2))
        monkeypatch.setattr(one.run.service._projector, "apply", lambda changes, done: None)
        await one.exporter.round()

        async def appended() -> bool:
            return one.written() == 1

        await until_async(appended, WAIT_S, "the commit is in the log")
        monkeypatch.undo()
    async with native(server, prefix) as one:
        assert await one.committed(group) == after(2)
        await one.assert_quiet()
        assert one.read(group) == [3]


async def test_groups_that_go_away(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.write(1, 2, 3, 4)
        one.create(group)
        one.read(group, 2)
        await one.round()
        assert await one.committed(group) == at(1)
        one.client.xgroup_delconsumer(one.stream, group, "native")
        await one.round()
        assert await one.committed(group) == after(2), "nothing is pending any more"
        one.client.xgroup_destroy(one.stream, group)
        await one.assert_quiet()
        assert await one.committed(group) == after(2), "as with a Kafka group that nobody uses"
        one.create(group, "1-0")
        await one.round()
        assert await one.committed(group) == after(1)
        one.client.delete(one.stream)
        await one.assert_quiet()
        assert await one.committed(group) == after(1)


async def test_keys_that_are_not_ours(server: Server, prefix: str, group: str) -> None:
    """Groups on streams of no topic, on a partition that is not there, on commits; a key of another type."""
    async with native(server, prefix) as one:
        others = [f"{prefix}:strange", f"{prefix}:{TOPIC}:1", f"{prefix}:nothing:0"]
        others += [f"{prefix}:{OFFSETS_TOPIC}:{partition_for(group)}"]
        for other in others:
            one.client.xgroup_create(other, group, "0", mkstream=True)
        one.client.delete(one.stream)
        one.client.set(one.stream, "no stream")
        await one.assert_quiet()
        assert await one.committed(group) == -1


async def test_an_empty_stream(server: Server, prefix: str, group: str) -> None:
    async with native(server, prefix) as one:
        one.create(group, "$")
        await one.round()
        assert await one.committed(group) == 0
        one.write(5)
        assert one.read(group) == [5]
        one.client.xdel(one.stream, "5-0")
        await one.round()
        assert await one.committed(group) == after(5), "the log has an end, though nothing is in it"
        await one.assert_quiet()


async def test_trimmed_streams(server: Server, prefix: str, group: str) -> None:
    """Commits do not lie before the log's start; a group that stays does not write for each trim."""
    async with native(server, prefix) as one:
        one.write(*range(1, 31))
        one.create(group, "5-0")
        await one.round()
        one.client.xtrim(one.stream, minid="10-0", approximate=False)
        await one.assert_quiet()
        assert await one.committed(group) == after(5)
        one.create("late")
        await one.round()
        assert await one.committed("late") == at(10)
        one.client.xtrim(one.stream, minid="12-0", approximate=False)
        await one.assert_quiet()
        assert one.read("late", 2) == [12, 13]
        await one.round()
        assert await one.committed("late") == at(12)
        one.client.xtrim(one.stream, minid="20-0", approximate=False)
        await one.round()
        assert await one.committed("late") == at(20), "what was pending exists no more"
        await one.assert_quiet()


async def test_names_that_cannot_be_kafka_groups(
    server: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with native(server, prefix) as one:
        one.write(1)
        for name in (b"", b"\xff\xfe", b"x" * 40_000, "grün".encode(), b"a b\x00c"):
            one.create(name)
        with caplog.at_level(logging.WARNING):
            await one.round()
            await one.assert_quiet()
        listed = await one.run.service.list_groups(ListRequest())
        assert {found.group_id for found in listed.groups} == {"grün", "a b\x00c"}
        assert len([found for found in caplog.messages if "cannot be a Kafka group" in found]) == 3


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
    """A failover may lose what was noted last of a Redis group."""
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
    """Its commits are tombstoned: no group may commit on it after that, though it was read before."""
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
    """Those whose groups move are looked at in each round, all others in some round."""
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
        one.exporter = NativeExporter(one.run.store, one.run.service, 1)
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
            # Some come at once, and some find that nothing is under way.
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
        """Until one of them has enough."""
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
        # None that was read off the native consumer, which has no metadata, undoes the one that it follows.
        read_off = [pair for pair in itertools.pairwise(commits) if not pair[1].metadata]
        assert len(read_off) > 3
        assert all(later.offset >= earlier.offset for earlier, later in read_off)


async def test_rests_between_rounds(server: Server, prefix: str) -> None:
    """A round that took long, and appends that failed, are followed by longer ones."""
    async with native(server, prefix) as one:
        service = one.run.service
        resting = NativeExporter(one.run.store, service, 2_000)
        assert resting._rest_s(0.0625) == 2 - 0.0625
        assert resting._rest_s(0.5) == 9.5
        rests = []
        for _ in range(10):
            service._partitions.reloads += 1
            rests.append(resting._rest_s(0))
        assert rests == [2, 2, 4, 8, 16, 32, 60, 60, 60, 60]
        assert resting._rest_s(0) == 2


async def test_a_full_redis_is_given_time(new_server: Callable[..., Server], prefix: str, group: str) -> None:
    """Nothing can be appended, so nothing is promised; when there is room again it is."""
    server = new_server("--maxmemory-policy", "noeviction")
    async with native(server, prefix) as one:
        one.write(1)
        one.create(group, "$")
        server.client.config_set("maxmemory", 1)
        await one.exporter.round()

        async def failed() -> bool:
            return one.run.service.reloads > 0

        await until_async(failed, WAIT_S, "the append has failed")
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
    """Killed between the record of a commit and its projection, a broker tells of the rest later."""
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
    """What a Kafka client has committed is not taken back by natives that stood where they stand."""
    async with native(server, prefix) as one:
        one.write(1, 2, 3, 4, 5)
        assert await one.run.commit(group, at(1)) == ErrorCode.none
        one.ack(group, *one.read(group, 4))
        # Before a round has told of them.
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
    """The others' groups are committed nevertheless."""
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
        monkeypatch.setattr(run.store, "leads", lambda _, number: 0 if number == own else None)
        run.service.follow_assignment()
        await until_async(is_committed, WAIT_S, "the group is committed")
