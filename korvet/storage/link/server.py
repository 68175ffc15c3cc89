"""The connections to one server, and the interface that users of keys see (`Links`), with a cluster or
without.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from korvet.records.kernel import pack_command
from korvet.storage.errors import StorageError, StoreError
from korvet.storage.link.barrier import Barriers
from korvet.storage.link.calls import parse_reply
from korvet.storage.link.clock import RedisClock
from korvet.storage.link.connection import READONLY
from korvet.storage.link.histories import end_of, may_lack
from korvet.storage.link.library import FunctionCaller
from korvet.storage.link.module import ServerModule
from korvet.storage.link.redis_link import RedisLink
from korvet.storage.link.replication import Replication, parse_replication
from korvet.supervisor import end, keep, once

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
# Limits the wait for a former primary's answer. Without it the new primary counts as one that may lack
# writes.
_FORMER_TIMEOUT_S: Final = 0.5
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
    on_moved: Callable[[Callable[[bytes], bool], bool], None] | None
    """Called with a predicate of keys when another history of their data begins that may lack the newest
    writes: another server took over the keys, or their server was restarted. It is called before any command
    on these keys is sent in the new history, by each connection that leads there; the second argument is
    whether another connection has reported the same history already.
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


class Server:
    """The connections to one server; `Links` whose server never changes."""

    __slots__ = (
        "_checking",
        "_common_history",
        "_end",
        "_history",
        "_leaving",
        "_reported",
        "_watching",
        "barriers",
        "clock",
        "module",
        "on_down",
        "on_moved",
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
        self.write_functions = FunctionCaller(write, writes=True)
        self.read_functions = FunctionCaller(read, writes=False)
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
        self.on_moved: Callable[[bool], None] | None = None
        """Called, before `on_up`, each time a connection leads to a history that may lack writes of the
        former one; with whether the other connection has reported that history already.
        """
        # The history that the broker has seen last, and the replication offset of the newest write that the
        # broker can have seen; None while the links are in use, and if it is unknown.
        self._history = write.history
        self._end: int | None = None
        # The history that the link for reads has reported as one that may lack writes, until the link for
        # writes leads there too.
        self._reported: str | None = None
        # Ends the connections when the server has reported that offset; None while it is not asked.
        self._leaving: Callable[[], None] | None = None
        # The last history that both links had (RedisLink.history).
        self._common_history = ""
        self._checking: asyncio.Task[None] | None = None
        write.on_up, read.on_up = self._write_came_up, self._read_came_up
        write.on_down, read.on_down = self._write_went_down, self._went_down
        write.on_silent = read.on_silent = self.went_silent
        write.on_fault = read.on_fault = self._faulted
        self._compare(write, read)
        self._watching = keep("replication of Redis", self._watch_replication)

    @classmethod
    def begin(cls, address: RedisAddress) -> Server:
        """A server whose links connect by themselves, and keep trying."""
        return cls(RedisLink.begin(address, WRITE_LINK), RedisLink.begin(address, "korvet-read"))

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
        if self._leaving is not None and address != self.address:
            # The connections that it would end are ended here.
            self._leaving = _stay
        for link in self._links():
            link.move(address, reason)

    def hold(self, reason: str) -> None:
        """Lead to no server until `move`: commands, those in flight too, fail with LinkLost."""
        self._leave(lambda: self._hold(reason))

    def _hold(self, reason: str) -> None:
        for link in self._links():
            link.hold(reason)

    async def succeed(self, former: Server) -> bool:
        """Take over keys of `former`. Returns whether this server certainly has all writes that `former`
        executed as their primary.
        """
        try:
            async with asyncio.timeout(_FORMER_TIMEOUT_S):
                now, then = await asyncio.gather(self._ask_replication(), former._ask_replication())
        except (StorageError, TimeoutError):
            return False
        self._note_history(now)
        return not may_lack(former._history, end_of(former._history, then), now)

    async def still_leads(self) -> bool:
        """Whether this server certainly is the primary of the history that the broker has seen last."""
        try:
            async with asyncio.timeout(_FORMER_TIMEOUT_S):
                now = await self._ask_replication()
        except (StorageError, TimeoutError):
            return False
        return not now.is_replica and now.history == self._history

    async def _ask_replication(self) -> Replication:
        return parse_replication(await self.write.call_packed(_INFO))

    def _links(self) -> tuple[RedisLink, ...]:
        return self.write, self.read, *self.barriers.links

    async def _watch_replication(self) -> NoReturn:
        while True:
            with contextlib.suppress(StorageError):
                # INFO may be forbidden to the user.
                self.replication = await self._ask_replication()
                self._compare_history(self.replication)
            await self.barriers.close_unused()
            await asyncio.sleep(_REPLICATION_INTERVAL_S)

    def _compare_history(self, found: Replication) -> None:
        """Compare the history with that of a moment ago, on the same connection."""
        if found.is_replica or found.history == self._history:
            return
        if found.former_end < 0:
            # The first replica has attached, or a backup, or the last replica was away for long: the data are
            # the same.
            self.barriers.rename(self._history, found.history)
            self._note_history(found)
        else:
            self._reset("the server was a replica for a moment")

    def _note_history(self, found: Replication) -> None:
        """The data that the links lead to has another history id from now on."""
        before = self._history
        for link in self._links():
            if link.history == before:
                link.replication = found
        if self._common_history == before:
            self._common_history = found.history
        self._history = found.history

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
        self._report_moved(self.write)
        self._history, self._end, self._reported = self.write.history, None, None
        if self.on_up is not None:
            self.on_up()

    def _read_came_up(self) -> None:
        self._compare(self.read, self.write)
        self._report_moved(self.read)

    def _report_moved(self, link: RedisLink) -> None:
        moved = bool(self._history) and may_lack(self._history, self._end, link.replication)
        if moved and self.on_moved is not None:
            again, self._reported = link.history == self._reported, link.history
            self.on_moved(again)

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
            self._leave(lambda: self._reset("the server has become a replica"))
        else:
            self._check_soon()

    def went_silent(self) -> None:
        """See Primary."""
        if any(link.silent_ms >= _HALF_OPEN_MS for link in self._links()):
            self._check_soon()
        if self.on_silent is not None:
            self.on_silent()

    def _check_soon(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = once("another server's address", self._check_address())

    def _leave(self, leave: Callable[[], None]) -> None:
        """End the connections by `leave()`, after the server has reported how far the broker can have seen
        its history.
        """
        if not self.write.connected or self.silent:
            leave()
            return

        def arrived(reply: memoryview | StorageError) -> None:
            leave, self._leaving = self._leaving, None
            assert leave is not None
            leave()
            if not isinstance(reply, StorageError):
                self._end = end_of(self._history, parse_replication(parse_reply(reply)))

        is_asked, self._leaving = self._leaving is not None, leave
        if not is_asked:
            self.write.send(_INFO, arrived)

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
            for link in self._links():
                if link.silent_ms >= _HALF_OPEN_MS:
                    link.reset("it sends no replies, although the server answers on a new connection")
        await asyncio.sleep(_CHECK_INTERVAL_S)

    def _reset(self, reason: str) -> None:
        for link in self._links():
            link.reset(reason)

    async def close(self) -> None:
        """Close both links; commands in flight fail with LinkLost."""
        await end(self._checking)
        await end(self._watching)
        await self.module.close()
        await self.barriers.close()
        await asyncio.gather(self.read.close(), self.write.close())


def _stay() -> None:
    """Leave the links as they are."""


class OneServer:
    """A Router for a Redis without a cluster: one server holds all keys."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.on_up: Callable[[], None] | None = None
        self.on_moved: Callable[[Callable[[bytes], bool], bool], None] | None = None
        server.on_up, server.on_moved = self._came_up, self._moved
        server.write.primary_only = server.read.primary_only = True

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

    def _came_up(self) -> None:
        if self.on_up is not None:
            self.on_up()

    def _moved(self, again: bool) -> None:
        if self.on_moved is not None:
            self.on_moved(lambda key: True, again)
