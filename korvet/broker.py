"""One broker process put together: store, coordinator, topics, listener, housekeeping."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from korvet import api
from korvet.api.deadlines import Deadlines
from korvet.api.services import Services
from korvet.config import Address, Config
from korvet.coordinator.service import CoordinatorService
from korvet.groups.config import GroupConfig
from korvet.server.backpressure import Backpressure
from korvet.server.connection import Connection
from korvet.server.dispatch import Dispatcher
from korvet.storage.errors import StorageError, StoreError
from korvet.storage.keys import Keyspace
from korvet.storage.store import Store
from korvet.topics.directory import TopicDirectory
from korvet.topics.retention import keep_retention

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

log = logging.getLogger(__name__)

# Produced bytes on their way to Redis before clients are held back: enough to keep Redis busy, no more.
_IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
# Connections that the kernel keeps for us while we are busy: clients reconnect all at once after a restart.
_BACKLOG: Final = 4096
_DRAIN_TIMEOUT_S: Final = 5.0
_COLLECTION_THRESHOLD: Final = 100_000
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})


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
    listener = _Listener(config)
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


class _Listener:
    """The listening socket and the connections that came through it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._dispatch: Dispatcher | None = None

    async def bind(self) -> Address:
        """Take the address, without accepting yet; the address that clients are to be told."""
        host, port = self._config.listen_address
        self._server = await asyncio.get_running_loop().create_server(
            self._connect,
            host,
            port,
            backlog=_BACKLOG,
            start_serving=False,
        )
        bound = self._server.sockets[0].getsockname()
        if self._config.advertise_address is not None:
            return self._config.advertise_address
        return Address("localhost" if host in _EVERY_ADDRESS else host, bound[1])

    async def start(self, dispatch: Dispatcher) -> None:
        """Accept clients."""
        assert self._server is not None
        self._dispatch = dispatch
        await self._server.start_serving()

    async def stop(self) -> None:
        """Accept no more, answer what is at work, close all connections."""
        if self._server is not None:
            self._server.close()
        if self._dispatch is not None:
            await _within(self._dispatch.finish(), _DRAIN_TIMEOUT_S)
        for connection in list(self._connections):
            connection.shut_down()

    def _connect(self) -> Connection:
        assert self._dispatch is not None
        return Connection(self._dispatch, self._config.socket_request_max_bytes, self._connections)


async def _within(work: Coroutine[Any, Any, None], timeout_s: float) -> None:
    try:
        await asyncio.wait_for(work, timeout_s)
    except TimeoutError:
        log.warning("requests are still at work after %.0f s; their connections are closed", timeout_s)


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
