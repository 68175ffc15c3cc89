"""How late the event loop is: the time that other work takes before a callback that is due."""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from korvet.metrics.counted import Counted, histogram

# Interval of the measurements: their cost does not show.
_INTERVAL_S: Final = 0.1


class EventLoopLag(Counted):
    """Measures ten times a second by how much a timer is late."""

    lag = histogram(
        "korvet_event_loop_lag_seconds",
        "By how much the event loop runs a due callback late, in seconds; measured ten times a second.",
    )

    async def watch(self) -> NoReturn:
        """Measure until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due_s = clock() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            # A timer may fire early by its resolution.
            self.lag.observe(max(clock() - due_s, 0.0))
