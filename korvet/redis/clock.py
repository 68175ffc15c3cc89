"""Redis's clock, estimated between its replies."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

# Linux has a clock that continues while the machine sleeps; Redis's machine may be awake at that time.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# Implemented in C: it is read each time that a client sends data.
steady_s: Final = partial(time.clock_gettime, _STEADY)
"""The monotonic clock of this machine, in seconds."""


class RedisClock:
    """The last time that Redis reported plus the time that has passed since; late by the travel time of a
    reply. Before the first report, this process's own clock.
    """

    __slots__ = ("_at_s", "_redis_ms")

    def __init__(self) -> None:
        self._redis_ms = time.time_ns() // 1_000_000
        self._at_s = steady_s()

    def observe(self, redis_ms: int) -> None:
        """Redis has just reported the time `redis_ms` (ms since the epoch)."""
        self._redis_ms = redis_ms
        self._at_s = steady_s()

    def now_ms(self) -> int:
        """The estimated time of Redis's clock, in ms since the epoch."""
        return self._redis_ms + int((steady_s() - self._at_s) * 1000)
