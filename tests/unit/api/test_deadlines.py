"""Deadlines of waiting requests: never early, served together, armed again and again."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from korvet.api.fetching.deadlines import Deadline, Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(NamedTuple):
    """A call at a time, which can be cancelled."""

    clock: Clock
    when: float
    callback: Callable[..., None]
    arguments: tuple[Any, ...]

    def cancel(self) -> None:
        self.clock.calls.remove(self)


class Clock:
    """An event loop whose time the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.calls: list[Timer] = []
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(self, when, callback, arguments)
        self.calls.append(timer)
        return timer

    def call_soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        self.soon.append((callback, arguments))

    def turn(self) -> None:
        """Run the calls scheduled for the next iteration."""
        soon, self.soon = self.soon, []
        for callback, arguments in soon:
            callback(*arguments)

    def advance(self, to_s: float) -> None:
        """Run the calls that are due, each at its own time."""
        for call in sorted(self.calls, key=lambda call: call.when):
            if call.when <= to_s:
                self.calls.remove(call)
                self.now_s = call.when
                call.callback(*call.arguments)
                while self.soon:
                    self.turn()
        self.now_s = to_s


class Waiting(Deadline):
    """A deadline that calls back."""

    __slots__ = ("__weakref__", "_callback")

    def __init__(self, wait_ms: int, callback: Callable[[], None]) -> None:
        super().__init__(wait_ms)
        self._callback = callback

    def time_over(self) -> None:
        self._callback()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deadlines(clock: Clock) -> Deadlines:
    return Deadlines(clock)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wait_ms", "late_ms"), [(500, 5), (100, 2), (10, 1), (60_000, 5)])
def test_a_deadline_is_met_once_never_early_and_hardly_late(
    clock: Clock, deadlines: Deadlines, wait_ms: int, late_ms: int
) -> None:
    rung: list[float] = []
    for step in range(50):
        clock.now_s = 100 + step * 0.0013
        rung.clear()
        due_s = clock.now_s + wait_ms / 1000
        deadlines.arm(Waiting(wait_ms, lambda: rung.append(clock.now_s)), due_s)
        clock.advance(due_s + 1)
        assert len(rung) == 1
        assert due_s <= rung[0] <= due_s + (late_ms + 1) / 1000


def test_one_of_many_due_deadlines_is_met_per_iteration(clock: Clock, deadlines: Deadlines) -> None:
    rung: list[int] = []
    made = [Waiting(500, lambda number=number: rung.append(number)) for number in range(100)]  # type: ignore[misc]
    for deadline in made:
        deadlines.arm(deadline, 100.5)
    (call,) = clock.calls
    clock.now_s = call.when
    call.callback(*call.arguments)
    assert len(rung) == 1
    deadlines.disarm(made[50])
    deadlines.disarm(made[60])
    deadlines.arm(made[60], 101.5)
    while clock.soon:
        before = len(rung)
        clock.turn()
        assert len(rung) - before <= 1
    assert rung == [number for number in range(100) if number not in (50, 60)]


def test_a_slow_loop_delays_none_for_long(clock: Clock, deadlines: Deadlines) -> None:
    rung: list[float] = []
    for _ in range(1_000):
        deadlines.arm(Waiting(500, lambda: rung.append(clock.now_s)), 100.5)
    (call,) = clock.calls
    clock.now_s = call.when
    call.callback(*call.arguments)
    while clock.soon:
        clock.now_s += 0.010
        clock.turn()
    assert len(rung) == 1_000
    assert rung == sorted(rung)
    assert rung[-1] < 101


def test_close_deadlines_share_a_wake_up(clock: Clock, deadlines: Deadlines) -> None:
    rung: list[float] = []
    for step in range(100):
        deadlines.arm(Waiting(500, lambda: rung.append(clock.now_s)), 100.5 + step / 10_000)
    assert len(clock.calls) <= 2
    clock.advance(102)
    assert len(rung) == 100


def test_a_disarmed_deadline_is_not_met_and_can_be_armed_again(clock: Clock, deadlines: Deadlines) -> None:
    rung: list[float] = []
    deadline = Waiting(500, lambda: rung.append(clock.now_s))
    deadlines.arm(deadline, 100.5)
    deadlines.disarm(deadline)
    deadlines.arm(deadline, 100.8)
    clock.advance(100.7)
    assert rung == []
    clock.advance(101)
    assert len(rung) == 1
    deadlines.arm(deadline, 101.5)
    clock.advance(102)
    assert len(rung) == 2


def test_a_deadline_armed_twice_for_one_time_is_met_once(clock: Clock, deadlines: Deadlines) -> None:
    rung: list[float] = []
    deadline = Waiting(500, lambda: rung.append(clock.now_s))
    deadlines.arm(deadline, 100.5)
    deadlines.arm(deadline, 100.5)
    deadlines.disarm(deadline)
    deadlines.arm(deadline, 100.5)
    clock.advance(102)
    assert len(rung) == 1


def test_a_failing_deadline_does_not_delay_the_others(
    clock: Clock, deadlines: Deadlines, caplog: pytest.LogCaptureFixture
) -> None:
    rung: list[float] = []

    def fail() -> None:
        raise ZeroDivisionError

    deadlines.arm(Waiting(500, fail), 100.5)
    deadlines.arm(Waiting(500, lambda: rung.append(clock.now_s)), 100.5)
    clock.advance(102)
    assert len(rung) == 1
    assert "ZeroDivisionError" in vars(caplog.records[0])["traceback"]


def test_a_disarmed_deadline_is_not_kept(deadlines: Deadlines, clock: Clock) -> None:
    deadline = Waiting(500, lambda: None)
    gone = weakref.ref(deadline)
    deadlines.arm(deadline, 100.5)
    deadlines.arm(deadline, 100.7)
    deadlines.disarm(deadline)
    del deadline
    assert gone() is None
    clock.advance(101)


def test_a_long_wait_that_ends_early_leaves_nothing(clock: Clock, deadlines: Deadlines) -> None:
    """A client may wait for 24 days in each fetch, and gets records several times a second."""
    deadline = Waiting(2**31 - 1, lambda: None)
    other = Waiting(2**31 - 1, lambda: None)
    for step in range(100):
        clock.now_s = 100 + step
        deadlines.arm(deadline, clock.now_s + 2**31 / 1000)
        deadlines.disarm(deadline)
    assert not clock.calls
    deadlines.arm(other, 200 + 2**31 / 1000)
    assert len(clock.calls) == len(deadlines) == 1


def test_a_short_wait_shares_the_wake_up_of_a_long_one(clock: Clock, deadlines: Deadlines) -> None:
    rung: list[str] = []
    long, short = Waiting(600_000, lambda: rung.append("long")), Waiting(500, lambda: rung.append("short"))
    deadlines.arm(long, 700)
    clock.now_s = 699.5
    deadlines.arm(short, 700)
    deadlines.disarm(long)
    clock.advance(701)
    assert rung == ["short"]
    deadlines.arm(short, 701.5)
    deadlines.arm(long, 1301)
    clock.advance(1302)
    assert rung == ["short", "short", "long"]
    assert not clock.calls
