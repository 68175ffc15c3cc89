"""How late the event loop is: the time that other work takes before a callback that is due."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.metrics.families.process import LOOP_LAG
from korvet.metrics.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.metrics.family import Samples

# Interval of the measurements: their cost does not show.
_INTERVAL_S: Final = 0.1


class EventLoopLag:
    """Measures ten times a second by how much a timer is late."""

    def __init__(self) -> None:
        self._lag = Histogram()

    async def watch(self) -> NoReturn:
        """Measure until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due_s = clock() + _INTERVAL_S
            await asyncio.sleep(_INTERVAL_S)
            # A timer may fire early by its resolution.
            self._lag.observe(max(clock() - due_s, 0.0))

    def collect(self) -> Iterator[Samples]:
        """See Collector."""
        yield LOOP_LAG.single(self._lag)
