"""Deadlines of requests that wait, gathered so that many of them end in one wake-up of the process.

A thousand idle consumers poll two thousand times a second, and answered each at its own time, each costs a
wake-up. Those due together are answered one after the other instead, one in a turn of the loop while they
are in time: in between come the requests of others, and theirs when they ask again, which otherwise all were
in the way at once.
"""

from __future__ import annotations

import logging
import traceback
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

# A deadline comes late by up to this share of the wait, and never early.
_SHARE: Final = 50
_FINEST_MS: Final = 1
_COARSEST_MS: Final = 5
# A turn of the loop answers one more for every so much that they are late by.
_LATE_MS: Final = 10
_NEVER: Final = -1


class Deadline:
    """Something that waits up to a time, and does so again and again. It is the base of what waits: were it
    a part, each would refer to the other, and all of them be left to the garbage collector.
    """

    __slots__ = ("due_ms", "tick_ms")

    def __init__(self, wait_ms: int) -> None:
        self.due_ms = _NEVER
        self.set_wait(wait_ms)

    def set_wait(self, wait_ms: int) -> None:
        """Set how long the request waits, which decides how late its deadline may be met."""
        self.tick_ms = min(max(wait_ms // _SHARE, _FINEST_MS), _COARSEST_MS)

    def time_over(self) -> None:
        """The time has come."""
        raise NotImplementedError


class Deadlines:
    """Calls `time_over` at deadlines rounded up to a tick of 2 % of the wait, from 1 ms to 5 ms."""

    __slots__ = ("_buckets", "_loop", "now")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time
        """The loop's time in seconds."""
        # By time in ms. Who needs not wait any more is taken out, or would be kept until then.
        self._buckets: dict[int, dict[Deadline, None]] = {}

    def arm(self, deadline: Deadline, time_s: float) -> None:
        """Call `time_over` at the loop's `time_s` or a little later, instead of at a time set before."""
        due_ms = int(time_s * 1000) + 1
        due_ms += -due_ms % deadline.tick_ms
        if deadline.due_ms == due_ms:
            return
        self.disarm(deadline)
        deadline.due_ms = due_ms
        bucket = self._buckets.get(due_ms)
        if bucket is None:
            self._buckets[due_ms] = {deadline: None}
            self._loop.call_at(due_ms / 1000, self._ring, due_ms)
        else:
            bucket[deadline] = None

    def disarm(self, deadline: Deadline) -> None:
        """Don't call `time_over`. No fault where that was done already."""
        if deadline.due_ms != _NEVER:
            bucket = self._buckets.get(deadline.due_ms)
            if bucket is not None:
                bucket.pop(deadline, None)
            deadline.due_ms = _NEVER

    def _ring(self, due_ms: int) -> None:
        self._call_some(due_ms, deque(self._buckets.pop(due_ms)))

    def _call_some(self, due_ms: int, waiting: deque[Deadline]) -> None:
        """Call one or a few of those that wait for this time, the others when requests had their turn."""
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
                # What goes wrong for one request must not keep the others from their answer. As text: whoever
                # keeps the log record must not keep the slot, which ends the connection when nobody holds it.
                reason = traceback.format_exc()
                log.error("a request could not be answered at its deadline\n%s", reason)
