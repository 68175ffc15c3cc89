"""Stops reading from clients while too many produced bytes are on their way to Redis."""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING

from korvet.metrics.counted import Counted, counter, gauge, shown
from korvet.metrics.family import MetricType

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


class Backpressure(Counted):
    """Counts the bytes of requests in flight and holds clients back above a limit.

    A connection calls `blocked()` before it takes its next request. If it has to wait, it is called back once
    the sum has fallen below half the limit. One request is always admitted, however large.
    """

    @property
    @shown(
        "korvet_backpressure_seconds_total",
        "Time in which Produce requests waited because too many bytes were on their way to Redis, in "
        "seconds.",
        kind=MetricType.COUNTER,
    )
    def total_blocked_s(self) -> float:
        """The time in which at least one connection waited, up to now."""
        waits_s = perf_counter() - self._since_s if self._waiting else 0.0
        return self._blocked_s + waits_s

    holds = counter("korvet_backpressure_holds_total", "How often a connection had to wait for that.")

    @property
    @shown("korvet_backpressure_waiting_connections", "Connections that wait for that now.")
    def waiting(self) -> int:
        """The connections that wait now."""
        return len(self._waiting)

    in_flight_bytes = gauge(
        "korvet_produce_in_flight_bytes", "Bytes of Produce requests that Redis has not answered."
    )

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self._limit_bytes = limit_bytes
        self.unanswered = 0
        """The requests that are not answered yet: on their way, or waiting for replicas or memory."""
        self.full = limit_bytes <= 0
        """Whether the next request has to wait."""
        self._waiting: list[Callable[[], None]] = []
        # When the first of those waiting began to wait.
        self._since_s = 0.0
        # The time in which at least one connection waited, up to the last time that all went on.
        self._blocked_s = 0.0

    def blocked(self, resume: Callable[[], None]) -> bool:
        """Whether the caller has to wait; if so, `resume` is called when it may continue."""
        if not self.full:
            return False
        if not self._waiting:
            self._since_s = perf_counter()
        self.holds += 1
        self._waiting.append(resume)
        return True

    def take(self, size_bytes: int) -> InFlight:
        """Count a request of that size."""
        self.unanswered += 1
        self.in_flight_bytes += size_bytes
        self.full = self.in_flight_bytes >= self._limit_bytes
        return InFlight(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Stop counting the bytes of a request that are no longer on their way to Redis."""
        self.in_flight_bytes -= size_bytes
        assert self.in_flight_bytes >= 0, f"{self.in_flight_bytes} bytes are in flight"
        self.full = self.in_flight_bytes >= self._limit_bytes
        if self._waiting and self.in_flight_bytes <= self._limit_bytes // 2:
            waiting, self._waiting = self._waiting, []
            self._blocked_s += perf_counter() - self._since_s
            for resume in waiting:
                try:
                    resume()
                except Exception:
                    # The other connections must not wait for ever.
                    log.exception("a connection that waited for room failed")


class InFlight:
    """One request whose bytes count."""

    __slots__ = ("_backpressure", "_size_bytes")

    def __init__(self, backpressure: Backpressure, size_bytes: int) -> None:
        self._backpressure = backpressure
        self._size_bytes = size_bytes

    def give_back(self) -> None:
        """Stop counting the bytes: Redis has them, or the request waits for memory."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes:
            self._backpressure.give_back(size_bytes)

    def answered(self) -> None:
        """The request is answered. Called once."""
        self._backpressure.unanswered -= 1
        assert self._backpressure.unanswered >= 0, "more requests were answered than taken"
        self.give_back()
