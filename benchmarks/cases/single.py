"""Produce requests of one record each, one after the other and pipelined, compared with single XADDs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND, sides
from benchmarks.rig.records import Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.measuring import Row
    from benchmarks.rig.rig import Rig

SHAPE = Shape(100, 0)
# Number of requests in flight per connection.
DEPTHS = {"one at a time": 1, "32 in flight": 32}


def measure(rig: Rig) -> Iterator[Row]:
    """Measure requests per second and CPU time per request, for every depth."""
    for what, depth in DEPTHS.items():
        yield from rig.rows(
            f"single records of 100 B, {what}", sides(rig, SHAPE, depth), {RATE: RECORDS_PER_SECOND}
        )
