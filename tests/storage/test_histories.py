"""Failovers under a live broker: leader epochs follow the histories of the data."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

import pytest

from korvet.cluster.claims import claim
from korvet.cluster.shared_configs import SharedConfigs
from korvet.config.live import LiveConfig
from korvet.config.settings import Config
from korvet.groups.own_configs import OwnConfigs
from korvet.log.values import ProducerSequence
from korvet.quotas.throttle import ClientQuotas
from korvet.records.control import ControlMarker
from korvet.redis.barrier import Level
from korvet.redis.errors import (
    FencedEpoch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    SequenceGap,
    StorageFault,
    UnknownProducer,
    WritesRefused,
)
from korvet.redis.futures import awaited
from korvet.security.credentials import Credentials
from tests.storage.live_brokers import RECORD, WAIT_S, agreed, broker, led, member_of, nodes, proxied_broker
from tests.storage.proxy import proxied_store
from tests.storage.test_release import opened, released
from tests.support.logs import append_own, read_log
from tests.support.polling import until, until_async
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.redis.errors import StorageError
    from korvet.store import Store
    from tests.support.redis_server import Server

# The first version in a new history comes at least so long after the last one that a broker knows.
LEAST_STEP = 64


def replicated(new_server: Callable[..., Server]) -> tuple[Server, Server, int]:
    """A primary with its port, and a replica that follows it."""
    port = free_port()
    primary = new_server("--port", str(port), "--repl-diskless-sync-delay", "0")
    replica = new_server("--port", str(free_port()))
    replica.follow(port)
    return primary, replica, port


async def leads_again(store: Store, version: int) -> None:
    """Wait until the broker leads in a later version."""
    await until_async(
        lambda: member_of(store).leadership.assignment.version > version and bool(led(store, "t", 1)),
        WAIT_S,
        "the broker leads in a new version",
    )


@pytest.mark.parametrize("assignment", ["clock", "dense"])
async def test_a_failover_that_may_lose_entries_raises_leader_epochs(
    new_server: Callable[..., Server], prefix: str, assignment: str
) -> None:
    primary, replica, _ = replicated(new_server)
    async with proxied_broker(primary, prefix, 10_000) as (proxy, store):
        topic = await store.catalogue.create("t", 1, offset_assignment=assignment)
        log = store.logs.get(topic, 0)
        kept = [(await append_own(log, RECORD)).base_offset for _ in range(5)]
        primary.client.set("sent", 1)
        primary.client.wait(1, 5000)
        replica.client.replicaof("NO", "ONE")
        lost = [(await append_own(log, RECORD)).base_offset for _ in range(3)]
        version, before = member_of(store).leadership.assignment.version, led(store, "t", 1)[0]
        proxy.socket = replica.socket
        await proxy.cut()
        await leads_again(store, version)
        after = led(store, "t", 1)[0]
        assert after >= before + LEAST_STEP
        assert log.closed
        log = store.logs.get(topic, 0)
        # The claim comes before the first append.
        base = (await append_own(log, RECORD)).base_offset
        end = kept[-1] + 1
        assert await log.queries.end_of_leader_epoch(before) == (before, end)
        assert await log.queries.end_of_leader_epoch(after) == (after, base + 1)
        assert lost[0] >= end
        if assignment == "dense":
            assert base == end


async def test_lost_entries_are_not_out_of_range_before_leader_epochs_rise(
    new_server: Callable[..., Server], prefix: str
) -> None:
    """The new primary takes no writes, so no lease is renewed. Consumers that have read lost entries wait for
    the new epoch, which tells them where to continue; out of range, they would begin anywhere.
    """
    primary, replica, _ = replicated(new_server)
    async with proxied_broker(primary, prefix, 10_000) as (proxy, store):
        topic = await store.catalogue.create("t", 1)
        log = store.logs.get(topic, 0)
        kept = (await append_own(log, RECORD)).base_offset
        primary.client.set("sent", 1)
        primary.client.wait(1, 5000)
        replica.client.replicaof("NO", "ONE")
        replica.client.config_set("min-replicas-to-write", 1)
        lost = (await append_own(log, RECORD)).base_offset
        version = member_of(store).leadership.assignment.version
        proxy.socket = replica.socket
        await proxy.cut()
        await until_async(
            lambda: log.closed and bool(led(store, "t", 1)), WAIT_S, "the broker serves readers"
        )
        log = store.logs.get(topic, 0)
        assert log.leader_epoch <= version
        assert (await read_log(log, kept, 1 << 20)).record_count == 1
        with pytest.raises(WritesRefused):
            await read_log(log, lost + 1, 1 << 20)
        with pytest.raises(OffsetOutOfRange):
            await read_log(log, -1, 1 << 20)
        replica.client.config_set("min-replicas-to-write", 0)
        await leads_again(store, version)
        log = store.logs.get(topic, 0)
        assert await log.queries.end_of_leader_epoch(version) == (version, kept + 1)


@pytest.mark.parametrize("name", ["read", "write"])
async def test_each_failover_counts_once(
    new_server: Callable[..., Server], prefix: str, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Whichever connection leads to the new primary first."""
    primary, replica, _ = replicated(new_server)
    async with proxied_broker(primary, prefix, 10_000) as (proxy, store):
        await store.catalogue.create("t", 1)
        primary.client.set("sent", 1)
        primary.client.wait(1, 5000)
        replica.client.replicaof("NO", "ONE")
        (server,) = store.router.servers()
        for count, (former, other) in enumerate(((primary, replica), (replica, primary)), 1):
            former.client.set("lost", count)
            version = member_of(store).leadership.assignment.version
            proxy.socket = other.socket
            getattr(server, name).reset("the test leads it to the other server")
            await leads_again(store, version)
            lines = [each for each in caplog.messages if "its newest writes may be lost" in each]
            assert (member_of(store).leadership.counts.rejoins, len(lines)) == (count, count)


