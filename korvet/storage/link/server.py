"""The connections to one server, and the interface that users of keys see (`Links`), with a cluster or
without.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from korvet.storage.errors import StorageError, StoreError
from korvet.storage.link.barrier import Barriers
from korvet.storage.link.clock import RedisClock
from korvet.storage.link.connection import READONLY
from korvet.storage.link.library import FunctionCaller
from korvet.storage.link.module import ServerModule
from korvet.storage.link.redis_link import RedisLink
from korvet.storage.link.replication import Replication, parse_replication
from korvet.supervisor import keep, once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from korvet.storage.errors import RedisFault
    from korvet.storage.link.address import RedisAddress
    from korvet.storage.link.calls import Caller

# Interval of checks whether the address of a server that cannot write, or is silent, leads to another server.
_CHECK_INTERVAL_S: Final = 1.0
# Limits one check: a server that is busy or stopped does not answer it.
_CHECK_TIMEOUT_S: Final = 3.0
# Silence after which a link is checked for being half-open. One command with large batches takes less time on
# a slow network.
_HALF_OPEN_MS: Final = 3000
# How long a reply may take after another connection was answered: the server answers all in turn.
_GRACE_S: Final = 0.5
# Interval of INFO replication: replicas report to their primary once a second.
_REPLICATION_INTERVAL_S: Final = 1.0


class Links(Protocol):
    """The connections to the server that holds some keys. With a cluster, another server may take over the
    keys at any time.

    Commands on one link take effect in the order of the calls. Writes and reads use separate links, so that
    reads never wait for appends.
    """

    @property
    def server(self) -> Server:
        """The server that holds the keys now."""

    @property
    def write(self) -> RedisLink:
        """The link for guarded appends. A command that is refused here because the keys have moved is not
        sent again.
        """

    @property
    def write_functions(self) -> Caller:
        """For functions and commands that write."""

    @property
    def read(self) -> Caller:
        """For commands that read."""

    @property
    def read_functions(self) -> Caller:
        """For functions that read."""

    @property
    def clock(self) -> RedisClock:
        """The server's clock."""


class Router(Protocol):
    """Knows the server of each key."""

    on_up: Callable[[], None] | None
    """Called each time a server can be written to again after its connection was lost."""
    on_moved: Callable[[Callable[[bytes], bool]], None] | None
    """Called with a predicate of keys when another server took over these keys; that server may lack the
    newest writes.
    """

    def links(self, key: bytes) -> Links:
        """The connections to the server that holds a key."""

    def servers(self) -> Collection[Server]:
        """All servers that hold keys."""

    async def close(self) -> None:
        """Close all connections."""


