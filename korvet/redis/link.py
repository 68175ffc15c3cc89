"""A link to Redis: a connection that is opened again after it broke.

The hot path hands over packed bytes and gets the raw bytes of the reply; all other callers use `call`.

While the link is down, every new command fails at once with LinkLost. A command that was in flight when the
connection broke fails with LinkLost too and is never sent again: whether it took effect is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from korvet.metrics.counted import Counted, counter, histogram
from korvet.records.kernel import pack_command
from korvet.redis.calls import Caller, answer, ask
from korvet.redis.clock import steady_s
from korvet.redis.connection import Connection
from korvet.redis.errors import LinkLost, StorageError, StoreError, WritesRefused
from korvet.redis.replication import parse_replication
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.redis.address import RedisAddress
    from korvet.redis.calls import OnReply, Payload
    from korvet.redis.errors import RedisFault
    from korvet.redis.replication import Replication

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_CAP_S: Final = 1.0
# Limits the two halves of a handshake: the connection, and the replies to the first commands.
_HANDSHAKE_TIMEOUT_S: Final = 10.0
# The same for a link that was lost. A server that is stopped accepts connections and does not answer; the
# next attempt may reach another server.
_RECONNECT_TIMEOUT_S: Final = 3.0
# The least time to connect to one address of a host.
_LEAST_SHARE_S: Final = 1.0
# Interval of checks of a connection, and the least number of checks in `RedisAddress.timeout_ms`. Checks are
# counted instead of time: a broker that was busy has not read its replies.
_CHECK_INTERVAL_MS: Final = 500
_LEAST_CHECKS: Final = 4
# Silent checks in a row, after which a link counts as silent: the first one may follow at once after a
# command was sent.
_SILENT_CHECKS: Final = 2
# The send buffer of a unix socket. The socket accepts more when three quarters of the buffer are free. With
# the usual 208 KB Redis has often consumed the last quarter before the broker writes again. The kernel caps
# the size (net.core.wmem_max).
_UNIX_SEND_BUFFER_BYTES: Final = 1 << 20
_NAME_PREFIX: Final = "korvet-"
_PING: Final = pack_command("PING")


class LinkCounts(Counted):
    """The links of one kind: `write`, `read`, `barrier` and so on."""

    round_trips = histogram(
        "korvet_redis_round_trip_seconds",
        "Time from a command, or several with one answer, to its last reply, in seconds, by kind of link, of "
        "every eighth command. The barrier's commands wait for replicas.",
        "link",
    )
    connected = counter(
        "korvet_redis_connections_total", "Connections that were set up, by kind of link.", "link"
    )
    lost = counter("korvet_redis_connections_lost_total", "Connections that broke, by kind of link.", "link")


LINKS: Final = defaultdict[str, LinkCounts](LinkCounts)
"""The counts of all links of the process by kind: servers come and go in a cluster, and counters must not
fall.
"""


class RedisLink(Caller):
    """A connection to Redis that is opened again after it broke. Use from one event loop only.

    A connection that receives nothing for `address.timeout_ms` while a reply is due is given up; an idle
    connection is tested with PING. So a peer that vanished silently is noticed, and a slow peer has that time
    for each reply, and for each piece of a long reply.

    The link may be moved to another address, and held: then it is not connected until it is moved again.
    """

    def __init__(self, address: RedisAddress, name: str, on_push: Callable[[], None] | None = None) -> None:
        """`name` is what CLIENT LIST shows; `on_push`: see Connection. Use `connect` or `begin`."""
        self.address = address
        """Where the link leads to."""
        self._name = name
        self._counts = LINKS[name.removeprefix(_NAME_PREFIX)]
        self._on_push = on_push
        self.loop = asyncio.get_running_loop()
        """The loop that uses the link: looking up the running loop costs a system call each time."""
        self._connection: Connection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._closed = False
        self._up = asyncio.Event()
        self._why_down = ""
        self._held = ""
        # Set to begin the next attempt to connect at once.
        self._hurry = asyncio.Event()
        # Limits the attempt to connect that is in progress.
        self._attempt: asyncio.Timeout | None = None
        self._check: asyncio.TimerHandle | None = None
        self._silent_checks = 0
        self.primary_only = False
        """Whether a replica is refused (INFO replication)."""
        # The address at which a replica was refused last; None if the last server was none.
        self._replica_at: RedisAddress | None = None
        self.refusal: Callable[[Replication], str] | None = None
        """Called with what a server reports (INFO replication) before the link uses it; gives the reason why
        the link must not, or an empty text.
        """
        self.replication = parse_replication(b"")
        """What the server reported when the link came up; nothing if that is forbidden."""
        self._heard_s = steady_s()
        self.on_up: Callable[[], None] | None = None
        """Called each time the link accepts commands again after it was lost."""
        self.on_down: Callable[[], None] | None = None
        """Called each time the link is lost."""
        self.on_silent: Callable[[], None] | None = None
        """Called several times a second while the server is silent, see `silent_ms`."""
        self.on_fault: Callable[[RedisFault], None] | None = None
        """Called after a command was answered with READONLY or MISCONF."""

    @classmethod
    async def connect(cls, address: RedisAddress, name: str = "korvet") -> RedisLink:
        """Connect, authenticate (AUTH) and select the database (SELECT).

        Raises StoreError if Redis cannot be reached or refuses the connection.
        """
        link = cls(address, name)
        try:
            await link._open(_HANDSHAKE_TIMEOUT_S)
        except (OSError, TimeoutError, LinkLost) as error:
            # A server without TLS waits for the rest of a command.
            hint = "; does this port use TLS?" if address.tls and isinstance(error, TimeoutError) else ""
            raise StoreError(f"{address.named} cannot be reached: {_reason(error)}{hint}") from error
        except StorageError as fault:
            raise StoreError(f"{address.named} refuses the connection: {fault}") from fault
        return link

    @classmethod
    def begin(
        cls, address: RedisAddress, name: str = "korvet", on_push: Callable[[], None] | None = None
    ) -> RedisLink:
        """A link that is not connected yet: it connects by itself, and keeps trying."""
        link = cls(address, name, on_push)
        link._reconnect_soon()
        return link

    @property
    def connected(self) -> bool:
        """Whether commands are accepted now."""
        return self._connection is not None

    @property
    def found_replica(self) -> bool:
        """Whether the last server at the present address was refused as a replica."""
        return self._replica_at == self.address

    @property
    def silent_ms(self) -> int:
        """How long a reply has been due without anything received (ms); 0 if that is short."""
        return self._silent_checks * self._check_ms if self._silent_checks >= _SILENT_CHECKS else 0

    @property
    def unheard_ms(self) -> int:
        """The time (ms) since something was received, accurate to one interval of checks (half a second)."""
        return int((steady_s() - self._heard_s) * 1000)

    @property
    def _check_ms(self) -> int:
        return min(_CHECK_INTERVAL_MS, self.address.timeout_ms // _LEAST_CHECKS)

    async def wait_connected(self, timeout_ms: int) -> None:
        """Wait until commands are accepted; raises LinkLost after `timeout_ms`."""
        try:
            await asyncio.wait_for(self._up.wait(), timeout_ms / 1000)
        except TimeoutError:
            why = self._why_down
            raise LinkLost(f"no connection to {self.address.named} within {timeout_ms} ms{why}") from None

    def send(self, payload: Payload, on_reply: OnReply, replies: int = 1) -> None:
        """Send one packed command, or several with `replies` replies in all; `on_reply` is called once, never
        before this method returns.
        """
        connection = self._connection
        if connection is None:
            lost = LinkLost(f"no connection to {self.address.named}{self._why_down}")
            self.loop.call_soon(answer, on_reply, lost)
            return
        connection.send(payload, on_reply, replies)

    def reset(self, reason: str) -> None:
        """End the connection: the link connects to the server that the address then leads to."""
        if self._connection is not None:
            self._connection.abort(reason)

    def move(self, address: RedisAddress, reason: str) -> None:
        """Lead to another server from now on. If the address is the present one, only end a hold."""
        if address == self.address and not self._held:
            return
        moved, self.address, self._held = address != self.address, address, ""
        if moved:
            self.reset(reason)
        self._hurry_up()

    def hold(self, reason: str) -> None:
        """End the connection, and open none until the link is moved."""
        if self._held:
            return
        self._held = reason
        self._why_down = f": {reason}"
        self.reset(reason)
        self._hurry_up()

    def hurry(self) -> None:
        """End the pause between two attempts to connect."""
        self._hurry.set()

    def _hurry_up(self) -> None:
        """End the attempt to connect that is in progress, or the pause after it."""
        self.hurry()
        if self._attempt is not None:
            self._attempt.reschedule(self.loop.time())
            self._attempt = None

    async def close(self) -> None:
        """Close the link for good; commands in flight fail with LinkLost."""
        self._closed = True
        await end(self._reconnecting)
        connection = self._connection
        self._drop()
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
            # The transport calls `connection_lost` in the loop's next iteration.
            await connection.gone.wait()

    async def _open(self, timeout_s: float) -> None:
        address = self.address
        connection = await asyncio.wait_for(self._dial(address, timeout_s), timeout_s)
        try:
            found = await asyncio.wait_for(self._greet(connection, address), timeout_s)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # wait_for swallows a cancellation that arrives together with its result.
                raise asyncio.CancelledError
            if self._held or address != self.address:
                raise LinkLost("the link was moved during the handshake")
            if connection.lost:
                raise LinkLost("the connection broke during the handshake")
            self._judge(found)
        except BaseException:
            assert connection.transport is not None
            connection.transport.abort()
            raise
        # The name only helps operators; a server that does not know the command works as well.
        connection.send(pack_command("CLIENT", "SETNAME", self._name), lambda reply: None)
        self._connection, self.replication = connection, found
        self._heard_s = steady_s()
        self._counts.connected += 1
        self._why_down = ""
        self._up.set()
        self._check_later(connection)

    async def _dial(self, address: RedisAddress, timeout_s: float) -> Connection:
        loop = asyncio.get_running_loop()
        connection: Connection | None = None

        def make() -> Connection:
            nonlocal connection
            connection = Connection(
                lambda exc: self._lost(connection, exc),
                self._faulted,
                self._on_push,
                self._counts.round_trips,
            )
            return connection

        if address.socket_path is not None:
            transport, protocol = await loop.create_unix_connection(make, address.socket_path)
            own_socket = transport.get_extra_info("socket")
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_SEND_BUFFER_BYTES)
        else:
            transport, protocol = await _connect(make, address, timeout_s)
            _keep_alive(transport.get_extra_info("socket"), address.timeout_ms)
        return protocol

    def _judge(self, found: Replication) -> None:
        """Raise LinkLost if the link must not use a server that reports this."""
        is_refused = self.primary_only and found.is_replica
        self._replica_at = self.address if is_refused else None
        if is_refused:
            raise LinkLost("the server is a replica")
        refusal = self.refusal(found) if self.refusal is not None else ""
        if refusal:
            raise LinkLost(refusal)

    async def _greet(self, connection: Connection, address: RedisAddress) -> Replication:
        """Begin the use of a connection. Returns what the server reports."""
        commands: list[tuple[bytes | str | int, ...]] = []
        if address.password is not None:
            user = (address.username,) if address.username else ()
            commands.append(("AUTH", *user, address.password))
        if address.database:
            commands.append(("SELECT", address.database))
        commands.append(("PING",))
        commands.append(("INFO", "replication"))
        replies = [ask(connection.send, pack_command(*command)) for command in commands]
        *greeted, info = await asyncio.gather(*replies, return_exceptions=True)
        for reply in greeted:
            # PING returns MISCONF if the server accepts no writes; reads work.
            if isinstance(reply, BaseException) and not isinstance(reply, WritesRefused):
                raise reply
        # INFO may be forbidden to the user.
        return parse_replication(info if isinstance(info, bytes) else b"")

    # Liveness

    def _check_later(self, connection: Connection) -> None:
        self._check = self.loop.call_later(self._check_ms / 1000, self._check_liveness, connection)

    def _check_liveness(self, connection: Connection) -> None:
        """Send PING on an idle connection; give up a connection that was silent for too long."""
        if connection.received:
            self._heard_s = steady_s()
        if connection.received or not connection.waiting:
            self._silent_checks = 0
            connection.received = False
        else:
            self._silent_checks += 1
        if self.silent_ms >= self.address.timeout_ms:
            connection.abort(f"it sent no reply for {self.address.timeout_ms} ms")
            return
        if not connection.waiting:
            connection.send(_PING, self._pinged)
        self._check_later(connection)
        if self.silent_ms and self.on_silent is not None:
            self.on_silent()

    def _pinged(self, reply: memoryview | StorageError) -> None:
        """PING was answered, or a message of a channel came before its answer, which then counts as a
        message.
        """
        if self._on_push is not None and not isinstance(reply, StorageError):
            self._on_push()

    def _faulted(self, fault: RedisFault) -> None:
        if self.on_fault is not None:
            self.on_fault(fault)

    def _drop(self) -> None:
        self._connection = None
        self._silent_checks = 0
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._up.clear()

    def _lost(self, connection: Connection | None, exc: Exception | None) -> None:
        if connection is not self._connection or connection is None:
            return
        self._drop()
        if self._closed:
            return
        self._counts.lost += 1
        reason = connection.reason or _reason(exc)
        log.warning("lost the connection to %s: %s", self.address.named, reason)
        self._reconnect_soon()
        if self.on_down is not None:
            self.on_down()

    def _reconnect_soon(self) -> None:
        # A task that failed after it had connected is restarted by `keep`.
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = keep("connection to Redis", self._reconnect)

    async def _reconnect(self) -> None:
        pause_s = _BACKOFF_FIRST_S
        while not self.connected:
            if self._closed:
                return
            self._hurry.clear()
            if self._held:
                await self._hurry.wait()
                continue
            try:
                async with asyncio.timeout(None) as self._attempt:
                    await self._open(_RECONNECT_TIMEOUT_S)
            except (OSError, TimeoutError, StorageError) as error:
                self._attempt = None
                if self._hurry.is_set():
                    pause_s = _BACKOFF_FIRST_S
                    continue
                self._failed(error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), pause_s)
                pause_s = min(pause_s * 2, _BACKOFF_CAP_S)
            finally:
                self._attempt = None
        log.info("connected to %s", self.address.named)
        if self.on_up is not None:
            self.on_up()

    def _failed(self, error: Exception) -> None:
        """Log why the link cannot connect, unless that is known."""
        why = f": {_reason(error)}"
        if why != self._why_down:
            log.warning("no connection to %s yet%s", self.address.named, why)
            self._why_down = why


async def _connect(
    make: Callable[[], Connection], address: RedisAddress, timeout_s: float
) -> tuple[asyncio.Transport, Connection]:
    """Connect to one of the addresses of a host. Each has its share of the time, so that those after one that
    drops packets are tried, too.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    hosts = list(dict.fromkeys(str(place[0]) for *_, place in found))
    tls = ssl.create_default_context() if address.tls else None
    name = address.host if address.tls else None
    failed: OSError = OSError(f"{address.host} has no address")
    for host in hosts:
        try:
            async with asyncio.timeout(max(timeout_s / len(hosts), _LEAST_SHARE_S)):
                return await loop.create_connection(make, host, address.port, ssl=tls, server_hostname=name)
        except OSError as error:
            failed = error
    raise failed


def _keep_alive(own_socket: socket.socket, timeout_ms: int) -> None:
    """Let the kernel give up a peer that acknowledges nothing for `timeout_ms`, if it supports that."""
    own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        own_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        return
    # macOS has another name for the idle time before the first probe.
    idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
    if idle is not None:
        own_socket.setsockopt(socket.IPPROTO_TCP, idle, max(1, timeout_ms // 1000))


def _reason(error: BaseException | None) -> str:
    if error is None:
        return "closed by the server"
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    return str(error) or type(error).__name__
