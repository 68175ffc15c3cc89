"""One broker process put together: store, coordinator, topics, listener, housekeeping."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import TYPE_CHECKING, Final

from korvet import api
from korvet.api.deadlines import Deadlines
from korvet.api.services import Services
from korvet.coordinator.service import CoordinatorService
from korvet.groups.config import GroupConfig
from korvet.server.backpressure import Backpressure
from korvet.server.dispatch import Dispatcher
from korvet.server.listener import Listener
from korvet.storage.errors import StorageError, StoreError
from korvet.storage.keys import Keyspace
from korvet.storage.store import Store
from korvet.topics.directory import TopicDirectory
from korvet.topics.retention import keep_retention

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.config import Config

log = logging.getLogger(__name__)

# Produced bytes on their way to Redis before clients are held back: enough to keep Redis busy, no more.
_IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
_COLLECTION_THRESHOLD: Final = 100_000


async def run(config: Config, redis_url: str, ready: Callable[[str, int], None]) -> None:
    """Serve until cancelled. `ready(host, port)` is called once clients are accepted, with the address told
    to them.

    Raises StoreError when Redis can't be used and OSError when the address can't be listened on.
    """
    api.load_all()
    store = await Store.open(
        redis_url,
        Keyspace(config.keyspace),
        lease_node_id=config.node_id,
        watch_interval_ms=config.native_poll_interval_ms,
        lead_cap_ms=config.append_lead_max_ms,
        tail_cache_bytes=config.tail_cache_bytes,
        tail_cache_partition_bytes=config.tail_cache_partition_bytes,
        readahead_bytes=config.fetch_readahead_bytes,
    )
    coordinator = CoordinatorService(store, store.catalogue, _group_config(config))
    try:
        await _run(config, store, coordinator, ready)
    finally:
        await coordinator.close()
        await store.close()


async def _run(
    config: Config, store: Store, coordinator: CoordinatorService, ready: Callable[[str, int], None]
) -> None:
    try:
        await coordinator.start()
        await coordinator.wait_loaded()
        topics = TopicDirectory(store, config, lambda topic: coordinator.forget_topic(topic.name))
        await topics.finish_deletes()
    except StorageError as error:
        raise StoreError(f"the keyspace cannot be loaded: {error}") from error
    listener = Listener(config)
    endpoint = await listener.bind()
    services = Services(
        config=config,
        cluster_id=store.cluster_id,
        endpoint=endpoint,
        topics=topics,
        coordinator=coordinator,
        new_producer_id=store.new_producer_id,
        clock_ms=_now_ms,
        deadlines=Deadlines(asyncio.get_running_loop()),
    )
    lost = asyncio.get_running_loop().create_future()
    assert store.lease is not None
    store.lease.on_lost = lambda: None if lost.done() else lost.set_result(None)
    housekeeping = asyncio.create_task(keep_retention(topics, config, _now_ms))
    try:
        _spare_the_collector()
        await listener.start(Dispatcher(services, Backpressure(_IN_FLIGHT_BYTES)))
        ready(endpoint.host, endpoint.port)
        await lost
        raise StoreError("another broker has taken the keyspace over")
    finally:
        housekeeping.cancel()
        await asyncio.gather(housekeeping, return_exceptions=True)
        await listener.stop()


def _group_config(config: Config) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        offset_metadata_max_units=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        commit_value_version=config.offsets_commit_value_version,
    )


def _spare_the_collector() -> None:
    """Keep what lives as long as the process out of garbage collections, and collect less often.

    Requests make few cycles, and a collection over all topics and groups would stall every client.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