class Server:
    """The connections to one server; `Links` whose server never changes."""

    __slots__ = (
        "_checking",
        "_common_history",
        "_history",
        "_watching",
        "barriers",
        "clock",
        "module",
        "on_down",
        "on_silent",
        "on_up",
        "read",
        "read_functions",
        "replication",
        "write",
        "write_functions",
    )

    def __init__(self, write: RedisLink, read: RedisLink) -> None:
        self.write = write
        self.read = read
        self.write_functions = FunctionCaller(write)
        self.read_functions = FunctionCaller(read)
        self.clock = RedisClock()
        self.module = ServerModule(write)
        self.replication: Replication | None = None
        """What the server reported of its replicas, about a second ago at most; None if that is unknown."""
        self.barriers = Barriers(self)
        self.on_up: Callable[[], None] | None = None
        """Called each time the server can be written to again after the connection was lost."""
        self.on_down: Callable[[], None] | None = None
        """Called each time one of the connections is lost."""
        self.on_silent: Callable[[], None] | None = None
        """Called several times a second while the server is silent although a reply is due."""
        self._history = write.history
        # The last history that both links had (RedisLink.history).
        self._common_history = b""
        self._checking: asyncio.Task[None] | None = None
        write.on_up, read.on_up = self._write_came_up, self._read_came_up
        write.on_down, read.on_down = self._write_went_down, self._went_down
        write.on_silent = read.on_silent = self._went_silent
        write.on_fault = read.on_fault = self._faulted
        self._compare(write, read)
        self._watching = keep("replication of Redis", self._watch_replication)

    @classmethod
    def begin(cls, address: RedisAddress) -> Server:
        """A server whose links connect by themselves, and keep trying."""
        return cls(RedisLink.begin(address, "korvet-write"), RedisLink.begin(address, "korvet-read"))

    @property
    def server(self) -> Server:
        """This server: see Links."""
        return self

    @property
    def address(self) -> RedisAddress:
        """Where the links lead to."""
        return self.write.address

    @property
    def connected(self) -> bool:
        """Whether both links accept commands now."""
        return self.write.connected and self.read.connected

    @property
    def silent(self) -> bool:
        """Whether a reply has been due for some time on one of the links, without anything received."""
        return bool(self.write.silent_ms or self.read.silent_ms)

    def move(self, address: RedisAddress, reason: str) -> None:
        """Lead to the server at another address from now on; see RedisLink.move."""
        for link in self._links():
            link.move(address, reason)

    def hold(self, reason: str) -> None:
        """Lead to no server until `move`: commands, those in flight too, fail with LinkLost."""
        for link in self._links():
            link.hold(reason)

    def has_new_history(self) -> bool:
        """Whether the history of the server's data has changed since the last call (RedisLink.history)."""
        before, self._history = self._history, self.write.history
        return bool(before) and before != self._history

    def _links(self) -> tuple[RedisLink, ...]:
        return self.write, self.read, *self.barriers.links

    async def _watch_replication(self) -> NoReturn:
        while True:
            with contextlib.suppress(StorageError):
                # INFO may be forbidden to the user.
                self.replication = parse_replication(await self.read.call("INFO", "replication"))
            await asyncio.sleep(_REPLICATION_INTERVAL_S)

    def _write_went_down(self) -> None:
        self.replication = None
        self.module.lost()
        for link in self.barriers.links:
            link.reset("the connection for writes is lost")
        self._went_down()

    def _went_down(self) -> None:
        if self.on_down is not None:
            self.on_down()

    def _write_came_up(self) -> None:
        self.module.came_up()
        self._compare(self.write, self.read)
        if self.on_up is not None:
            self.on_up()

    def _read_came_up(self) -> None:
        self._compare(self.read, self.write)

    def _compare(self, link: RedisLink, other: RedisLink) -> None:
        """End the other link's connection if it still leads to the former server of both links, and this link
        leads to a new server.

        If an address leads to two servers in turn, the links may stay on different servers.
        """
        if not (link.history and other.history and other.connected):
            return
        if link.history == other.history:
            self._common_history = link.history
        elif other.history == self._common_history:
            other.reset("its address leads to another server now")

    def _faulted(self, fault: RedisFault) -> None:
        """End the connections to a replica, because its address may lead to the new primary by now. A server
        that cannot write can still be read: its connections are ended only if the address leads to another
        server.
        """
        if fault.code == READONLY:
            self._reset("the server has become a replica")
        else:
            self._check_soon()

    def _went_silent(self) -> None:
        if max(self.write.silent_ms, self.read.silent_ms) >= _HALF_OPEN_MS:
            self._check_soon()
        if self.on_silent is not None:
            self.on_silent()

    def _check_soon(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = once("another server's address", self._check_address())

    async def _check_address(self) -> None:
        """End the connections if the address leads to another server, and those that are half-open: a new
        connection is answered, and they are not.
        """
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                found = await RedisLink.connect(self.address, "korvet-check")
        except (StoreError, TimeoutError):
            pass
        else:
            before, history = self.write.history, found.history
            await found.close()
            if before and history and before != history:
                self._reset("its address leads to another server now")
            await asyncio.sleep(_GRACE_S)
            for link in (self.write, self.read):
                if link.silent_ms >= _HALF_OPEN_MS:
                    link.reset("it sends no replies, although the server answers on a new connection")
        await asyncio.sleep(_CHECK_INTERVAL_S)

    def _reset(self, reason: str) -> None:
        for link in self._links():
            link.reset(reason)

    async def close(self) -> None:
        """Close both links; commands in flight fail with LinkLost."""
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.gather(self._checking, return_exceptions=True)
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self.module.close()
        await self.barriers.close()
        await asyncio.gather(self.read.close(), self.write.close())


class OneServer:
    """A Router for a Redis without a cluster: one server holds all keys."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.on_up: Callable[[], None] | None = None
        self.on_moved: Callable[[Callable[[bytes], bool]], None] | None = None
        server.on_up = self._came_up
        server.write.primary_only = server.read.primary_only = True

    def links(self, key: bytes) -> Links:
        """See Router."""
        return self._server

    def servers(self) -> Collection[Server]:
        """See Router."""
        return (self._server,)

    async def close(self) -> None:
        """See Router."""
        await self._server.close()

    def _came_up(self) -> None:
        if self.on_up is not None:
            self.on_up()
        if self._server.has_new_history() and self.on_moved is not None:
            self.on_moved(lambda key: True)
