"""When a membership notices that its lease has expired."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.cluster import membership as module
from korvet.cluster.leadership import State
from korvet.cluster.membership import Membership
from korvet.redis.refusals import Cause
from tests.unit.cluster.test_leadership import LEASE_S, began

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """A loop with one timer, and a clock that goes on between any two looks at it."""

    def __init__(self, steps_s: list[float]) -> None:
        self._steps_s = iter(steps_s)
        self.now_s = 0.0
        self.timer: Callable[[], None] | None = None

    def steady_s(self) -> float:
        self.now_s += next(self._steps_s, LEASE_S)
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Any:
        assert delay_s >= 0
        self.timer = lambda: callback(*arguments)
        return SimpleNamespace(cancel=self._cancel)

    def fire(self) -> None:
        timer, self.timer = self.timer, None
        assert timer is not None
        timer()

    def _cancel(self) -> None:
        self.timer = None


@given(st.lists(st.floats(0, LEASE_S / 2), max_size=12))
def test_who_leads_waits_for_the_end_of_the_lease(steps_s: list[float]) -> None:
    """Timers fire at any time, also early by their resolution."""
    loop = Loop(steps_s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "steady_s", loop.steady_s)
        patch.setattr(module, "asyncio", SimpleNamespace(get_running_loop=lambda: loop))
        subject: Any = object.__new__(Membership)
        subject.leadership = began()
        subject._expiry = None
        subject._wanted = SimpleNamespace(set=lambda: None)
        subject.changes = SimpleNamespace(notify=lambda: None)
        subject.check()
        subject._follow(None)
        while subject.leadership.state is State.LEADING:
            loop.fire()
    assert subject.leadership._refusals.has(Cause.LEASE)
