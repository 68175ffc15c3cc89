"""Redis Cluster: which primary holds which slot, and links to each primary."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from korvet.causes import Causes
from korvet.redis.errors import LinkLost, StorageError, StoreError
from korvet.redis.info import parse_info
from korvet.redis.link import RedisLink
from korvet.redis.server import Server
from korvet.redis.slot_links import RETRY_PAUSE_S, SlotLinks, connected_soon
from korvet.redis.slots import SLOTS, UNNAMED, parse_slots, redirected_to, slot_of
from korvet.supervisor import end, keep, once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from korvet.redis.address import RedisAddress
    from korvet.redis.errors import RedisFault
    from korvet.redis.slots import NodeAddress, SlotRange

log = logging.getLogger(__name__)
causes = Causes(log)

# Interval of reads of the map if nothing asks for one: a node that hangs breaks no connection.
_MAP_PERIOD_S: Final = 2.0
# Interval of reads of the map while a node is away.
_MAP_RETRY_S: Final = 0.1
_MAP_TIMEOUT_S: Final = 1.0
# How long the links to a server without slots stay open; replies that are due after that are lost.
_IDLE_S: Final = 1.0
_OPEN_TIMEOUT_S: Final = 10.0


class Cluster:
    """All primaries and the map of the slots: `Router`, `SlotMap`, `Owner`. Use from one event loop only."""

    def __init__(self, seeds: Sequence[RedisAddress]) -> None:
        """Use `open`."""
        self.on_up: Callable[[], None] | None = None
        self.on_moved: Callable[[Callable[[bytes], bool]], None] | None = None
        self._seeds = seeds
        self._servers: dict[NodeAddress, Server] = {}
        self._owners: list[Server | None] = [None] * SLOTS
        self._slots: dict[int, SlotLinks] = {}
        # Nodes that are asked for the map if no known primary answers.
        self._others: set[NodeAddress] = set()
        # When each server without slots lost its last slot.
        self._idle: dict[Server, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted = asyncio.Event()
        self._reading: asyncio.Task[StorageError | None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, seeds: Sequence[RedisAddress]) -> Cluster:
        """Read the map from one of the nodes, and connect to all primaries. Raises StoreError."""
        if any(seed.database for seed in seeds):
            raise StoreError("a cluster has database 0 only")
        cluster = cls(seeds)
        try:
            await cluster._connect()
        except BaseException:
            await cluster.close()
            raise
        cluster.spawn("map of the cluster", cluster._keep)
        return cluster

    async def _connect(self) -> None:
        deadline = asyncio.get_running_loop().time() + _OPEN_TIMEOUT_S
        while True:
            try:
                await self.refresh()
            except StorageError as error:
                raise StoreError(str(error)) from error
            away = [server.address for server in self.servers() if not server.connected]
            if not self.servers():
                raise StoreError("no node of the cluster has slots")
            if not away:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise StoreError(f"nodes of the cluster cannot be reached: {', '.join(map(str, away))}")
            await asyncio.sleep(RETRY_PAUSE_S)

    # Router

    def links(self, key: bytes) -> SlotLinks:
        """See Router."""
        slot = slot_of(key)
        found = self._slots.get(slot)
        if found is None:
            # Any node reports that no node has the slot.
            owner = self._owners[slot] or next(iter(self._servers.values()))
            found = self._slots[slot] = SlotLinks(self, slot, owner)
        return found

    def servers(self) -> Collection[Server]:
        """See Router."""
        return {owner: None for owner in self._owners if owner is not None}.keys()

    @property
    def named_replicas(self) -> int:
        """See Router."""
        return 0

    async def close(self) -> None:
        """See Router."""
        self._closed = True
        await end(*self._tasks, self._reading)
        for links in self._slots.values():
            links.write_functions.give_up()
            links.read.give_up()
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    # SlotMap

    def server_at(self, address: NodeAddress) -> Server:
        """See SlotMap."""
        found = self._servers.get(address)
        if found is None:
            found = self._servers[address] = Server.begin(self._redis_address(address), self)
            log.info("node %s of the cluster", found.address)
        self._idle.pop(found, None)
        return found

    async def follow(self, slot: int, refused_by: Server, fault: RedisFault) -> None:
        """See SlotMap."""
        await self._try_refresh()
        named = redirected_to(fault, refused_by.address.host)
        if self._owners[slot] is refused_by and named[0] != UNNAMED:
            # The map came from a node that has not heard of the move yet.
            server = self.server_at(named)
            await connected_soon(server)
            # A primary that redirects to another one gave the slot away, with all writes.
            lossy = not await refused_by.still_leads() and await _lossy([(refused_by, server)])
            if self._owners[slot] is refused_by:
                if lossy:
                    self._report_moved({slot})
                self._assign({slot: server})

    def refresh_soon(self) -> None:
        """See SlotMap and Owner."""
        self._wanted.set()

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work()` until it returns or the cluster is closed; restart it after an exception."""
        if self._closed:
            return
        task = keep(name, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Owner

    def came_up(self) -> None:
        """See Owner."""
        self.refresh_soon()
        if self.on_up is not None:
            self.on_up()

    def may_have_lost(self, server: Server) -> None:
        """See Owner."""
        self._report_moved({slot for slot, owner in enumerate(self._owners) if owner is server})

    # The map

    async def refresh(self) -> None:
        """Read the map (CLUSTER SLOTS), or wait for the read in progress. Raises LinkLost if no node
        answers.
        """
        if self._reading is None or self._reading.done():
            self._reading = once("reading the map of the cluster", self._read_map())
        error = await asyncio.shield(self._reading)
        if error is not None:
            raise error

    async def _try_refresh(self) -> None:
        try:
            await self.refresh()
        except StorageError as error:
            causes.warn(error, "the map of the cluster is not known: %s", error, work="map")
        else:
            causes.ended("map")

    async def _read_map(self) -> StorageError | None:
        """Read and apply the map. Returns the error if no node answers: raised here, it would be logged."""
        # In random order, silent nodes last. A node that is cut off from the others knows an old map; its map
        # counts only if no node has a better one.
        known = random.sample(list(self._servers.values()), len(self._servers))
        known.sort(key=lambda server: server.silent)
        doubtful: _Map | None = None
        for server in known:
            if server.connected:
                found = await _map_of(server.read)
                if found is not None and found.is_up:
                    await self._apply(found.ranges)
                    return None
                doubtful = doubtful or found
        if doubtful is not None:
            await self._apply(doubtful.ranges)
            return None
        others = map(self._redis_address, self._others)
        reason: StorageError | None = None
        for address in (*self._seeds, *others):
            try:
                link = await RedisLink.connect(address, "korvet-map")
            except StoreError as error:
                reason = error
                continue
            try:
                found = await _map_of(link)
            finally:
                await link.close()
            if found is not None:
                await self._apply(found.ranges)
                return None
        return LinkLost(f"no node of the cluster answers: {reason}")

    def _redis_address(self, node: NodeAddress) -> RedisAddress:
        """The address of a node, with the credentials and options of the seeds."""
        host, port = node
        return msgspec.structs.replace(self._seeds[0], host=host, port=port, socket_path=None)

    async def _apply(self, ranges: Sequence[SlotRange]) -> None:
        """Apply a map. Slots that the map leaves out keep their owner."""
        primaries = {found.primary for found in ranges}
        # New servers get slots only after they are connected.
        new = [self.server_at(address) for address in primaries if address not in self._servers]
        await asyncio.gather(*map(connected_soon, new))
        self._others = {replica for found in ranges for replica in found.replicas}
        changed = [
            (slot, self._owners[slot], server)
            for found in ranges
            for server in (self.server_at(found.primary),)
            for slot in range(found.first, found.last + 1)
            if self._owners[slot] is not server
        ]
        # A primary that gave a slot away passed all writes on; one that vanished may have lost its last ones.
        takeovers = {
            (old, new)
            for _, old, new in changed
            if old is not None and (old.address.host, old.address.port) not in primaries
        }
        lossy = await _lossy(takeovers)
        self._report_moved({slot for slot, old, new in changed if (old, new) in lossy})
        self._assign({slot: owner for slot, _, owner in changed})
        self._close_idle()

    def _assign(self, owners: Mapping[int, Server]) -> None:
        former_owners = {former for slot in owners if (former := self._owners[slot]) is not None}
        for slot, server in owners.items():
            self._owners[slot] = server
            links = self._slots.get(slot)
            if links is not None:
                links.move(server)
        for former in former_owners:
            # The replicas of a former owner do not get later changes of these slots.
            former.barriers.drop(lambda key: slot_of(key) in owners)

    def _report_moved(self, slots: Collection[int]) -> None:
        """Report that the servers of these slots may lack the newest writes from now on. Commands that
        earlier servers refused are not sent there.
        """
        if not slots:
            return
        if self.on_moved is not None:
            self.on_moved(lambda key: slot_of(key) in slots)
        for slot in slots:
            links = self._slots.get(slot)
            if links is not None:
                links.drop()

    def _close_idle(self) -> None:
        """Close the links to servers that have had no slots for _IDLE_S, or are silent: commands in flight
        there get no answer any more.
        """
        now = asyncio.get_running_loop().time()
        in_use = self.servers()
        for address, server in list(self._servers.items()):
            if server in in_use:
                self._idle.pop(server, None)
            elif now - self._idle.setdefault(server, now) > _IDLE_S or server.silent:
                log.info("node %s of the cluster has no slots any more", server.address)
                del self._servers[address], self._idle[server]
                self.spawn("links to a former node", server.close)

    async def _keep(self) -> None:
        """Keep the map up to date."""
        while True:
            changing = self._idle or any(server.silent or not server.connected for server in self.servers())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MAP_RETRY_S if changing else _MAP_PERIOD_S):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._try_refresh()
            await asyncio.sleep(RETRY_PAUSE_S)


