"""A coordinator over a real server, with a keyspace of its own per test."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from korvet.config.address import Address
from korvet.coordinator.service import CoordinatorService
from korvet.coordinator.steady_clock import SteadyClock
from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    CommitPartition,
    CommitReply,
    CommitRequest,
    CommitTopic,
    FetchedPartition,
    FetchReply,
    FetchRequest,
    FetchTopic,
    HeartbeatReply,
    HeartbeatRequest,
    JoinProtocol,
    JoinReply,
    JoinRequest,
    SyncAssignment,
    SyncReply,
    SyncRequest,
)
from korvet.groups.shard import GroupShard
from korvet.offsets.partition import partition_for
from korvet.redis.errors import TopicExists
from korvet.redis.keys import OFFSETS_TOPIC
from tests.storage.conftest import new_server, prefix, server
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from korvet.coordinator.share_partitions import SharePartitions
    from korvet.store import Store
    from tests.support.redis_server import Server

__all__ = ["new_server", "prefix", "server"]

TOPIC = "orders"
CONFIG = GroupConfig(min_session_timeout_ms=50, initial_rebalance_delay_ms=0)


class Running:
    """A started coordinator and its store, with shorthands for requests about partition 0 of one topic."""

    def __init__(self, server: Server, store: Store, service: CoordinatorService) -> None:
        self.client = server.client
        self.store = store
        self.service = service
        self.keys = store.commands.keyspace

    def offsets_key(self, group: str) -> bytes:
        return self.keys.stream(OFFSETS_TOPIC, partition_for(group))

    async def commit(self, group: str, offset: int, **fields: Any) -> int:
        """The error code of a commit."""
        topics = (CommitTopic(TOPIC, (CommitPartition(0, offset, metadata="m"),)),)
        reply: CommitReply = await self.service.call(
            group, GroupShard.commit, CommitRequest(group, topics, **fields)
        )
        return reply.topics[0].partitions[0].error

    async def fetch(self, group: str) -> FetchReply:
        request = FetchRequest(group, (FetchTopic(TOPIC, (0,)),))
        reply: FetchReply = await self.service.call(group, GroupShard.fetch, request)
        return reply

    async def committed(self, group: str) -> FetchedPartition:
        reply = await self.fetch(group)
        assert reply.error == 0
        return reply.topics[0].partitions[0]

    async def join(self, group: str, member_id: str = "", session_timeout_ms: int = 30_000) -> JoinReply:
        request = JoinRequest(
            group,
            member_id,
            "consumer",
            (JoinProtocol("range", b"subscription"),),
            session_timeout_ms,
            30_000,
        )
        reply: JoinReply = await self.service.call(group, GroupShard.join, request)
        return reply

    async def sync(self, group: str, joined: JoinReply, assignment: bytes = b"all") -> SyncReply:
        request = SyncRequest(
            group,
            joined.generation_id,
            joined.member_id,
            assignments=(SyncAssignment(joined.member_id, assignment),),
        )
        reply: SyncReply = await self.service.call(group, GroupShard.sync, request)
        return reply

    async def heartbeat(self, group: str, joined: JoinReply) -> int:
        request = HeartbeatRequest(group, joined.generation_id, joined.member_id)
        reply: HeartbeatReply = await self.service.call(group, GroupShard.heartbeat, request)
        return reply.error

    def native_read(self, group: str) -> list[bytes]:
        """The entry IDs that a native consumer of the group gets."""
        reply = self.client.xreadgroup(group, "native", {self.keys.stream(TOPIC, 0): ">"})
        return [name for name, _ in reply[0][1]] if reply else []


class _Following:
    """Makes a coordinator follow the changes of a membership."""

    def __init__(self, service: CoordinatorService) -> None:
        self._service = service

    def follow_assignment(self) -> None:
        self._service.follow_assignment()

    async def complete_changes(self) -> None:
        """`follow_assignment` has completed them."""


def steady_clock(now_ms: Callable[[], int]) -> SteadyClock:
    """A clock that always shows this time."""

    def now_ns() -> int:
        return now_ms() * 1_000_000

    return SteadyClock(now_ns, now_ns)


@contextlib.asynccontextmanager
async def running(
    server: Server,
    prefix: str,
    *,
    config: GroupConfig = CONFIG,
    clock: Callable[[], int] | None = None,
    loaded: bool = True,
    node_id: int | None = None,
    share_partitions: SharePartitions | None = None,
) -> AsyncIterator[Running]:
    """Start a coordinator on the keyspace `prefix`, of a live broker if it has a `node_id`; at the end it is
    closed as on shutdown.
    """
    endpoint = None if node_id is None else Address("localhost", 9092)
    async with open_store(server.url, prefix, node_id=node_id, endpoint=endpoint) as store:
        with contextlib.suppress(TopicExists):
            await store.catalogue.create(TOPIC, 1)
        steady = None if clock is None else steady_clock(clock)
        service = CoordinatorService(
            store.commands, store.logs, store.catalogue, config, steady, share_partitions=share_partitions
        )
        await service.start()
        if store.membership is not None:
            store.membership.changes.attach(_Following(service))
            store.membership.begin()
        try:
            if loaded:
                async with asyncio.timeout(20):
                    await service.wait_loaded()
            yield Running(server, store, service)
        finally:
            await service.close()


async def lose_topic(store: Store, name: str) -> None:
    """Redis holds what it held before the topic was created, as after a failover to a replica."""
    keys, topic = store.commands.keyspace, store.catalogue.get(name)
    assert topic is not None
    for partition in range(topic.partitions):
        await store.commands.call("DEL", *keys.partition_keys(name, partition))
    await store.commands.call("HDEL", keys.topics, name)
    await store.catalogue.load()


@pytest.fixture
def group() -> str:
    return "readers"
