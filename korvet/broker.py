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
from korvet.admin.service import AdminService
from korvet.api.common.password_checks import PasswordChecks
from korvet.api.common.request_counts import RequestCounts
from korvet.api.common.services import Services
from korvet.api.fetching.deadlines import Deadlines
from korvet.api.fetching.memory import FetchMemory
from korvet.api.fetching.sessions import FetchSessions
from korvet.api.producing.unpacking import Unpacking
from korvet.api.sharing.dead_letters import DeadLetters
from korvet.api.sharing.sharing import MOST_SHARE_SESSIONS, Sharing
from korvet.api.sharing.snapshots import ShareSnapshots
from korvet.causes import Causes
from korvet.cluster.mailbox import Mailbox
from korvet.cluster.releases import keep_tidy
from korvet.cluster.shared_configs import SharedConfigs
from korvet.cluster.shared_writes import SharedWrites
from korvet.config.live import LiveConfig
from korvet.config.machine_memory import machine_memory_bytes
from korvet.coordinator.exporter import NativeExporter
from korvet.coordinator.markers import LocalMarkers, MarkerWriter
from korvet.coordinator.peers import Peers
from korvet.coordinator.service import CoordinatorError, CoordinatorService
from korvet.coordinator.share_peers import SharePeers
from korvet.coordinator.transactions import TransactionService
from korvet.draining import hand_over
from korvet.embedded.disk_space import DiskSpace
from korvet.embedded.maxmemory import keep_maxmemory
from korvet.embedded.sockets import socket_of, url_of
from korvet.groups.config import GroupConfig
from korvet.logs import FollowedLevel
from korvet.observe.lag import LagWatch
from korvet.observe.led_partitions import LedPartitions, LogSizes
from korvet.observe.lifecycle import Lifecycle, Phase
from korvet.observe.memory import MemoryForecasts
from korvet.observe.parts import Parts
from korvet.outlook.copies import PartitionCopies
from korvet.outlook.outlook_log import watch_outlooks
from korvet.outlook.write_probe import WriteProbe
from korvet.protocol import registry
from korvet.quotas.throttle import ClientQuotas
from korvet.redis.clock import steady_s
from korvet.redis.errors import NoRoom, StorageError, StorageFault, StoreError
from korvet.redis.keys import Keyspace
from korvet.redis.server_watch import ServerWatch
from korvet.security.authorizer import Authorizer, parse_super_users
from korvet.security.credentials import Credentials
from korvet.server.backpressure import Backpressure
from korvet.server.dispatch import Dispatcher
from korvet.server.listener import Listener
from korvet.store import Store
from korvet.supervisor import end, keep, once
from korvet.topics.compaction import LogCleaner
from korvet.topics.configs import config_problem
from korvet.topics.directory import TopicDirectory
from korvet.topics.levels import default_level, setup_of
from korvet.topics.memory_limit import MemoryLimit
from korvet.topics.retention import keep_retention
from korvet.transactions.config import TransactionConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from korvet.admin.faults import FaultPages
    from korvet.config.address import Address
    from korvet.config.settings import Config
    from korvet.faults.table import FaultTable
    from korvet.log.resources import LogResources
    from korvet.outlook.durability import Setup
    from korvet.redis.refusals import Refusals

    Ready: TypeAlias = Callable[[Address, str], None]

log = logging.getLogger(__name__)
causes = Causes(log)

# Produced bytes in flight to Redis before clients are held back: enough to keep Redis busy, no more.
_IN_FLIGHT_BYTES: Final = 2 * 1024 * 1024
_COLLECTION_THRESHOLD: Final = 100_000
# Interval of checks of the free disk space: half of the reserve is for what is written between two checks.
_DISK_POLL_S: Final = 0.1
# Pause before a deletion that failed is tried again.
_DELETION_RETRY_S: Final = 1.0


