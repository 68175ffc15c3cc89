"""Limits the event loop's time for large requests, so that many of them do not delay other clients.

A request of some hundred KB can name 100,000 partitions; decoding it takes a tenth of a second. In one
iteration of the event loop, such requests are taken for a few milliseconds. The others wait for the next
iterations, in which the other clients are served too.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

LARGE_BYTES: Final = 4096
"""The size from which on a request is large. A smaller one takes less than two milliseconds."""
# The time of large requests in one iteration, after which the next one has to wait.
_TURN_S: Final = 0.005


class Turns:
    """Counts the time that large requests take in one iteration of the event loop."""

    __slots__ = ("_at_turn_end", "_clock", "_is_counting", "_left_s", "_waiting")

    def __init__(
        self,
        at_turn_end: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """at_turn_end: calls back at the end of the event loop's iteration. clock: in seconds."""
        self._at_turn_end = at_turn_end
        self._clock = clock
        self._left_s = _TURN_S
        self._is_counting = False
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def full(self) -> bool:
        """Whether the next large request has to wait."""
        return self._left_s <= 0 or bool(self._waiting)

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` in a later iteration. It takes one large request then, even if no time is left."""
        self._waiting.append(resume)
        self._count()

    def run(self, handle: Callable[[], None]) -> None:
        """Handle a large request, and count its time."""
        self._count()
        began_s = self._clock()
        try:
            handle()
        finally:
            self._left_s -= self._clock() - began_s

    def _count(self) -> None:
        if not self._is_counting:
            self._is_counting = True
            self._at_turn_end(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_counting = False
        self._left_s = _TURN_S
        while self._waiting and self._left_s > 0:
            resume = self._waiting.popleft()
            try:
                resume()
            except Exception:
                # The other connections must not wait for ever.
                log.exception("a connection that waited for its turn failed")
        if self._waiting:
            self._count()