async def _lossy(takeovers: Collection[tuple[Server, Server]]) -> set[tuple[Server, Server]]:
    """The takeovers after which the new server may lack writes of the old one."""
    verdicts = await asyncio.gather(*(new.succeed(old) for old, new in takeovers))
    return {pair for pair, has_all in zip(takeovers, verdicts, strict=True) if not has_all}


class _Map(NamedTuple):
    """The map that one node knows."""

    ranges: list[SlotRange]
    is_up: bool
    """Whether the node serves its slots: it can reach most primaries, and all slots have one."""


async def _map_of(link: RedisLink) -> _Map | None:
    """The map that one node knows (CLUSTER SLOTS, CLUSTER INFO); None if it does not answer."""
    asked = link.call("CLUSTER", "SLOTS"), link.call("CLUSTER", "INFO")
    slots: Any
    info: Any
    try:
        async with asyncio.timeout(_MAP_TIMEOUT_S):
            slots, info = await asyncio.gather(*asked, return_exceptions=True)
    except TimeoutError as error:
        slots, info = error, None
    if isinstance(slots, BaseException):
        log.info("node %s does not return the map of the cluster: %r", link.address, slots)
        return None
    # CLUSTER INFO may be forbidden to the user.
    is_down = isinstance(info, bytes) and parse_info(info).get("cluster_state") == "fail"
    return _Map(parse_slots(slots, link.address.host), not is_down)
