"""One cause: a first line, counts with their times, and a line of its end."""

from __future__ import annotations

import logging
from itertools import product
from typing import TYPE_CHECKING

import pytest

from korvet.causes import Causes, Life
from tests.support.polling import until_async

if TYPE_CHECKING:
    from collections.abc import Hashable

log = logging.getLogger("of the test")
PERIOD_S = 0.2
# 2026-01-01T12:00:00Z
NOON_S = 1_767_268_800.0


class Script:
    """A cause with one event a second: f(ailed), s(ucceeded), p(eriod over)."""

    def __init__(self, work: Hashable | None = "work") -> None:
        self.work = work
        self.now_s = NOON_S + 3
        self.cause = Life(self.now_s, work)

    def step(self, event: str) -> str | None:
        self.now_s += 1
        if event == "f":
            return self.cause.failed(self.now_s, self.work)
        if event == "s":
            return self.cause.succeeded(self.now_s, self.work) if self.cause.work else None
        return self.cause.period_over(self.now_s)

    def run(self, events: str) -> list[str]:
        return [text for event in events if (text := self.step(event)) is not None]


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ("s", ["ended after 1.0 s, once"]),
        ("fffs", ["ended after 4.0 s, 4 times"]),
        ("ffffffffffs", ["ended after 11 s, 11 times"]),
        ("ffp", ["2 times more from 12:00:04 to 12:00:05 UTC"]),
        ("fp", ["once more at 12:00:04 UTC"]),
        ("ffpfs", ["2 times more from 12:00:04 to 12:00:05 UTC", "ended after 5.0 s, 4 times"]),
        # It comes and goes: one count a period.
        ("sfsfsfsp", ["ended after 1.0 s, once", "3 times more from 12:00:05 to 12:00:09 UTC, ended"]),
        ("sfsffp", ["ended after 1.0 s, once", "3 times more from 12:00:05 to 12:00:08 UTC"]),
        ("sfpfs", ["ended after 1.0 s, once", "once more at 12:00:05 UTC", "ended after 3.0 s, 2 times"]),
    ],
)
def test_lines_of_work(events: str, lines: list[str]) -> None:
    assert Script().run(events) == lines


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ("p", []),
        (
            "ffpp",
            ["2 times more from 12:00:04 to 12:00:05 UTC", "has not happened since 12:00:05 UTC, 3 times"],
        ),
    ],
)
def test_silence_ends_what_nobody_reports(events: str, lines: list[str]) -> None:
    life = Script(None)
    assert life.run(events) == lines
    assert not life.cause.is_known


def test_work_that_is_not_tried_again_is_forgotten() -> None:
    life = Script()
    assert life.run("pp") == []
    life.now_s += 900
    assert life.run("p") == ["has not happened since 12:00:03 UTC, once"]
    assert not life.cause.is_known


def test_it_lasts_until_all_its_work_succeeds() -> None:
    cause = Life(NOON_S, "a")
    cause.failed(NOON_S + 1, "b")
    assert cause.succeeded(NOON_S + 2, "a") is None
    assert cause.succeeded(NOON_S + 3, "b") == "ended after 3.0 s, 2 times"


def test_every_failure_is_counted_once_and_each_end_is_told() -> None:
    """All histories of nine events, after the first line."""
    for length in range(9):
        for events in product("fsp", repeat=length):
            life, said, waits = Script(), 1, 0
            for event in events:
                if not life.cause.is_known:
                    break
                text = life.step(event) or ""
                waits += event == "f"
                if "more" in text:
                    assert text.startswith("once" if waits == 1 else f"{waits} times")
                if text:
                    said, waits = said + waits, 0
            # What was not told is told by the end of the period at the latest.
            if life.cause.is_known and waits:
                assert "more" in (life.step("p") or "")
            assert said <= 1 + events.count("f")


async def test_one_cause_is_one_line_and_a_count(caplog: pytest.LogCaptureFixture) -> None:
    causes = Causes(log, PERIOD_S)
    for number in range(4_516):
        causes.warn(f"NOREPLICAS in slot {number}", "request %d: %s", number, "NOREPLICAS")
    causes.warn("LOADING", "request: %s", "LOADING")
    assert caplog.messages == ["request 0: NOREPLICAS", "request: LOADING"]
    await until_async(lambda: len(caplog.messages) == 4, 10, "the count and the silence are logged")
    count, silence = caplog.messages[2:]
    assert count.startswith("request 4515: NOREPLICAS (4515 times more ")
    assert silence.startswith("request 4515: NOREPLICAS (has not happened since ")
    assert silence.endswith(" UTC, 4516 times)")
    # A cause that ended and returns is logged again.
    causes.warn("NOREPLICAS in slot 7", "again")
    assert caplog.messages[-1] == "again"


async def test_the_success_of_all_work_ends_a_cause_at_once(caplog: pytest.LogCaptureFixture) -> None:
    causes = Causes(log)
    causes.ended("a")
    for _ in range(3):
        for name in "ab":
            causes.warn("OOM", "%s failed: %s", name, "OOM", work=name, topic=name)
    causes.warn("LOADING", "a failed: %s", "LOADING", work="a")
    causes.ended("a")
    assert caplog.messages[2:] == ["a failed: LOADING (ended after 0.0 s, once)"]
    causes.ended("b")
    causes.ended("b")
    assert caplog.messages[3:] == ["b failed: OOM (ended after 0.0 s, 6 times)"]
    assert caplog.records[-1].fields == {"topic": "b", "repeated": 5}


async def test_a_cause_that_is_forgotten_has_no_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.causes._FORGOTTEN_S", 0.0)
    causes = Causes(log, PERIOD_S)
    causes.warn("OOM", "a failed", work="a")
    await until_async(lambda: len(caplog.messages) == 2, 10, "the cause is forgotten")
    causes.warn("OOM", "another failed")
    causes.ended("a")
    assert caplog.messages[2:] == ["another failed"]


async def test_memory_is_bounded_whatever_the_causes(caplog: pytest.LogCaptureFixture) -> None:
    causes = Causes(log)
    for number in range(20_000):
        causes.warn("x" * (number % 10_000 + 1), "message", work="work")
    causes.ended("work")
    assert len(caplog.messages) == 2 * 1_001


async def test_many_causes_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can fail to log in under any name."""
    monkeypatch.setattr("korvet.causes._MOST_CAUSES", 10)
    causes = Causes(log)
    for number in range(100):
        causes.warn((number, "no"), "%d cannot log in", number, work=number)
    assert len(causes._known) == len(causes._latest) == 11
    assert len(causes._failing) == 10
    for number in range(100):
        causes.ended(number)
    assert not causes._failing
