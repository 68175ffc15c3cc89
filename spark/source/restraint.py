"""A bound on Redis's load: reads slow down while its main thread is busier than they may make it.

Redis executes commands in one thread, so the pages of a scan delay the commands of producers. The tasks of a
job run in different processes and don't know of each other. Each one measures the load that all clients cause
together, and multiplies the interval between its own pages by that load divided by the bound. So the load
approaches the bound with any number of tasks, and tasks give way to producers.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Time between two measurements. A page takes Redis one or two milliseconds, INFO a twentieth of one.
WINDOW_S: Final = 0.1
# Interval of the first pages, before anything is measured.
FIRST_INTERVAL_S: Final = 0.02
# A pause between pages after which the last interval says little about the load.
FORGOTTEN_S: Final = 10.0
# An interval below this doesn't slow down reads, and would take longer to grow.
SHORTEST_INTERVAL_S: Final = 0.001
# A read makes progress, however busy others keep Redis.
LONGEST_INTERVAL_S: Final = 5.0
# Measured over a short window, an idle Redis is no reason to speed up much at once.
MOST_SPEED_UP: Final = 2.0
log = logging.getLogger(__name__)


class Restraint:
    """Decides when the tasks of one process may request the next page from one server."""

    def __init__(self, bound: float) -> None:
        """bound: the largest part of the time in which the main thread may be busy, above 0 and up to 1."""
        self._bound = bound
        self.interval_s = FIRST_INTERVAL_S
        """The time between requests."""
        self._asked_s: float | None = None
        self._measured: tuple[float, float] | None = None

    def pause_s(self, now_s: float, busy_s: Callable[[], float]) -> float:
        """Return the time to wait before asking again; 0 if the page may be requested now, and will be.

        now_s: by a monotonic clock. busy_s: returns the CPU time of the main thread so far.
        """
        if self._asked_s is not None and now_s - self._asked_s > FORGOTTEN_S:
            self.interval_s, self._asked_s, self._measured = FIRST_INTERVAL_S, None, None
        self._adapt(now_s, busy_s)
        if self._asked_s is None or now_s >= self._asked_s + self.interval_s:
            self._asked_s = now_s
            return 0.0
        return min(self._asked_s + self.interval_s - now_s, WINDOW_S)

    def _adapt(self, now_s: float, busy_s: Callable[[], float]) -> None:
        if self._measured is None:
            self._measured = now_s, busy_s()
            return
        then_s, before_s = self._measured
        if now_s - then_s < WINDOW_S:
            return
        used_s = busy_s()
        self._measured = now_s, used_s
        load = (used_s - before_s) / (now_s - then_s)
        wanted_s = self.interval_s * max(1 / MOST_SPEED_UP, load / self._bound)
        if wanted_s > LONGEST_INTERVAL_S > self.interval_s:
            log.warning(
                "Redis's main thread is busy for %.0f %% of its time, mostly with others, and maxRedisCpu"
                " is %g: a task reads one page in %g s",
                100 * load,
                self._bound,
                LONGEST_INTERVAL_S,
            )
        self.interval_s = min(max(wanted_s, SHORTEST_INTERVAL_S), LONGEST_INTERVAL_S)


@cache
def restraint_of(server: str, bound: float) -> Restraint:
    """Return this process's restraint for a server.

    Spark runs one task after the other in a Python worker: each begins at the pace of the last one.
    """
    return Restraint(bound)
