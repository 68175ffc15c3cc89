"""Redis groups that native consumers move become commits, over a real server."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.messages import ListRequest
from korvet.offsets.packing import pack
from korvet.offsets.partition import partition_for
from korvet.redis.keys import OFFSETS_TOPIC
from korvet.redis_groups.moved_groups import NativeGroups
from tests.coordinator.conftest import TOPIC
from tests.coordinator.native import WAIT_S, after, at, native
from tests.support.polling import until_async

if TYPE_CHECKING:
    from tests.support.redis_server import Server


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
        await until_async(lambda: one.written() == 1, WAIT_S, "the commit is in the log")
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
    """The commits of Redis groups do not lie before the log's start."""
    async with native(server, prefix) as one:
        one.write(*range(1, 31))
        one.create(group, "5-0")
        await one.round()
        one.client.xtrim(one.stream, minid="10-0", approximate=False)
        await one.round()
        assert await one.committed(group) == at(10), "a consumer that takes over is not out of range"
        await one.assert_quiet()
        one.create("late")
        await one.round()
        assert await one.committed("late") == at(10)
        one.client.xtrim(one.stream, minid="12-0", approximate=False)
        await one.round()
        assert await one.committed(group) == await one.committed("late") == at(12)
        await one.assert_quiet()
        assert one.read("late", 2) == [12, 13]
        await one.round()
        assert await one.committed("late") == at(12)
        one.client.xtrim(one.stream, minid="20-0", approximate=False)
        await one.round()
        assert await one.committed("late") == at(20), "what was pending exists no more"
        await one.assert_quiet()
        assert await one.run.commit("kafka", at(21)) == ErrorCode.none
        one.client.xtrim(one.stream, minid="25-0", approximate=False)
        await one.round()
        await one.assert_quiet()
        assert await one.committed("kafka") == at(21), "as in Kafka, a client's commit stays"


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
