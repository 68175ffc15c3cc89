"""The network of a test: gates that pass connections on and know which process opened them (Linux).

Rules delay, hold or reset connections by their source and target. What is held arrives when the rule ends, as
TCP delivers it after a partition.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from tests.support.running import end_serving, turns

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

T = TypeVar("T")

# The source of connections of processes that nobody has named.
OUTSIDE: Final = "outside"
# SO_LINGER on with 0 seconds: close() sends RST, as a crashed peer or a firewall would.
_RESET: Final = struct.pack("ii", 1, 0)
# Limits what waits in one direction of a connection. Above it the gate stops reading.
_MOST_BYTES: Final = 64 << 20
_CALL_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to connections: `refuses` resets them, open ones and new ones."""

    refuses: bool = False
    holds_requests: bool = False
    holds_replies: bool = False
    request_delay_s: float = 0.0
    reply_delay_s: float = 0.0

    def __or__(self, other: Rule) -> Rule:
        return Rule(
            self.refuses or other.refuses,
            self.holds_requests or other.holds_requests,
            self.holds_replies or other.holds_replies,
            self.request_delay_s + other.request_delay_s,
            self.reply_delay_s + other.reply_delay_s,
        )


FREE: Final = Rule()
BLOCKED: Final = Rule(holds_requests=True, holds_replies=True)


@dataclass(frozen=True, slots=True)
class Gate:
    """An address for one server, or for the server to which a source is routed."""

    port: int

    @property
    def address(self) -> str:
        """The address that clients connect to."""
        return f"127.0.0.1:{self.port}"


