"""The raw link to Redis (RESP2 over one connection): pipelined commands out, replies in the same order back.

The hot path hands over packed bytes and gets its reply's raw bytes; everything else uses `call`.

While the link is down every new command fails at once with LinkLost; a command that was in flight when the
connection broke fails with LinkLost too and is never sent again: whether it took effect is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import ssl
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import hiredis

from korvet.records.batch import BatchError
from korvet.records.kernel import ReplyScanner, pack
from korvet.storage.errors import LinkLost, RedisFault, StorageError, StoreError, WritesRefused, domain_error
from korvet.storage.link.futures import settle
from korvet.supervisor import keep

if TYPE_CHECKING:
    from korvet.storage.link.address import RedisAddress

log = logging.getLogger(__name__)

Payload = bytes | Sequence[bytes]
OnReply = Callable[[memoryview | StorageError], None]
"""Called with the raw reply, or all of a command group's (valid during the call only), RedisFault where (the
first) one is an error, or LinkLost."""

# Small at rest, since most replies are; a reply that does not fit doubles it.
_BUFFER_BYTES: Final = 1 << 16
# A larger buffer than this is given back once it is empty.
_KEPT_BUFFER_BYTES: Final = 1 << 21
_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_CAP_S: Final = 2.0
_HANDSHAKE_TIMEOUT_S: Final = 10.0
# A connection is checked this many times within `RedisAddress.timeout_ms`, and given up after as many silent
# checks in a row. Checks are counted, not time: a broker that was busy itself has not read replies.
_LOOKS: Final = 4
# The transport may hold all that its callers send: they watch pressure() and stop.
_WRITE_HIGH_WATER_BYTES: Final = 1 << 26
# A unix socket can be written to again when it is empty but for a quarter. With the usual 208 KB Redis has
# often done that quarter before the broker comes to write. The kernel caps it (net.core.wmem_max).
_UNIX_SEND_BUFFER_BYTES: Final = 1 << 20
_DASH: Final = ord("-")
_HISTORY: Final = re.compile(rb"^master_replid:(\S+)", re.MULTILINE)
_IS_REPLICA: Final = re.compile(rb"^role:slave\s*$", re.MULTILINE)
# Error replies about the server rather than the command, see RedisLink.on_fault: it is a replica; it cannot
# write to its disk.
READONLY: Final = "READONLY"
MISCONF: Final = "MISCONF"
_FAULTS_OF_SERVERS: Final = frozenset((READONLY, MISCONF))
_PING: Final = pack("PING")


class _Connection(asyncio.BufferedProtocol):
    """One TCP or unix connection; it ends for good when it breaks."""

    __slots__ = (
        "_buffer",
        "_end",
        "_loop",
        "_on_fault",
        "_on_lost",
        "_outbox",
        "_scanner",
        "_start",
        "_view",
        "gone",
        "heard",
        "lost",
        "reason",
        "transport",
        "unanswered_bytes",
        "waiting",
    )

    def __init__(
        self, on_lost: Callable[[Exception | None], None], on_fault: Callable[[RedisFault], None]
    ) -> None:
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._scanner = ReplyScanner()
        # Asking for the running loop costs a system call each time.
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._on_fault = on_fault
        # Commands that go out in one write when the loop's turn ends.
        self._outbox: list[bytes] = []
        self.lost = False
        self.gone = asyncio.Event()
        self.heard = False
        """Whether anything came since this was set to False."""
        self.reason = ""
        """Why we have ended the connection; empty if we have not."""
        self.transport: asyncio.Transport | None = None
        self.waiting: deque[tuple[OnReply, int, int]] = deque()
        self.unanswered_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]  # uvloop's transports have no common base
        transport.set_write_buffer_limits(_WRITE_HIGH_WATER_BYTES)  # type: ignore[attr-defined]

    def send(self, payload: Payload, on_reply: OnReply, replies: int = 1) -> None:
        assert self.transport is not None
        if self.lost or self.transport.is_closing():
            lost = LinkLost("the connection to Redis is broken")
            self._loop.call_soon(answer, on_reply, lost)
            return
        outbox = self._outbox
        first = not outbox
        if isinstance(payload, bytes):
            size = len(payload)
            outbox.append(payload)
        else:
            size = sum(map(len, payload))
            outbox += payload
        # A server with nothing to do gets its command now; a busy one gets in one piece what comes together.
        if not self.waiting:
            self._flush()
        elif first:
            self._loop.call_soon(self._flush)
        self.unanswered_bytes += size
        self.waiting.append((on_reply, size, replies))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and not self.lost:
            assert self.transport is not None
            self.transport.writelines(outbox)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def _make_room(self) -> None:
        held = self._end - self._start
        # Callers may still look at the old buffer: it is replaced, never resized.
        size = len(self._buffer) * (2 if self._start < len(self._buffer) // 2 else 1)
        fresh = bytearray(size)
        fresh[:held] = self._view[self._start : self._end]
        self._take_buffer(fresh, held)

    def _take_buffer(self, buffer: bytearray, held: int) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._start = 0
        self._end = held

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.heard = True
        while self._start < self._end:
            replies = self.waiting[0][2] if self.waiting else 1
            try:
                found = self._scanner.feed(self._buffer, self._start, self._end, replies)
            except BatchError as error:
                self.abort(f"the server does not speak RESP: {error}")
                return
            if found < 0:
                return
            start, self._start = self._start, found
            if not self.waiting:
                self.abort("the server answered what nobody asked")
                return
            on_reply, size, _ = self.waiting.popleft()
            self.unanswered_bytes -= size
            self._deliver(on_reply, self._view[start:found])
        if len(self._buffer) > _KEPT_BUFFER_BYTES:
            self._take_buffer(bytearray(_BUFFER_BYTES), 0)
        self._start = self._end = 0

    def _deliver(self, on_reply: OnReply, reply: memoryview) -> None:
        fault = fault_of(reply)
        answer(on_reply, fault or reply)
        if fault is not None and fault.code in _FAULTS_OF_SERVERS:
            self._on_fault(fault)

    def abort(self, reason: str) -> None:
        """End the connection; what is in flight fails with LinkLost."""
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.gone.set()
        waiting, self.waiting = self.waiting, deque()
        self.unanswered_bytes = 0
        why = f": {self.reason}" if self.reason else ""
        for on_reply, _, _ in waiting:
            answer(on_reply, LinkLost(f"the connection to Redis broke before it answered{why}"))
        self._on_lost(exc)


def answer(on_reply: Callable[[Any], None], reply: Any) -> None:
    """Hand a reply over, or what was made of it."""
    # One caller's mistake must not cost the others their replies.
    try:
        on_reply(reply)
    except Exception:  # noqa: BLE001 - logged
        # As text: a kept log record must not keep the request alive, which ends when nothing refers to it.
        log.error("a reply of Redis could not be handled\n%s", traceback.format_exc())


class Caller:
    """What takes packed commands and hands their replies over, in the order of the calls."""

    __slots__ = ()

    def send(self, payload: Payload, on_reply: OnReply) -> None:
        """Send one packed command; `on_reply` is called once, never before this returns."""
        raise NotImplementedError

    def call(self, *args: bytes | str | int) -> asyncio.Future[Any]:
        """Send one command; the future gives the parsed reply (bytes, int, list, None).

        The future raises the domain error of an error reply, and LinkLost if the connection is gone.
        """
        return ask(self.send, pack(*args))

    def call_packed(self, payload: Payload) -> asyncio.Future[Any]:
        """As `call`, for a packed command."""
        return ask(self.send, payload)


def ask(send: Callable[[Payload, OnReply], None], payload: Payload) -> asyncio.Future[Any]:
    """The parsed reply of a packed command that `send` sends; see Caller.call."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def arrived(reply: memoryview | StorageError) -> None:
        settle(future, domain_error(reply) if isinstance(reply, StorageError) else parse_reply(reply))

    send(payload, arrived)
    return future