async def run(
    config: Config, redis_url: str, ready: Ready, probe: str = "", *, ephemeral: bool = False
) -> None:
    """Serve until cancelled. `ready(address, admin)` is called once clients are accepted, with the advertised
    address, and the URL of the admin endpoint (empty without one). `probe`: see AdminService. `ephemeral`:
    the broker is one for tests, which may ask for faults, and whose data may be lost.

    Raises StoreError if Redis cannot be used, ConfigError if a TLS file cannot be used, and OSError if an
    address cannot be listened on.
    """
    api.load_all()
    # This takes time, and clients wait for the broker once it has its lease.
    freeze_long_lived_objects()
    lifecycle = Lifecycle()
    pages = _fault_pages() if ephemeral else None
    admin = AdminService(config, lifecycle, probe, pages)
    try:
        await admin.start()
        await _serve(config, redis_url, lifecycle, admin, ready, None if pages is None else pages.faults)
    finally:
        await admin.close()


async def _serve(
    config: Config,
    redis_url: str,
    lifecycle: Lifecycle,
    admin: AdminService,
    ready: Ready,
    faults: FaultTable | None,
) -> None:
    authorizer, credentials, quotas = _authorizer(config), Credentials(), ClientQuotas()
    live = LiveConfig(config)
    listener = Listener(live, authorizer, credentials, quotas)
    try:
        endpoints = await listener.bind()
        store = await _open_store(config, redis_url, endpoints, admin)
        groups = GroupConfig.from_settings(config)
        live.follow(groups.take)
        live.follow(partial(_follow, store.resources, FollowedLevel(config.log_level)))
        security = SharedConfigs(store.commands, authorizer, credentials, quotas, groups.own, live)
        disk = _embedded_disk(config, redis_url)
        parts = _assemble(live, lifecycle, listener, store, security, groups, disk)
        tasks = _server_tasks(parts)
        announcement = once("announcement", parts.mailbox.announce())
        try:
            setup = partial(_setup, parts, redis_url)
            address = next(iter(endpoints.values()))
            now_ready = partial(ready, address, admin.url(address.host))
            await _run(parts, admin, setup, now_ready, faults)
        finally:
            await end(*tasks, announcement)
            await parts.transactions.close()
            await parts.peers.close()
            await parts.coordinator.close()
            await store.close()
    finally:
        await listener.stop()


def _follow(resources: LogResources, log_level: FollowedLevel, config: Config) -> None:
    """Apply a changed log level and changed limits of memory."""
    log_level.follow(config.log_level)
    resources.tails.limit(config.tail_cache_bytes)
    resources.readaheads.limit_bytes = config.fetch_readahead_bytes


def _assemble(
    live: LiveConfig,
    lifecycle: Lifecycle,
    listener: Listener,
    store: Store,
    security: SharedConfigs,
    groups: GroupConfig,
    disk: DiskSpace | None,
) -> Parts:
    assert store.membership is not None
    config = live.static
    timeout_ms = config.offsets_commit_timeout_ms
    coordinator = _coordinator(store, live, groups, security)
    markers = LocalMarkers(store.logs, store.catalogue, coordinator, timeout_ms)
    mailbox = Mailbox(store.commands, store.membership)
    peers = Peers(store.logs, mailbox, markers)
    transactions = TransactionService(
        store.logs,
        store.catalogue,
        store.producer_ids,
        TransactionConfig.from_settings(config),
        MarkerWriter(peers.mark),
        peers,
        topic_partitions=config.transaction_state_log_num_partitions,
        message_max_bytes=lambda: live.now.message_max_bytes,
        release_timeout_ms=timeout_ms,
    )
    topics = TopicDirectory(store.catalogue, store.logs, live, coordinator)
    lag = LagWatch(live, store, store.membership.leadership, coordinator)
    led = LedPartitions(store.membership.leadership, store.catalogue, lambda: lag.shown_topics)
    servers = ServerWatch(store.router, store.resources.refusals)
    return Parts(
        live=live,
        lifecycle=lifecycle,
        listener=listener,
        store=store,
        member=store.membership,
        security=security,
        groups=groups,
        coordinator=coordinator,
        markers=markers,
        mailbox=mailbox,
        peers=peers,
        share_peers=SharePeers(coordinator, mailbox, store.membership.leadership),
        transactions=transactions,
        topics=topics,
        copies=PartitionCopies(store.router, store.commands.keyspace, time.monotonic),
        lag=lag,
        cleaner=LogCleaner(store.commands, store.logs, topics, live, _now_ms),
        servers=servers,
        led=led,
        log_sizes=LogSizes(led, store.logs),
        memory=_forecasts(store, topics, servers, disk),
        disk=disk,
    )


