"""All open connections: how many there may be, and the end of those that are idle or that don't end."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from korvet.quotas.throttle import ClientQuotas
    from korvet.server.connection import Connection

log = logging.getLogger(__name__)

# How often all connections are looked at: instead of a timer for each, which a busy one would set anew with
# every request.
_LONGEST_STEP_S: Final = 5.0
# No limit is so short that the looks alone would keep the process busy.
_SHORTEST_STEP_S: Final = 0.01
_IDLE_STEPS: Final = 10
_SETUP_STEPS: Final = 2
# A client that reads nothing keeps what was written to it from being sent: its connection is cut after this.
_CLOSING_S: Final = 10.0


class ConnectionLimits(NamedTuple):
    """How many connections there may be, and how long one may be silent in ms."""

    most: int
    """`max.connections`"""
    most_per_host: int
    """`max.connections.per.ip`"""
    max_idle_ms: int = -1
    """`connections.max.idle.ms`; -1 is for ever. Connections are closed up to 10 % or 5 s later."""
    setup_timeout_ms: int = 10_000
    """`connections.setup.timeout.ms`: the same for clients that have to authenticate first."""
    most_of_listener: Mapping[str, int] = MappingProxyType({})
    """`listener.name.NAME.max.connections`"""


class Admission:
    """What an accepted connection takes up of the limits, until it leaves."""

    __slots__ = ("_connections", "_host", "_listener")

    def __init__(self, connections: Connections, listener: str, host: str) -> None:
        self._connections: Connections | None = connections
        self._listener = listener
        self._host = host

    def leave(self) -> None:
        """Give the place back; does nothing if it was given back before."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.give_back(self._listener, self._host)


class Connections:
    """The open connections, within limits. A place is taken at accept; the connection comes in when its
    protocol begins.
    """

    def __init__(self, limits: ConnectionLimits, quotas: ClientQuotas | None = None) -> None:
        self._quotas = quotas
        self._limits = limits
        idle_s, setup_s = limits.max_idle_ms / 1000, limits.setup_timeout_ms / 1000
        self._step_s = min(_LONGEST_STEP_S, setup_s / _SETUP_STEPS)
        if limits.max_idle_ms >= 0:
            self._step_s = max(min(self._step_s, idle_s / _IDLE_STEPS), _SHORTEST_STEP_S)
        self._idle_steps = math.inf if limits.max_idle_ms < 0 else math.ceil(idle_s / self._step_s)
        self._setup_steps = min(self._idle_steps, math.ceil(setup_s / self._step_s))
        self._closing_steps = math.ceil(_CLOSING_S / self._step_s)
        self._open: dict[Connection, int] = {}
        self._taken = 0
        self._per_host: Counter[str] = Counter()
        self._per_listener: Counter[str] = Counter()
        self._refused = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    def admit(self, listener: str, host: str) -> Admission | None:
        """A place for a connection that was accepted; None if there are too many: then it is to be closed."""
        limits = self._limits
        most_here = limits.most_of_listener.get(listener, limits.most)
        if self._taken >= limits.most:
            reason = f"there are {limits.most} connections already"
        elif self._per_listener[listener] >= most_here:
            reason = f"listener {listener} has {most_here} connections already"
        elif self._per_host[host] >= limits.most_per_host:
            reason = f"it has {limits.most_per_host} connections already"
        else:
            self._taken += 1
            self._per_host[host] += 1
            self._per_listener[listener] += 1
            return Admission(self, listener, host)
        self.note_refused(host, reason)
        return None

    def give_back(self, listener: str, host: str) -> None:
        """A place is free again."""
        self._taken -= 1
        self._per_listener[listener] -= 1
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def wait_ms(self, host: str) -> int:
        """After which time a new connection is to be closed, because its address connects too often
        (`connection_creation_rate`, KIP-612); 0 is never.
        """
        if self._quotas is None:
            return 0
        return self._quotas.connected(host.removeprefix("/"), time.monotonic() * 1000)

    def join(self, connection: Connection) -> None:
        """Watch a connection from now on."""
        self._open[connection] = 0

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._open.pop(connection, None)

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
            # The first authentication is awaited for a short time only.
            is_unknown = connection.sasl is not None and not connection.sasl.principal
            if connection.closing:
                if quiet >= self._closing_steps:
                    connection.cut()
            elif quiet > (self._setup_steps if is_unknown else self._idle_steps):
                log.debug("closing the idle connection of %s", connection.client_host)
                connection.shut_down()

    def note_refused(self, host: str, reason: str) -> None:
        """Log the first refusal since the last look, and count the others: whoever is refused comes again
        and again.
        """
        if not self._refused:
            log.warning("refusing the connection of %s: %s", host, reason)
        self._refused += 1
