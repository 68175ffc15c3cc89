"""Brokers of one keyspace: the live brokers, their leadership, and the fencing of other writers."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from korvet import supervisor
from korvet.cluster.assignment import writer_epochs
from korvet.cluster.lease import NodeIdTaken
from korvet.config.address import Address
from korvet.config.live import LiveConfig
from korvet.config.settings import Config
from korvet.log.committed import Committed, read_committed
from korvet.log.values import Ends, ProducerSequence
from korvet.records.control import ControlMarker
from korvet.records.kernel import parse_batch
from korvet.redis.clock import steady_s
from korvet.redis.errors import FencedEpoch, LinkLost, TopicExists, TopicGone
from korvet.redis.keys import Keyspace
from korvet.store import Store
from korvet.topics.compaction import LogCleaner
from korvet.topics.directory import TopicDirectory
from tests.storage.live_brokers import LEASE_MS, RECORD, WAIT_S, agreed, broker, led, member_of, nodes
from tests.storage.test_transactions import append_to, outcome_of
from tests.support.logs import append_own, read_log
from tests.support.polling import until_async
from tests.support.received import ReceivedBatch
from tests.unit.records import forms

if TYPE_CHECKING:
    from korvet.cluster.topic import Topic
    from tests.support.redis_server import Server

ABORT = ControlMarker(7, 0, committed=False, coordinator_epoch=1)


async def test_each_partition_has_one_leader_and_a_clean_end_hands_it_on(server: Server, prefix: str) -> None:
    async with broker(server, prefix, 1) as one:
        topic = await one.catalogue.create("t", 20)
        assert led(one, "t", 20) == dict.fromkeys(range(20), 0)
        old = [one.logs.get(topic, partition) for partition in range(20)]
        async with broker(server, prefix, 2, lease_ms=10 * WAIT_S * 1000) as two:
            await agreed(one, two)
            assert nodes(one) == nodes(two) == [1, 2]
            first, second = led(one, "t", 20), led(two, "t", 20)
            assert first.keys() | second.keys() == set(range(20))
            assert not first.keys() & second.keys()
            assert set(first.values()) == {0}
            assert set(second.values()) == {1}
            for partition in range(20):
                log = one.logs.get(topic, partition)
                assert log.closed == (partition in second)
                assert (log is old[partition]) == (partition in first)
                if log.closed:
                    with pytest.raises(FencedEpoch):
                        await append_own(log, RECORD)
                    with pytest.raises(FencedEpoch):
                        await read_log(log, 0, 100)
                    with pytest.raises(FencedEpoch):
                        await log.bounds()
        assert nodes(two) == [1]
        assert led(two, "t", 20) == {}
        # Clients that come from the former leader still find it.
        assert [each[2] for each in member_of(two).leadership.endpoints("PLAINTEXT", steady_s())] == [
            9001,
            9002,
        ]
        await until_async(lambda: nodes(one) == [1], WAIT_S, "the other one is seen to be gone")
        now = led(one, "t", 20)
        assert {partition: now[partition] for partition in first} == first
        assert {now[partition] for partition in second} == {2}
        for partition in range(20):
            await append_own(one.logs.get(topic, partition), RECORD)


async def test_a_broker_that_is_silent_is_taken_out_and_comes_back_as_another_leader(
    server: Server, prefix: str
) -> None:
    async def refused(log) -> bool:  # type: ignore[no-untyped-def]
        await append_own(log, RECORD)
        return False

    async with broker(server, prefix, 1, lease_ms=600) as one, broker(server, prefix, 2) as two:
        topic = await two.catalogue.create("t", 20)
        await agreed(one, two)
        await member_of(one).refresh()
        theirs = min(led(one, "t", 20))
        stale = one.logs.get(topic, theirs)
        await append_own(stale, RECORD)
        # A suspended process does not renew the lease.
        member_of(one)._renewing.cancel()
        await until_async(lambda: nodes(two) == [2], WAIT_S, "the silent one is taken out")
        taken = two.logs.get(topic, theirs)
        # The broker still believes to lead. Nothing was appended since, and yet its append is refused.
        with pytest.raises(FencedEpoch):
            await until_async(lambda: refused(stale), WAIT_S, "the claim has come through")
        length = server.client.xlen(stale.stream)
        await append_own(taken, RECORD)
        with pytest.raises(FencedEpoch):
            await append_own(stale, RECORD)
        assert server.client.xlen(stale.stream) == length + 1

        await member_of(one).refresh()
        await agreed(one, two)
        assert nodes(one) == [1, 2]
        assert stale.closed
        assert set(led(one, "t", 20).values()) == {member_of(one).leadership.assignment.version}
        await append_own(one.logs.get(topic, theirs), RECORD)


async def test_a_leader_that_was_superseded_does_not_serve_what_its_successor_appends(
    server: Server, prefix: str
) -> None:
    """Its readers would take the records for records of its own leader epoch."""
    async with broker(server, prefix, 1, lease_ms=60_000) as one:
        topic = await one.catalogue.create("t", 20)
        logs = [one.logs.get(topic, partition) for partition in range(20)]
        for log in logs:
            await append_own(log, RECORD)
        # The broker does not hear of the next one.
        member_of(one)._renewing.cancel()
        async with broker(server, prefix, 2) as two:
            await member_of(two).refresh()
            stale = logs[min(led(two, "t", 20))]
            end = stale.ends.log_end
            await append_own(two.logs.get(topic, stale.partition), RECORD)
            with pytest.raises(FencedEpoch):
                await stale.bounds()
            with pytest.raises(FencedEpoch):
                await read_log(stale, end, 1000)
            with pytest.raises(FencedEpoch):
                await read_log(stale, end + 1_000_000_000, 1000)


async def test_a_leader_that_was_superseded_does_not_take_an_aborted_transaction_for_a_committed_one(
    server: Server, prefix: str
) -> None:
    """Its successor has appended the marker that aborts the transaction, after the end that the former leader
    serves.
    """
    async with broker(server, prefix, 1, lease_ms=60_000) as one:
        topic = await one.catalogue.create("t", 20, offset_assignment="dense")
        logs = [one.logs.get(topic, partition) for partition in range(20)]
        data = forms.whole_batch([forms.Record(None, b"v", forms.BASE_MS)], attributes=16, producer=(7, 0, 0))
        batch = ReceivedBatch(data, parse_batch(data, 0), None)
        for log in logs:
            await append_own(log, RECORD)
            await outcome_of(partial(append_to, log, batch, ProducerSequence(7, 0, 0, True)))
            await append_own(log, RECORD)
            # From the next read on, the leader knows all aborted transactions without asking Redis.
            assert (await outcome_of(partial(read_committed, log, 0, 1000))).last_stable_offset == 1
        member_of(one)._renewing.cancel()
        async with broker(server, prefix, 2) as two:
            await member_of(two).refresh()
            stale = logs[min(led(two, "t", 20))]
            await outcome_of(partial(two.logs.get(topic, stale.partition).mark, ABORT))
            assert await outcome_of(partial(read_committed, stale, 1, 1)) == Committed([], [], 1, stale.ends)
            assert stale.ends == Ends(0, 0, 1, 3, 3)


async def test_a_listener_is_called_when_another_broker_takes_the_partition(
    server: Server, prefix: str
) -> None:
    async with broker(server, prefix, 1) as one:
        topic = await one.catalogue.create("t", 20)
        told = []
        for partition in range(20):
            one.logs.get(topic, partition).listen(lambda partition=partition: told.append(partition))  # type: ignore[misc]
        async with broker(server, prefix, 2) as two:
            await agreed(one, two)
            assert sorted(told) == sorted(led(two, "t", 20))


async def test_after_a_refused_append_the_assignment_is_read_again(server: Server, prefix: str) -> None:
    async with broker(server, prefix, 1, lease_ms=60_000) as one:
        topic = await one.catalogue.create("t", 1)
        log = one.logs.get(topic, 0)
        await append_own(log, RECORD)
        # A later leader that Redis then lost, for example in a failover.
        server.client.hset(log.meta, "epoch", writer_epochs(7).start)
        with pytest.raises(FencedEpoch):
            await append_own(log, RECORD)
        await until_async(
            lambda: member_of(one).leadership.assignment.version > 7,
            WAIT_S,
            "it leads in a later version than any that was met",
        )
        await append_own(one.logs.get(topic, 0), RECORD)
        assert int(server.client.hget(f"{{{prefix}}}:cluster", "assignment")) == 8


async def test_versions_grow_even_if_redis_lost_them(server: Server, prefix: str) -> None:
    async with broker(server, prefix, 1) as one:
        topic = await one.catalogue.create("t", 3)
        for node_id in (2, 3):
            async with broker(server, prefix, node_id) as other:
                await agreed(one, other)
        await member_of(one).refresh()
        known = member_of(one).leadership.assignment.version
        assert known == 4
        server.client.delete(f"{{{prefix}}}:brokers")
        server.client.hdel(f"{{{prefix}}}:cluster", "assignment", "left")
        await member_of(one).refresh()
        assert member_of(one).leadership.assignment.version == known + 1
        assert led(one, "t", 3) == dict.fromkeys(range(3), known + 1)
        await append_own(one.logs.get(topic, 0), RECORD)


async def test_changes_of_topics_reach_the_other_brokers(server: Server, prefix: str) -> None:
    async with broker(server, prefix, 1) as one, broker(server, prefix, 2) as two:
        created = await one.catalogue.create("t", 4)

        async def seen() -> bool:
            return two.catalogue.get("t") == one.catalogue.get("t")

        await until_async(seen, WAIT_S, "the new topic is known")
        assert two.catalogue.by_id(created.topic_id) == created
        log = next(log for p in range(4) if not (log := two.logs.get(created, p)).closed)
        await one.catalogue.set_configs("t", {"native.format": "none"})
        await until_async(seen, WAIT_S, "the new setting is known")
        assert log.topic.configs == {"native.format": "none"}
        with pytest.raises(TopicExists):
            await two.catalogue.create("t", 1)
        await one.catalogue.delete("t")
        await until_async(seen, WAIT_S, "the deletion is known")
        assert two.catalogue.by_id(created.topic_id) is None
        with pytest.raises(TopicGone):
            await append_own(log, RECORD)


async def test_waiting_until_all_brokers_have_acknowledged(server: Server, prefix: str) -> None:
    class Slow:
        def __init__(self) -> None:
            self.may = asyncio.Event()

        def follow_assignment(self) -> None:
            pass

        async def complete_changes(self) -> None:
            await self.may.wait()

    async with broker(server, prefix, 1) as one, broker(server, prefix, 2) as two:
        slow = Slow()
        member_of(two).changes.attach(slow)
        await one.catalogue.create("t", 4)
        waiting = asyncio.create_task(member_of(one).wait_acknowledged(one.catalogue.known_version))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.6)
        slow.may.set()
        await asyncio.wait_for(waiting, WAIT_S)


async def test_a_late_deletion_leaves_a_new_topic_of_that_name_alone(server: Server, prefix: str) -> None:
    async with broker(server, prefix, 1) as one:
        old = await one.catalogue.create("t", 1)
        await append_own(one.logs.get(old, 0), RECORD)
        await one.catalogue.delete("t")
        assert not server.client.keys(f"*{prefix}:t*")
        new = await one.catalogue.create("t", 1)
        await append_own(one.logs.get(new, 0), RECORD)
        await one.catalogue.finish_delete(old)
        assert server.client.xlen(one.logs.get(new, 0).stream) == 1
        await one.catalogue.delete("t")
        assert not server.client.keys(f"*{prefix}:t:*")


async def test_a_late_deletion_leaves_offsets_logs_and_bias_of_a_new_topic_alone(
    server: Server, prefix: str
) -> None:
    """Two brokers finish one deletion: the one that began it, and the controller."""
    forgotten: list[str] = []

    async def forget(topic: Topic) -> None:
        forgotten.append(topic.name)

    async with broker(server, prefix, 1) as one, broker(server, prefix, 2) as two:
        await agreed(one, two)
        await two.catalogue.create("t", 1, offset_assignment="dense")
        await member_of(one).refresh()
        deleting = await two.catalogue.mark_deleting("t")
        await member_of(one).refresh()
        assert one.catalogue.pending_deletes() == [deleting]

        async def created_meanwhile(topic: Topic) -> None:
            await two.catalogue.finish_delete(topic)
            await two.catalogue.create("t", 1, offset_assignment="dense")
            await member_of(one).refresh()

        await one.catalogue.finish_delete(deleting, created_meanwhile)
        meta = one.commands.keyspace.meta("t", 0)
        assert server.client.hget(meta, "bias") == b"1"

        log = one.logs.get(one.catalogue.topics["t"], 0)
        await one.catalogue.finish_delete(deleting, forget)
        assert forgotten == []
        assert one.logs.opened("t", 0) is log


async def test_what_is_kept_of_topics_that_another_broker_deletes_is_freed(
    server: Server, prefix: str
) -> None:
    """Topics may come and go all day while the brokers stay the same."""

    class Groups:
        async def forget_topic(self, name: str) -> None:
            del name

    async with broker(server, prefix, 1) as one, broker(server, prefix, 2) as two:
        await agreed(one, two)
        live, groups = LiveConfig(Config()), cast("Any", Groups())
        directories = [TopicDirectory(each.catalogue, each.logs, live, groups) for each in (one, two)]
        cleaner = LogCleaner(one.commands, one.logs, directories[0], live, lambda: 0)
        await directories[1].create("t", 8, {})
        await member_of(one).refresh()
        assert directories[0].policy(one.catalogue.topics["t"]).deletes
        await cleaner.clean()
        assert "t" in member_of(one).leadership.assignment._leaders
        assert cleaner._tidied

        deleting = await two.catalogue.mark_deleting("t")
        await member_of(one).refresh()
        await directories[0].forget_deleted()
        await two.catalogue.finish_delete(deleting)
        await cleaner.clean()
        assert not directories[0]._policies
        assert not cleaner._tidied
        assert "t" not in member_of(one).leadership.assignment._leaders
        assert "t" not in member_of(two).leadership.assignment._leaders


async def test_a_lost_node_id_is_reported(server: Server, prefix: str) -> None:
    async with broker(server, prefix, 1) as one:
        brokers = f"{{{prefix}}}:brokers"
        held = server.client.hget(brokers, "1").decode().split(" ", 2)
        server.client.hset(brokers, "1", f"{int(held[0]) + 60_000} another {held[2]}")
        assert isinstance(await asyncio.wait_for(member_of(one).ended, WAIT_S), NodeIdTaken)


async def test_a_membership_that_keeps_failing_is_given_up(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process ends with a message: it would serve partitions that other brokers lead."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.0)
    async with broker(server, prefix, 1) as store:
        monkeypatch.setattr(store.catalogue, "load", _defect)
        store.catalogue.applied_version = -1
        member_of(store).refresh_soon()
        async with asyncio.timeout(WAIT_S):
            reason = str(await member_of(store).ended)
    assert "the membership of node id 1 keeps failing: RuntimeError('a defect')" in reason
    assert "membership failed 6 times in a row" in caplog.text


async def _defect() -> None:
    raise RuntimeError("a defect")


async def test_a_broker_that_cannot_follow_what_has_changed_stops_leading(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is renewed, but other brokers may lead its partitions by now."""
    async with broker(server, prefix, 1, lease_ms=LEASE_MS) as one:
        await one.catalogue.create("t", 20)
        load = one.catalogue.load
        monkeypatch.setattr(one.catalogue, "load", _no_answer)
        server.client.hincrby(f"{{{prefix}}}:cluster", "catalogue", 1)
        await until_async(lambda: not led(one, "t", 20), WAIT_S, "it leads nothing any more")
        monkeypatch.setattr(one.catalogue, "load", load)
        await until_async(lambda: len(led(one, "t", 20)) == 20, WAIT_S, "it leads again")


