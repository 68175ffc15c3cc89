"""The coordinator over a real server: its records, what survives, and its failures."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from kio.schema.errors import ErrorCode

from korvet.cluster.claims import claim
from korvet.coordinator.service import CoordinatorError
from korvet.groups.config import GroupConfig
from korvet.groups.consumer.messages import ConsumerHeartbeatRequest
from korvet.groups.messages import (
    DeleteRequest,
    DescribeRequest,
    FetchRequest,
    FetchTopic,
    HeartbeatRequest,
    ListRequest,
    OffsetDeleteRequest,
)
from korvet.groups.shard import GroupShard
from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.packing import pack
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from korvet.redis.keys import OFFSETS_TOPIC
from tests.coordinator.conftest import CONFIG, TOPIC, Running, lose_topic, running
from tests.storage.proxy import proxied, until
from tests.support.polling import until_async
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.redis_server import Server

WAIT_S = 20.0


def records(run: Running, group: str) -> list[tuple[Any, Any]]:
    """All records of the group's partition of `__consumer_offsets`, decoded."""
    found = []
    for _, fields in run.client.xrange(run.offsets_key(group)):
        assert list(fields) in ([b"key", b"value", b"ts"], [b"key", b"ts"])
        key = decode_key(fields[b"key"])
        found.append((key, decode_value(key, fields.get(b"value"))))
    return found


def write(run: Running, *milliseconds: int) -> None:
    for ms in milliseconds:
        run.client.xadd(run.keys.stream(TOPIC, 0), {"value": "v"}, id=f"{ms}-0")


async def test_offsets_topic_is_as_in_kafka(server: Server, prefix: str) -> None:
    async with running(server, prefix) as run:
        topic = run.store.catalogue.get(OFFSETS_TOPIC)
        assert topic is not None
        assert (topic.partitions, topic.internal, topic.bias, topic.keeps_latest) == (50, True, 1, True)


async def test_commit_is_a_record_that_decodes(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 42) == ErrorCode.none
        ((key, value),) = records(run, group)
        assert key == OffsetCommitKey(group, TOPIC, 0)
        assert isinstance(value, OffsetCommitValue)
        assert (value.offset, value.metadata, value.version) == (42, "m", 3)
        assert run.client.xinfo_stream(run.offsets_key(group))["last-generated-id"] == b"0-1"


async def test_groups_survive_a_restart(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        joined = await run.join(group)
        assert joined.error == ErrorCode.none
        assert (await run.sync(group, joined, b"\x00assigned")).error == ErrorCode.none
        for offset in (1, 2, 3):
            fenced = {"generation_id": joined.generation_id, "member_id": joined.member_id}
            assert await run.commit(group, offset, **fenced) == ErrorCode.none
        metadata = [value for key, value in records(run, group) if isinstance(key, GroupMetadataKey)]
        assert isinstance(metadata[-1], GroupMetadataValue)
        assert metadata[-1].generation == joined.generation_id
    async with running(server, prefix) as run:
        assert await run.heartbeat(group, joined) == ErrorCode.none
        assert (await run.sync(group, joined)).assignment == b"\x00assigned"
        assert (await run.committed(group)).offset == 3
        assert await run.commit(group, 4, **fenced) == ErrorCode.none


async def test_many_keys_are_loaded_each_with_its_newest_value(server: Server, prefix: str) -> None:
    # Group 0 commits between all the others: wanted entries alternate with superseded ones.
    groups = [f"g{number}" for number in range(300)]
    async with running(server, prefix) as run:
        for offset in (1, 2):
            await asyncio.gather(*(run.commit(group, offset) for group in groups))
        for offset in range(3, 40):
            assert await run.commit(groups[0], offset) == ErrorCode.none
        await asyncio.gather(*(run.commit(group, 3) for group in groups[1::7]))
    expected = {group: 3 if group in groups[1::7] else 2 for group in groups} | {groups[0]: 39}
    async with running(server, prefix) as run:
        assert {group: (await run.committed(group)).offset for group in groups} == expected


async def test_entries_of_others_in_the_offsets_topic_do_no_harm(
    server: Server, prefix: str, group: str
) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 7) == ErrorCode.none
        key = run.offsets_key(group)
        latest = run.keys.latest(OFFSETS_TOPIC, partition_for(group))
        run.client.xadd(key, {"who": "knows"}, id="0-2")
        run.client.xadd(key, {"key": b"\xff\xff\xff", "value": b"x"}, id="0-3")
        run.client.hset(latest, "strange", "0-2")
        run.client.hset(latest, "stranger", "0-3")
    async with running(server, prefix) as run:
        assert (await run.committed(group)).offset == 7
        assert await run.commit(group, 8) == ErrorCode.none


