"""Stops reading from clients while more produced bytes are on their way to Redis than may be."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class Backpressure:
    """Counts the bytes of requests in flight and holds clients back above a limit.

    A connection asks `blocked()` before it takes its next request and, when told to wait, is called back once
    the sum has fallen below half the limit. One request is always admitted, however large.
    """

    __slots__ = ("_limit_bytes", "_waiting", "full", "in_flight_bytes", "taken_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.in_flight_bytes = 0
        """Of the requests that are not answered yet."""
        self.full = limit_bytes <= 0
        """Whether the next request has to wait."""
        self.taken_bytes = 0
        """Of all requests so far."""
        self._waiting: list[Callable[[], None]] = []

    def blocked(self, resume: Callable[[], None]) -> bool:
        """Whether the caller has to wait; if so `resume` is called when it may go on."""
        if not self.full:
            return False
        self._waiting.append(resume)
        return True

    def take(self, size_bytes: int) -> Callable[[], None]:
        """A request of that size is on its way. Returns the call that gives it back."""
        self.in_flight_bytes += size_bytes
        self.taken_bytes += size_bytes
        self.full = self.in_flight_bytes >= self._limit_bytes
        return partial(self.give_back, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """It has been answered."""
        self.in_flight_bytes -= size_bytes
        self.full = self.in_flight_bytes >= self._limit_bytes
        if self._waiting and self.in_flight_bytes <= self._limit_bytes // 2:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                try:
                    resume()
                except Exception:
                    # The others must not wait for ever.
                    log.exception("a connection that waited for room failed")
