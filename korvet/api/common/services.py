"""The parts of the broker that handlers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from korvet.api.common.password_checks import PasswordChecks
    from korvet.api.common.request_counts import RequestCounts
    from korvet.api.fetching.deadlines import Deadlines
    from korvet.api.fetching.memory import FetchMemory
    from korvet.api.fetching.sessions import FetchSessions
    from korvet.api.producing.unpacking import Unpacking
    from korvet.api.sharing.sharing import Sharing
    from korvet.cluster.leadership import Leadership
    from korvet.cluster.shared_configs import SharedConfigs
    from korvet.cluster.shared_writes import SharedWrites
    from korvet.config.live import LiveConfig
    from korvet.config.settings import Config
    from korvet.coordinator.markers import LocalMarkers
    from korvet.coordinator.service import CoordinatorService
    from korvet.coordinator.transactions import TransactionService
    from korvet.groups.config import GroupConfig
    from korvet.log.native_watcher import NativeWatcher
    from korvet.outlook.copies import PartitionCopies
    from korvet.quotas.throttle import ClientQuotas
    from korvet.redis.server_watch import ServerWatch
    from korvet.topics.directory import TopicDirectory


class Services(msgspec.Struct, frozen=True):
    """The broker's parts. `leadership` knows the leaders; `new_producer_id` allocates an ID (KIP-98)."""

    live: LiveConfig
    cluster_id: str
    leadership: Leadership
    check_lease: Callable[[], None]
    topics: TopicDirectory
    copies: PartitionCopies
    coordinator: CoordinatorService
    groups: GroupConfig
    transactions: TransactionService
    markers: LocalMarkers
    security: SharedConfigs
    shared_writes: SharedWrites
    password_checks: PasswordChecks
    quotas: ClientQuotas
    new_producer_id: Callable[[], Awaitable[int]]
    clock_ns: Callable[[], int]
    requests: RequestCounts
    deadlines: Deadlines
    native_watcher: NativeWatcher
    servers: ServerWatch
    fetch_memory: FetchMemory
    fetch_sessions: FetchSessions
    sharing: Sharing
    unpacking: Unpacking

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.live.now
