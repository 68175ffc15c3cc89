"""One broker process put together: store, coordinator, topics, listener, housekeeping."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from korvet import api
from korvet.api.common.password_checks import PasswordChecks
from korvet.api.common.services import Services
from korvet.api.fetching.deadlines import Deadlines
from korvet.api.fetching.memory import FetchMemory
from korvet.api.fetching.sessions import FetchSessions
from korvet.api.producing.unpacking import Unpacking
from korvet.coordinator.exporter import NativeExporter
from korvet.coordinator.markers import LocalMarkers, MarkerWriter
from korvet.coordinator.peers import Peers
from korvet.coordinator.service import CoordinatorError, CoordinatorService
from korvet.coordinator.transactions import TransactionService
from korvet.embedded import socket_of
from korvet.embedded.room import Room
from korvet.groups.config import GroupConfig, MigrationPolicy
from korvet.quotas.throttle import ClientQuotas
from korvet.security.authorizer import Authorizer, parse_super_users
from korvet.security.credentials import Credentials
from korvet.server.backpressure import Backpressure
from korvet.server.dispatch import Dispatcher
from korvet.server.listener import Listener
from korvet.server.scheduling import keep_scheduling
from korvet.storage.brokers.mailbox import Mailbox
from korvet.storage.errors import NoRoom, StorageError, StorageFault, StoreError
from korvet.storage.keys import Keyspace
from korvet.storage.link.eviction import EvictionWatch
from korvet.storage.shared_configs import SecurityStore
from korvet.storage.store import Store
from korvet.supervisor import keep, once
from korvet.topics.compaction import LogCleaner
from korvet.topics.configs import config_problem
from korvet.topics.directory import TopicDirectory
from korvet.topics.retention import keep_retention
from korvet.transactions.config import TransactionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.config.address import Address
    from korvet.config.settings import Config
    from korvet.storage.brokers.membership import Membership

log = logging.getLogger(__name__)

# Produced bytes on their way to Redis before clients are held back: enough to keep Redis busy, no more.
_IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
_COLLECTION_THRESHOLD: Final = 100_000
# How often free space is looked at: half of the reserve is for what is written in between.
_ROOM_POLL_S: Final = 0.1


async def run(config: Config, redis_url: str, ready: Callable[[str, int], None]) -> None:
    """Serve until cancelled. `ready(host, port)` is called once clients are accepted, with the address told
    to them.

    Raises StoreError when Redis can't be used, ConfigError when TLS files can't, and OSError
    when an address can't be listened on.
    """
    api.load_all()
    authorizer, credentials, quotas = _authorizer(config), Credentials(), ClientQuotas()
    listener = Listener(config, authorizer, credentials, quotas)
    try:
        endpoints = await listener.bind()
        endpoint = next(iter(endpoints.values()))
        store = await _open_store(config, redis_url, endpoints)
        groups = _group_config(config)
        security = SecurityStore(store, authorizer, credentials, quotas, groups.own)
        coordinator = CoordinatorService(
            store,
            store.catalogue,
            groups,
            topic_partitions=config.offsets_topic_num_partitions,
            message_max_bytes=config.message_max_bytes,
        )
        markers = LocalMarkers(store, store.catalogue, coordinator)
        assert store.membership is not None
        mailbox = Mailbox(store, store.membership)
        peers = Peers(store, mailbox, markers)
        transactions = TransactionService(
            store,
            store.catalogue,
            _transaction_config(config),
            MarkerWriter(peers.mark),
            peers,
            topic_partitions=config.transaction_state_log_num_partitions,
            message_max_bytes=config.message_max_bytes,
        )
        beside = [keep("mail", mailbox.run)]
        room = _room(config, redis_url)
        if room is not None:
            beside.append(keep("disk space", partial(_watch_room, store, room)))
        try:
            await _run(
                config,
                store,
                security,
                groups,
                coordinator,
                transactions,
                markers,
                listener,
                lambda: ready(*endpoint),
            )
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await transactions.close()
            await peers.close()
            await coordinator.close()
            await store.close()
    finally:
        await listener.stop()


async def _open_store(config: Config, redis_url: str, endpoints: Mapping[str, Address]) -> Store:
    """Raises StoreError when Redis can't be used."""
    return await Store.open(
        redis_url,
        Keyspace(config.keyspace),
        node_id=config.node_id,
        endpoint=next(iter(endpoints.values())),
        listeners=endpoints,
        watch_interval_ms=config.native_poll_interval_ms,
        lease_ms=config.broker_session_timeout_ms,
        lead_cap_ms=config.append_lead_max_ms,
        tail_cache_bytes=config.tail_cache_bytes,
        readahead_bytes=config.fetch_readahead_bytes,
        config_problem=config_problem,
        timeout_ms=config.redis_socket_timeout_ms,
    )


