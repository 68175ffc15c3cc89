"""How much of each day groups were within their limit of waiting, by the steps of the charts.

A step has the lag at its end, which counts for the whole step. Steps without a lag are not measured.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from korvet.spark.tables.views import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from korvet.spark.tables.trends import Span


@dataclass(frozen=True, slots=True)
class ServiceDay:
    """A row of the answer `slo_days`, in its order: catalog.ANSWERS has the meanings."""

    group: str
    day: date
    samples: int
    worst_lag_ms: int
    measured_ms: int
    over_ms: int
    attained: float
    target: float
    budget_ms: int
    budget_left_ms: int
    complete: float


def service_days(
    group: str, waits: Iterable[tuple[int, int]], span: Span, limit_ms: int, target: float
) -> list[ServiceDay]:
    """Return a group's days (UTC), oldest first.

    waits: pairs of a step and the longest wait at its end in ms. limit_ms: the longest wait within the
    objective. Steps longer than a day are in no day, so there are no rows then.
    """
    if span.step_ms > DAY_MS:
        return []
    days: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for step, wait_ms in waits:
        begin_ms = span.from_ms + step * span.step_ms
        # Steps begin at multiples of their length, so each is in one day.
        length_ms = min(span.step_ms, span.as_of_ms - begin_ms)
        days[begin_ms // DAY_MS].append((length_ms, wait_ms))
    return [_service_day(group, day, days[day], limit_ms, target) for day in sorted(days)]


def _service_day(
    group: str, day: int, steps: Sequence[tuple[int, int]], limit_ms: int, target: float
) -> ServiceDay:
    measured_ms = sum(length_ms for length_ms, _ in steps)
    over_ms = sum(length_ms for length_ms, wait_ms in steps if wait_ms > limit_ms)
    budget_ms = round(measured_ms * (1 - target))
    return ServiceDay(
        group,
        datetime.fromtimestamp(day * DAY_MS / 1000, UTC).date(),
        len(steps),
        max(wait_ms for _, wait_ms in steps),
        measured_ms,
        over_ms,
        1 - over_ms / measured_ms,
        target,
        budget_ms,
        budget_ms - over_ms,
        measured_ms / DAY_MS,
    )
