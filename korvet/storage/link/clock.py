"""Redis's clock, known here between its replies."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

# Linux has a clock that goes on while the machine sleeps, which Redis's machine need not do at that time.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# In C, as it is asked each time that something is received.
steady_s: Final = partial(time.clock_gettime, _STEADY)
"""This machine's clock that nobody sets, in seconds."""


class RedisClock:
    """What Redis's clock said last plus what has passed since by ours: late by a reply's way.

    Before it said anything, this process's own clock.
    """

    __slots__ = ("_at_s", "_redis_ms")

    def __init__(self) -> None:
        self._redis_ms = time.time_ns() // 1_000_000
        self._at_s = time.monotonic()

    def observe(self, redis_ms: int) -> None:
        """Redis's clock was at `redis_ms` (ms since the epoch) a moment ago."""
        self._redis_ms = redis_ms
        self._at_s = time.monotonic()

    def now_ms(self) -> int:
        """Redis's clock now, in ms since the epoch."""
        return self._redis_ms + int((time.monotonic() - self._at_s) * 1000)