async def _run(
    config: Config,
    store: Store,
    security: SecurityStore,
    groups: GroupConfig,
    coordinator: CoordinatorService,
    transactions: TransactionService,
    markers: LocalMarkers,
    listener: Listener,
    ready: Callable[[], None],
) -> None:
    member = store.membership
    assert member is not None
    topics = TopicDirectory(store, config, coordinator)
    follower = _Follower(topics, coordinator, transactions, member)
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    member.on_lost = lambda error: None if lost.done() else lost.set_exception(StoreError(str(error)))
    spare_the_collector()
    await _load(security, coordinator, transactions, topics, follower, member)
    services = Services(
        config=config,
        cluster_id=store.cluster_id,
        membership=member,
        topics=topics,
        coordinator=coordinator,
        groups=groups,
        transactions=transactions,
        markers=markers,
        security=security,
        password_checks=PasswordChecks(),
        quotas=security.quotas,
        new_producer_id=store.new_producer_id,
        clock_ns=time.time_ns,
        deadlines=Deadlines(asyncio.get_running_loop()),
        fetch_memory=FetchMemory(config.fetch_buffer_bytes, asyncio.get_running_loop()),
        fetch_sessions=FetchSessions(config.max_incremental_fetch_session_cache_slots),
        unpacking=Unpacking(config.decompression_buffer_bytes, asyncio.get_running_loop()),
    )
    security.quotas.on_change = listener.forget_repeats
    backpressure = Backpressure(_IN_FLIGHT_BYTES)
    scheduling = partial(keep_scheduling, backpressure, config.bulk_scheduling_bytes_per_second)
    housekeeping = [
        *_housekeeping(config, store, security, topics, coordinator),
        keep("scheduling", scheduling),
    ]
    try:
        spare_the_collector()
        # Others send clients to us already, who are told what is still being loaded.
        await listener.start(Dispatcher(services, backpressure))
        if not member.alone:
            await coordinator.wait_loaded()
            await member.made_known()
        ready()
        await lost
    finally:
        for task in housekeeping:
            task.cancel()
        await asyncio.gather(*housekeeping, return_exceptions=True)
        if not member.alone:
            # Others take over while clients still hear from us that they should ask them.
            await member.leave()
        await listener.stop()
        services.password_checks.close()
        services.unpacking.close()
        await follower.close()


async def _load(
    security: SecurityStore,
    coordinator: CoordinatorService,
    transactions: TransactionService,
    topics: TopicDirectory,
    follower: _Follower,
    member: Membership,
) -> None:
    """Read the keyspace and begin to follow it. Raises StoreError."""
    try:
        await security.refresh()
        await coordinator.start()
        transactions.follow_assignment()
        member.attach(follower)
        member.begin()
        if member.alone:
            await coordinator.wait_loaded()
            await topics.finish_deletes()
    except StorageError as error:
        raise StoreError(f"the keyspace cannot be loaded: {error}") from error


def _housekeeping(
    config: Config,
    store: Store,
    security: SecurityStore,
    topics: TopicDirectory,
    coordinator: CoordinatorService,
) -> list[asyncio.Task[None]]:
    """The work beside that for clients."""
    guards = security.authorizer is not None or any(spec.authenticates for spec in config.listener_specs)
    tasks = [
        keep("retention", partial(keep_retention, topics, config, _now_ms)),
        keep("compaction", LogCleaner(store, topics, config, _now_ms).run),
        keep("watch for evictions", EvictionWatch(store.router).run),
        keep("users, ACLs and quotas", partial(security.keep_up, guards=guards)),
    ]
    if config.native_groups_enable:
        exporter = NativeExporter(store, coordinator, config.native_groups_interval_ms)
        tasks.append(keep("Redis groups", exporter.run))
    return tasks


