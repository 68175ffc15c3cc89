"""Keys of a slot that is being moved: those that have not moved yet are still on the former node."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from korvet.log.committed import read_committed
from korvet.log.values import ProducerSequence
from korvet.records.control import ControlMarker
from korvet.redis.futures import awaited
from korvet.redis.keys import Keyspace
from korvet.redis.slots import slot_of
from korvet.store import Store
from tests.storage.live_brokers import RECORD
from tests.support.logs import append_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.log.partition_log import PartitionLog
    from tests.support.cluster import RedisCluster

TIMES = 50


@contextlib.contextmanager
def partly_moved(cluster: RedisCluster, *keys: bytes) -> Iterator[None]:
    """A slot of which only these keys have moved to another node. At the end the others move, too."""
    slot, source, target = slot_of(keys[0]), cluster.owner(keys[0]), cluster.other_than_owner(keys[0])

    def move(key: bytes | str) -> None:
        source.client.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)

    target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.node_id)
    source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target.node_id)
    for key in keys:
        move(key)
    try:
        yield
    finally:
        for found in cluster.keys_beside(keys[0], source):
            move(found)
        for node in (target, source):
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", target.node_id)


async def test_a_key_that_has_not_moved_is_used_where_it_is(redis_cluster: RedisCluster, prefix: str) -> None:
    moved, stays = f"{{{prefix}}}:a".encode(), f"{{{prefix}}}:b".encode()
    for key in (moved, stays):
        redis_cluster.call(key, "HSET", key, "f", "1")
    store = await Store.open(redis_cluster.url, Keyspace(prefix))
    links = store.router.links(moved)

    async def read(key: bytes) -> list[Any]:
        return [await links.read.call("HGET", key, "f") for _ in range(TIMES)]

    async def write() -> list[Any]:
        return [await links.write_functions.call("HSET", stays, f"g{at}", "2") for at in range(TIMES)]

    async def redirected() -> list[Any]:
        return [await links.write_functions.call("HGET", moved, "f") for _ in range(TIMES)]

    try:
        with partly_moved(redis_cluster, moved):
            answers = await asyncio.gather(read(moved), read(stays), read(stays), write(), redirected())
            assert answers[:3] == [[b"1"] * TIMES] * 3
            assert answers[3:] == [[1] * TIMES, [b"1"] * TIMES]
    finally:
        await store.close()
    assert redis_cluster.call(stays, "HLEN", stays) == 1 + TIMES


async def test_the_catalogue_stays_while_its_slot_moves(redis_cluster: RedisCluster, prefix: str) -> None:
    """The hash of topics has not moved yet; that of the cluster has."""
    keyspace = Keyspace(prefix)
    store = await Store.open(redis_cluster.url, keyspace)
    try:
        await store.catalogue.create("t", 1)
        with partly_moved(redis_cluster, keyspace.cluster):
            for _ in range(TIMES):
                loads = [store.catalogue.load() for _ in range(3)]
                await asyncio.gather(store.catalogue.catch_up(), *loads)
                assert list(store.catalogue.topics) == ["t"]
    finally:
        await store.close()


async def test_aborted_records_stay_hidden_while_the_slot_moves(
    redis_cluster: RedisCluster, prefix: str
) -> None:
    """The set of aborted transactions has not moved yet; the stream has."""
    keyspace = Keyspace(prefix)

    async def consumed(log: PartitionLog) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        read_committed(log, 0, 1 << 20, done.set_result)
        return await done

    writer = await Store.open(redis_cluster.url, keyspace)
    log = writer.logs.get(await writer.catalogue.create("t", 1), 0)
    await append_own(log, RECORD, ProducerSequence(7, 0, 0, transactional=True))
    await awaited(partial(log.mark, ControlMarker(7, 0, committed=False, coordinator_epoch=0)))
    await writer.close()
    reader = await Store.open(redis_cluster.url, keyspace)
    log = reader.logs.get(reader.catalogue.topics["t"], 0)
    aborted = keyspace.aborted("t", 0).decode()
    others = redis_cluster.keys_beside(log.stream, redis_cluster.owner(log.stream)) - {aborted}
    try:
        with partly_moved(redis_cluster, *(key.encode() for key in others)):
            found = await consumed(log)
        assert found.batches
        assert found.aborted
        assert (await consumed(log)).aborted == found.aborted
    finally:
        await reader.close()
