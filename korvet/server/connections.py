"""All open connections: how many there may be, and the end of those that are idle or that don't end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.quotas.throttle import ClientQuotas
    from korvet.server.connection import Connection

log = logging.getLogger(__name__)

# How often all connections are looked at: instead of a timer for each, which a busy one would set anew with
# every request.
_LONGEST_STEP_S: Final = 5.0
_IDLE_STEPS: Final = 10
# A client that reads nothing keeps what was written to it from being sent: its connection is cut after this.
_CLOSING_STEPS: Final = 2


class Connections:
    """The open connections, within limits (`max.connections`, `max.connections.per.ip`).

    With `max_idle_ms` (`connections.max.idle.ms`), connections on which nothing was asked for so long are
    closed, up to 10 % or 5 s later; -1 leaves them open.
    """

    def __init__(
        self, most: int, most_per_host: int, max_idle_ms: int, quotas: ClientQuotas | None = None
    ) -> None:
        self._quotas = quotas
        self._most = most
        self._most_per_host = most_per_host
        idle_s = max_idle_ms / 1000
        self._step_s = _LONGEST_STEP_S if max_idle_ms < 0 else min(_LONGEST_STEP_S, idle_s / _IDLE_STEPS)
        self._idle_steps = None if max_idle_ms < 0 else -(-idle_s // self._step_s)
        self._open: dict[Connection, int] = {}
        self._per_host: Counter[str] = Counter()
        self._refused = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    def admit(self, connection: Connection) -> bool:
        """Add a new connection, unless there are too many: then it is to be closed."""
        host = connection.client_host
        if len(self._open) >= self._most:
            self._refuse(host, f"there are {self._most} connections already")
            return False
        if self._per_host[host] >= self._most_per_host:
            self._refuse(host, f"it has {self._most_per_host} connections already")
            return False
        self._per_host[host] += 1
        self._open[connection] = 0
        return True

    def wait_ms(self, host: str) -> int:
        """After which time a new connection is to be closed, because its address connects too often
        (`connection_creation_rate`, KIP-612); 0 is never.
        """
        if self._quotas is None:
            return 0
        return self._quotas.connected(host.removeprefix("/"), time.monotonic() * 1000)

    def leave(self, connection: Connection) -> None:
        """Take out a connection that has ended. No fault where it was not admitted."""
        if self._open.pop(connection, None) is None:
            return
        host = connection.client_host
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    async def keep_watch(self) -> None:
        """Close idle connections until cancelled."""
        while True:
            await asyncio.sleep(self._step_s)
            self.step()

    def step(self) -> None:
        """One look at all connections."""
        if self._refused > 1:
            log.warning("refused %d connections in %.0f s", self._refused, self._step_s)
        self._refused = 0
        for connection, quiet_before in list(self._open.items()):
            quiet = self._open[connection] = 0 if connection.take_activity() else quiet_before + 1
            if connection.closing:
                if quiet >= _CLOSING_STEPS:
                    connection.cut()
            elif self._idle_steps is not None and quiet > self._idle_steps:
                log.debug("closing the idle connection of %s", connection.client_host)
                connection.shut_down()

    def _refuse(self, host: str, reason: str) -> None:
        """Say so once in a while: whoever is refused comes again and again."""
        if not self._refused:
            log.warning("refusing the connection of %s: %s", host, reason)
        self._refused += 1