def _room(config: Config, redis_url: str) -> Room | None:
    """The free space of the disk that Redis writes to, if it is the embedded server of our data folder."""
    folder = Path(config.data_dir).absolute()
    if not redis_url.startswith("unix://") or redis_url != f"unix://{socket_of(folder)}":
        return None
    return Room(folder, config.disk_reserve_bytes)


async def _watch_room(store: Store, room: Room) -> None:
    """Refuse clients' records while the disk has nothing but its reserve, which groups and brokers need."""
    while True:
        if room.look():
            refusal = NoRoom(
                f"the broker's disk has {room.free_bytes} bytes left, and {room.reserve_bytes} are reserved"
            )
            store.no_room = refusal if room.is_short else None
            if room.is_short:
                log.error("clients' records are refused: %s (disk.reserve.bytes)", refusal)
            else:
                log.info("clients' records are taken again: %d bytes are free", room.free_bytes)
        await asyncio.sleep(_ROOM_POLL_S)


class _Follower:
    """What topics and coordinator do when other brokers have changed something."""

    def __init__(
        self,
        topics: TopicDirectory,
        coordinator: CoordinatorService,
        transactions: TransactionService,
        member: Membership,
    ) -> None:
        self._topics = topics
        self._coordinator = coordinator
        self._transactions = transactions
        self._member = member
        self._finishing: asyncio.Task[None] | None = None

    def follow_assignment(self) -> None:
        """Coordinate what is ours now."""
        self._coordinator.follow_assignment()
        self._transactions.follow_assignment()

    async def settle(self) -> None:
        """Return once our groups are loaded and know of deleted topics no more. Raises StorageError."""
        # Another broker may have made the topic.
        self._transactions.follow_assignment()
        await self._coordinator.wait_loaded()
        try:
            await self._topics.forget_deleted()
        except CoordinatorError as error:
            raise StorageFault(f"offsets of a deleted topic cannot be forgotten: {error}") from error
        busy = self._finishing is not None and not self._finishing.done()
        if self._member.controls and not busy and self._topics.deletes_are_pending:
            self._finishing = once("deletions", self._finish_deletes())

    async def close(self) -> None:
        """End what is under way; it is finished by another broker, or after the next start."""
        if self._finishing is not None:
            self._finishing.cancel()
            await asyncio.gather(self._finishing, return_exceptions=True)

    async def _finish_deletes(self) -> None:
        """Those that another broker began; it may have died since."""
        try:
            await self._topics.finish_deletes()
        except (StorageError, CoordinatorError) as error:
            log.warning("a deletion is not finished yet: %s", error)


def _authorizer(config: Config) -> Authorizer | None:
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        parse_super_users(config.super_users), allow_everyone=config.allow_everyone_if_no_acl_found
    )


def _group_config(config: Config) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        offset_metadata_max_units=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        commit_value_version=config.offsets_commit_value_version,
        assignors=config.consumer_assignors,
        consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        consumer_min_session_timeout_ms=config.group_consumer_min_session_timeout_ms,
        consumer_max_session_timeout_ms=config.group_consumer_max_session_timeout_ms,
        consumer_min_heartbeat_interval_ms=config.group_consumer_min_heartbeat_interval_ms,
        consumer_max_heartbeat_interval_ms=config.group_consumer_max_heartbeat_interval_ms,
        consumer_max_size=config.group_consumer_max_size,
        consumer_assignment_interval_ms=config.group_consumer_assignment_interval_ms,
        migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
    )


def _transaction_config(config: Config) -> TransactionConfig:
    return TransactionConfig(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
    )


def spare_the_collector() -> None:
    """Keep what lives as long as the process out of garbage collections, and collect less often.

    Requests make few cycles, and a collection over all topics and groups would stall every client. Loading
    them makes none: with Python's own threshold a third of it would go into looking for some.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
