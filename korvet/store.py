"""One keyspace in Redis with all that a process has open of it: the composition root of the storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.cluster.catalogue import Catalogue
from korvet.cluster.identity import open_keyspace
from korvet.cluster.membership import Membership
from korvet.cluster.producer_ids import ProducerIds
from korvet.config.address import redacted
from korvet.log.broker_logs import Logs
from korvet.log.native_watcher import NativeWatcher
from korvet.log.readahead import DEFAULT_BYTES as DEFAULT_READAHEAD_BYTES
from korvet.log.readahead import ReadAheadBudget
from korvet.log.release import level_of
from korvet.log.resources import DEFAULT_LEAD_CAP_MS, LogResources
from korvet.log.tail_cache import DEFAULT_BYTES, TailBudget
from korvet.redis.address import DEFAULT_TIMEOUT_MS
from korvet.redis.barrier import Level
from korvet.redis.commands import Commands
from korvet.redis.errors import StorageError, StoreError
from korvet.redis.opening import connect, load_libraries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.cluster.catalogue import ConfigProblem
    from korvet.config.address import Address
    from korvet.redis.keys import Keyspace
    from korvet.redis.server import Router


class Store:
    """The parts of the storage, connected with each other."""

    def __init__(self, router: Router, resources: LogResources, config_problem: ConfigProblem) -> None:
        """Use `open`."""
        self.router = router
        self.commands = resources.commands
        self.resources = resources
        self.logs = Logs(resources)
        self.catalogue = Catalogue(
            self.commands,
            config_problem,
            changed=self.logs.update,
            gone=self.logs.close_topic,
            level=lambda topic: level_of(topic, resources.level),
        )
        self.producer_ids = ProducerIds(self.commands)
        router.on_up = self.logs.follow_reconnection
        router.on_moved = self.logs.follow_servers

    @property
    def membership(self) -> Membership | None:
        """None for tools: they are no brokers."""
        return self.logs.membership

    @classmethod
    async def open(
        cls,
        url: str,
        keyspace: Keyspace,
        *,
        node_id: int | None = None,
        endpoint: Address | None = None,
        listeners: Mapping[str, Address] | None = None,
        admin: str = "",
        watch_interval_ms: int = 75,
        lease_ms: int = 5000,
        lead_cap_ms: int = DEFAULT_LEAD_CAP_MS,
        level: Level | None = None,
        tail_cache_bytes: int = DEFAULT_BYTES,
        readahead_bytes: int = DEFAULT_READAHEAD_BYTES,
        config_problem: ConfigProblem = lambda name, value: None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> Store:
        """Connect to Redis, check that this program can use it, and read the topic catalogue.

        With a `node_id` this process becomes a live broker of the keyspace: clients find it at `endpoint`, or
        at the endpoint of the listener that they use; `admin` is the URL of its admin endpoint. Tools have no
        `node_id`. `level`: what records need
        before readers see them, unless a topic has its own configs; nothing without it. `timeout_ms`: how
        long a connection may be silent while a reply is due.

        Raises StoreError with a message for the terminal if a server cannot be reached, refuses the
        connection, is too old, is a replica or may evict our keys; if the keyspace has another format; if
        another live broker has the node id.
        """
        router = await connect(url, timeout_ms)
        opened: Store | Router = router
        try:
            cluster_id = await open_keyspace(Commands(keyspace, router))
            # Only now: the library would damage the logs of a keyspace of another format.
            await load_libraries(router)
            resources = LogResources(
                Commands(keyspace, router, cluster_id),
                lead_cap_ms=lead_cap_ms,
                level=level or Level(),
                tails=TailBudget(tail_cache_bytes),
                readaheads=ReadAheadBudget(readahead_bytes),
                watcher=NativeWatcher(watch_interval_ms),
            )
            opened = store = cls(router, resources, config_problem)
            if node_id is not None:
                assert endpoint is not None
                commands, catalogue = store.commands, store.catalogue
                store.logs.follow(
                    await Membership.join(
                        commands, catalogue, node_id, endpoint, lease_ms, resources.refusals, listeners, admin
                    )
                )
            await store.catalogue.load()
        except BaseException as error:
            await opened.close()
            if isinstance(error, StorageError) and not isinstance(error, StoreError):
                raise StoreError(f"{redacted(url)}: {error}") from error
            raise
        return store

    async def close(self) -> None:
        """Refuse further use of the logs, give the lease back and close all connections."""
        await self.logs.close()
        if self.membership is not None:
            await self.membership.leave()
        await self.router.close()