async def test_a_change_of_quotas_is_in_force_after_a_failover_that_lost_another_one(
    pair: tuple[Server, Server], prefix: str
) -> None:
    """Changes are counted in Redis: the first one after the failover has the number of the lost one."""
    primary, replica = pair
    lost, kept = (((("user", user),), "producer_byte_rate") for user in ("lost", "kept"))
    async with proxied_store(primary.socket, prefix) as (proxy, store):
        parts = Credentials(), ClientQuotas(), OwnConfigs(), LiveConfig(Config())
        shared = SharedConfigs(store.commands, None, *parts)
        await shared.refresh()
        primary.client.set("sent", 1)
        primary.client.wait(1, 5000)
        replica.client.replicaof("NO", "ONE")
        await shared.change_quotas({lost: 1000.0})
        assert shared.quotas.values == {lost: 1000.0}
        server = store.commands.links(store.commands.keyspace.cluster).server
        before = server.history.id
        proxy.socket = replica.socket
        await proxy.cut()
        await until_async(
            lambda: server.connected and server.history.id != before, WAIT_S, "it is the new primary"
        )
        await shared.change_quotas({kept: 1000.0})
        assert shared.quotas.values == {kept: 1000.0}


async def test_epochs_stay_after_a_failover_that_loses_nothing(
    new_server: Callable[..., Server], prefix: str
) -> None:
    old, new, _ = replicated(new_server)
    async with proxied_broker(old, prefix, 10_000) as (proxy, store):
        topic = await store.catalogue.create("t", 1)
        log = store.logs.get(topic, 0)
        base = (await append_own(log, RECORD)).base_offset
        version, before = member_of(store).leadership.assignment.version, led(store, "t", 1)[0]
        old.client.execute_command("FAILOVER")
        until(lambda: new.client.info("replication")["role"] == "master", WAIT_S, "it is promoted")
        proxy.socket = new.socket
        connections = proxy.connections

        async def appends() -> bool:
            try:
                return (await append_own(store.logs.get(topic, 0), RECORD)).base_offset > base
            except Exception:  # noqa: BLE001 - while the links are opened again
                return False

        await until_async(appends, WAIT_S, "appends go to the new primary")
        assert proxy.connections > connections
        assert new.client.xlen(log.stream) >= 2
        await member_of(store).refresh()
        assert (member_of(store).leadership.assignment.version, led(store, "t", 1)[0]) == (version, before)
        assert not log.closed


async def test_a_broker_that_comes_back_to_an_old_primary_joins_again(
    new_server: Callable[..., Server], prefix: str
) -> None:
    """A split brain: both sides continue the same history, with different versions."""
    old, new, _ = replicated(new_server)
    async with proxied_broker(old, prefix, 10_000) as (proxy, store):
        await store.catalogue.create("t", 1)
        old.client.set("sent", 1)
        old.client.wait(1, 5000)
        new.client.replicaof("NO", "ONE")
        versions = [member_of(store).leadership.assignment.version]
        for server in (new, old, new):
            proxy.socket = server.socket
            await proxy.cut()
            await leads_again(store, versions[-1])
            versions.append(member_of(store).leadership.assignment.version)
        assert versions == sorted(set(versions))
        assert versions[1] >= versions[0] + LEAST_STEP