class Network:
    """All gates of a test, served by one thread. Methods may be called from any other thread."""

    def __init__(self, processes: Callable[[], Mapping[int, str]]) -> None:
        """`processes` returns the names of processes by process ID."""
        self._processes = processes
        self._rules: dict[str, Callable[[str, str], Rule]] = {}
        self._links: set[_Link] = set()
        # Includes connections without a link: the client had gone, or its route is not known.
        self._accepted: set[asyncio.Transport] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def open(self, route: Callable[[str], tuple[str, int]]) -> Gate:
        """Open a gate. `route` returns the name and the port of the target of a source's connections."""

        async def opened() -> Gate:
            server = await self._loop.create_server(lambda: _Client(self, route), "127.0.0.1", 0)
            self._servers.append(server)
            return Gate(server.sockets[0].getsockname()[1])

        return self._call(opened())

    def impose(self, rule: str, decide: Callable[[str, str], Rule]) -> None:
        """Add a rule under a name: `decide` gets the names of a connection's source and target."""

        async def imposed() -> None:
            self._rules[rule] = decide
            self._apply()

        self._call(imposed())

    def lift(self, rule: str) -> None:
        """Remove a rule, if it is there."""

        async def lifted() -> None:
            self._rules.pop(rule, None)
            self._apply()

        self._call(lifted())

    def reset(self, matches: Callable[[str, str], bool]) -> None:
        """Reset open connections by source and target. What waits in them is lost."""

        async def done() -> None:
            for link in [link for link in self._links if matches(link.source, link.target)]:
                link.reset()

        self._call(done())

    def close(self) -> None:
        """Reset all connections and close all gates."""

        async def closed() -> None:
            for server in self._servers:
                await end_serving(server)
            begun = asyncio.all_tasks() - {asyncio.current_task()}
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
            for link in list(self._links):
                link.reset()
            for transport in list(self._accepted):
                transport.abort()
            await turns()

        self._call(closed())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    def rule(self, source: str, target: str) -> Rule:
        """The rule of a connection now."""
        found = FREE
        for decide in self._rules.values():
            found |= decide(source, target)
        return found

    def source_of(self, port: int, gate_port: int) -> str:
        """The name of the process that connected from a port to a gate."""
        inode = _inode(port, gate_port)
        if inode is None:
            return OUTSIDE
        wanted = f"socket:[{inode}]"
        for pid, name in self._processes().items():
            folder = f"/proc/{pid}/fd"
            # The process may end, or close a file, in between.
            with contextlib.suppress(OSError):
                if any(_target(f"{folder}/{number}") == wanted for number in os.listdir(folder)):
                    return name
        return OUTSIDE

    def _apply(self) -> None:
        for link in list(self._links):
            link.obey(self.rule(link.source, link.target))

    def _call(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    def accepted(self, transport: asyncio.Transport) -> None:
        """Remember a connection of a client. Only for the network's thread."""
        self._accepted.add(transport)

    def ended(self, transport: asyncio.Transport) -> None:
        """Forget a connection of a client. Only for the network's thread."""
        self._accepted.discard(transport)

    def add(self, link: _Link) -> None:
        """Remember an open connection. Only for the network's thread."""
        self._links.add(link)

    def drop(self, link: _Link) -> None:
        """Forget a connection. Only for the network's thread."""
        self._links.discard(link)


def _inode(port: int, remote_port: int) -> int | None:
    """The inode of the socket with these ports, as Linux lists it."""
    wanted = (f"0100007F:{port:04X}", f"0100007F:{remote_port:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) == wanted:
            return int(fields[9])
    return None


def _target(link: str) -> str | None:
    with contextlib.suppress(OSError):
        return os.readlink(link)
    return None


class _Direction:
    """The bytes that go one way, with the time at which each part may arrive. None is the end."""

    def __init__(self, reader: asyncio.Transport) -> None:
        self._reader = reader
        self.writer: asyncio.Transport | None = None
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self.delay_s = 0.0
        self.is_held = False

    def put(self, content: bytes | None) -> None:
        """Take bytes, or the end, of the reader."""
        due = asyncio.get_running_loop().time() + self.delay_s
        self._waiting.append((due, content))
        self._bytes += len(content or b"")
        if self._bytes > _MOST_BYTES:
            self._reader.pause_reading()
        self.pump()

    def pump(self) -> None:
        """Pass on what may arrive now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._waiting and self.writer is not None and not self.is_held:
            due, content = self._waiting[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.pump)
                return
            self._waiting.popleft()
            if content is None:
                self.writer.close()
                return
            self._bytes -= len(content)
            if not self.writer.is_closing():
                self.writer.write(content)
        if self._bytes <= _MOST_BYTES and not self._reader.is_closing():
            self._reader.resume_reading()

    def stop(self) -> None:
        """Drop what waits."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()


class _Link:
    """A client's connection and its twin to the server."""

    def __init__(self, network: Network, source: str, target: str, client: asyncio.Transport) -> None:
        self.source, self.target = source, target
        self._network = network
        self._client = client
        self._server: asyncio.Transport | None = None
        self.requests = _Direction(client)
        self.replies: _Direction | None = None
        self._rule = FREE
        self._open_sides = 2
        self._is_reset = False
        network.add(self)
        self.obey(network.rule(source, target))

    def connected(self, server: asyncio.Transport) -> None:
        """The server has accepted."""
        self._server = server
        self.requests.writer = server
        self.replies = _Direction(server)
        self.replies.writer = self._client
        if self._is_reset:
            self.reset()
        else:
            self.obey(self._rule)

    def obey(self, rule: Rule) -> None:
        """Follow a rule from now on."""
        self._rule = rule
        if rule.refuses:
            self.reset()
            return
        self.requests.is_held, self.requests.delay_s = rule.holds_requests, rule.request_delay_s
        self.requests.pump()
        if self.replies is not None:
            self.replies.is_held, self.replies.delay_s = rule.holds_replies, rule.reply_delay_s
            self.replies.pump()

    def side_ended(self) -> None:
        """One side has ended. The other one may still have bytes that nobody reads."""
        self._open_sides -= 1
        if not self._open_sides:
            self._network.drop(self)

    def reset(self) -> None:
        """End both connections with RST."""
        self._is_reset = True
        self._network.drop(self)
        for direction in (self.requests, self.replies):
            if direction is not None:
                direction.stop()
        for transport in (self._client, self._server):
            if transport is not None:
                with contextlib.suppress(OSError):
                    found: socket.socket = transport.get_extra_info("socket")
                    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                transport.abort()


class _Client(asyncio.Protocol):
    """The side of a connection on which the gate accepted it."""

    def __init__(self, network: Network, route: Callable[[str], tuple[str, int]]) -> None:
        self._network, self._route = network, route
        self._transport: asyncio.Transport | None = None
        self._link: _Link | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._network.accepted(transport)
        port, gate_port = transport.get_extra_info("peername")[1], transport.get_extra_info("sockname")[1]
        source = self._network.source_of(port, gate_port)
        target, target_port = self._route(source)
        self._link = _Link(self._network, source, target, transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect(self._link, target_port))

    async def _connect(self, link: _Link, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Server(link), "127.0.0.1", port)
        except OSError:
            link.reset()

    def data_received(self, data: bytes) -> None:
        assert self._link is not None
        self._link.requests.put(data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        self._network.ended(self._transport)
        assert self._link is not None
        self._link.requests.put(None)
        if self._link.replies is not None:
            self._link.replies.stop()
        self._link.side_ended()


class _Server(asyncio.Protocol):
    """The side of a connection that the gate opened."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link.connected(transport)

    def data_received(self, data: bytes) -> None:
        assert self._link.replies is not None
        self._link.replies.put(data)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._link.replies is not None
        self._link.replies.put(None)
        self._link.requests.stop()
        self._link.side_ended()
