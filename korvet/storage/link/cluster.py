"""Redis Cluster: which primary holds which slot, links to each, and commands that follow their slot.

A node that does not serve a slot refuses commands on it (MOVED, ASK, TRYAGAIN, CLUSTERDOWN) and does nothing.
Such a command is sent again, in order: the lane of its slot holds back what comes behind it until then. A
command whose connection broke is not: whether it took effect is unknown.

Guarded appends do not go through lanes. One that is refused goes by script, as after any other refusal, and
so comes through the lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.causes import Causes
from korvet.records.kernel import pack
from korvet.storage.errors import LinkLost, RedisFault, SlotUnavailable, StorageError, StoreError
from korvet.storage.link.library import ensure_library, is_library_missing
from korvet.storage.link.redis_link import Caller, RedisLink, answer, fault_of
from korvet.storage.link.server import Server
from korvet.storage.link.slots import REDIRECTIONS, SLOTS, parse_slots, redirected_to, slot_of
from korvet.supervisor import keep, once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from korvet.storage.link.address import RedisAddress
    from korvet.storage.link.clock import RedisClock
    from korvet.storage.link.redis_link import OnReply, Payload
    from korvet.storage.link.slots import Place, SlotRange

log = logging.getLogger(__name__)
causes = Causes(log)

# How long commands wait for their slot to be served: longer than a key takes to move, shorter than clients
# wait. A failover takes longer; clients then ask again.
SERVED_TIMEOUT_S: Final = 2.0
_PAUSE_S: Final = 0.02
# In a slot that is on its way commands go one by one, and together again from time to time.
_ASKING_TURN_S: Final = 0.2
# The map is read that often when nothing asks for it: a node that hangs breaks no connection.
_MAP_PERIOD_S: Final = 2.0
# And that often while a node is away.
_MAP_RETRY_S: Final = 0.1
_MAP_TIMEOUT_S: Final = 1.0
# A server that holds no slot any more is let go after this time, and what it has not answered is lost.
_IDLE_S: Final = 1.0
_OPEN_TIMEOUT_S: Final = 10.0
_ASKING: Final = pack("ASKING")
_ASKING_TAKEN: Final = b"+OK\r\n"


class SlotLinks:
    """The ways to the server that holds a slot: `Links`."""

    __slots__ = ("clock", "read", "read_functions", "server", "write", "write_functions")

    def __init__(self, cluster: Cluster, slot: int, server: Server) -> None:
        self.server = server
        self.write: RedisLink = server.write
        self.clock: RedisClock = server.clock
        self.write_functions = Lane(cluster, slot, server, attrgetter("write_functions"))
        self.read = self.read_functions = Lane(cluster, slot, server, attrgetter("read_functions"))

    def move(self, server: Server) -> None:
        """The slot is another server's now."""
        self.server = server
        self.write = server.write
        self.clock = server.clock
        self.write_functions.move(server)
        self.read.move(server)


