"""When the event loop polls instead of sleeping."""

from pathlib import Path
from typing import Any

import pytest

from korvet.server.busy_polling import BusyPolling, usable_processors

LIMIT_US = 100
CLOSE_S = 0.000_05
FAR_S = 0.000_2
# More than enough events to begin.
MANY = 200


class Loop:
    """An event loop and a clock in the test's hands."""

    def __init__(self, limit_us: int = LIMIT_US) -> None:
        self.now_s = 5.0
        self.calls: list[Any] = []
        self.polling = BusyPolling(limit_us, self.calls.append, lambda: self.now_s)

    def events(self, count: int, apart_s: float) -> None:
        for _ in range(count):
            self.now_s += apart_s
            self.polling.note()

    def iterate(self) -> None:
        calls = self.calls.copy()
        self.calls.clear()
        for call in calls:
            call()


def test_the_loop_stays_awake_while_events_follow_closely() -> None:
    loop = Loop()
    loop.events(MANY, CLOSE_S)
    for _ in range(10):
        assert len(loop.calls) == 1
        loop.iterate()
        loop.events(1, CLOSE_S)


def test_the_loop_sleeps_after_a_pause_until_many_events_follow_closely_again() -> None:
    loop = Loop()
    loop.events(MANY, CLOSE_S)
    loop.now_s += FAR_S
    loop.iterate()
    assert loop.calls == []
    loop.events(5, CLOSE_S)
    assert loop.calls == []
    loop.events(MANY, CLOSE_S)
    assert len(loop.calls) == 1


def test_the_loop_sleeps_if_the_pause_after_each_response_is_long() -> None:
    loop = Loop()
    for _ in range(MANY):
        loop.events(1, FAR_S)
        loop.events(1, CLOSE_S)
    assert loop.calls == []


def test_no_limit_means_no_polling() -> None:
    loop = Loop(limit_us=0)
    loop.events(MANY, 0)
    assert loop.calls == []


@pytest.mark.parametrize(("text", "processors"), [("150000 100000", 1.5), ("50000 100000", 0.5)])
def test_a_quota_limits_the_processors(tmp_path: Path, text: str, processors: float) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    most = usable_processors(tmp_path / "missing")
    assert most >= 1
    assert usable_processors(quota) == min(most, processors)


def test_no_quota_leaves_all_processors(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text("max 100000\n")
    assert usable_processors(quota) == usable_processors(tmp_path / "missing")
