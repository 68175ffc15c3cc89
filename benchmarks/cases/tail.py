"""Produce and consume at the same time: a reader follows a partition while a C client writes to it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.cases.produce import in_flight
from benchmarks.rig import programs
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import Row, Sample
from benchmarks.rig.records import Shape, produce_requests, write_requests
from benchmarks.rig.servers import Cluster, rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig

SHAPES = (Shape(100, 64 << 10), Shape(1024, 64 << 10))
# Additional time for the reader to reach the end.
CATCH_UP_S = 2.0
CONSUMED, PRODUCED = "records consumed per second", "records produced per second"
UNITS = {CONSUMED: "1/s", PRODUCED: "1/s"}
GOALS = tuple(Goal(f"tail, {SHAPES[0]}", figure, "kafka", 0.8) for figure in UNITS)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure the rates of both, and CPU time per record, for every shape."""
    for shape in SHAPES:
        sides = {
            name: functools.partial(followed, cluster, shape, rig.seconds)
            for name, cluster in rig.layouts().items()
        }
        yield from rig.rows(f"tail, {shape}", sides, UNITS)


def followed(cluster: Cluster, shape: Shape, seconds: float) -> Sample:
    """Produce for a while, and read to the end. A reader that lags shows a lower rate."""
    topic = cluster.new_topic()
    depth = in_flight(shape)
    requests = write_requests("tail", produce_requests(topic, 1, shape, 2 * depth))
    rest()
    with cluster.meter() as meter:
        reader = programs.start("fetch", cluster.bootstrap, topic, "--seconds", seconds + CATCH_UP_S)
        options = ("--seconds", seconds, "--in-flight", depth)
        produced = programs.run("requests", cluster.bootstrap, requests, *options)
        consumed = programs.outcome_of(reader)
    requests.unlink()
    cluster.drop_topic(topic)
    values = {CONSUMED: consumed.rate, PRODUCED: produced.rate}
    return Sample(values, meter.per_million(produced.records, produced.cpu_s + consumed.cpu_s))
