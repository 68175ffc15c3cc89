"""Produce: prepared batches from a C client, beside XADDs of the same records by a C client of Redis."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.measuring import Meter, Row, Sample
from benchmarks.rig.records import Shape, entry_requests, produce_requests, write_requests
from benchmarks.rig.servers import rest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster, Store

SHAPES = (Shape(100, 64 << 10), Shape(100, 16 << 10), Shape(1024, 64 << 10))
# So much is on its way at once, in every case.
IN_FLIGHT_BYTES = 512 << 10
STREAM = "bench-direct"
RATE, MEMORY = "records per second", "memory per record"
RECORDS_PER_SECOND = "1/s"


def measure(rig: Rig) -> Iterator[Row]:
    """Rates, CPU per record and memory per record, for every shape."""
    for shape in SHAPES:
        measured = sides(rig, shape, in_flight(shape))
        yield from rig.rows(f"produce, {shape}", measured, {RATE: RECORDS_PER_SECOND, MEMORY: "B"})


def in_flight(shape: Shape) -> int:
    """How many batches of a shape are on their way at once."""
    return max(1, IN_FLIGHT_BYTES // shape.batch_bytes)


def sides(rig: Rig, shape: Shape, depth: int) -> dict[str, Callable[[], Sample]]:
    """Every broker, and Redis itself, with so many batches on their way."""
    measured: dict[str, Callable[[], Sample]] = {
        name: functools.partial(produced, cluster, shape, depth, rig.seconds)
        for name, cluster in rig.clusters().items()
    }
    return measured | {"redis": functools.partial(written, rig, shape, depth)}


def produced(cluster: Cluster, shape: Shape, depth: int, seconds: float) -> Sample:
    """Produce into a new topic for a while."""
    topic = cluster.new_topic()
    requests = write_requests("produce", produce_requests(topic, 1, shape, 2 * depth))
    rest()
    with cluster.meter() as meter:
        options = ("--seconds", seconds, "--in-flight", depth)
        outcome = programs.run("requests", cluster.bootstrap, requests, *options)
    requests.unlink()
    values = {RATE: outcome.rate}
    if cluster.store is not None:
        values[MEMORY] = memory_per_record(cluster.store, f"korvet:{topic}:0", outcome.records)
    cluster.drop_topic(topic)
    return Sample(values, meter.per_million(outcome.records, outcome.cpu_s))


def written(rig: Rig, shape: Shape, depth: int) -> Sample:
    """Write the same records into a stream for a while."""
    requests = write_requests("direct", entry_requests([STREAM], shape, 2 * depth))
    rest()
    with Meter({"redis": rig.store.pid}) as meter:
        options = ("--seconds", rig.seconds, "--in-flight", depth)
        outcome = programs.run("direct", rig.store.address, requests, *options)
    requests.unlink()
    values = {RATE: outcome.rate, MEMORY: memory_per_record(rig.store, STREAM, outcome.records)}
    rig.store.free(STREAM)
    return Sample(values, meter.per_million(outcome.records, outcome.cpu_s))


def memory_per_record(store: Store, stream: str, records: int) -> float:
    """MEMORY USAGE of a stream over its length, which has to be what was acknowledged."""
    length = int(store.client.xlen(stream))
    if length != records:
        raise programs.LoadFailed(f"{stream} has {length} entries, {records} were acknowledged")
    return float(store.client.memory_usage(stream, samples=0)) / records
