"""Accepts clients. A connection counts towards the limits from its accept, so during its TLS handshake too.

asyncio's own servers know a TLS connection only after its handshake, so no limit would apply to connections
that never begin one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from typing import TYPE_CHECKING, Final

from korvet.config.address import Address
from korvet.security.listeners import is_unspecified
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.server.connections import Admission, Connections
    from korvet.server.tls import ServerTls

log = logging.getLogger(__name__)

# Connections that the kernel queues while the broker is busy: all clients reconnect at once after a restart.
_BACKLOG: Final = 4096
# Connections accepted in one iteration of the event loop. Clients that are connected get the next iteration.
_MOST_AT_ONCE: Final = 100
# Errors of accept() that the process causes and not the client, and the pause before the next accept().
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_S: Final = 1.0
_EVERY_IPV4: Final = "0.0.0.0"


class Acceptor:
    """One listener's sockets, and the connections on their way from accept() to their protocol."""

    def __init__(
        self,
        name: str,
        sockets: Sequence[socket.socket],
        connections: Connections,
        tls: ServerTls | None,
        setup_timeout_s: float,
    ) -> None:
        """name: the listener's; tls: None for a listener without; setup_timeout_s: for the TLS handshake."""
        self._name = name
        self._sockets = sockets
        self._connections = connections
        self._tls = tls
        self._setup_timeout_s = setup_timeout_s
        self._arriving: set[asyncio.Task[None]] = set()
        self._paused: set[asyncio.TimerHandle] = set()

    @property
    def port(self) -> int:
        """The TCP port that is listened on."""
        return int(self._sockets[0].getsockname()[1])

    def start(self, connect: Callable[[Callable[[], None]], asyncio.BaseProtocol]) -> None:
        """Accept clients. `connect(leave)` makes the protocol of a new connection, which calls `leave` when
        it ends. Raises OSError.
        """
        self._connect = connect
        for each in self._sockets:
            each.listen(_BACKLOG)
            asyncio.get_running_loop().add_reader(each, self._accept, each)

    def close(self) -> None:
        """Accept no more connections, and drop those that are not set up yet."""
        for handle in self._paused:
            handle.cancel()
        for each in self._sockets:
            if each.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(each)
                each.close()
        for task in self._arriving:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_MOST_AT_ONCE):
            pause_ms = self._connections.pause_ms(self._name)
            if pause_ms > 0:
                self._pause(listening, pause_ms / 1000)
                return
            try:
                accepted, address = listening.accept()
            except EOFError:
                # The process that hands connections over has ended.
                asyncio.get_running_loop().remove_reader(listening)
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.error("no connection can be accepted for %.0f s: %s", _PAUSE_S, error)
                    self._pause(listening, _PAUSE_S)
                # Otherwise no connection is left, or the client's network failed before the accept.
                return
            self._connections.count(self._name)
            accepted.setblocking(False)
            # A client of a unix socket has no address.
            host = f"/{address[0]}" if address else "/"
            admission = self._connections.admit(self._name, host)
            if admission is None:
                accepted.close()
                continue
            task = once("accepting a connection", self._set_up(accepted, host, admission))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    async def _set_up(self, accepted: socket.socket, host: str, admission: Admission) -> None:
        """Hand a connection over to its protocol, which gives the admission back at the end."""
        wait_ms = self._connections.wait_ms(host)
        if wait_ms:
            self._connections.counts[self._name].refused += 1
            # Closed later, so that the client does not reconnect at once.
            with accepted:
                try:
                    await asyncio.sleep(wait_ms / 1000)
                finally:
                    admission.leave()
            return
        connection = self._connect(admission.leave)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=None if self._tls is None else self._tls.context,
                ssl_handshake_timeout=self._setup_timeout_s if self._tls is not None else None,
            )
        except OSError as error:
            admission.leave()
            self._connections.counts[self._name].failed_authentications += 1
            self._connections.note_refused(
                host, f"its TLS handshake on listener {self._name} failed: {error}"
            )
        except BaseException:
            admission.leave()
            raise

    def _pause(self, listening: socket.socket, pause_s: float) -> None:
        """Accept nothing for a while. Connections stay in the kernel's queue."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def resume() -> None:
            self._paused.discard(handle)
            loop.add_reader(listening, self._accept, listening)

        handle = loop.call_later(pause_s, resume)
        self._paused.add(handle)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to a port on every address of a host. An empty host and :: mean every address of the
    machine, of both families, as in Java. Raises OSError, which names the address.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            None if is_unspecified(host) and host != _EVERY_IPV4 else host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, f"{Address(host, port)}: {error.strerror}") from error
    bound: list[socket.socket] = []
    unavailable: OSError | None = None
    try:
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            # A free port is the same one on all addresses.
            chosen = bound[0].getsockname()[1] if bound else port
            try:
                bound.append(_bound(family, (address[0], chosen, *address[2:])))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                unavailable = error  # as ::1 on a machine without IPv6
        if unavailable is not None and not bound:
            raise unavailable
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # IPv4 has a socket of its own.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        where = Address(str(address[0]), int(str(address[1])))
        raise OSError(error.errno, f"{where}: {error.strerror}") from error
    return made
