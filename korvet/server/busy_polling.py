"""Keeps the event loop awake while requests and responses follow each other within microseconds, as with a
client that sends one record at a time.

A sleeping process is woken for the request and for Redis's reply. On a virtual machine each time takes 10 us,
and then the caches are cold. Such a client gets 1.2 to 1.3 times the rate if the loop polls instead.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Events that have to follow each other closely before the loop polls: 8 requests and their responses. At a
# steady rate, the pause between two requests is longer than the limit, unless the loop is busy anyway.
_CLOSE_EVENTS: Final = 16
# Of cgroup v2: "<us of processor time> <period in us>", or "max" without a quota.
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


class BusyPolling:
    """Decides when the loop polls: while the pause between two events is no longer than a limit."""

    __slots__ = ("_call_soon", "_close_events", "_is_polling", "_last_s", "_limit_s", "_now_s")

    def __init__(
        self,
        limit_us: int,
        call_soon: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit_us`: the longest pause; 0 turns polling off. `call_soon`: calls back in the loop's next
        iteration, before which it does not sleep.
        """
        self._limit_s = limit_us / 1_000_000
        self._call_soon = call_soon
        self._now_s = now_s
        self._last_s = float("-inf")
        self._close_events = 0
        self._is_polling = False

    def note(self) -> None:
        """An event: a client's bytes have arrived, or a response was sent."""
        now_s = self._now_s()
        if now_s - self._last_s >= self._limit_s:
            self._close_events = 0
        else:
            self._close_events += 1
            if self._close_events >= _CLOSE_EVENTS and not self._is_polling:
                self._is_polling = True
                self._call_soon(self._poll)
        self._last_s = now_s

    def _poll(self) -> None:
        if self._now_s() - self._last_s >= self._limit_s:
            self._is_polling = False
            self._close_events = 0
            return
        # Another process may wait for this processor.
        os.sched_yield()
        self._call_soon(self._poll)


def usable_processors(quota: Path = _QUOTA) -> float:
    """The processors that this process may use: those it may run on, or the quota of its container. With
    fewer than two, polling takes time from Redis.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        time_us, period_us = quota.read_text("ascii").split()
        return min(allowed, int(time_us) / int(period_us))
    except (OSError, ValueError):
        return allowed
