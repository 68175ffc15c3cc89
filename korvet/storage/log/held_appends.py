"""Appends of one log that wait: for those in flight, or for Redis's clock to catch up with the offsets."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from korvet.offsets.packing import SEQUENCE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from korvet.storage.log.appends import AnyAppend
    from korvet.storage.log.state import LogState

LONGEST_WAIT_MS: Final = 1000
"""Limits the wait for the clock that the broker decides by itself. Batches of producers exceed the cap on the
lead by less; a larger lead came from other writers or a step of the clock: the script knows whether to wait.
"""


class HeldAppends:
    """The appends that wait, in their order."""

    __slots__ = ("_appends", "_record_count", "_resume", "_state", "_timer")

    def __init__(self, state: LogState, resume: Callable[[], None]) -> None:
        """`resume` is called when the clock has caught up."""
        self._state = state
        self._resume = resume
        self._appends: deque[AnyAppend] = deque()
        # The records of all of them.
        self._record_count = 0
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._appends)

    @property
    def first(self) -> AnyAppend:
        """The append that is next; there must be one."""
        return self._appends[0]

    def add(self, append: AnyAppend) -> None:
        """Hold an append after all others."""
        self._appends.append(append)
        self._record_count += append.record_count

    def take(self) -> AnyAppend:
        """The first append, which is no longer held."""
        append = self._appends.popleft()
        self._record_count -= append.record_count
        return append

    def put_back(self, appends: Iterable[AnyAppend]) -> None:
        """Hold appends, in their order, before all others."""
        held = self._appends
        self._appends = deque(appends)
        self._record_count += sum(append.record_count for append in self._appends)
        self._appends += held

    def take_all(self) -> deque[AnyAppend]:
        """All appends, none of which is held any longer. The wait for the clock ends."""
        held, self._appends = self._appends, deque()
        self._record_count = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return held

    # The clock.

    @property
    def waits_for_clock(self) -> bool:
        """Whether `resume` will be called."""
        return self._timer is not None

    def await_clock(self, wait_ms: int) -> None:
        """Call `resume` after that time, unless it will be called anyway."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(wait_ms, 1) / 1000, self._clock_caught_up)

    def _clock_caught_up(self) -> None:
        self._timer = None
        self._resume()

    @property
    def throttle_ms(self) -> int:
        """How long the clock needs for the records appended and held, up to the permitted lead (ms)."""
        held_ms = self._record_count >> SEQUENCE_BITS
        if self._timer is not None:
            left_s = self._timer.when() - asyncio.get_running_loop().time()
            return max(int(left_s * 1000), 0) + held_ms
        ahead_ms = self._state.ahead_ms(self._state.next_position)
        return ahead_ms + held_ms if 0 < ahead_ms <= LONGEST_WAIT_MS else 0