def _coordinator(
    store: Store, live: LiveConfig, groups: GroupConfig, security: SharedConfigs
) -> CoordinatorService:
    config = live.static
    waits = config.offsets_commit_required_acks == -1
    return CoordinatorService(
        store.commands,
        store.logs,
        store.catalogue,
        groups,
        refresh_configs=security.refresh,
        topic_partitions=config.offsets_topic_num_partitions,
        message_max_bytes=lambda: live.now.message_max_bytes,
        release_timeout_ms=config.offsets_commit_timeout_ms if waits else None,
    )


def _forecasts(
    store: Store, topics: TopicDirectory, servers: ServerWatch, disk: DiskSpace | None
) -> MemoryForecasts:
    assert store.membership is not None
    machine_bytes = 0 if disk is None else machine_memory_bytes()
    leadership = store.membership.leadership
    return MemoryForecasts(store.commands, leadership, topics, servers, machine_bytes, _now_ms)


async def _open_store(
    config: Config, redis_url: str, endpoints: Mapping[str, Address], admin: AdminService
) -> Store:
    """Raises StoreError when Redis can't be used."""
    endpoint = next(iter(endpoints.values()))
    return await Store.open(
        redis_url,
        Keyspace(config.keyspace),
        node_id=config.node_id,
        endpoint=endpoint,
        listeners=endpoints,
        admin=admin.url(endpoint.host),
        watch_interval_ms=config.native_poll_interval_ms,
        lease_ms=config.broker_session_timeout_ms,
        lead_cap_ms=config.append_lead_max_ms,
        level=default_level(config),
        tail_cache_bytes=config.tail_cache_bytes,
        readahead_bytes=config.fetch_readahead_bytes,
        config_problem=config_problem,
        timeout_ms=config.redis_socket_timeout_ms,
    )


async def _run(
    parts: Parts,
    admin: AdminService,
    setup: Callable[[], Setup],
    ready: Callable[[], None],
    faults: FaultTable | None,
) -> None:
    member = parts.member
    changes = _ChangeListener(parts)
    freeze_long_lived_objects()
    services, snapshots = _services(parts), _snapshots(parts)
    backpressure = Backpressure(_IN_FLIGHT_BYTES)
    if faults is None:
        dispatcher = Dispatcher(services, backpressure)
    else:
        from korvet.server.faulty_dispatch import FaultyDispatcher  # noqa: PLC0415  # see _fault_pages

        dispatcher = FaultyDispatcher(services, backpressure, faults)
    tasks: list[asyncio.Task[None]] = []
    try:
        parts.lifecycle.phase = Phase.LOADING
        admin.attach(parts, dispatcher, setup)
        await _load(parts, changes)
        dispatcher.request_log.follow(parts.live)
        tasks += [*_housekeeping(parts), keep("share groups", services.sharing.attend)]
        tasks.append(keep("share states", snapshots.run))
        freeze_long_lived_objects()
        # Other brokers send clients to this broker already; it reports to them what is still being loaded.
        await parts.listener.start(dispatcher)
        if not member.leadership.alone:
            await parts.coordinator.wait_loaded()
            await member.wait_known()
        parts.lifecycle.phase = Phase.SERVING
        ready()
        # The data of an ephemeral broker may be lost.
        if faults is None:
            # One broker is enough: the others would log the same.
            outlooks = partial(
                watch_outlooks, parts.store.router, setup, lambda: member.leadership.is_controller
            )
            tasks.append(keep("outlooks", outlooks))
        raise StoreError(str(await member.ended))
    finally:
        if parts.lifecycle.phase is Phase.SERVING:
            parts.lifecycle.phase = Phase.DRAINING
            # A broker that has lost its membership serves nobody.
            if member.ended.cancelled():
                await asyncio.sleep(parts.config.drain_wait_ms / 1000)
        await end(*tasks)
        if not member.leadership.alone:
            await hand_over(parts)
        parts.lifecycle.phase = Phase.STOPPING
        await parts.listener.stop()
        services.password_checks.close()
        services.unpacking.close()
        await services.sharing.stop()
        await snapshots.close()
        await changes.close()


