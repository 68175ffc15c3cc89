"""One timer of the event loop for the deadlines of all partitions."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The delay before an early deadline is checked again: the loop's clock and ours may differ by a rounding
# error.
MIN_DELAY_MS = 1


class Alarms:
    """Calls ring(number) when a partition's deadline is reached.

    Most requests move a deadline later. That is one assignment: the heap entry stays, and is pushed back when
    it comes up too early.
    """

    def __init__(self, clock: Callable[[], int], ring: Callable[[int], None]) -> None:
        """clock: now in ms, on the same clock as the deadlines."""
        # The sum of the clock's steps. The times below don't include them.
        self._shifted_ms = 0
        self._clock = clock
        self._ring = ring
        self._due: dict[int, int] = {}
        self._queued: dict[int, int] = {}  # each number's valid heap entry
        self._heap: list[tuple[int, int]] = []
        self._handle: asyncio.TimerHandle | None = None
        self._armed_ms = 0

    def set(self, number: int, at_ms: int | None) -> None:
        """Set the deadline of `number` to at_ms, instead of its former one; None removes it."""
        if at_ms is None:
            self._due.pop(number, None)
            return
        at_ms -= self._shifted_ms
        self._due[number] = at_ms
        queued_ms = self._queued.get(number)
        if queued_ms is None or at_ms < queued_ms:
            self._push(number, at_ms)
            if self._handle is None or at_ms < self._armed_ms:
                self._arm()

    def shift(self, by_ms: int) -> None:
        """Move all deadlines by a step of the clock, forward or back."""
        self._shifted_ms += by_ms

    def close(self) -> None:
        """Cancel all deadlines."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._due.clear()
        self._queued.clear()
        self._heap.clear()

    def _push(self, number: int, at_ms: int) -> None:
        self._queued[number] = at_ms
        heappush(self._heap, (at_ms, number))

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            self._armed_ms = self._heap[0][0]
            delay_ms = max(MIN_DELAY_MS, self._armed_ms - self._now_ms())
            self._handle = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        """Ring one number: its work may take a while, and clients are served between two of them."""
        self._handle = None
        try:
            number = self._take_due(self._now_ms())
            if number is not None:
                self._ring(number)
        finally:
            self._arm()

    def _now_ms(self) -> int:
        return self._clock() - self._shifted_ms

    def _take_due(self, now_ms: int) -> int | None:
        """A number whose deadline is reached; entries that came up too early are pushed back."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, number = heappop(self._heap)
            if self._queued.get(number) != at_ms:
                continue  # superseded by an earlier entry
            del self._queued[number]
            due_ms = self._due.get(number)
            if due_ms is None:
                continue
            if due_ms <= now_ms:
                del self._due[number]
                return number
            self._push(number, due_ms)
        return None
