"""The wait for replicas after changes of what brokers share: topics, configs, users, ACLs, quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from korvet.storage.link.barrier import Level
from korvet.storage.link.replicas import CHANGE_TIMEOUT_S, replicated

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.link.commands import Commands
    from korvet.storage.link.server import Links


class Before(NamedTuple):
    """What was in force before some changes."""

    level: Level
    """What the broker asked for."""
    history: str
    """The history of the server that holds what is shared."""


class SharedWrites:
    """Waits until the replicas that the broker asks for have some changes."""

    def __init__(self, commands: Commands, level: Callable[[], Level]) -> None:
        self._commands = commands
        self._level = level

    def before(self) -> Before:
        """Call this before the changes."""
        return Before(self._level(), self._links.server.write.history)

    async def replicated(self, before: Before) -> None:
        """Wait for the changes that were made since `before`. If they have changed what the broker asks for,
        the lower level is enough: the replicas for the higher one may be missing.

        Raises NotReplicated if the replicas do not have the changes in time, or if another server has taken
        over since, which may lack them. Redis commands WAIT and WAITAOF.
        """
        now = self._level()
        level = Level(min(before.level.replicas, now.replicas), before.level.fsync and now.fsync)
        if level:
            keys = self._commands.keyspace
            await replicated(
                self._links, level, keys.cluster, keys.shared_barrier, before.history, CHANGE_TIMEOUT_S
            )

    @property
    def _links(self) -> Links:
        return self._commands.links(self._commands.keyspace.cluster)
