"""Produce with the embedded server's settings, which flush each append before its answer.

Beside it: Kafka that flushes each batch (`flush.messages=1`), Kafka's default, which leaves flushing to
Linux, and the same Redis without a file.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND, REDIS_CPU, in_flight, produced, written
from benchmarks.rig.goals import Goal
from benchmarks.rig.records import Shape
from benchmarks.rig.rig import WITHOUT_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rig.measuring import Row, Sample
    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster, Store

SHAPES = (Shape(100, 64 << 10), Shape(1024, 64 << 10), Shape(100, 0))
# The embedded server's settings.
EMBEDDED = {"aof-use-rdb-preamble": "no", "appendfsync": "always", "appendonly": "yes"}
NO_FILE, NO_FLUSH = "korvet without a file", "kafka without flushes"
UNITS = {RATE: RECORDS_PER_SECOND, REDIS_CPU: "µs"}
GOALS = (Goal(f"durable produce, {SHAPES[0]}", RATE, WITHOUT_MODULE, 2.5),)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure rates and CPU time per record, for every shape; of single records, one is in flight."""
    for shape in SHAPES:
        depth = in_flight(shape) if shape.batch_bytes else 1
        yield from rig.rows(f"durable produce, {shape}", sides(rig, shape, depth), UNITS)


def sides(rig: Rig, shape: Shape, depth: int) -> dict[str, Callable[[], Sample]]:
    """Returns all sides, each with this number of batches in flight."""

    def producing(cluster: Cluster) -> Callable[[], Sample]:
        return functools.partial(produced, cluster, shape, depth, rig.seconds)

    def flushing(store: Store, measured: Callable[[], Sample]) -> Sample:
        with store.configured(EMBEDDED):
            return measured()

    made: dict[str, Callable[[], Sample]] = {
        name: functools.partial(flushing, cluster.store, producing(cluster))
        for name, cluster in rig.layouts().items()
        if cluster.store is not None
    }
    made["redis"] = functools.partial(flushing, rig.store, functools.partial(written, rig, shape, depth))
    made[NO_FILE] = producing(rig.korvet)
    if rig.kafka is not None:
        made["kafka"] = producing(rig.kafka.cluster.with_topics({"flush.messages": "1"}))
        made[NO_FLUSH] = producing(rig.kafka.cluster)
    return made
