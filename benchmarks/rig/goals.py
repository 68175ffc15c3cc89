"""What ratios of the benchmarks should be. A missed goal is printed; it fails nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.rig.measuring import KORVET, SMALLER_IS_BETTER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.rig.measuring import Row


@dataclass(frozen=True, slots=True)
class Goal:
    """Bounds korvet's value of a figure divided by another side's.

    `bound` is the largest ratio if smaller values are better, else the smallest one.
    """

    benchmark: str
    figure: str
    side: str
    bound: float


@dataclass(frozen=True, slots=True)
class Reached:
    """A goal with what was measured: the ratio of each round, and their median."""

    goal: Goal
    unit: str
    ratios: list[float]
    ratio: float

    @property
    def at_most(self) -> bool:
        return self.unit in SMALLER_IS_BETTER

    @property
    def met(self) -> bool:
        return self.ratio <= self.goal.bound if self.at_most else self.ratio >= self.goal.bound


def reached(goals: Iterable[Goal], rows: Sequence[Row]) -> Iterator[Reached]:
    """Yields the goals whose sides were measured."""
    found = {(row.benchmark, row.figure): row for row in rows}
    for goal in goals:
        row = found.get((goal.benchmark, goal.figure))
        if row is not None and {KORVET, goal.side} <= row.values.keys():
            yield Reached(goal, row.unit, row.ratios(goal.side), row.ratio(goal.side))