def _setup(parts: Parts, redis_url: str) -> Setup:
    return setup_of(
        parts.topics.listed(),
        parts.store.resources.level,
        redis_url,
        embedded=parts.disk is not None,
        reserve_bytes=parts.config.disk_reserve_bytes,
        named_replicas=parts.store.router.named_replicas,
    )


def _services(parts: Parts) -> Services:
    loop = asyncio.get_running_loop()
    config = parts.config
    shared_writes = SharedWrites(parts.store.commands, lambda: parts.store.resources.level)
    return Services(
        live=parts.live,
        cluster_id=parts.store.commands.cluster_id,
        leadership=parts.member.leadership,
        check_lease=parts.member.check,
        topics=parts.topics,
        copies=parts.copies,
        coordinator=parts.coordinator,
        groups=parts.groups,
        transactions=parts.transactions,
        markers=parts.markers,
        security=parts.security,
        shared_writes=shared_writes,
        password_checks=PasswordChecks(),
        quotas=parts.security.quotas,
        new_producer_id=parts.store.producer_ids.allocate,
        clock_ns=time.time_ns,
        requests=RequestCounts(registry.registered()),
        deadlines=Deadlines(loop),
        native_watcher=parts.store.resources.watcher,
        servers=parts.servers,
        fetch_memory=FetchMemory(config.fetch_buffer_bytes, loop),
        fetch_sessions=FetchSessions(config.max_incremental_fetch_session_cache_slots),
        sharing=_sharing(parts, shared_writes),
        unpacking=Unpacking(config.decompression_buffer_bytes, loop),
    )


def _sharing(parts: Parts, shared_writes: SharedWrites) -> Sharing:
    leadership = parts.member.leadership
    return Sharing(
        parts.store.commands,
        parts.topics,
        parts.groups,
        parts.security.features,
        parts.share_peers,
        partial(DeadLetters, parts.topics, leadership, parts.mailbox, parts.live, shared_writes),
        lambda topic, index: leadership.leader_epoch_of(topic, index) is not None,
        parts.coordinator.sharing.changes,
        MOST_SHARE_SESSIONS,
    )


def _snapshots(parts: Parts) -> ShareSnapshots:
    leadership, changes = parts.member.leadership, parts.coordinator.sharing.changes
    return ShareSnapshots(parts.store.commands, parts.topics, leadership, parts.mailbox, parts.live, changes)


async def _load(parts: Parts, changes: _ChangeListener) -> None:
    """Read the keyspace and follow its changes from then on. Raises StoreError."""
    try:
        await parts.security.refresh()
        await parts.coordinator.start()
        parts.transactions.follow_assignment()
        parts.member.changes.attach(changes)
        parts.member.changes.attach(parts.mailbox)
        parts.member.begin()
        if parts.member.leadership.alone:
            await parts.coordinator.wait_loaded()
    except StorageError as error:
        raise StoreError(f"the keyspace cannot be loaded: {error}") from error


def _server_tasks(parts: Parts) -> list[asyncio.Task[None]]:
    """The tasks that run from the opening of the store to its closing."""
    store = parts.store
    probe = WriteProbe(store.router, store.catalogue, store.resources)
    tasks = [keep("mail", parts.mailbox.run), keep("probes of writes", probe.run)]
    if parts.disk is not None:
        tasks.append(keep("disk space", partial(_watch_disk_space, store.resources.refusals, parts.disk)))
    return tasks


