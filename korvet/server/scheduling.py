"""How Linux schedules the broker while clients produce in bulk (SCHED_BATCH, sched(7)).

A broker that pushes clients and Redis off their CPU for each request finds one batch each time. Under
SCHED_BATCH it waits for its turn: where all CPUs are busy more batches have come by then, and together they
cost less. An idle CPU takes it at once, as ever. A trickle of records would wait for nothing, so the usual
policy is for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from korvet.server.backpressure import Backpressure

log = logging.getLogger(__name__)

_PERIOD_S: Final = 0.1


class Bulk:
    """Tells from the bytes that were produced so far whether that is much now."""

    __slots__ = ("_at_s", "_bytes", "_least_per_s", "is_on")

    def __init__(self, least_per_s: int, now_s: float) -> None:
        """`least_per_s`: bytes per second that are much."""
        self._least_per_s = least_per_s
        self._bytes = 0
        self._at_s = now_s
        self.is_on = False

    def look(self, produced_bytes: int, now_s: float) -> bool:
        """Whether much was produced since the last look; once it is, half of that is enough. Returns whether
        this has changed.
        """
        was_on = self.is_on
        enough = self._least_per_s * (now_s - self._at_s) / (2 if was_on else 1)
        self.is_on = produced_bytes - self._bytes >= enough
        self._bytes, self._at_s = produced_bytes, now_s
        return self.is_on is not was_on


async def keep_scheduling(backpressure: Backpressure, least_per_s: int) -> None:
    """Schedule this thread by what is produced, until cancelled; from `least_per_s` bytes per second on it is
    much, 0 is never. Leaves alone a policy that somebody else has chosen.
    """
    if sys.platform != "linux" or not least_per_s or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    loop = asyncio.get_running_loop()
    bulk = Bulk(least_per_s, loop.time())
    usual = os.sched_param(0)
    try:
        while True:
            await asyncio.sleep(_PERIOD_S)
            if bulk.look(backpressure.taken_bytes, loop.time()):
                os.sched_setscheduler(0, os.SCHED_BATCH if bulk.is_on else os.SCHED_OTHER, usual)
    except OSError as error:
        # Where it may not, say in a sandbox, the broker works as well.
        log.info("Linux schedules the broker alike whatever is produced: %s", error)
    except asyncio.CancelledError:
        if bulk.is_on:
            os.sched_setscheduler(0, os.SCHED_OTHER, usual)
        raise
