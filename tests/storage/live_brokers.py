"""Live brokers for tests: stores with a membership, directly or through a proxy."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from korvet.config.address import Address
from korvet.records.kernel import encode_append_records
from korvet.redis.keys import Keyspace
from korvet.store import Store
from tests.storage.proxy import Proxy, proxied
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from korvet.cluster.membership import Membership
    from tests.support.redis_server import Server


LEASE_MS = 1000


RECORD = encode_append_records([(b"k", b"v", 5)])


WAIT_S = 10


def member_of(store: Store) -> Membership:
    assert store.membership is not None
    return store.membership


@contextlib.asynccontextmanager
async def broker(server: Server, prefix: str, node_id: int, *, lease_ms: int = 2000) -> AsyncIterator[Store]:
    """A store with a membership: it leads partitions like a broker."""
    endpoint = Address("localhost", 9000 + node_id)
    store = await Store.open(
        server.url, Keyspace(prefix), node_id=node_id, endpoint=endpoint, lease_ms=lease_ms
    )
    member_of(store).begin()
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def proxied_broker(
    server: Server, prefix: str, lease_ms: int = LEASE_MS, node_id: int = 1
) -> AsyncIterator[tuple[Proxy, Store]]:
    """A broker whose connections to Redis go through a proxy."""
    async with proxied(server.socket) as (proxy, url):
        store = await Store.open(
            url,
            Keyspace(prefix),
            node_id=node_id,
            endpoint=Address("localhost", 9000 + node_id),
            lease_ms=lease_ms,
        )
        member_of(store).begin()
        try:
            yield proxy, store
        finally:
            proxy.release()
            await store.close()


def nodes(store: Store) -> list[int]:
    return [each.node_id for each in member_of(store).leadership.assignment.brokers]


def led(store: Store, topic: str, count: int) -> dict[int, int]:
    """Partitions that a broker leads, with their leader epochs."""
    epochs = {partition: store.logs.leader_epoch_of(topic, partition) for partition in range(count)}
    return {partition: epoch for partition, epoch in epochs.items() if epoch is not None}


async def agreed(first: Store, second: Store) -> None:
    await until_async(
        lambda: _same(first, second), WAIT_S, "both brokers have the same version of the assignment"
    )


async def _same(first: Store, second: Store) -> bool:
    return member_of(first).leadership.assignment.version == member_of(second).leadership.assignment.version