async def test_the_first_replica_of_a_server_changes_no_epoch(
    new_server: Callable[..., Server], prefix: str
) -> None:
    """Redis begins a new history when the first replica attaches, with the same data."""
    port = free_port()
    primary = new_server("--port", str(port), "--repl-diskless-sync-delay", "0")
    async with proxied_broker(primary, prefix, 10_000) as (proxy, store):
        topic = await store.catalogue.create("t", 1, {"min.insync.replicas": "2"})
        log = store.logs.get(topic, 0)
        version = member_of(store).leadership.assignment.version
        before = primary.client.info("replication")["master_replid"]
        replica = new_server("--port", str(free_port()))
        replica.client.replicaof("127.0.0.1", port)
        until(lambda: primary.client.info("replication")["master_replid"] != before, WAIT_S, "it changes")
        (server,) = store.router.servers()
        await until_async(
            lambda: server.history.id not in {before, ""}, WAIT_S, "the broker knows the new history"
        )
        end = (await append_own(log, RECORD)).base_offset + 1
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        log.await_released(end, 5000, done.set_result)
        assert await done is None
        connections = proxy.connections
        await proxy.cut()
        await until_async(
            lambda: proxy.connections >= connections + 3 and server.connected, WAIT_S, "the links are back"
        )
        await member_of(store).refresh()
        assert member_of(store).leadership.assignment.version == version
        assert not log.closed


async def test_the_first_replica_of_a_server_ends_no_wait(
    new_server: Callable[..., Server], prefix: str
) -> None:
    """`korvet backup` and `redis-cli --rdb` attach as a replica does."""
    port = free_port()
    options = "--repl-diskless-sync-delay", "0", "--appendonly", "yes", "--appendfsync", "no"
    alone = new_server("--port", str(port), *options)
    async with opened(alone, prefix, Level(0, fsync=True)) as log:
        # The flush takes until the server is told to flush.
        end = (await append_own(log, RECORD)).base_offset + 1
        waiting = asyncio.ensure_future(released(log, end))
        before = log.links.server.history.id
        await asyncio.to_thread(new_server().follow, port)
        await until_async(lambda: log.links.server.history.id != before, WAIT_S, "the history has another id")
        assert not waiting.done()
        alone.client.config_set("appendfsync", "always")
        alone.client.set("flushed", 1)
        await waiting


async def test_producers_whose_batches_may_be_lost(new_server: Callable[..., Server], prefix: str) -> None:
    primary, replica, _ = replicated(new_server)
    async with proxied_broker(primary, prefix, 10_000) as (proxy, store):
        topic = await store.catalogue.create("t", 1)

        async def put(producer_id: int, epoch: int, first: int, *, transactional: bool = False) -> None:
            stamp = ProducerSequence(producer_id, epoch, first, transactional)
            await append_own(store.logs.get(topic, 0), RECORD, stamp)

        for producer_id in (1, 2):
            await put(producer_id, 0, 0)
        primary.client.set("sent", 1)
        assert primary.client.wait(1, 5000) == 1
        replica.client.replicaof("NO", "ONE")
        with pytest.raises(OutOfOrderSequence):
            await put(1, 0, 7)
        version = member_of(store).leadership.assignment.version
        proxy.socket = replica.socket
        await proxy.cut()
        await leads_again(store, version)
        # Batches may be lost, and so may a new epoch of the producer, and all that is known of it.
        for producer_id, epoch in ((1, 0), (2, 1), (3, 0)):
            for first in (5, 6, 4, 5):
                with pytest.raises(SequenceGap):
                    await put(producer_id, epoch, first)
            for first in (4, 5, 6):
                await put(producer_id, epoch, first)
            with pytest.raises(OutOfOrderSequence):
                await put(producer_id, epoch, 8)
        for producer_id in (4, 5):
            with pytest.raises(UnknownProducer):
                await put(producer_id, 0, 3, transactional=True)
        await put(4, 1, 0, transactional=True)
        # Nothing is lost of a transaction that begins after an abort in the same epoch.
        log = store.logs.get(topic, 0)
        await awaited(partial(log.mark, ControlMarker(5, 0, committed=False, coordinator_epoch=0)))
        for first in (5, 4):
            with pytest.raises(SequenceGap):
                await put(5, 0, first, transactional=True)
        for first in (4, 5):
            await put(5, 0, first, transactional=True)
        # A day later, the state of a producer that is not known has expired.
        cut_ms, log_end = replica.client.hget(log.state.meta, "cut").split(b":")
        replica.client.hset(log.state.meta, "cut", b"%d:%b" % (int(cut_ms) - 86_400_000, log_end))
        await put(6, 0, 3, transactional=True)


