"""The listening socket: where clients connect, and how many of them the process has room for."""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import TYPE_CHECKING, Any, Final

from korvet.config import Address, Config
from korvet.server.connection import Connection
from korvet.server.connections import Connections

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from korvet.server.dispatch import Dispatcher

log = logging.getLogger(__name__)

# Connections that the kernel keeps for us while we are busy: clients reconnect all at once after a restart.
_BACKLOG: Final = 4096
_DRAIN_TIMEOUT_S: Final = 5.0
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})
# Files that are no client connections: links to Redis, the embedded server's pipes, logs, libraries at work.
_OTHER_FILES: Final = 64
_LEAST_CONNECTIONS: Final = 16
# With fewer, a cluster of usual size runs into the limit.
_FEW_CONNECTIONS: Final = 4000


class Listener:
    """The listening socket and the connections that came through it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._connections = Connections(
            min(config.max_connections, room_for_connections()),
            config.max_connections_per_ip,
            config.connections_max_idle_ms,
        )
        self._server: asyncio.Server | None = None
        self._dispatch: Dispatcher | None = None
        self._watch: asyncio.Task[None] | None = None

    async def bind(self) -> Address:
        """Take the address, without accepting yet; the address that clients are to be told.

        Raises OSError when it can't be listened on.
        """
        host, port = self._config.listen_address
        self._server = await asyncio.get_running_loop().create_server(
            self._connect,
            host,
            port,
            backlog=_BACKLOG,
            start_serving=False,
        )
        bound = self._server.sockets[0].getsockname()
        if self._config.advertise_address is not None:
            return self._config.advertise_address
        return Address("localhost" if host in _EVERY_ADDRESS else host, bound[1])

    async def start(self, dispatch: Dispatcher) -> None:
        """Accept clients."""
        assert self._server is not None
        self._dispatch = dispatch
        self._watch = asyncio.create_task(self._connections.keep_watch(), name="connections")
        await self._server.start_serving()

    async def stop(self) -> None:
        """Accept no more, answer what is at work, close all connections."""
        if self._server is not None:
            self._server.close()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._dispatch is not None:
            await _within(self._dispatch.finish(), _DRAIN_TIMEOUT_S)
        for connection in self._connections:
            connection.shut_down()

    def _connect(self) -> Connection:
        assert self._dispatch is not None
        return Connection(self._dispatch, self._config.socket_request_max_bytes, self._connections)


def room_for_connections() -> int:
    """How many clients the process's limit of open files (RLIMIT_NOFILE) has room for.

    Without a limit of our own the kernel would refuse further files to whoever asks next, be it the link to
    Redis.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 2**31 - 1
    room = max(limit - _OTHER_FILES, _LEAST_CONNECTIONS)
    if room < _FEW_CONNECTIONS:
        log.warning(
            "no more than %d clients can connect: the process may open %d files only (ulimit -Hn)",
            room,
            limit,
        )
    return room


async def _within(work: Coroutine[Any, Any, None], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await work
    except TimeoutError:
        log.warning("requests are still at work after %.0f s; their connections are closed", timeout_s)
