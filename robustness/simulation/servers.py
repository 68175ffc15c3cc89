"""The Redis servers of a run: which of them is the primary, and what happens when they fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from robustness.simulation.redis.server import RedisServer
from robustness.simulation.transport import Closing

if TYPE_CHECKING:
    from robustness.simulation.network import Network

ALIAS: Final = "redis"
"""The host name that brokers and Redis clients use; it leads to the primary."""
_POLL_S: Final = 0.01


class Servers:
    """One server, or a primary and its replica."""

    def __init__(self, network: Network, copies: int) -> None:
        self.network = network
        names = [f"redis-{number}" for number in range(1, copies + 1)]
        self.all = [RedisServer(network.loop, network, network.process(name)) for name in names]
        self.primary = self.all[0]
        for server in self.all:
            server.start()
            if server is not self.primary:
                server.replication.follow(self.primary)
        network.redirect(ALIAS, self.primary.process.name)
        self._lag_s = 0.0

    @property
    def replica(self) -> RedisServer:
        """The server that is not the primary."""
        return next(server for server in self.all if server is not self.primary)

    @property
    def names(self) -> list[str]:
        """The hosts of all servers."""
        return [server.process.name for server in self.all]

    def delay_replication(self, lag_s: float) -> None:
        """Let the replica, whichever server it is, get what the primary writes `lag_s` seconds late."""
        self._lag_s = lag_s
        if len(self.all) > 1:
            primary, replica = self.primary.process.name, self.replica.process.name
            self.network.slow_down(primary, replica, lag_s)
            self.network.slow_down(replica, primary, 0.0)

    def kill(self, server: RedisServer) -> None:
        """End a server's process."""
        self.network.kill(server.process)
        server.sessions.clear()

    def restart(self, server: RedisServer, kept_offset: int) -> None:
        """Start a server that was killed, with what its file has up to an offset."""
        server.process = self.network.process(server.process.name)
        server.replication.restart(kept_offset)
        server.start()

    def promote(self) -> None:
        """Make the replica the primary: from now on the alias leads to it."""
        self.primary = self.replica
        self.primary.replication.promote()
        self.delay_replication(self._lag_s)
        self.network.redirect(ALIAS, self.primary.process.name)

    def demote(self, server: RedisServer) -> None:
        """Make a former primary a replica; what only it has is lost."""
        server.disconnect(Closing.RESET)
        server.replication.follow(self.primary)

    async def switch_over(self) -> None:
        """Make the replica the primary after it has all data (the command FAILOVER)."""
        old = self.primary
        old.is_handing_over = True
        while self.replica.replication.offset < old.replication.offset:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        old.is_handing_over = False
        self.promote()
        self.demote(old)
