"""Deadlines of requests that wait, gathered so that many of them end in one turn of the event loop.

A thousand idle consumers poll two thousand times a second. Answered one by one, each costs a wake-up of the
process; answered together, they also ask again together, and a turn of the loop reads and answers many.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

log = logging.getLogger(__name__)

# A deadline comes late by up to this share of the wait, and never early.
_SHARE: Final = 50
_FINEST_MS: Final = 1
_COARSEST_MS: Final = 10


class Deadline:
    """A callback that waits for its time; `cancel` it when it is not wanted any more."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Don't call back. No fault where it was called already."""
        self.callback = None


class Deadlines:
    """Calls back at deadlines rounded up to a tick of 2 % of the wait, from 1 ms to 10 ms."""

    __slots__ = ("_buckets", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, list[Deadline]] = {}

    def now(self) -> float:
        """The loop's time in seconds."""
        return self._loop.time()

    def at(self, time_s: float, wait_ms: int, callback: Callable[[], None]) -> Deadline:
        """Call back at the loop's `time_s`, which ends a wait of `wait_ms`, or a little later."""
        tick_ms = min(max(wait_ms // _SHARE, _FINEST_MS), _COARSEST_MS)
        at_ms = int(time_s * 1000) + 1
        at_ms += -at_ms % tick_ms
        bucket = self._buckets.get(at_ms)
        if bucket is None:
            bucket = self._buckets[at_ms] = []
            self._loop.call_at(at_ms / 1000, self._ring, at_ms)
        deadline = Deadline(callback)
        bucket.append(deadline)
        return deadline

    def _ring(self, at_ms: int) -> None:
        for deadline in self._buckets.pop(at_ms):
            callback, deadline.callback = deadline.callback, None
            if callback is None:
                continue
            try:
                callback()
            except Exception:
                # What goes wrong for one request must not keep the others from their answer.
                log.exception("a request could not be answered at its deadline")
