"""The deletion of a topic while the broker that deletes it takes over groups of a broker that has died."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from korvet import broker
from korvet.config.address import Address
from korvet.config.live import LiveConfig
from korvet.config.settings import Config
from korvet.coordinator.loader import OffsetsLoader
from korvet.coordinator.service import CoordinatorService
from korvet.offsets.partition import partition_for
from korvet.redis.errors import TopicExists
from korvet.redis.keys import OFFSETS_TOPIC
from korvet.topics.directory import TopicDirectory
from tests.coordinator.conftest import CONFIG, TOPIC, Running
from tests.support.polling import until_async
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from tests.support.redis_server import Server

LOAD_S = 0.3


@contextlib.asynccontextmanager
async def live(server: Server, prefix: str, node_id: int) -> AsyncIterator[tuple[Running, TopicDirectory]]:
    """A broker's parts for topics and groups, as broker.py connects them."""
    endpoint = Address("localhost", 9000 + node_id)
    async with open_store(server.url, prefix, node_id=node_id, endpoint=endpoint, lease_ms=1000) as store:
        with contextlib.suppress(TopicExists):
            await store.catalogue.create(TOPIC, 1)
        service = CoordinatorService(store.commands, store.logs, store.catalogue, CONFIG)
        directory = TopicDirectory(store.catalogue, store.logs, LiveConfig(Config()), service)
        await service.start()
        nothing = SimpleNamespace(follow_assignment=lambda: None)
        parts: Any = SimpleNamespace(
            coordinator=service, transactions=nothing, topics=directory, member=store.membership
        )
        assert store.membership is not None
        changes = broker._ChangeListener(parts)
        store.membership.changes.attach(changes)
        store.membership.begin()
        try:
            yield Running(server, store, service), directory
        finally:
            await changes.close()
            await service.close()


async def test_offsets_of_a_deleted_topic_go_with_the_groups_of_a_broker_that_dies(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with live(server, prefix, 1) as (one, topics), live(server, prefix, 2) as (two, _):
        members = [one.store.membership, two.store.membership]
        await until_async(
            lambda: all(
                member is not None and len(member.leadership.assignment.brokers) == 2 for member in members
            ),
            10,
            "both brokers are known",
        )
        leads = two.store.logs.leader_epoch_of
        group = next(
            name
            for number in range(1000)
            if leads(OFFSETS_TOPIC, partition_for(name := f"group-{number}")) is not None
        )
        await two.service.wait_loaded()
        assert await two.commit(group, 1000) == 0

        replay = OffsetsLoader.replay_into

        async def slowly(loader: OffsetsLoader, shard: Any) -> None:
            await asyncio.sleep(LOAD_S)  # a partition with many groups
            await replay(loader, shard)

        monkeypatch.setattr(OffsetsLoader, "replay_into", slowly)
        # The second broker is killed.
        assert members[1] is not None
        members[1]._renewing.cancel()
        await members[1].changes.close()
        await topics.delete(TOPIC, asyncio.get_running_loop().time() + 20)
        await one.store.catalogue.create(TOPIC, 1)
        await one.service.wait_loaded()
        assert (await one.committed(group)).offset == -1
