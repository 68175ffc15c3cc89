"""Commands on one slot of Redis Cluster, which follow the slot to another node.

A node that does not serve a slot refuses commands on the slot (MOVED, ASK, TRYAGAIN, CLUSTERDOWN) and does
nothing. Such a command is sent again, in order: the slot's caller holds later commands back until then. A
command whose connection broke is not sent again: whether it took effect is unknown. Nor is one that the node
refused for the whole slot shortly before it executed the next one, which would be overtaken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from korvet.causes import Causes
from korvet.records.kernel import pack_command
from korvet.redis.calls import Caller, answer, fault_of
from korvet.redis.errors import LinkLost, RedisFault, SlotUnavailable, StorageError
from korvet.redis.library import ensure_library, is_library_missing
from korvet.redis.slots import REDIRECTIONS, redirected_to

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from korvet.redis.calls import OnReply, Payload
    from korvet.redis.clock import RedisClock
    from korvet.redis.server import Server
    from korvet.redis.slots import NodeAddress

log = logging.getLogger(__name__)
causes = Causes(log)

# How long commands wait until a node serves their slot: longer than the move of a key, shorter than the
# timeouts of clients. A failover takes longer; clients then retry.
SERVED_TIMEOUT_S: Final = 2.0
RETRY_PAUSE_S: Final = 0.02
# Refusals that do not depend on the keys of the command.
_CLUSTERDOWN: Final = "CLUSTERDOWN"
_OF_WHOLE_SLOT: Final = frozenset(("MOVED", _CLUSTERDOWN))
_ASKING: Final = pack_command("ASKING")
_ASKING_REPLY: Final = b"+OK\r\n"


class SlotMap(Protocol):
    """What knows the servers of the cluster and the owner of each slot."""

    def server_at(self, address: NodeAddress) -> Server:
        """The server at an address; its links connect by themselves."""

    async def follow(self, slot: int, refused_by: Server, fault: RedisFault) -> None:
        """Apply a MOVED reply, and read the rest of the map."""

    def refresh_soon(self) -> None:
        """Read the map again."""

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work()` in the background."""


class SlotLinks:
    """The connections to the server that holds a slot: `Links`."""

    __slots__ = ("clock", "read", "read_functions", "server", "write_functions")

    def __init__(self, slot_map: SlotMap, slot: int, server: Server) -> None:
        self.server = server
        self.clock: RedisClock = server.clock
        self.write_functions = SlotCaller(slot_map, slot, server, attrgetter("write_functions"))
        self.read = self.read_functions = SlotCaller(slot_map, slot, server, attrgetter("read_functions"))

    @property
    def is_moving(self) -> bool:
        """See Links."""
        return self.write_functions.has_asked or self.read.has_asked

    def move(self, server: Server) -> None:
        """The slot now belongs to another server."""
        self.server = server
        self.clock = server.clock
        self.write_functions.move(server)
        self.read.move(server)

    def drop(self) -> None:
        """Don't send again what a server has refused or will refuse of the commands so far: the slot's
        history may lack what these commands rely on.
        """
        self.write_functions.drop()
        self.read.drop()


