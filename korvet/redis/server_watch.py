"""Reads at an interval what the servers report about themselves (INFO), for metrics and for the watch for
evictions.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from korvet.redis.clock import steady_s
from korvet.redis.errors import StorageError
from korvet.redis.eviction import EvictionWatch
from korvet.redis.info import parse_info, used_memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.redis.refusals import Refusals
    from korvet.redis.server import Router, Server

# Interval of readings. CONFIG SET takes effect at once, but a server evicts only at maxmemory.
_PERIOD_S: Final = 5.0
# The sections without those that take the server long.
_SECTIONS: Final = ("server", "clients", "memory", "persistence", "stats", "keyspace")

log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """What a server reported."""

    info: Mapping[str, str]
    at_s: float
    """When it was read, by `steady_s`."""


class ServerWatch:
    """The newest reading of each server."""

    def __init__(self, router: Router, refusals: Refusals) -> None:
        """`refusals` learns whether the memory of a server is nearly full."""
        self._router = router
        self._refusals = refusals
        self._evictions = EvictionWatch()
        self.readings: dict[str, Reading] = {}
        """By the server's address."""

    async def run(self) -> NoReturn:
        """Read all servers until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_PERIOD_S)

    async def look(self) -> None:
        """Read all servers once, one after the other, and forget those that are gone."""
        servers = self._router.servers()
        for server in servers:
            try:
                await self._read(server)
            except StorageError as error:
                log.debug("Redis at %s does not report its state: %s", server.address, error)
        present = {str(server.address) for server in servers}
        self.readings = {name: each for name, each in self.readings.items() if name in present}

    async def _read(self, server: Server) -> None:
        info = parse_info(await server.read.call("INFO", *_SECTIONS))
        self.readings[str(server.address)] = Reading(info, steady_s())
        self._evictions.look(server.address, info)
        limit = int(info.get("maxmemory", "0"))
        self._refusals.used_memory(used_memory(info), limit, steady_s(), str(server.address))
