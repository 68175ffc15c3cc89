"""The connections to one server, and the interface that users of keys see (`Links`), with a cluster or
without.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from korvet.records.kernel import pack_command
from korvet.redis.barrier import Barriers
from korvet.redis.calls import parse_reply
from korvet.redis.clock import RedisClock
from korvet.redis.connection import READONLY
from korvet.redis.errors import StorageError, StoreError
from korvet.redis.histories import Effect, History, State
from korvet.redis.library import FunctionCaller
from korvet.redis.link import RedisLink
from korvet.redis.replication import Replication, parse_replication
from korvet.redis.server_module import ServerModule
from korvet.supervisor import end, keep, once

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from korvet.redis.address import RedisAddress
    from korvet.redis.calls import Caller
    from korvet.redis.errors import RedisFault

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
# Limits the wait for a former primary's answer, and a new one's. Without them the new primary counts as one
# that may lack writes.
_ANSWER_TIMEOUT_S: Final = 0.5
_INFO: Final = pack_command("INFO", "replication")
WRITE_LINK: Final = "korvet-write"
"""The name of a broker's connection for writes (CLIENT LIST)."""


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
    def is_moving(self) -> bool:
        """Whether another server may have taken some of the keys already, and takes commands on them."""

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
    """Called with a predicate of keys when another history of their data begins that may lack the newest
    writes: another server took over the keys, or their server was restarted. It is called before any command
    on these keys is sent in the new history.
    """

    def links(self, key: bytes) -> Links:
        """The connections to the server that holds a key."""

    def servers(self) -> Collection[Server]:
        """All servers that hold keys."""

    @property
    def named_replicas(self) -> int:
        """How many replicas of the server the sentinels know, those that they do not reach too; 0 without
        sentinels.
        """

    async def close(self) -> None:
        """Close all connections."""


class Owner(Protocol):
    """What uses a server."""

    def came_up(self) -> None:
        """The server can be written to again after the connection was lost."""

    def may_have_lost(self, server: Server) -> None:
        """A history of the server's data begins that may lack writes of the former one. This comes before any
        command in the new history, and before `came_up`.
        """

    def refresh_soon(self) -> None:
        """Find out whether another server is to be used. A connection of a server is lost; or the server is
        silent although a reply is due: then this comes several times a second.
        """