class SlotCaller(Caller):
    """Sends commands on one slot in order, and sends refused ones again to the slot's new server."""

    __slots__ = (
        "_caller",
        "_caller_of",
        "_era",
        "_held",
        "_holding",
        "_logged_move",
        "_outstanding",
        "_refused",
        "_server",
        "_slot",
        "_slot_map",
        "has_asked",
    )

    def __init__(
        self, slot_map: SlotMap, slot: int, server: Server, caller_of: Callable[[Server], Caller]
    ) -> None:
        """`caller_of(server)` is what sends the commands to a server."""
        self._slot_map = slot_map
        self._slot = slot
        self._server = server
        self._caller_of = caller_of
        self._caller = caller_of(server)
        self.has_asked = False
        """Whether a node that imports the slot has executed commands since the slot moved last."""
        self._outstanding = 0
        # Counts the calls of `drop`.
        self._era = 0
        self._holding = False
        # Commands that the node refused, with their refusals; later commands are held.
        self._refused: deque[tuple[Payload, OnReply, RedisFault]] = deque()
        self._held: deque[tuple[Payload, OnReply]] = deque()
        # Whether the log has a line on the keys that are being moved: they are redirected many times.
        self._logged_move = False

    def send(self, payload: Payload, on_reply: OnReply) -> None:
        """As Caller.send; `on_reply` gets SlotUnavailable if no node serves the slot in time."""
        if self._holding:
            self._held.append((payload, on_reply))
            return
        self._outstanding += 1
        self._caller.send(payload, self._first_attempt(payload, on_reply))

    def move(self, server: Server) -> None:
        """Send to another server as soon as the present one has answered all its commands."""
        self._server = server
        self.has_asked = False
        if self._outstanding:
            self._holding = True
        elif not self._holding:
            self._caller = self._caller_of(server)

    def give_up(self) -> None:
        """Fail the commands that wait: the cluster is closed."""
        self._end_waiting(LinkLost("the connection to Redis is closed"))

    def drop(self) -> None:
        """See SlotLinks.drop. The commands end with SlotUnavailable."""
        self._era += 1
        self._end_waiting(self._dropped())

    def _dropped(self) -> SlotUnavailable:
        return SlotUnavailable(f"slot {self._slot} has a new history since the command was given")

    def _end_waiting(self, error: StorageError) -> None:
        waiting = [on_reply for _, on_reply, _ in self._refused] + [on_reply for _, on_reply in self._held]
        self._refused.clear()
        self._held.clear()
        for on_reply in waiting:
            answer(on_reply, error)

    def _first_attempt(self, payload: Payload, on_reply: OnReply) -> OnReply:
        era = self._era

        def arrived(reply: memoryview | StorageError) -> None:
            self._outstanding -= 1
            try:
                if era != self._era and _is_redirection(reply):
                    on_reply(self._dropped())
                elif isinstance(reply, RedisFault) and reply.code in REDIRECTIONS:
                    self._holding = True
                    self._refused.append((payload, on_reply, reply))
                else:
                    self._give_up_overtaken()
                    on_reply(reply)
            finally:
                if self._holding and self._outstanding == 0:
                    self._drained()

        return arrived

    def _give_up_overtaken(self) -> None:
        """A later command than the refused ones may have been executed: the node serves the slot again."""
        if not self._refused or self._refused[-1][2].code not in _OF_WHOLE_SLOT:
            return
        refused, self._refused = self._refused, deque()
        for _, on_reply, fault in refused:
            answer(on_reply, SlotUnavailable(f"slot {self._slot} was not served: {fault.message}"))

    def _drained(self) -> None:
        """Nothing is in flight: send the refused commands first."""
        if not self._refused:
            self._release()
            return
        faults = [fault for _, _, fault in self._refused]
        self._held.extendleft((payload, on_reply) for payload, on_reply, _ in reversed(self._refused))
        self._refused.clear()
        self._slot_map.spawn("redirected commands", partial(self._resend, faults))

    def _release(self) -> None:
        """Send all held commands together."""
        self._caller = self._caller_of(self._server)
        self._holding = False
        held, self._held = self._held, deque()
        for payload, on_reply in held:
            self.send(payload, on_reply)

    async def _resend(self, faults: Sequence[RedisFault]) -> None:
        """Send the held commands again, or fail all of them. `faults`: why the first ones were refused."""
        fault = faults[-1]
        if fault.code == _CLUSTERDOWN:
            causes.warn(fault, "slot %d: %s", self._slot, fault.message, work=self._slot)
        elif fault.code in _OF_WHOLE_SLOT or not self._logged_move:
            log.info("slot %d: %s", self._slot, fault.message)
        self._logged_move = fault.code not in _OF_WHOLE_SLOT
        try:
            await self._follow(faults)
        except Exception as error:
            log.exception("slot %d: commands cannot be redirected", self._slot)
            self._fail_all(error)
        self._release()

    async def _follow(self, faults: Sequence[RedisFault]) -> None:
        """Send the refused commands, one by one, to the node that the redirection of each names, until a node
        serves the slot.

        All other commands go to the owner of the slot first: a node that imports the slot would execute them
        without the keys that have not moved yet.
        """
        era = self._era
        for fault in faults:
            if era != self._era or not self._held:
                # They were dropped.
                return
            followed = await self._send_first(fault)
            if followed is None or followed.code != "ASK":
                return

    async def _send_first(self, fault: RedisFault) -> RedisFault | None:
        """Send the first held command until a node executes it. Returns the redirection that it followed;
        None if it was dropped, or all commands have failed.
        """
        first = self._held[0]
        payload, on_reply = first
        clock = asyncio.get_running_loop().time
        deadline = clock() + SERVED_TIMEOUT_S
        while True:
            reply = await self._attempt(payload, fault)
            if not self._held or self._held[0] is not first:
                return None
            if not (isinstance(reply, SlotUnavailable) or _is_redirection(reply)):
                causes.ended(self._slot)
                self._held.popleft()
                answer(on_reply, reply)
                return fault
            if clock() > deadline:
                self._fail_all(fault if isinstance(reply, SlotUnavailable) else reply)
                return None
            if isinstance(reply, RedisFault):
                if reply.code == fault.code == "MOVED":
                    # The nodes redirect in a circle.
                    await asyncio.sleep(RETRY_PAUSE_S)
                fault = reply

    def _fail_all(self, fault: object) -> None:
        held, self._held = self._held, deque()
        error = SlotUnavailable(f"slot {self._slot} is not served: {fault}")
        for _, on_reply in held:
            answer(on_reply, error)

    async def _attempt(self, payload: Payload, fault: RedisFault) -> memoryview | StorageError:
        if fault.code == "ASK":
            target = self._slot_map.server_at(redirected_to(fault, self._server.address.host))
            if not await connected_soon(target):
                return SlotUnavailable(f"no connection to {target.address}")
            self.has_asked = True
            return await self._ask(target, payload)
        era = self._era
        if fault.code == "MOVED":
            await self._slot_map.follow(self._slot, self._server, fault)
        else:
            self._slot_map.refresh_soon()
            await asyncio.sleep(RETRY_PAUSE_S)
        if era != self._era:
            return self._dropped()
        if not self._server.connected:
            await asyncio.sleep(RETRY_PAUSE_S)
            return SlotUnavailable(f"no connection to {self._server.address}")
        return await _reply_of(self._caller_of(self._server).send, payload)

    async def _ask(self, target: Server, payload: Payload) -> memoryview | StorageError:
        """Send a command to a node that imports the slot (ASKING)."""
        link = target.write if self._caller_of(target) is target.write_functions else target.read
        parts = (payload,) if isinstance(payload, bytes) else payload

        def send(asked: Payload, on_reply: OnReply) -> None:
            link.send(asked, on_reply, replies=2)

        while True:
            both = await _reply_of(send, (_ASKING, *parts))
            if isinstance(both, StorageError):
                return both
            reply = both[len(_ASKING_REPLY) :]
            fault = fault_of(reply)
            if fault is None:
                return reply
            if not is_library_missing(fault):
                return fault
            try:
                await ensure_library(target.write)
            except StorageError as error:
                return error


async def connected_soon(server: Server) -> bool:
    """Whether a server accepts commands, now or within SERVED_TIMEOUT_S."""
    try:
        await server.write.wait_connected(int(SERVED_TIMEOUT_S * 1000))
        await server.read.wait_connected(int(SERVED_TIMEOUT_S * 1000))
    except LinkLost:
        return False
    return True


def _is_redirection(reply: object) -> bool:
    return isinstance(reply, RedisFault) and reply.code in REDIRECTIONS


def _reply_of(
    send: Callable[[Payload, OnReply], None], payload: Payload
) -> asyncio.Future[memoryview | StorageError]:
    """A copy of the raw reply, or the error as a value."""
    future: asyncio.Future[memoryview | StorageError] = asyncio.get_running_loop().create_future()

    def arrived(reply: memoryview | StorageError) -> None:
        if not future.done():
            future.set_result(reply if isinstance(reply, StorageError) else memoryview(bytes(reply)))

    send(payload, arrived)
    return future