def _housekeeping(parts: Parts) -> list[asyncio.Task[None]]:
    """The background work while clients are served."""
    config, security, topics = parts.config, parts.security, parts.topics
    store = parts.store
    limit = MemoryLimit(store.commands, store.router, parts.member.leadership, topics, parts.live, _now_ms)
    guards = security.authorizer is not None or any(spec.authenticates for spec in config.listener_specs)
    tasks = [
        keep(
            "retention", partial(keep_retention, store.commands, topics, store.catalogue, parts.live, _now_ms)
        ),
        keep("memory limit", limit.run),
        keep("compaction", parts.cleaner.run),
        keep("replicas", parts.copies.run),
        keep("libraries", partial(keep_tidy, store.router, store.commands, parts.member.leadership)),
        keep("state of Redis", parts.servers.run),
        keep("memory forecast", parts.memory.run),
        keep("users, ACLs and quotas", partial(security.keep_up, guards=guards)),
    ]
    if parts.disk is not None:
        maxmemory = partial(keep_maxmemory, parts.live, parts.store.router, parts.servers)
        tasks.append(keep("maxmemory", maxmemory))
    if config.serves_admin:
        tasks.append(keep("record counts", parts.lag.run))
        tasks.append(keep("sizes of logs", parts.log_sizes.run))
    if config.native_groups_enable:
        interval_ms = config.native_groups_interval_ms
        exporter = NativeExporter(store.commands, store.catalogue, parts.coordinator, interval_ms)
        tasks.append(keep("Redis groups", exporter.run))
    return tasks


def _embedded_disk(config: Config, redis_url: str) -> DiskSpace | None:
    """Returns the disk of the embedded server; None if korvet uses another Redis."""
    if not redis_url.startswith("unix:"):
        return None
    folder = Path(config.data_dir).absolute()
    socket = socket_of(folder)
    if socket is None or redis_url != url_of(socket):
        return None
    return DiskSpace(folder, config.disk_reserve_bytes)


async def _watch_disk_space(refusals: Refusals, disk: DiskSpace) -> None:
    """Refuse clients' records while only the disk reserve is left, which commits and leases need."""
    while True:
        if disk.check():
            refusal = NoRoom(
                f"the broker's disk has {disk.free_bytes} bytes left, and {disk.reserve_bytes} are reserved "
                "(disk.reserve.bytes)"
            )
            refusals.short_disk(refusal if disk.is_short else None, steady_s())
        await asyncio.sleep(_DISK_POLL_S)


class _ChangeListener:
    """What topics and coordinators do when other brokers have changed something."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._finishing: asyncio.Task[None] | None = None

    def follow_assignment(self) -> None:
        """Coordinate the groups and transactions of the partitions that this broker leads now."""
        self._parts.coordinator.follow_assignment()
        self._parts.transactions.follow_assignment()

    async def complete_changes(self) -> None:
        """Return once this broker's groups are loaded, without deleted topics. Raises StorageError."""
        # Another broker may have created `__transaction_state`; a failover may have lost both topics.
        self._parts.transactions.follow_assignment()
        await self._parts.coordinator.start()
        await self._parts.coordinator.wait_loaded()
        try:
            await self._parts.topics.forget_deleted()
        except CoordinatorError as error:
            raise StorageFault(f"offsets of a deleted topic cannot be forgotten: {error}") from error
        if self._finishing is None or self._finishing.done():
            self._finishing = once("deletions", self._finish_deletes())

    async def close(self) -> None:
        """Cancel deletions in progress; another broker finishes them, or this one after its next start."""
        await end(self._finishing)

    async def _finish_deletes(self) -> None:
        """If this broker is the controller, finish the deletions that another broker may have left."""
        while self._parts.member.leadership.is_controller and self._parts.topics.deletes_are_pending:
            try:
                await self._parts.topics.finish_deletes()
            except (StorageError, CoordinatorError) as error:
                causes.warn(error, "a deletion is not finished yet: %s", error, work="deletions")
                await asyncio.sleep(_DELETION_RETRY_S)
            else:
                causes.ended("deletions")


def _fault_pages() -> FaultPages:
    from korvet.admin.faults import FaultPages  # noqa: PLC0415  # other brokers don't load what makes faults

    return FaultPages()


def _authorizer(config: Config) -> Authorizer | None:
    if not config.authorizer_class_name:
        return None
    return Authorizer(
        parse_super_users(config.super_users), allow_everyone=config.allow_everyone_if_no_acl_found
    )


def freeze_long_lived_objects() -> None:
    """Exclude objects that live as long as the process from garbage collections, and collect less often.

    Requests create few reference cycles, and a collection over all topics and groups would stall every
    client. Loading creates none: with Python's own threshold, collections would take a third of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTION_THRESHOLD)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
