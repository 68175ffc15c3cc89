"""Failovers of one node of a Redis Cluster under a live broker."""

from __future__ import annotations

import contextlib
import signal
from functools import partial
from typing import TYPE_CHECKING

from korvet.config.address import Address
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import StorageError
from korvet.redis.keys import Keyspace
from korvet.store import Store
from tests.storage.live_brokers import RECORD, led, member_of
from tests.support.logs import append_own
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from korvet.cluster.topic import Topic
    from tests.support.cluster import ClusterNode, RedisCluster


@contextlib.asynccontextmanager
async def live(cluster: RedisCluster, prefix: str) -> AsyncIterator[Store]:
    """A broker on the cluster."""
    endpoint = Address("localhost", 9001)
    store = await Store.open(cluster.url, Keyspace(prefix), node_id=1, endpoint=endpoint, lease_ms=20_000)
    member_of(store).begin()
    try:
        yield store
    finally:
        await store.close()


async def a_log_on(store: Store, cluster: RedisCluster, node: ClusterNode) -> tuple[Topic, int]:
    """A partition with dense offsets on a node."""
    topic = await store.catalogue.create("t", 24, offset_assignment="dense")
    stream = store.commands.keyspace.stream
    return topic, next(n for n in range(24) if cluster.owner(stream("t", n)) is node)


async def appended_on(store: Store, topic: Topic, number: int, port: int) -> int:
    """The offset of a record that the node on a port has appended."""
    found: list[int] = []

    async def is_appended() -> bool:
        log = store.logs.get(topic, number)
        try:
            found.append((await append_own(log, RECORD)).base_offset)
        except StorageError:
            return False
        return log.links.server.address.port == port

    await until_async(is_appended, 60, "appends go to the new primary")
    return found[-1]


async def test_a_planned_failover_of_a_node_changes_no_epoch(own_cluster: RedisCluster, prefix: str) -> None:
    primary, replica = own_cluster.nodes[0], own_cluster.nodes[3]
    async with live(own_cluster, prefix) as store:
        topic, number = await a_log_on(store, own_cluster, primary)
        log = store.logs.get(topic, number)
        await append_own(log, RECORD)
        version = member_of(store).leadership.assignment.version
        replica.client.execute_command("CLUSTER FAILOVER")
        assert await appended_on(store, topic, number, replica.port) >= 1
        await member_of(store).refresh()
        assert member_of(store).leadership.assignment.version == version
        assert not log.closed


async def test_a_node_that_lacks_entries_raises_all_epochs(own_cluster: RedisCluster, prefix: str) -> None:
    primary, replica = own_cluster.nodes[0], own_cluster.nodes[3]
    async with live(own_cluster, prefix) as store:
        topic, number = await a_log_on(store, own_cluster, primary)
        log = store.logs.get(topic, number)
        for _ in range(5):
            await append_own(log, RECORD)
        written = int(primary.info("replication", "master_repl_offset"))
        await until_async(partial(_has, replica, written), 20, "the replica has them")
        before = led(store, "t", 24)
        replica.process.send_signal(signal.SIGSTOP)
        try:
            # More than the sockets buffer, so that the last entries never reach the replica.
            large = encode_append_records([(b"k", b"x" * 1_000_000, 5)])
            for _ in range(60):
                await append_own(log, large)
        finally:
            primary.kill()
            replica.process.send_signal(signal.SIGCONT)
        base = await appended_on(store, topic, number, replica.port)
        after = led(store, "t", 24)
        assert set(after) == set(before)
        assert all(after[each] > before[each] for each in after)
        assert log.closed
        epoch, end = await store.logs.get(topic, number).queries.end_of_leader_epoch(before[number]) or (
            0,
            0,
        )
        assert epoch == before[number]
        assert 5 <= end <= base < 65


async def _has(replica: ClusterNode, offset: int) -> bool:
    return int(replica.info("replication", "slave_repl_offset")) >= offset