def parse_reply(reply: memoryview) -> Any:
    """A raw reply as bytes, int, list or None."""
    reader = hiredis.Reader()
    reader.feed(bytes(reply))
    return reader.gets()


def parse_replies(replies: memoryview, count: int) -> list[Any]:
    """As parse_reply, for several replies, of which any may be an error: a RedisFault in its place."""
    reader = hiredis.Reader(replyError=_fault)
    reader.feed(bytes(replies))
    return [reader.gets() for _ in range(count)]


def fault_of(reply: memoryview) -> RedisFault | None:
    """The error that a raw reply is; None where it is none."""
    return _fault(bytes(reply[1:-2]).decode("utf-8", "replace")) if reply[0] == _DASH else None


def _fault(message: str) -> RedisFault:
    return RedisFault(message, message.partition(" ")[0])


class RedisLink(Caller):
    """A connection to Redis that comes back after it broke. Use from one event loop only.

    A connection on which nothing comes for `address.timeout_ms` although something was asked is given up; an
    idle connection is tested with PING. So a peer that vanished silently is noticed, and a slow peer has that
    time for each reply, and for each piece of a long reply.
    """

    def __init__(self, address: RedisAddress, name: str) -> None:
        """`name` is what CLIENT LIST shows. Use `connect`."""
        self.address = address
        self._name = name
        self.loop = asyncio.get_running_loop()
        """The one that it is used from: asking for it costs a system call each time."""
        self._connection: _Connection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._closed = False
        self._up = asyncio.Event()
        self._why_down = ""
        self._look: asyncio.TimerHandle | None = None
        self._silent_looks = 0
        self.primary_only = False
        """Whether a replica is refused (INFO replication)."""
        self.history = b""
        """The server's replication id when the link came up (INFO replication): it changes when the server is
        started again, or a replica takes over the address. Empty if the server does not report it.
        """
        self.on_up: Callable[[], None] | None = None
        """Called each time the link is usable again after it was lost."""
        self.on_down: Callable[[], None] | None = None
        """Called each time the link is lost."""
        self.on_fault: Callable[[RedisFault], None] | None = None
        """Called after a command was answered with READONLY or MISCONF."""

    @classmethod
    async def connect(cls, address: RedisAddress, name: str = "korvet") -> RedisLink:
        """Connect, authenticate (AUTH) and select the database (SELECT).

        Raises StoreError where Redis cannot be reached or refuses us.
        """
        link = cls(address, name)
        try:
            await link._open()
        except (OSError, TimeoutError, LinkLost) as error:
            raise StoreError(f"Redis at {link.address} cannot be reached: {_reason(error)}") from error
        except StorageError as fault:
            raise StoreError(f"Redis at {link.address} refuses the connection: {fault}") from fault
        return link

    @classmethod
    def begin(cls, address: RedisAddress, name: str = "korvet") -> RedisLink:
        """A link that is lost yet: it connects by itself, and goes on trying."""
        link = cls(address, name)
        link._come_back()
        return link

    @property
    def connected(self) -> bool:
        """Whether commands are accepted now."""
        return self._connection is not None

    async def wait_connected(self, timeout_ms: int) -> None:
        """Wait until commands are accepted; raises LinkLost after `timeout_ms`."""
        try:
            await asyncio.wait_for(self._up.wait(), timeout_ms / 1000)
        except TimeoutError:
            why = self._why_down
            raise LinkLost(f"no connection to Redis at {self.address} within {timeout_ms} ms{why}") from None

    def send(self, payload: Payload, on_reply: OnReply, replies: int = 1) -> None:
        """Send one packed command, or several that get `replies` replies; `on_reply` is called once, never
        before this returns.
        """
        connection = self._connection
        if connection is None:
            lost = LinkLost(f"no connection to Redis at {self.address}{self._why_down}")
            self.loop.call_soon(answer, on_reply, lost)
            return
        connection.send(payload, on_reply, replies)

    def pressure(self) -> int:
        """Bytes of commands sent and not answered yet, what waits in the socket's buffer included."""
        return self._connection.unanswered_bytes if self._connection is not None else 0

    def reset(self, reason: str) -> None:
        """End the connection: the link comes back at whatever server the address leads to then."""
        if self._connection is not None:
            self._connection.abort(reason)

    async def close(self) -> None:
        """Close for good; what is in flight fails with LinkLost."""
        self._closed = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reconnecting
        connection = self._connection
        self._drop()
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
            # The transport tells the protocol in the loop's next turn.
            await connection.gone.wait()

    async def _open(self) -> None:
        connection = await asyncio.wait_for(self._dial(), _HANDSHAKE_TIMEOUT_S)
        try:
            await asyncio.wait_for(self._greet(connection), _HANDSHAKE_TIMEOUT_S)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # wait_for swallows a cancellation that comes together with its result.
                raise asyncio.CancelledError
        except BaseException:
            assert connection.transport is not None
            connection.transport.abort()
            raise
        if connection.lost:
            raise LinkLost("the connection broke at once")
        self._connection = connection
        self._why_down = ""
        self._up.set()
        self._look_later(connection)

    async def _dial(self) -> _Connection:
        loop = asyncio.get_running_loop()
        connection: _Connection | None = None

        def make() -> _Connection:
            nonlocal connection
            connection = _Connection(lambda exc: self._lost(connection, exc), self._faulted)
            return connection

        if self.address.socket_path is not None:
            transport, protocol = await loop.create_unix_connection(make, self.address.socket_path)
            own_socket = transport.get_extra_info("socket")
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_SEND_BUFFER_BYTES)
        else:
            tls = ssl.create_default_context() if self.address.tls else None
            transport, protocol = await loop.create_connection(
                make, self.address.host, self.address.port, ssl=tls
            )
            _keep_alive(transport.get_extra_info("socket"), self.address.timeout_ms)
        return protocol

    async def _greet(self, connection: _Connection) -> None:
        commands: list[tuple[bytes | str | int, ...]] = []
        if self.address.password is not None:
            user = (self.address.username,) if self.address.username else ()
            commands.append(("AUTH", *user, self.address.password))
        if self.address.database:
            commands.append(("SELECT", self.address.database))
        commands.append(("PING",))
        commands.append(("INFO", "replication"))
        replies = [ask(connection.send, pack(*command)) for command in commands]
        *greeted, info = await asyncio.gather(*replies, return_exceptions=True)
        for reply in greeted:
            # PING returns MISCONF if the server takes no writes; it can be read from.
            if isinstance(reply, BaseException) and not isinstance(reply, WritesRefused):
                raise reply
        # A user may not be allowed to ask.
        told = info if isinstance(info, bytes) else b""
        if self.primary_only and _IS_REPLICA.search(told):
            raise LinkLost("the server is a replica")
        found = _HISTORY.search(told)
        self.history = found[1] if found else b""
        # A name is a convenience; servers that do not know the command are no worse for it.
        connection.send(pack("CLIENT", "SETNAME", self._name), lambda reply: None)

    # Liveness

    def _look_later(self, connection: _Connection) -> None:
        self._look = self.loop.call_later(self.address.timeout_ms / 1000 / _LOOKS, self._look_at, connection)

    def _look_at(self, connection: _Connection) -> None:
        """Send PING on an idle connection, and give up a connection that was silent for too long."""
        if connection.heard or not connection.waiting:
            self._silent_looks = 0
            connection.heard = False
        else:
            self._silent_looks += 1
        if self._silent_looks >= _LOOKS:
            connection.abort(f"it has answered nothing for {self.address.timeout_ms} ms")
            return
        if not connection.waiting:
            connection.send(_PING, lambda reply: None)
        self._look_later(connection)

    def _faulted(self, fault: RedisFault) -> None:
        if self.on_fault is not None:
            self.on_fault(fault)

    def _drop(self) -> None:
        self._connection = None
        self._silent_looks = 0
        if self._look is not None:
            self._look.cancel()
            self._look = None
        self._up.clear()

    def _lost(self, connection: _Connection | None, exc: Exception | None) -> None:
        if connection is not self._connection or connection is None:
            return
        self._drop()
        if self._closed:
            return
        reason = connection.reason or _reason(exc)
        log.warning("lost the connection to Redis at %s: %s", self.address, reason)
        self._come_back()
        if self.on_down is not None:
            self.on_down()

    def _come_back(self) -> None:
        # A task that failed after it had connected runs again by itself.
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = keep("connection to Redis", self._reconnect)

    async def _reconnect(self) -> None:
        pause_s = _BACKOFF_FIRST_S
        while not self.connected:
            if self._closed:
                return
            try:
                await self._open()
            except (OSError, TimeoutError, StorageError) as error:
                why = f": {_reason(error)}"
                if why != self._why_down:
                    log.warning("no connection to Redis at %s yet%s", self.address, why)
                    self._why_down = why
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _BACKOFF_CAP_S)
            else:
                log.info("connected to Redis at %s", self.address)
        if self.on_up is not None:
            self.on_up()


def _keep_alive(own_socket: socket.socket, timeout_ms: int) -> None:
    """Have the kernel give up a peer that acknowledges nothing for `timeout_ms`, if it supports that."""
    own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        own_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        return
    # macOS has another name for the idle time after which it probes.
    idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
    if idle is not None:
        own_socket.setsockopt(socket.IPPROTO_TCP, idle, max(1, timeout_ms // 1000))


def _reason(error: BaseException | None) -> str:
    if error is None:
        return "closed by the server"
    return str(error) or type(error).__name__
