"""A limit in records per second of one task."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pace:
    """Lets records pass at a rate. Unused time isn't made up for."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`rate`: records per second."""
        self._rate = rate
        self._clock, self._sleep = clock, sleep
        self._free_s = clock()

    def wait_for(self, records: int) -> None:
        """Sleep as long as these records use the rate, so that the next task may begin at once."""
        now_s = self._clock()
        self._free_s = max(self._free_s, now_s) + records / self._rate
        self._sleep(self._free_s - now_s)
