"""The running parts of one broker, which collectors and the admin endpoint read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from korvet.cluster.mailbox import Mailbox
    from korvet.cluster.membership import Membership
    from korvet.cluster.shared_configs import SharedConfigs
    from korvet.config.live import LiveConfig
    from korvet.config.settings import Config
    from korvet.coordinator.markers import LocalMarkers
    from korvet.coordinator.peers import Peers
    from korvet.coordinator.service import CoordinatorService
    from korvet.coordinator.share_peers import SharePeers
    from korvet.coordinator.transactions import TransactionService
    from korvet.embedded.disk_space import DiskSpace
    from korvet.groups.config import GroupConfig
    from korvet.observe.lag import LagWatch
    from korvet.observe.led_partitions import LedPartitions, LogSizes
    from korvet.observe.lifecycle import Lifecycle
    from korvet.observe.memory import MemoryForecasts
    from korvet.outlook.copies import PartitionCopies
    from korvet.redis.server_watch import ServerWatch
    from korvet.server.listener import Listener
    from korvet.store import Store
    from korvet.topics.compaction import LogCleaner
    from korvet.topics.directory import TopicDirectory


class Parts(NamedTuple):
    """What one broker consists of."""

    live: LiveConfig
    lifecycle: Lifecycle
    listener: Listener
    store: Store
    member: Membership
    security: SharedConfigs
    groups: GroupConfig
    coordinator: CoordinatorService
    markers: LocalMarkers
    mailbox: Mailbox
    peers: Peers
    share_peers: SharePeers
    transactions: TransactionService
    topics: TopicDirectory
    copies: PartitionCopies
    lag: LagWatch
    cleaner: LogCleaner
    servers: ServerWatch
    led: LedPartitions
    log_sizes: LogSizes
    memory: MemoryForecasts
    disk: DiskSpace | None
    """The disk of the embedded server; None if korvet uses another Redis."""

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.live.now
