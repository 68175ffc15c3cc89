"""Produce: prepared batches from a C client, beside XADDs of the same records by a C client of Redis."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.measuring import Meter, Row, Sample
from benchmarks.rig.records import Shape, entry_requests, produce_requests, write_requests
from benchmarks.rig.servers import Cluster, rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig

SHAPES = (Shape(100, 64 << 10), Shape(100, 16 << 10), Shape(1024, 64 << 10))
# So much is on its way at once, in every case.
IN_FLIGHT_BYTES = 512 << 10
STREAM = "bench-direct"
UNITS = {"records per second": "1/s", "memory per record": "B"}


def measure(rig: Rig) -> Iterator[Row]:
    """Rates, CPU per record and memory per record, for every shape."""
    for shape in SHAPES:
        sides = {
            name: functools.partial(produced, cluster, shape, rig.seconds)
            for name, cluster in rig.clusters().items()
        }
        sides["redis"] = functools.partial(written, rig, shape)
        yield from rig.rows(f"produce, {shape}", sides, UNITS)


def in_flight(shape: Shape) -> int:
    """How many batches of a shape are on their way at once."""
    return max(1, IN_FLIGHT_BYTES // max(shape.batch_bytes, 8 << 10))


def produced(cluster: Cluster, shape: Shape, seconds: float) -> Sample:
    """Produce into a new topic for a while."""
    topic = cluster.new_topic()
    depth = in_flight(shape)
    requests = write_requests("produce", produce_requests(topic, 1, shape, 2 * depth))
    rest()
    with cluster.meter() as meter:
        options = ("--seconds", seconds, "--in-flight", depth)
        outcome = programs.run("requests", cluster.bootstrap, requests, *options)
    requests.unlink()
    values = {"records per second": outcome.rate}
    if cluster.store is not None:
        values["memory per record"] = memory_per_record(cluster, f"korvet:{topic}:0", outcome.records)
    cluster.drop_topic(topic)
    return Sample(values, meter.per_million(outcome.records, outcome.cpu_s))


def written(rig: Rig, shape: Shape) -> Sample:
    """Write the same records into a stream for a while."""
    depth = in_flight(shape)
    requests = write_requests("direct", entry_requests([STREAM], shape, 2 * depth))
    rest()
    with Meter({"redis": rig.store.pid}) as meter:
        options = ("--seconds", rig.seconds, "--in-flight", depth)
        outcome = programs.run("direct", rig.store.address, requests, *options)
    requests.unlink()
    memory_bytes = memory_per_record(rig.korvet, STREAM, outcome.records)
    rig.store.free(STREAM)
    values = {"records per second": outcome.rate, "memory per record": memory_bytes}
    return Sample(values, meter.per_million(outcome.records, outcome.cpu_s))


def memory_per_record(cluster: Cluster, stream: str, records: int) -> float:
    """MEMORY USAGE of a stream over its length, which has to be what was acknowledged."""
    assert cluster.store is not None
    client = cluster.store.client
    length = int(client.xlen(stream))
    if length != records:
        raise programs.LoadFailed(f"{stream} has {length} entries, {records} were acknowledged")
    return float(client.execute_command("MEMORY", "USAGE", stream, "SAMPLES", 0)) / records
