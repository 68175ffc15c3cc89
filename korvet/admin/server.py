"""The listening sockets of an admin endpoint: TCP, with or without TLS, and a unix socket."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import msgspec

from korvet.admin.access import Access
from korvet.admin.connection import HttpConnection
from korvet.admin.endpoint import AdminEndpoint, livez
from korvet.admin.handover import ON_STANDARD_INPUT, Handed
from korvet.config.errors import ConfigError
from korvet.server.acceptor import Acceptor, bind
from korvet.server.connections import ConnectionLimits, Connections
from korvet.server.tls import ServerTls
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.admin.endpoint import Page
    from korvet.config.address import Address
    from korvet.config.settings import Config
    from korvet.server.certificates import UsedCertificate

log = logging.getLogger(__name__)

# Limits the open connections: scrapers and probes have a few.
_MOST_CONNECTIONS: Final = 128
# Limits those of one address, so that others can still connect.
_MOST_PER_HOST: Final = 16
_HANDSHAKE_S: Final = 10.0
_ALL_HOSTS: Final = ("", "0.0.0.0", "::")
_LOOPBACK: Final = ("127.", "::1")
_STANDARD_INPUT: Final = 0


class AdminServer:
    """Accepts the clients of one admin endpoint."""

    def __init__(self, endpoint: AdminEndpoint) -> None:
        """Use `open`."""
        self._endpoint = endpoint
        self._connections = Connections(ConnectionLimits(_MOST_CONNECTIONS, _MOST_PER_HOST))
        self._acceptors: list[Acceptor] = []
        # Transports refer to their connections. One whose TLS handshake fails does not report its end.
        self._open: WeakSet[HttpConnection] = WeakSet()
        self._watches = [keep("admin connections", self._connections.keep_watch)]
        self._socket: Path | None = None
        self._tls: ServerTls | None = None
        self._address: Address | None = None

    @classmethod
    async def open(cls, config: Config, endpoint: AdminEndpoint) -> AdminServer:
        """Accept clients on `admin.listen` and `admin.socket`, as far as they are set.

        Raises ConfigError if a file cannot be used, and OSError if an address cannot be listened on.
        """
        server = cls(endpoint)
        try:
            if config.admin_address is not None:
                await server._listen(config, config.admin_address)
            if config.admin_socket == ON_STANDARD_INPUT:
                server._take_from_parent()
            elif config.admin_socket is not None:
                server._listen_locally(Path(config.admin_socket))
        except BaseException:
            await server.close()
            raise
        return server

    @classmethod
    def open_probe(cls, address: str, readyz: Page) -> AdminServer | None:
        """Serve only what a probe asks, on an abstract unix socket. None without an address, and if the
        system has no such sockets: `korvet ready` then needs an admin endpoint.
        """
        if not address or sys.platform != "linux":
            return None
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            listening.bind(address)
        except OSError as error:
            listening.close()
            log.warning("`korvet ready` needs an admin endpoint here: no abstract socket: %s", error.strerror)
            return None
        server = cls(AdminEndpoint({"/livez": livez, "/readyz": readyz}))
        server._accept("probes", [listening], Access(None, None, None), None)
        return server

    def url(self, host: str) -> str:
        """The endpoint's URL for others, with `host` if it listens on all addresses; empty if it has only a
        unix socket.
        """
        if self._address is None:
            return ""
        address = self._address._replace(host=host) if self._address.host in _ALL_HOSTS else self._address
        return f"{'http' if self._tls is None else 'https'}://{address}"

    @property
    def connections(self) -> int:
        """The number of connections that are open or being set up."""
        return len(self._open)

    @property
    def certificates(self) -> list[UsedCertificate]:
        """The certificates of the endpoint."""
        return [] if self._tls is None else self._tls.certificates

    async def close(self) -> None:
        """Accept no more clients, and end all connections."""
        for acceptor in self._acceptors:
            acceptor.close()
        for connection in list(self._open):
            connection.end()
        await end(*self._watches)
        if self._socket is not None:
            self._socket.unlink(missing_ok=True)

    async def _listen(self, config: Config, address: Address) -> None:
        access, tls = Access.of(config), _tls_of(config)
        self._tls = tls
        sockets = await bind(*address)
        acceptor = self._accept("admin", sockets, access, tls)
        if tls is not None:
            self._watches.append(keep("TLS files of the admin endpoint", tls.keep_up))
        self._address = address._replace(port=acceptor.port)
        log.info("admin endpoint at %s", self.url(address.host))
        hosts = {str(each.getsockname()[0]) for each in sockets}
        if access.is_open and not all(host.startswith(_LOOPBACK) for host in hosts):
            log.warning(
                "other hosts can read the metrics and the status of this broker, with the names of topics "
                "and groups: set admin.token or admin.basic.user, or listen on 127.0.0.1"
            )

    def _take_from_parent(self) -> None:
        try:
            handed = Handed(_STANDARD_INPUT)
        except OSError as error:
            raise ConfigError(f"admin.socket = -: standard input is no socket: {error.strerror}") from error
        self._accept("admin socket", [handed], Access(None, None, None), None)

    def _listen_locally(self, path: Path) -> None:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.setblocking(False)
            _remove_left(path)
            listening.bind(str(path))
            path.chmod(0o600)
        except OSError as error:
            listening.close()
            reason = error.strerror or error
            raise ConfigError(f"admin.socket = {path} cannot be used: {reason}") from error
        self._socket = path
        self._accept("admin socket", [listening], Access(None, None, None), None)

    def _accept(
        self, name: str, sockets: Sequence[socket.socket], access: Access, tls: ServerTls | None
    ) -> Acceptor:
        acceptor = Acceptor(name, sockets, self._connections, tls, _HANDSHAKE_S)
        self._acceptors.append(acceptor)
        acceptor.start(partial(self._connect, access))
        return acceptor

    def _connect(self, access: Access, leave: Callable[[], None]) -> HttpConnection:
        endpoint = self._endpoint
        connection = HttpConnection(partial(endpoint.answer, access), leave, endpoint.most_body_bytes)
        self._open.add(connection)
        return connection


def _remove_left(path: Path) -> None:
    """Remove the socket that a killed process has left. Raises OSError if a process listens on it."""
    if not path.is_socket():
        # If there is another file, `bind` refuses the path.
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, "another process listens on it")


def _tls_of(config: Config) -> ServerTls | None:
    """TLS with the endpoint's own certificate, and the versions and ciphers of the listeners."""
    if config.admin_ssl_keystore_location is None:
        return None
    own = msgspec.structs.replace(
        config,
        ssl_keystore_location=config.admin_ssl_keystore_location,
        ssl_key_password=config.admin_ssl_key_password,
        ssl_truststore_location=None,
    )
    try:
        return ServerTls("admin", own, "none")
    except ConfigError as error:
        raise ConfigError(f"admin endpoint: {error}") from error