class Server:
    """The connections to one server; `Links` whose server never changes."""

    __slots__ = (
        "_checking",
        "_held",
        "_owner",
        "_watching",
        "barriers",
        "clock",
        "history",
        "module",
        "read",
        "read_functions",
        "replication",
        "write",
        "write_functions",
    )

    def __init__(self, write: RedisLink, read: RedisLink, owner: Owner) -> None:
        self.write = write
        self.read = read
        self.write_functions = FunctionCaller(write, writes=True)
        self.read_functions = FunctionCaller(read, writes=False)
        self.clock = RedisClock()
        self.module = ServerModule(write)
        self.replication: Replication | None = None
        """What the server reported of its replicas, about a second ago at most; None if that is unknown."""
        self.barriers = Barriers(self)
        self.history = History()
        """The history of the data, which all connections are in."""
        self._owner = owner
        # Whether connections that end are not opened again until `move`.
        self._held = False
        self._checking: asyncio.Task[None] | None = None
        write.on_up, write.on_down = self._write_came_up, self._write_went_down
        read.on_down = owner.refresh_soon
        write.on_silent, write.on_fault = self._went_silent, self._faulted
        read.on_fault = self._faulted
        self.lead(read)
        if write.connected:
            self._act(self.history.come_up(write.replication))
        self._watching = keep("replication of Redis", self._watch)

    @classmethod
    def begin(cls, address: RedisAddress, owner: Owner) -> Server:
        """A server whose links connect by themselves, and keep trying."""
        return cls(RedisLink.begin(address, WRITE_LINK), RedisLink.begin(address, "korvet-read"), owner)

    @property
    def server(self) -> Server:
        """This server: see Links."""
        return self

    @property
    def is_moving(self) -> bool:
        """See Links: this server keeps its keys."""
        return False

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
        self._held = False
        if address != self.address:
            self.history.go_down()
        for link in self._links():
            link.move(address, reason)

    def hold(self, reason: str) -> None:
        """Lead to no server until `move`: commands, those in flight too, fail with LinkLost."""
        self._held = True
        self._act(self.history.leave(reason))

    async def succeed(self, former: Server) -> bool:
        """Take over keys of `former`. Returns whether this server certainly has all writes that `former`
        executed as their primary.
        """
        now, then = await asyncio.gather(self._ask(), former._ask())
        if now is None or then is None:
            return False
        self._act(self.history.rename(now))
        return self.history.lacks_nothing_of(former.history, then)

    async def still_leads(self) -> bool:
        """Whether this server certainly is the primary of the history that the broker has seen last."""
        now = await self._ask()
        return now is not None and not now.is_replica and now.history == self.history.id

    async def _ask(self) -> Replication | None:
        """What the server reports; None if it does not answer in time."""
        with contextlib.suppress(StorageError, TimeoutError):
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return parse_replication(await self.write.call_packed(_INFO))
        return None

    def lead(self, link: RedisLink) -> None:
        """See Primary."""
        link.primary_only = self.write.primary_only
        link.on_silent = self._went_silent
        link.refusal = self._refusal

    def _refusal(self, met: Replication) -> str:
        """Why a link may not use a server that reports this; empty if it may."""
        if self.history.admits(met):
            return ""
        if self.history.state is State.DOWN:
            return "the connection for writes comes first"
        self._act(self.history.doubt(met))
        return "it is not in the history of the connection for writes"

    def _links(self) -> tuple[RedisLink, ...]:
        return self.write, self.read, *self.barriers.links

    async def _watch(self) -> NoReturn:
        while True:
            await self._look()
            await self.barriers.close_unused()
            await asyncio.sleep(_REPLICATION_INTERVAL_S)

    def _look(self, *, asked: bool = False) -> asyncio.Future[None]:
        """Ask the server for a report; `asked`: see History.report. It is noted before anything else is
        received: its offset is that of the newest write that the broker has seen.
        """
        noted: asyncio.Future[None] = self.write.loop.create_future()

        def arrived(reply: memoryview | StorageError) -> None:
            # INFO may be forbidden to the user.
            found = None if isinstance(reply, StorageError) else parse_replication(parse_reply(reply))
            self.replication = found or self.replication
            self._act(self.history.report(found, asked=asked))
            if not noted.done():
                noted.set_result(None)

        self.write.send(_INFO, arrived)
        return noted

    def _act(self, effect: Effect | None) -> None:
        if effect is Effect.ASK:
            if self.silent:
                self._act(self.history.report(None, asked=True))
            else:
                self._look(asked=True)
        elif effect is Effect.LEAVE:
            for link in self._links():
                end_link = link.hold if self._held else link.reset
                end_link(self.history.reason)
        elif effect is not None:
            if effect is Effect.LOSE:
                self._owner.may_have_lost(self)
            self._follow()

    def _follow(self) -> None:
        for link in (self.read, *self.barriers.links):
            if link.connected and not self.history.has_id(link.replication.history):
                link.reset("the connection for writes leads to another server now")
            link.hurry()

    def _write_went_down(self) -> None:
        self.replication = None
        self.module.lost()
        self.history.go_down()
        for link in self.barriers.links:
            link.reset("the connection for writes is lost")
        self._owner.refresh_soon()

    def _write_came_up(self) -> None:
        self.module.ask()
        self._act(self.history.come_up(self.write.replication))
        self._owner.came_up()

    def _faulted(self, fault: RedisFault) -> None:
        """End the connections to a replica, because its address may lead to the new primary by now. A server
        that cannot write can still be read: its connections are ended only if the address leads to another
        server.
        """
        if fault.code == READONLY:
            self._act(self.history.leave("the server has become a replica"))
        else:
            self._check_soon()

    def _went_silent(self) -> None:
        if any(link.silent_ms >= _HALF_OPEN_MS for link in self._links()):
            self._check_soon()
        self._owner.refresh_soon()

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
            await found.close()
            self._refusal(found.replication)
            await asyncio.sleep(_GRACE_S)
            for link in self._links():
                if link.silent_ms >= _HALF_OPEN_MS:
                    link.reset("it sends no replies, although the server answers on a new connection")
        await asyncio.sleep(_CHECK_INTERVAL_S)

    async def close(self) -> None:
        """Close both links; commands in flight fail with LinkLost."""
        await end(self._checking)
        await end(self._watching)
        await self.barriers.close()
        await asyncio.gather(self.read.close(), self.write.close())


class OneServer:
    """A Router for a Redis without a cluster: one server holds all keys."""

    def __init__(self, write: RedisLink, read: RedisLink) -> None:
        self.on_up: Callable[[], None] | None = None
        self.on_moved: Callable[[Callable[[bytes], bool]], None] | None = None
        write.primary_only = True
        self._server = Server(write, read, self)

    def links(self, key: bytes) -> Links:
        """See Router."""
        return self._server

    def servers(self) -> Collection[Server]:
        """See Router."""
        return (self._server,)

    @property
    def named_replicas(self) -> int:
        """See Router."""
        return 0

    async def close(self) -> None:
        """See Router."""
        await self._server.close()

    def came_up(self) -> None:
        """See Owner."""
        if self.on_up is not None:
            self.on_up()

    def may_have_lost(self, server: Server) -> None:
        """See Owner."""
        if self.on_moved is not None:
            self.on_moved(lambda key: True)

    def refresh_soon(self) -> None:
        """See Owner: there is no other server."""
