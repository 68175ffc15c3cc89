"""Produce requests of one record each, one after the other and pipelined, compared with single XADDs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND, sides
from benchmarks.rig.goals import Goal
from benchmarks.rig.records import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.measuring import Row
    from benchmarks.rig.rig import Rig

SHAPE = Shape(100, 0)
# Number of requests in flight per connection.
ONE, SEVERAL = "one at a time", "32 in flight"
DEPTHS = {ONE: 1, SEVERAL: 32}
NAME = f"single records of {SHAPE.value_bytes} B"
GOALS = (Goal(f"{NAME}, {ONE}", RATE, "kafka", 0.9),)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure requests per second and CPU time per request, for every depth."""
    for what, depth in DEPTHS.items():
        measured = sides(rig, rig.clusters(), SHAPE, depth)
        yield from rig.rows(f"{NAME}, {what}", measured, {RATE: RECORDS_PER_SECOND})
