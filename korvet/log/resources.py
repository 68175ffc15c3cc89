"""What the open logs of a process share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.log.counts import LogCounts
from korvet.log.watermarks import Watermarks
from korvet.redis.clock import steady_s
from korvet.redis.errors import FencedEpoch
from korvet.redis.refusals import Cause, Refusals

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.native_watcher import NativeWatcher
    from korvet.log.readahead import ReadAheadBudget
    from korvet.log.tail_cache import TailBudget
    from korvet.redis.barrier import Level
    from korvet.redis.commands import Commands
    from korvet.redis.errors import StorageError, WritesRefused
    from korvet.redis.server import Links

DEFAULT_LEAD_CAP_MS: Final = 1000
"""How far offsets may run ahead of Redis's clock before appends wait for it: a burst of a million records."""


def _ignore(refusal: FencedEpoch) -> None:
    pass


class LogResources:
    """Connections, memory budgets and the state of the broker that concerns every log."""

    __slots__ = (
        "commands",
        "counts",
        "lead_cap_ms",
        "level",
        "on_fenced",
        "readaheads",
        "refusals",
        "stale",
        "tails",
        "watcher",
        "watermarks",
    )

    def __init__(
        self,
        commands: Commands,
        *,
        lead_cap_ms: int,
        level: Level,
        tails: TailBudget,
        readaheads: ReadAheadBudget,
        watcher: NativeWatcher,
    ) -> None:
        """`lead_cap_ms`: how far offsets may run ahead of Redis's clock before appends wait for it. `level`:
        what the records of topics need, unless a topic has its own configs.
        """
        self.commands = commands
        self.lead_cap_ms = lead_cap_ms
        self.level = level
        self.tails = tails
        self.readaheads = readaheads
        self.watcher = watcher
        self.watermarks = Watermarks()
        self.counts = LogCounts()
        self.refusals = Refusals()
        """What is refused now, and why."""
        self.stale: WritesRefused | None = None
        """Why nothing is appended now: Redis may have lost writes, and the leader epochs are still those of
        the time before; None if they are new.
        """
        self.on_fenced: Callable[[FencedEpoch], None] = _ignore
        """Called after an append was refused because another broker leads its partition."""

    def refused(self, error: StorageError, links: Links) -> None:
        """A server has answered an append with an error."""
        if isinstance(error, FencedEpoch):
            self.on_fenced(error)
        self.refusals.refuse_for(error, steady_s(), str(links.server.address))

    def is_full(self, links: Links) -> bool:
        """Whether a server is at maxmemory, as far as is known."""
        return bool(self.refusals) and self.refusals.has(Cause.MEMORY, str(links.server.address))
