"""The wait for replicas after changes of what brokers share: topics, configs, users, ACLs, quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from korvet.redis.barrier import Level
from korvet.redis.replicas import CHANGE_TIMEOUT_S, Held, replicated

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.redis.commands import Commands


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
        return Before(self._level(), self._held.history)

    async def replicated(self, before: Before) -> None:
        """Wait for the changes that were made since `before`. If they have changed what the broker asks for,
        the lower level is enough: the replicas for the higher one may be missing.

        Raises NotReplicated if the replicas do not have the changes in time, or if another server has taken
        over since, which may lack them. Redis commands WAIT and WAITAOF.
        """
        now = self._level()
        level = Level(min(before.level.replicas, now.replicas), before.level.fsync and now.fsync)
        if level:
            await replicated(self._held, level, before.history, CHANGE_TIMEOUT_S)

    @property
    def _held(self) -> Held:
        keyspace = self._commands.keyspace
        return Held(self._commands.links(keyspace.cluster), keyspace.cluster, keyspace.shared_barrier)
