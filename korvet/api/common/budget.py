"""A bound on the memory that requests of the process take together; a request that finds no room waits."""

from __future__ import annotations

import logging
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from korvet.logs import current_traceback

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

log = logging.getLogger(__name__)

# A request is served before one that has waited longer by less than its size in seconds at this rate: a small
# request overtakes large ones, and no large one waits for ever.
_OVERTAKING_BYTES_PER_S: Final = 1 << 20


class _Waiter:
    """A request that waits for room."""

    __slots__ = ("ready", "size_bytes", "timer")

    def __init__(self, size_bytes: int, ready: Callable[[bool], None]) -> None:
        self.size_bytes = size_bytes
        self.ready: Callable[[bool], None] | None = ready
        self.timer: asyncio.TimerHandle | None = None


class Budget:
    """So many bytes for all requests together. One request is always admitted, however large."""

    __slots__ = ("_admitting", "_asked", "_loop", "_waiting", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._loop = loop
        self._asked = 0
        # A heap of turn, number and waiter.
        self._waiting: list[tuple[float, int, _Waiter]] = []
        self._admitting = False

    @property
    def free_bytes(self) -> int:
        """What nobody holds."""
        return max(self.limit_bytes - self.held_bytes, 0)

    @property
    def is_waited_for(self) -> bool:
        """Whether anybody waits for room."""
        return any(waiter.ready is not None for _, _, waiter in self._waiting)

    def take(self, size_bytes: int) -> bool:
        """Hold `size_bytes` more at once. Returns False if there is no room or others wait."""
        held_bytes = self.held_bytes + size_bytes
        if self._waiting or (held_bytes > self.limit_bytes and self.held_bytes > 0):
            return False
        self.held_bytes = held_bytes
        return True

    def wait(self, size_bytes: int, ready: Callable[[bool], None], most_s: float | None = None) -> None:
        """Hold `size_bytes` more once there is room, then call `ready(True)`; after `most_s` seconds without
        room call `ready(False)`, with nothing held. Never calls `ready` itself.
        """
        waiter = _Waiter(size_bytes, ready)
        if most_s is not None:
            waiter.timer = self._loop.call_later(most_s, self._give_up, waiter)
        self._asked += 1
        turn = self._loop.time() + size_bytes / _OVERTAKING_BYTES_PER_S
        heappush(self._waiting, (turn, self._asked, waiter))
        self._admit_soon()

    def exceed(self, size_bytes: int) -> None:
        """Hold `size_bytes` more, whether or not there is room."""
        self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Stop holding `size_bytes`, and admit requests that wait for room."""
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, f"{self.held_bytes} bytes are held after {size_bytes} were given back"
        if self._waiting:
            self._admit_soon()

    def _has_room(self, size_bytes: int) -> bool:
        return self.held_bytes <= 0 or self.held_bytes + size_bytes <= self.limit_bytes

    def _admit_soon(self) -> None:
        if not self._admitting:
            self._admitting = True
            self._loop.call_soon(self._admit)

    def _admit(self) -> None:
        self._admitting = False
        waiting = self._waiting
        while waiting:
            waiter = waiting[0][2]
            if waiter.ready is not None and not self._has_room(waiter.size_bytes):
                return
            heappop(waiting)
            ready, waiter.ready = waiter.ready, None
            if ready is not None:
                self.held_bytes += waiter.size_bytes
                if waiter.timer is not None:
                    waiter.timer.cancel()
                _call(ready)

    def _give_up(self, waiter: _Waiter) -> None:
        ready, waiter.ready = waiter.ready, None
        # A waiter in front that does not wait any more must not keep the others waiting.
        self._admit_soon()
        if ready is not None:
            ready(False)


def _call(ready: Callable[[bool], None]) -> None:
    try:
        ready(True)
    except Exception:  # noqa: BLE001 - logged
        # The others must not wait for ever. As text: a log record that is kept must not keep the request.
        log.error("a request could not go on when there was memory for it", extra=current_traceback())