async def _no_answer() -> None:
    raise LinkLost("no answer")


@pytest.mark.parametrize("what", ["another log is opened", "the assignment changes"])
async def test_all_logs_are_closed_whatever_happens_when_one_is(
    server: Server, prefix: str, what: str
) -> None:
    """A connection takes its next request as soon as one that waited for a closed log is answered."""
    async with broker(server, prefix, 1) as store:
        topic, other, later = [await store.catalogue.create(name, 2) for name in ("t", "u", "v")]
        logs = [store.logs.get(topic, 0), store.logs.get(topic, 1), store.logs.get(other, 0)]
        if what == "another log is opened":
            logs[0].listen(lambda: logs.append(store.logs.get(later, 0)))
        else:
            logs[0].listen(store.logs.follow_assignment)
        member_of(store).leadership.serves_until_s = 0.0
        member_of(store).check()
        assert all(log.closed for log in logs)


async def test_a_broker_whose_node_id_is_taken_before_it_begins_ends(server: Server, prefix: str) -> None:
    url, endpoint = server.url, Address("localhost", 9001)
    store = await Store.open(url, Keyspace(prefix), node_id=1, endpoint=endpoint, lease_ms=LEASE_MS)
    member = member_of(store)
    later_ms = int(time.time() * 1000) + 60_000
    server.client.hset(f"{{{prefix}}}:brokers", 1, f"{later_ms} another 0 -1 -1 {{}}")
    with pytest.raises(NodeIdTaken):
        await member.refresh()
    member.refresh_soon()
    assert isinstance(await asyncio.wait_for(member.ended, WAIT_S), NodeIdTaken)
    await store.close()