class Lane(Caller):
    """Commands on one slot, sent on in order when the slot has moved."""

    __slots__ = (
        "_caller",
        "_cluster",
        "_fault",
        "_held",
        "_holding",
        "_outstanding",
        "_refused",
        "_server",
        "_slot",
        "_way",
    )

    def __init__(self, cluster: Cluster, slot: int, server: Server, way: Callable[[Server], Caller]) -> None:
        self._cluster = cluster
        self._slot = slot
        self._server = server
        self._way = way
        self._caller = way(server)
        self._outstanding = 0
        self._holding = False
        # Refused by the node; all that came later is held.
        self._refused: deque[tuple[Payload, OnReply]] = deque()
        self._held: deque[tuple[Payload, OnReply]] = deque()
        self._fault: RedisFault | None = None

    def send(self, payload: Payload, on_reply: OnReply) -> None:
        """As Caller.send; where the slot is not served in time, `on_reply` gets SlotUnavailable."""
        if self._holding:
            self._held.append((payload, on_reply))
            return
        self._outstanding += 1
        self._caller.send(payload, self._first_attempt(payload, on_reply))

    def move(self, server: Server) -> None:
        """Send to another server, once the one until now has answered."""
        self._server = server
        if self._outstanding:
            self._holding = True
        elif not self._holding:
            self._caller = self._way(server)

    def give_up(self) -> None:
        """Nothing more is sent: the cluster is closed."""
        waiting = [*self._refused, *self._held]
        self._refused.clear()
        self._held.clear()
        for _, on_reply in waiting:
            answer(on_reply, LinkLost("the connection to Redis is closed"))

    def _first_attempt(self, payload: Payload, on_reply: OnReply) -> OnReply:
        def arrived(reply: memoryview | StorageError) -> None:
            self._outstanding -= 1
            try:
                if isinstance(reply, RedisFault) and reply.code in REDIRECTIONS:
                    self._holding = True
                    self._fault = reply
                    self._refused.append((payload, on_reply))
                else:
                    on_reply(reply)
            finally:
                if self._holding and self._outstanding == 0:
                    self._drained()

        return arrived

    def _drained(self) -> None:
        """Nothing is in flight: what was refused goes first now."""
        fault, self._fault = self._fault, None
        if fault is None:
            self._go_on()
            return
        self._held.extendleft(reversed(self._refused))
        self._refused.clear()
        self._cluster.spawn("redirected commands", partial(self._send_on, fault))

    def _go_on(self) -> None:
        """Send what was held together."""
        self._caller = self._way(self._server)
        self._holding = False
        held, self._held = self._held, deque()
        for payload, on_reply in held:
            self.send(payload, on_reply)

    async def _send_on(self, fault: RedisFault) -> None:
        """Send on what was refused and held, or refuse all of it."""
        log.info("slot %d: %s", self._slot, fault.message)
        try:
            await self._follow(fault)
        except Exception as error:
            log.exception("slot %d: commands cannot be redirected", self._slot)
            self._refuse_all(error)
        self._go_on()

    async def _follow(self, fault: RedisFault) -> None:
        """Send what was refused and held, one by one, to whom it is redirected, until that one serves it."""
        clock = asyncio.get_running_loop().time
        began = clock()
        deadline = began + SERVED_TIMEOUT_S
        while self._held:
            payload, on_reply = self._held[0]
            reply = await self._attempt(payload, fault)
            if isinstance(reply, SlotUnavailable) or _is_redirection(reply):
                if clock() > deadline:
                    self._refuse_all(fault if isinstance(reply, SlotUnavailable) else reply)
                    break
                if isinstance(reply, RedisFault):
                    if reply.code == fault.code == "MOVED":
                        # They send us in circles.
                        await asyncio.sleep(_PAUSE_S)
                    fault = reply
                continue
            self._held.popleft()
            answer(on_reply, reply)
            if fault.code != "ASK" or clock() - began > _ASKING_TURN_S:
                break
            deadline = clock() + SERVED_TIMEOUT_S

    def _refuse_all(self, fault: object) -> None:
        held, self._held = self._held, deque()
        error = SlotUnavailable(f"slot {self._slot} is not served: {fault}")
        for _, on_reply in held:
            answer(on_reply, error)

    async def _attempt(self, payload: Payload, fault: RedisFault) -> memoryview | StorageError:
        if fault.code == "ASK":
            target = self._cluster.server_at(redirected_to(fault, self._server.address.host))
            if not await _connected(target):
                return SlotUnavailable(f"no connection to {target.address}")
            return await self._ask(target, payload)
        if fault.code == "MOVED":
            await self._cluster.follow(self._slot, self._server, fault)
        else:
            self._cluster.refresh_soon()
            await asyncio.sleep(_PAUSE_S)
        if not self._server.connected:
            await asyncio.sleep(_PAUSE_S)
            return SlotUnavailable(f"no connection to {self._server.address}")
        return await _reply_of(self._way(self._server).send, payload)

    async def _ask(self, target: Server, payload: Payload) -> memoryview | StorageError:
        """Send a command to a node that is taking the slot over (ASKING)."""
        link = target.write if self._way(target) is target.write_functions else target.read
        parts = (payload,) if isinstance(payload, bytes) else payload

        def send(asked: Payload, on_reply: OnReply) -> None:
            link.send(asked, on_reply, replies=2)

        while True:
            both = await _reply_of(send, (_ASKING, *parts))
            if isinstance(both, StorageError):
                return both
            reply = both[len(_ASKING_TAKEN) :]
            fault = fault_of(reply)
            if fault is None:
                return reply
            if not is_library_missing(fault):
                return fault
            try:
                await ensure_library(target.write)
            except StorageError as error:
                return error


