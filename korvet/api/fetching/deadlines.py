"""Deadlines of waiting requests, rounded so that one wake-up of the process serves many of them.

A thousand idle consumers poll two thousand times a second. If each was answered at its own time, each would
cost a wake-up. Requests that are due together are answered one after the other, one per iteration of the
event loop while they are in time. Other requests are handled in between, and so are the next ones of the same
clients, which would otherwise all arrive at once.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from korvet.logs import current_traceback

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

# A deadline is late by at most one part in this number of the wait, within the two limits below; never early.
_SHARE: Final = 50
_FINEST_MS: Final = 1
_COARSEST_MS: Final = 5
# The timer of a longer wait that ends early is cancelled. Timers of shorter waits serve the waits after them,
# or ring for nobody: that costs less than a timer for each wait.
_LONG_MS: Final = 60_000
# An iteration of the event loop answers one more request per this delay of theirs.
_LATE_MS: Final = 10
_NEVER: Final = -1


class Deadline:
    """A request that waits up to a time, again and again.

    A base class, not a member: a member would form a reference cycle with its owner and leave both to the
    cyclic garbage collector.
    """

    __slots__ = ("due_ms", "is_long", "tick_ms")

    def __init__(self, wait_ms: int) -> None:
        self.due_ms = _NEVER
        self.set_wait(wait_ms)

    def set_wait(self, wait_ms: int) -> None:
        """Set how long the request waits, which determines how late its deadline may be."""
        self.tick_ms = min(max(wait_ms // _SHARE, _FINEST_MS), _COARSEST_MS)
        self.is_long = wait_ms > _LONG_MS

    def time_over(self) -> None:
        """Called at the deadline."""
        raise NotImplementedError


class Deadlines:
    """Calls `time_over` at deadlines, rounded up to a tick of 2 % of the wait, 1 ms to 5 ms."""

    __slots__ = ("_buckets", "_long_timers", "_loop", "now")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time
        """The loop's time in seconds."""
        # By time in ms. A disarmed deadline is removed, or it would be kept until its time.
        self._buckets: dict[int, dict[Deadline, None]] = {}
        # The timers of those buckets that began with a long wait.
        self._long_timers: dict[int, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """The number of requests that wait."""
        return sum(map(len, self._buckets.values()))

    def arm(self, deadline: Deadline, time_s: float) -> None:
        """Call `time_over` at `time_s` of the loop's clock or a little later. Replaces an earlier `arm`."""
        due_ms = int(time_s * 1000) + 1
        due_ms += -due_ms % deadline.tick_ms
        if deadline.due_ms == due_ms:
            return
        self.disarm(deadline)
        deadline.due_ms = due_ms
        bucket = self._buckets.get(due_ms)
        if bucket is None:
            self._buckets[due_ms] = {deadline: None}
            timer = self._loop.call_at(due_ms / 1000, self._ring, due_ms)
            if deadline.is_long:
                self._long_timers[due_ms] = timer
        else:
            bucket[deadline] = None

    def disarm(self, deadline: Deadline) -> None:
        """Don't call `time_over`. Has no effect on a deadline that is not armed."""
        if deadline.due_ms != _NEVER:
            bucket = self._buckets.get(deadline.due_ms)
            if bucket is not None:
                bucket.pop(deadline, None)
                if not bucket and deadline.is_long:
                    self._forget(deadline.due_ms)
            deadline.due_ms = _NEVER

    def _forget(self, due_ms: int) -> None:
        timer = self._long_timers.pop(due_ms, None)
        if timer is not None:
            timer.cancel()
            del self._buckets[due_ms]

    def _ring(self, due_ms: int) -> None:
        self._long_timers.pop(due_ms, None)
        self._call_some(due_ms, deque(self._buckets.pop(due_ms)))

    def _call_some(self, due_ms: int, waiting: deque[Deadline]) -> None:
        """Call one or a few of the deadlines of this time, and the others after the loop's other work."""
        late_ms = max(int(self.now() * 1000) - due_ms, 0)
        several = min(1 + late_ms // _LATE_MS, len(waiting))
        if several < len(waiting):
            self._loop.call_soon(self._call_some, due_ms, waiting)
        for _ in range(several):
            deadline = waiting.popleft()
            if deadline.due_ms != due_ms:
                continue
            deadline.due_ms = _NEVER
            try:
                deadline.time_over()
            except Exception:  # noqa: BLE001 - logged
                # A failing request must not delay the others. The traceback is logged as text: a log record
                # with the exception would hold the request's slot, whose release ends the connection.
                log.error("a request could not be answered at its deadline", extra=current_traceback())
