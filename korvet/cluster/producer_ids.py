"""Allocating producer ids (KIP-98)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from korvet.redis.fields import counter_of

if TYPE_CHECKING:
    from korvet.redis.commands import Commands

# Producer ids taken from Redis by one call: fewer than the 1,024 that Redis has for each ms of its clock.
_BLOCK: Final = 1000
FIRST_ID: Final = "first_producer_id"
"""Field of the cluster's hash: see `ProducerIds.first`."""


class ProducerIds:
    """Allocates producer ids; takes them from Redis in blocks."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._block = range(0)
        self._lock = asyncio.Lock()

    async def first(self) -> int:
        """The first producer id after the keyspace was restored from a backup; 0 if it never was. Raises
        StorageError. Redis command HGET.

        IDs that were taken before that restore are not allocated any more.
        """
        first = counter_of(await self._commands.call("HGET", self._commands.keyspace.cluster, FIRST_ID))
        if self._block and self._block[0] < first:
            self._block = self._block[len(self._block) :]
        return first

    async def allocate(self) -> int:
        """A producer id that no producer had before, even if Redis loses its newest writes. Raises
        StorageError. Function korvet_take_producer_ids.
        """
        async with self._lock:
            if not self._block:
                cluster, cluster_id = self._commands.keyspace.cluster, self._commands.cluster_id
                history = self._commands.links(cluster).server.history.id
                arguments = cluster_id, _BLOCK, self._block.stop, history
                first = await self._commands.fcall("korvet_take_producer_ids", [cluster], *arguments)
                assert first >= self._block.stop, f"producer id {first} follows {self._block}"
                self._block = range(first, first + _BLOCK)
            producer_id = self._block[0]
            self._block = self._block[1:]
            return producer_id
