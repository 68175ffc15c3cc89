"""The time of a coordinator: the wall clock's, without its jumps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MS: Final = 1_000_000


class SteadyClock:
    """Now in ms since the epoch. The clock advances with the monotonic clock. It follows a step of the wall
    clock when `correct` is called, so that the caller can move deadlines at the same moment.
    """

    __slots__ = ("_ahead_ns", "_monotonic_ns", "_wall_ns")

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._ahead_ns = wall_ns() - monotonic_ns()

    def __call__(self) -> int:
        return (self._monotonic_ns() + self._ahead_ns) // _MS

    def correct(self) -> int:
        """Show the wall clock's time from now on. Returns the difference in ms."""
        difference_ms = self._wall_ns() // _MS - self()
        self._ahead_ns += difference_ms * _MS
        return difference_ms