async def test_requests_while_loading(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix, loaded=False) as run:
        assert await run.commit(group, 1) == ErrorCode.coordinator_load_in_progress
        with pytest.raises(CoordinatorError, match="coordinator_load_in_progress"):
            await run.service.list_groups(ListRequest())
        async with asyncio.timeout(WAIT_S):
            await run.service.wait_loaded()
        assert await run.commit(group, 1) == ErrorCode.none


async def test_groups_go_on_after_a_failover_that_lost_their_topic(
    server: Server, prefix: str, group: str
) -> None:
    async with running(server, prefix) as one:
        assert await one.commit(group, 5) == 0
        await lose_topic(one.store, OFFSETS_TOPIC)
        one.service.follow_assignment()
        assert await one.commit(group, 6) == ErrorCode.coordinator_not_available
        await one.service.start()
        await one.service.wait_loaded()
        assert one.store.catalogue.get(OFFSETS_TOPIC) is not None
        assert (await one.committed(group)).offset == -1
        assert await one.commit(group, 7) == 0
        assert (await one.committed(group)).offset == 7


async def claim_offsets(run: Running, group: str, leader_epoch: int, *, new_writer: bool = False) -> None:
    """Claim the group's partition of `__consumer_offsets`, without the knowledge of its coordinator."""
    topic = run.store.catalogue.get(OFFSETS_TOPIC)
    assert topic is not None
    await claim(run.store.commands, topic, partition_for(group), leader_epoch, new_writer=new_writer)


async def test_stale_epoch_is_refused(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 1) == ErrorCode.none
        await claim_offsets(run, group, 1)
        assert await run.commit(group, 2) == ErrorCode.not_coordinator
        assert await run.commit(group, 3) == ErrorCode.not_coordinator
        assert [value.offset for _, value in records(run, group)] == [1]


async def test_claim_of_its_own_that_arrives_late_ends_no_coordinator(
    server: Server, prefix: str, group: str
) -> None:
    """The connection broke before Redis had received the claim, and the broker claimed again."""
    async with running(server, prefix, node_id=1) as run:
        assert await run.commit(group, 1) == ErrorCode.none
        epoch = run.store.logs.leader_epoch_of(OFFSETS_TOPIC, partition_for(group))
        assert epoch is not None
        await claim_offsets(run, group, epoch, new_writer=True)
        assert await run.commit(group, 2) == ErrorCode.coordinator_not_available
        async with asyncio.timeout(WAIT_S):
            await run.service.wait_loaded()
        assert await run.commit(group, 3) == ErrorCode.none
        assert (await run.committed(group)).offset == 3


