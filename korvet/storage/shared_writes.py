"""The wait for replicas after changes of what brokers share: topics, configs, users, ACLs, quotas."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from korvet.storage.errors import NotEnoughReplicas, NotReplicated
from korvet.storage.link.barrier import Level
from korvet.storage.link.futures import awaited

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.link.commands import Commands

# Longest wait for the replicas; clients of the admin APIs wait longer.
_TIMEOUT_S: Final = 5.0


class SharedWrites:
    """Waits until the replicas that the broker asks for have all changes that were made before."""

    def __init__(self, commands: Commands, level: Callable[[], Level]) -> None:
        self._commands = commands
        self.level = level
        """Returns what the broker asks for now."""

    async def replicated(self, before: Level) -> None:
        """Wait for the changes. `before`: what the broker asked for before them. If they have changed that,
        the lower level is enough: the replicas for the higher one may be missing.

        Raises NotReplicated if the replicas do not have the changes in time. Redis commands WAIT and WAITAOF.
        """
        now = self.level()
        level = Level(min(before.replicas, now.replicas), before.fsync and now.fsync)
        if not level:
            return
        key = self._commands.keyspace.shared_barrier
        server = self._commands.links(key).server
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await awaited(partial(server.barriers.wait, level, key, server.write.history))
        except TimeoutError:
            raise NotReplicated(f"the replicas do not have the change within {_TIMEOUT_S:.0f} s") from None
        except NotEnoughReplicas as error:
            raise NotReplicated(str(error)) from error
