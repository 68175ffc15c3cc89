"""All open connections: limits their number, and closes idle ones and those whose client reads nothing."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.api.common.listener_counts import ListenerCounts
from korvet.causes import Causes
from korvet.quotas.throttle import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from korvet.quotas.throttle import ClientQuotas
    from korvet.server.connection import Connection

log = logging.getLogger(__name__)
causes = Causes(log)

# The longest time between two checks of all connections. They replace one timer per connection, which a busy
# connection would reset with every request.
_LONGEST_STEP_S: Final = 5.0
# The shortest time between two checks: the checks alone must not keep the process busy.
_SHORTEST_STEP_S: Final = 0.01
_IDLE_STEPS: Final = 10
_SETUP_STEPS: Final = 2
# The largest rate, which nothing exceeds.
_UNLIMITED: Final = 2**31 - 1
# Time for the last responses to be sent. If the client does not read them, its connection is cut after this.
_CLOSING_S: Final = 10.0


class ConnectionLimits(NamedTuple):
    """The largest number of connections, and how long (ms) a connection may be silent."""

    most: int
    """`max.connections`"""
    most_per_host: int
    """`max.connections.per.ip`"""
    max_idle_ms: int = -1
    """`connections.max.idle.ms`; -1 means without end. Connections are closed up to 10 % or 5 s later."""
    setup_timeout_ms: int = 10_000
    """`connections.setup.timeout.ms`: the same for clients that have not authenticated yet."""
    most_of_listener: Mapping[str, int] = MappingProxyType({})
    """`listener.name.NAME.max.connections`"""
    most_of_host: Mapping[str, int] = MappingProxyType({})
    """`max.connections.per.ip.overrides`"""
    rate: int = _UNLIMITED
    """`max.connection.creation.rate`"""
    rate_of_listener: Mapping[str, int] = MappingProxyType({})
    """`listener.name.NAME.max.connection.creation.rate`"""


class Admission:
    """One accepted connection's share of the limits, until it leaves."""

    __slots__ = ("_connections", "_host", "_listener")

    def __init__(self, connections: Connections, listener: str, host: str) -> None:
        self._connections: Connections | None = connections
        self._listener = listener
        self._host = host

    def leave(self) -> None:
        """Give the share back. A second call does nothing."""
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.give_back(self._listener, self._host)


class Connections:
    """The open connections, within limits. An admission is taken at accept. The connection joins when its
    protocol begins.
    """

    def __init__(self, limits: ConnectionLimits, quotas: ClientQuotas | None = None) -> None:
        self._quotas = quotas
        self._meters: dict[str, Meter] = {}
        self.limit(limits)
        self._open: dict[Connection, int] = {}
        self.empty = asyncio.Event()
        """Set while no connection is open."""
        self.empty.set()
        self._taken = 0
        self._per_host: Counter[str] = Counter()
        self.counts = defaultdict[str, ListenerCounts](ListenerCounts)
        """What is counted, by listener."""

    def limit(self, limits: ConnectionLimits) -> None:
        """Change the limits. Connections above them stay, new ones are refused."""
        self._limits = limits
        idle_s, setup_s = limits.max_idle_ms / 1000, limits.setup_timeout_ms / 1000
        self._step_s = min(_LONGEST_STEP_S, setup_s / _SETUP_STEPS)
        if limits.max_idle_ms >= 0:
            self._step_s = max(min(self._step_s, idle_s / _IDLE_STEPS), _SHORTEST_STEP_S)
        self._idle_steps = math.inf if limits.max_idle_ms < 0 else math.ceil(idle_s / self._step_s)
        self._setup_steps = min(self._idle_steps, math.ceil(setup_s / self._step_s))
        self._closing_steps = math.ceil(_CLOSING_S / self._step_s)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    def admit(self, listener: str, host: str) -> Admission | None:
        """The admission of an accepted connection; None if there are too many, and the caller closes it."""
        limits, counts = self._limits, self.counts[listener]
        most_here = limits.most_of_listener.get(listener, limits.most)
        most_per_host = limits.most_of_host.get(host.removeprefix("/"), limits.most_per_host)
        if self._taken >= limits.most:
            reason = f"there are {limits.most} connections already"
        elif counts.open >= most_here:
            reason = f"listener {listener} has {most_here} connections already"
        elif self._per_host[host] >= most_per_host:
            reason = f"it has {most_per_host} connections already"
        else:
            self._taken += 1
            self._per_host[host] += 1
            counts.accepted += 1
            return Admission(self, listener, host)
        counts.refused += 1
        self.note_refused(host, reason)
        return None

    def give_back(self, listener: str, host: str) -> None:
        """Count one connection less."""
        self._taken -= 1
        self.counts[listener].closed += 1
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def wait_ms(self, host: str) -> int:
        """The time (ms) after which to close a new connection because its address connects too often
        (`connection_creation_rate`, KIP-612); 0 means never.
        """
        if self._quotas is None:
            return 0
        return self._quotas.connected(host.removeprefix("/"), time.monotonic() * 1000)

    def pause_ms(self, listener: str) -> float:
        """The time (ms) for which a listener accepts nothing because clients connect too often (KIP-612)."""
        now_ms = time.monotonic() * 1000
        return max(
            (self._meters[name].wait_ms(rate, now_ms) for name, rate in self._rates(listener)), default=0.0
        )

    def count(self, listener: str) -> None:
        """Count a new connection of a listener towards the rates."""
        for name, _ in self._rates(listener):
            self._meters[name].add(1, time.monotonic() * 1000)

    def _rates(self, listener: str) -> list[tuple[str, int]]:
        """The limited rates that a connection counts towards, by the names of their meters."""
        limits = self._limits
        rates = [("", limits.rate), (listener, limits.rate_of_listener.get(listener, _UNLIMITED))]
        limited = [each for each in rates if each[1] < _UNLIMITED]
        for name, _ in limited:
            self._meters.setdefault(name, Meter())
        return limited

    def join(self, connection: Connection) -> None:
        """Watch a connection from now on."""
        self._open[connection] = 0
        self.empty.clear()

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._open.pop(connection, None)
        if not self._open:
            self.empty.set()

    async def keep_watch(self) -> None:
        """Close idle connections until cancelled."""
        while True:
            await asyncio.sleep(self._step_s)
            self.step()

    def step(self) -> None:
        """Check all connections once."""
        for connection, quiet_before in list(self._open.items()):
            quiet = self._open[connection] = 0 if connection.take_activity() else quiet_before + 1
            # The time for the first authentication is shorter.
            is_unknown = connection.session.sasl is not None and not connection.session.sasl.principal
            if connection.closing:
                if quiet >= self._closing_steps:
                    connection.cut()
            elif quiet > (self._setup_steps if is_unknown else self._idle_steps):
                self.counts[connection.listener].idle += 1
                log.debug("closing the idle connection of %s", connection.client_host)
                connection.shut_down()

    def note_refused(self, host: str, reason: str) -> None:
        """Log that the connection of a host is refused. A refused client tries again and again."""
        causes.warn(reason, "refusing the connection of %s: %s", host, reason)
