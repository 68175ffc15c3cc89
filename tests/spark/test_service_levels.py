"""Service levels: the days of groups by the steps of the charts."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime

import pytest

from korvet.spark.report.service_levels import ServiceDay, service_days
from korvet.spark.tables.trends import Span
from korvet.spark.tables.views import DAY_MS

MINUTE = 60_000
MIDNIGHT = 1_700_006_400_000  # 2023-11-15T00:00:00Z
LIMIT_MS = 5 * MINUTE


def test_days_and_their_budget_worked_out_by_hand() -> None:
    """Steps of 15 minutes, two before midnight and three after it, of which the last has 5 minutes."""
    span = Span(MIDNIGHT - 30 * MINUTE, MIDNIGHT + 35 * MINUTE, 15 * MINUTE)
    # The third step has no lag. A wait of exactly the limit is within it.
    waits = [(0, 0), (1, LIMIT_MS + 1), (3, LIMIT_MS), (4, 7 * MINUTE)]
    first, second = service_days("g", waits, span, LIMIT_MS, 0.75)
    assert first == ServiceDay(
        "g",
        date(2023, 11, 14),
        2,
        LIMIT_MS + 1,
        30 * MINUTE,
        15 * MINUTE,
        0.5,
        0.75,
        450_000,
        450_000 - 15 * MINUTE,
        30 * MINUTE / DAY_MS,
    )
    assert (second.day, second.samples, second.measured_ms) == (date(2023, 11, 15), 2, 20 * MINUTE)
    assert (second.over_ms, second.attained, second.budget_left_ms) == (5 * MINUTE, 0.75, 0)
    assert service_days("g", [], span, LIMIT_MS, 0.75) == []


def test_steps_longer_than_a_day_are_in_no_day() -> None:
    span = Span(MIDNIGHT, MIDNIGHT + 8 * DAY_MS, 2 * DAY_MS)
    assert service_days("g", [(0, 1)], span, LIMIT_MS, 0.9) == []


@pytest.mark.parametrize("seed", range(20))
def test_every_minute_counts_once(seed: int) -> None:
    chance = random.Random(seed)
    as_of_ms = MIDNIGHT + chance.randrange(3 * 1440) * MINUTE
    span = Span.over(as_of_ms - chance.randrange(90, 5000) * MINUTE, as_of_ms, 9 * DAY_MS)
    waits = {
        step: chance.choice((0, LIMIT_MS, LIMIT_MS + 1))
        for step in range(span.steps)
        if chance.random() < 0.8
    }
    measured: dict[date, list[bool]] = {}
    for at_ms in range(span.from_ms, as_of_ms, MINUTE):
        step = (at_ms - span.from_ms) // span.step_ms
        if step in waits:
            day = datetime.fromtimestamp(at_ms / 1000, UTC).date()
            measured.setdefault(day, []).append(waits[step] > LIMIT_MS)
    days = service_days("g", waits.items(), span, LIMIT_MS, 0.9)
    assert {day.day: (day.measured_ms, day.over_ms) for day in days} == {
        day: (len(over) * MINUTE, sum(over) * MINUTE) for day, over in measured.items()
    }
    assert all(day.attained == 1 - day.over_ms / day.measured_ms for day in days)
    assert all(day.budget_ms - day.over_ms == day.budget_left_ms for day in days)
    assert [day.day for day in days] == sorted(measured)