def _is_redirection(reply: object) -> bool:
    return isinstance(reply, RedisFault) and reply.code in REDIRECTIONS


def _reply_of(
    send: Callable[[Payload, OnReply], None], payload: Payload
) -> asyncio.Future[memoryview | StorageError]:
    """The raw reply, to be kept."""
    future: asyncio.Future[memoryview | StorageError] = asyncio.get_running_loop().create_future()

    def arrived(reply: memoryview | StorageError) -> None:
        if not future.done():
            future.set_result(reply if isinstance(reply, StorageError) else memoryview(bytes(reply)))

    send(payload, arrived)
    return future


class Cluster:
    """All primaries and the map of the slots: a `Router`. Use from one event loop only."""

    def __init__(self, seeds: Sequence[RedisAddress]) -> None:
        """Use `open`."""
        self.on_up: Callable[[], None] | None = None
        self.on_moved: Callable[[Callable[[bytes], bool]], None] | None = None
        self._seeds = seeds
        self._servers: dict[Place, Server] = {}
        self._owners: list[Server | None] = [None] * SLOTS
        self._slots: dict[int, SlotLinks] = {}
        # Nodes that may know the map when no primary that we know answers.
        self._others: set[Place] = set()
        # Since when a server holds no slot.
        self._idle: dict[Server, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
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
            await asyncio.sleep(_PAUSE_S)

    # What users of keys see

    def links(self, key: bytes) -> SlotLinks:
        """See Router."""
        slot = slot_of(key)
        found = self._slots.get(slot)
        if found is None:
            # Any node says that a slot is nobody's.
            owner = self._owners[slot] or next(iter(self._servers.values()))
            found = self._slots[slot] = SlotLinks(self, slot, owner)
        return found

    def servers(self) -> Collection[Server]:
        """See Router."""
        return {owner: None for owner in self._owners if owner is not None}.keys()

    async def close(self) -> None:
        """See Router."""
        self._closed = True
        tasks = [*self._tasks, *([self._reading] if self._reading else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for links in self._slots.values():
            links.write_functions.give_up()
            links.read.give_up()
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    # What lanes ask for

    def server_at(self, place: Place) -> Server:
        """The server at a place; its links connect by themselves."""
        found = self._servers.get(place)
        if found is None:
            host, port = place
            address = msgspec.structs.replace(self._seeds[0], host=host, port=port, socket_path=None)
            found = self._servers[place] = Server.begin(address)
            found.on_up = partial(self._came_up, found)
            found.write.on_down = found.read.on_down = self.refresh_soon
            log.info("node %s of the cluster", address)
        self._idle.pop(found, None)
        return found

    async def follow(self, slot: int, refused_by: Server, fault: RedisFault) -> None:
        """Take over what MOVED says, and the rest of the map."""
        try:
            await self.refresh()
        except StorageError as error:
            causes.warn(error, "the map of the cluster is not known: %s", error)
        if self._owners[slot] is refused_by:
            # Asked was a node that does not know yet.
            server = self.server_at(redirected_to(fault, refused_by.address.host))
            self._assign(slot, server)
            self._tell_moved({slot})

    def refresh_soon(self) -> None:
        """Have the map read again."""
        self._wanted.set()

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work()` until it returns or the cluster is closed; again whenever an exception ends it."""
        if self._closed:
            return
        task = keep(name, work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The map

    async def refresh(self) -> None:
        """Read the map (CLUSTER SLOTS), or wait for who does so already. Raises LinkLost: nobody answers."""
        if self._reading is None or self._reading.done():
            self._reading = once("reading the map of the cluster", self._read_map())
        await asyncio.shield(self._reading)

    async def _read_map(self) -> None:
        # Not always the same one: it may be cut off from the others, and know an old map.
        known = random.sample(list(self._servers.values()), len(self._servers))
        for server in known:
            if server.connected:
                found = await _map_of(server.read)
                if found is not None:
                    await self._take(found)
                    return
        others = (
            msgspec.structs.replace(self._seeds[0], host=host, port=port) for host, port in self._others
        )
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
                await self._take(found)
                return
        raise LinkLost(f"no node of the cluster answers: {reason}")

    async def _take(self, ranges: Sequence[SlotRange]) -> None:
        """Take a map over. Slots that it leaves out stay with whom they were with."""
        primaries = {found.primary for found in ranges}
        # Not before they can be asked.
        new = [self.server_at(place) for place in primaries if place not in self._servers]
        await asyncio.gather(*map(_connected, new))
        self._others = {replica for found in ranges for replica in found.replicas}
        moved = set()
        for found in ranges:
            server = self.server_at(found.primary)
            for slot in range(found.first, found.last + 1):
                old = self._owners[slot]
                if old is server:
                    continue
                self._assign(slot, server)
                # A server that gave a slot away lives on; one that has vanished took its last writes along.
                if old is not None and (old.address.host, old.address.port) not in primaries:
                    moved.add(slot)
        self._let_go()
        self._tell_moved(moved)

    def _assign(self, slot: int, server: Server) -> None:
        self._owners[slot] = server
        links = self._slots.get(slot)
        if links is not None:
            links.move(server)

    def _tell_moved(self, slots: Collection[int]) -> None:
        if slots and self.on_moved is not None:
            self.on_moved(lambda key: slot_of(key) in slots)

    def _let_go(self) -> None:
        """Close links to servers that hold no slot any more: what still waits there has no answer to come."""
        now = asyncio.get_running_loop().time()
        in_use = self.servers()
        for place, server in list(self._servers.items()):
            if server in in_use:
                self._idle.pop(server, None)
            elif now - self._idle.setdefault(server, now) > _IDLE_S:
                log.info("node %s of the cluster holds no slots any more", server.address)
                del self._servers[place], self._idle[server]
                self.spawn("links to a former node", server.close)

    def _came_up(self, server: Server) -> None:
        self.refresh_soon()
        if self.on_up is not None:
            self.on_up()
        if server.has_new_history():
            self._tell_moved({slot for slot, owner in enumerate(self._owners) if owner is server})

    async def _keep(self) -> None:
        """Keep the map up to date."""
        while True:
            changing = self._idle or not all(server.connected for server in self.servers())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_MAP_RETRY_S if changing else _MAP_PERIOD_S):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.refresh()
            except StorageError as error:
                causes.warn(error, "the map of the cluster is not known: %s", error)
            await asyncio.sleep(_PAUSE_S)


async def _map_of(link: RedisLink) -> list[SlotRange] | None:
    """The map as one node knows it; None where it does not answer."""
    try:
        async with asyncio.timeout(_MAP_TIMEOUT_S):
            return parse_slots(await link.call("CLUSTER", "SLOTS"), link.address.host)
    except (StorageError, TimeoutError) as error:
        log.info("node %s does not tell the map of the cluster: %r", link.address, error)
        return None


async def _connected(server: Server) -> bool:
    """Whether a server can be asked, now or soon."""
    try:
        await server.write.wait_connected(int(SERVED_TIMEOUT_S * 1000))
        await server.read.wait_connected(int(SERVED_TIMEOUT_S * 1000))
    except LinkLost:
        return False
    return True