async def test_the_sides_of_a_split_brain_give_other_producer_ids(
    new_server: Callable[..., Server], prefix: str
) -> None:
    server = new_server()
    blocks: dict[int, list[int]] = {}
    server.client.hset(f"{{{prefix}}}:cluster", "id", "c")
    async with proxied_broker(server, prefix) as (_, store):
        cluster = store.commands.keyspace.cluster
        for history in (0xA1, 0xA2):
            blocks[history] = [
                await store.commands.fcall(
                    "korvet_take_producer_ids", [cluster], "c", 1000, 0, f"{history:08x}ff"
                )
                for _ in range(50)
            ]
    of_ms = [{first // 1024 % 16 for first in taken} for taken in blocks.values()]
    assert of_ms == [{1}, {2}]
    for taken in blocks.values():
        assert taken == sorted(set(taken))


async def test_all_brokers_join_again(new_server: Callable[..., Server], prefix: str) -> None:
    primary, replica, _ = replicated(new_server)
    partitions = 8
    async with (
        proxied_broker(primary, prefix, 10_000, 1) as (first_proxy, first),
        proxied_broker(primary, prefix, 10_000, 2) as (second_proxy, second),
    ):
        stores, proxies = (first, second), (first_proxy, second_proxy)
        topic = await first.catalogue.create("t", partitions)
        await agreed(first, second)
        for store in stores:
            await store.catalogue.load()
        before = led(first, "t", partitions) | led(second, "t", partitions)
        assert len(before) == partitions
        primary.client.set("sent", 1)
        assert primary.client.wait(1, 5000) == 1
        replica.client.replicaof("NO", "ONE")
        for proxy in proxies:
            proxy.socket = replica.socket
            await proxy.cut()

        async def lead_again() -> bool:
            after = led(first, "t", partitions) | led(second, "t", partitions)
            return len(after) == partitions and all(after[each] > before[each] for each in after)

        await until_async(lead_again, WAIT_S, "both brokers lead in new epochs")
        await agreed(first, second)
        assert [nodes(store) for store in stores] == [[1, 2], [1, 2]]
        assert led(first, "t", partitions).keys().isdisjoint(led(second, "t", partitions))
        for store in stores:
            for partition in led(store, "t", partitions):
                await append_own(store.logs.get(topic, partition), RECORD)


@pytest.mark.parametrize(
    ("refuse", "permit", "refusal"),
    [
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", WritesRefused),
        ("ACL SETUSER default -hset", "ACL SETUSER default +hset", StorageFault),
    ],
    ids=["no writes", "no permission"],
)
async def test_nothing_is_appended_before_the_claim(
    new_server: Callable[..., Server], prefix: str, refuse: str, permit: str, refusal: type[StorageError]
) -> None:
    """The claim, which Redis may refuse at first, notes where the log of the last leader epoch ends."""
    server = new_server()
    async with broker(server, prefix, 1, lease_ms=20_000) as store:
        topic = await store.catalogue.create("t", 1, offset_assignment="dense")
        log = store.logs.get(topic, 0)
        await append_own(log, RECORD)
        before = log.leader_epoch
        server.client.hset(log.meta, "history", "former")
        member_of(store).changes._claim = _claim_nothing  # type: ignore[method-assign]
        member_of(store).rejoin()
        await leads_again(store, before)
        server.client.execute_command(*refuse.split())
        log = store.logs.get(topic, 0)
        assert (await read_log(log, 0, 1 << 20)).record_count == 1
        server.client.execute_command(*permit.split())
        with pytest.raises(refusal):
            await append_own(log, RECORD)

        async def appended() -> bool:
            with contextlib.suppress(refusal):
                return (await append_own(log, RECORD)).base_offset == 1
            return False

        await until_async(appended, WAIT_S, "the partition is claimed")
        assert await log.queries.end_of_leader_epoch(before) == (before, 1)


async def test_a_superseded_leader_deletes_nothing(new_server: Callable[..., Server], prefix: str) -> None:
    """It may follow an old configuration, or a log that has lost records since."""
    server = new_server()
    async with broker(server, prefix, 1, lease_ms=20_000) as store:
        topic = await store.catalogue.create("t", 1)
        log = store.logs.get(topic, 0)
        end = (await append_own(log, RECORD)).base_offset + 1
        await claim(store.commands, topic, 0, log.leader_epoch + 1)
        with pytest.raises(FencedEpoch):
            await log.trimming.trim(0, None, 1 << 45)
        with pytest.raises(FencedEpoch):
            await log.delete_before(end, 1000)
        assert server.client.xlen(log.stream) == 1


async def _claim_nothing() -> None:
    """Leave the claims of the partitions to their logs."""