async def test_failed_append_reloads_the_partition(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        joined = await run.join(group)
        await run.sync(group, joined)
        fenced = {"generation_id": joined.generation_id, "member_id": joined.member_id}
        assert await run.commit(group, 1, **fenced) == ErrorCode.none
        key = run.offsets_key(group)
        run.client.rename(key, b"aside")
        run.client.set(key, "no stream")
        assert await run.commit(group, 2, **fenced) == ErrorCode.coordinator_not_available
        assert await run.commit(group, 3, **fenced) == ErrorCode.coordinator_load_in_progress
        run.client.rename(b"aside", key)
        async with asyncio.timeout(WAIT_S):
            await run.service.wait_loaded()
        assert (await run.committed(group)).offset == 1
        assert await run.heartbeat(group, joined) == ErrorCode.none
        assert await run.commit(group, 4, **fenced) == ErrorCode.none


async def test_cut_link_is_no_success(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        assert await run.commit(group, 1) == ErrorCode.none
        waiting = asyncio.ensure_future(run.join(group))
        joined = await waiting
        assert joined.error == ErrorCode.none
        number = await run.store.commands.links(b"").server.write.call("CLIENT", "ID")
        run.client.client_pause(60_000, all=False)
        try:
            commit = asyncio.ensure_future(run.commit("other" + group, 2))
            await run.store.commands.links(b"").read.call("PING")
            assert not commit.done()
            run.client.client_kill_filter(_id=number)
            async with asyncio.timeout(WAIT_S):
                assert await commit == ErrorCode.coordinator_not_available
        finally:
            run.client.client_unpause()
        async with asyncio.timeout(WAIT_S):
            await run.service.wait_loaded()
        in_log = [value.offset for _, value in records(run, "other" + group)]
        assert [(await run.committed("other" + group)).offset] == (in_log or [-1])
        assert await run.commit("other" + group, 3) == ErrorCode.none


async def test_a_replica_that_took_over_is_believed(
    new_server: Callable[..., Server], prefix: str, group: str
) -> None:
    port = free_port()
    primary = new_server("--port", str(port), "--repl-diskless-sync-delay", "0")
    replica = new_server("--replicaof", "127.0.0.1", str(port))
    async with (
        proxied(primary.socket) as (proxy, url),
        running(cast("Server", SimpleNamespace(url=url, client=primary.client)), prefix, node_id=1) as run,
    ):
        assert await run.commit(group, 5) == ErrorCode.none
        written = primary.client.info("replication")["master_repl_offset"]
        await until(lambda: replica.client.info("replication").get("slave_repl_offset", 0) >= written)
        replica.client.replicaof("NO", "ONE")
        assert await run.commit(group, 9) == ErrorCode.none
        assert (await run.committed(group)).offset == 9
        proxy.socket = replica.socket
        await proxy.cut()

        async def forgotten() -> bool:
            await run.service.wait_loaded()
            reply = await run.fetch(group)
            # Between two terms of the partition, the reply is an error without topics.
            return reply.error == ErrorCode.none and reply.topics[0].partitions[0].offset != 9

        await until_async(forgotten, WAIT_S, "the lost commit is forgotten")
        assert (await run.committed(group)).offset == 5
        assert await run.commit(group, 6) == ErrorCode.none


async def test_reply_does_not_overtake_what_it_rests_on(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        joined = await run.join(group)
        await run.sync(group, joined)
        order: list[str] = []
        commit = asyncio.ensure_future(
            run.commit(group, 5, generation_id=joined.generation_id, member_id=joined.member_id)
        )
        await asyncio.sleep(0)  # the commit is in flight now
        fetch = FetchRequest(group)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def fetched(_reply: object) -> None:
            order.append("fetch")
            # The record is in the log when the later request is answered.
            assert isinstance(records(run, group)[-1][0], OffsetCommitKey)
            done.set_result(None)

        run.service.submit(group, GroupShard.fetch, fetch, fetched)
        assert order == []
        # Neither other groups nor a membership depend on the offset.
        beat = HeartbeatRequest(group, joined.generation_id, joined.member_id)
        answers: list[object] = []
        run.service.submit(group, GroupShard.heartbeat, beat, answers.append)
        names = (f"{group}-{number}" for number in range(1000))
        other = next(name for name in names if partition_for(name) == partition_for(group))
        run.service.submit(other, GroupShard.fetch, FetchRequest(other), answers.append)
        assert len(answers) == 2
        async with asyncio.timeout(WAIT_S):
            await done
            assert await commit == ErrorCode.none
        # With nothing in flight, the offset is answered at once.
        run.service.submit(group, GroupShard.fetch, fetch, answers.append)
        assert len(answers) == 3


async def test_member_whose_client_left_while_joining(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        first = await run.join(group)
        await run.sync(group, first)
        second = asyncio.ensure_future(run.join(group))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        again = await run.join(group, first.member_id)
        # The member that left still counts until its session ends, as in Kafka.
        assert again.error == ErrorCode.none
        assert again.generation_id == first.generation_id + 1


async def test_session_timeout_ends_a_membership(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        joined = await run.join(group, session_timeout_ms=60)
        await run.sync(group, joined)

        async def is_empty() -> bool:
            reply = await run.service.call(group, GroupShard.describe, DescribeRequest((group,)))
            return bool(reply.groups[0].state == "Empty")

        await until_async(is_empty, WAIT_S, "the member's session ends by itself")
        assert await run.heartbeat(group, joined) == ErrorCode.unknown_member_id


async def test_waiting_requests_are_answered_on_close(server: Server, prefix: str, group: str) -> None:
    config = GroupConfig(initial_rebalance_delay_ms=60_000)
    async with running(server, prefix, config=config) as run:
        waiting = asyncio.ensure_future(run.join(group))
        await asyncio.sleep(0)
        await run.service.close()
        assert (await waiting).error == ErrorCode.coordinator_not_available


async def test_list_groups_over_all_partitions(server: Server, prefix: str) -> None:
    async with running(server, prefix) as run:
        groups = {f"g{number}" for number in range(60)}
        await asyncio.gather(*(run.commit(group, 1) for group in groups))
        listed = await run.service.list_groups(ListRequest())
        assert {group.group_id for group in listed.groups} == groups
        assert len(listed.groups) == len(groups)


# Redis groups


async def test_native_group_follows_before_the_reply(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        write(run, 10, 20, 30)
        assert await run.commit(group, pack(20, 0)) == ErrorCode.none
        assert run.native_read(group) == [b"20-0", b"30-0"]
        assert await run.commit(group, pack(30, 0)) == ErrorCode.none
        pending = run.client.xpending_range(run.keys.stream(TOPIC, 0), group, "-", "+", 10)
        assert [entry["message_id"] for entry in pending] == [b"30-0"]


async def test_failed_projection_is_made_up_for(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        stream = run.keys.stream(TOPIC, 0)
        run.client.set(stream, "no stream")
        assert await run.commit(group, 5) == ErrorCode.none
        assert await run.commit(group, 9) == ErrorCode.none
        run.client.delete(stream)
        await until_async(
            lambda: run.client.hget(run.keys.meta(TOPIC, 0), f"commit:{group}") == b"1 9",
            WAIT_S,
            "the newest commit reaches the Redis group",
        )


async def test_load_makes_up_for_what_a_crash_left(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        stream, meta = run.keys.stream(TOPIC, 0), run.keys.meta(TOPIC, 0)
        write(run, 10, 20, 30)
        assert await run.commit(group, pack(20, 0)) == ErrorCode.none
        assert await run.commit("deleted", pack(30, 0)) == ErrorCode.none
        held = run.client.hget(meta, "commit:deleted")
        reply = await run.service.call("deleted", GroupShard.delete_groups, DeleteRequest(("deleted",)))
        assert reply.groups[0].error == ErrorCode.none
        assert [found["name"] for found in run.client.xinfo_groups(stream)] == [group.encode()]
    # As after a crash between the records and their projection.
    server.client.hdel(meta, f"commit:{group}")
    server.client.xgroup_destroy(stream, group)
    server.client.hset(meta, "commit:deleted", held)
    server.client.xgroup_create(stream, "deleted", "20-0")
    async with running(server, prefix) as run:

        async def settled() -> bool:
            found = run.client.xinfo_groups(stream)
            stands = [(each["name"], each["last-delivered-id"]) for each in found]
            return stands == [(group.encode(), b"19-1023")]

        await until_async(settled, WAIT_S, "Redis groups agree with the log")
        assert not run.client.hexists(meta, "commit:deleted")


async def test_deleted_offsets_take_the_redis_group_along(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as run:
        write(run, 10)
        assert await run.commit(group, 0) == ErrorCode.none
        assert run.native_read(group) == [b"10-0"]
        request = OffsetDeleteRequest(group, (FetchTopic(TOPIC, (0,)),))
        reply = await run.service.call(group, GroupShard.delete_offsets, request)
        assert reply.error == ErrorCode.none
        assert run.client.xinfo_groups(run.keys.stream(TOPIC, 0)) == []
        assert records(run, group)[-1] == (OffsetCommitKey(group, TOPIC, 0), None)


async def test_expiry_spares_groups_with_native_consumers(server: Server, prefix: str) -> None:
    config = GroupConfig(offsets_retention_ms=100, offsets_retention_check_interval_ms=50)
    async with running(server, prefix, config=config) as run:
        stream = run.keys.stream(TOPIC, 0)
        write(run, 10)
        await asyncio.gather(run.commit("idle", 0), run.commit("used", 0))
        assert run.native_read("used") == [b"10-0"]

        async def expired() -> bool:
            return (await run.committed("idle")).offset == (await run.committed("used")).offset == -1

        await until_async(expired, WAIT_S, "both groups' offsets expire")
        await until_async(
            lambda: [found["name"] for found in run.client.xinfo_groups(stream)] == [b"used"],
            WAIT_S,
            "only the unused Redis group goes",
        )


async def test_forget_topic(server: Server, prefix: str) -> None:
    async with running(server, prefix) as run:
        groups = [f"g{number}" for number in range(60)]
        await asyncio.gather(*(run.commit(group, 3) for group in groups))
        await run.service.forget_topic(TOPIC)
        for group in groups:
            assert (OffsetCommitKey(group, TOPIC, 0), None) in records(run, group)
            assert (await run.committed(group)).offset == -1
        assert run.client.xinfo_groups(run.keys.stream(TOPIC, 0)) == []


async def test_commit_of_a_topic_that_is_gone_leaves_no_stream(
    server: Server, prefix: str, group: str
) -> None:
    async with running(server, prefix, config=CONFIG) as run:
        await run.store.catalogue.mark_deleting(TOPIC)
        assert await run.commit(group, 3) == ErrorCode.none
        assert not run.client.exists(run.keys.stream(TOPIC, 0))


async def test_consumer_group_goes_on_after_a_restart(server: Server, prefix: str, group: str) -> None:
    async with running(server, prefix) as first:
        join = ConsumerHeartbeatRequest(
            group, "m", 0, rebalance_timeout_ms=1_000, subscribed_topic_names=(TOPIC,), owned=()
        )
        joined = await first.service.call(group, GroupShard.consumer_heartbeat, join)
        assert (joined.error, joined.member_epoch) == (ErrorCode.none, 2)
        assert [topic.partitions for topic in joined.assignment] == [(0,)]
        assert [key.version for key, _ in records(first, group)] == [5, 3, 7, 6, 8]
    async with running(server, prefix) as second:
        stay = ConsumerHeartbeatRequest(group, "m", 2, owned=joined.assignment)
        again = await second.service.call(group, GroupShard.consumer_heartbeat, stay)
        assert (again.error, again.member_epoch, again.assignment) == (ErrorCode.none, 2, None)
        (listed,) = (await second.service.list_groups(ListRequest())).groups
        assert (listed.group_id, listed.state, listed.group_type) == (group, "Stable", "consumer")
