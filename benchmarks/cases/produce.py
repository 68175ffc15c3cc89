"""Produce: prepared batches from a C client, compared with a C client's XADDs of the same records.

Korvet's side has the server module if it is built. The path without the module and the batch layout are
measured beside it.
"""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import Meter, Row, Sample
from benchmarks.rig.records import (
    HEADER,
    KEY_BYTES,
    Shape,
    entry_requests,
    produce_requests,
    size_text,
    write_requests,
)
from benchmarks.rig.rig import WITHOUT_MODULE
from benchmarks.rig.servers import rest
from tests.support.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster, Store

SHAPES = (Shape(100, 64 << 10), Shape(100, 16 << 10), Shape(1024, 64 << 10))
# Bytes in flight, the same in every case.
IN_FLIGHT_BYTES = 512 << 10
STREAM = "bench-direct"
RATE, REDIS_CPU, MEMORY = "records per second", "Redis's CPU per record", "memory per record"
RECORDS_PER_SECOND = "1/s"
UNITS = {RATE: RECORDS_PER_SECOND, REDIS_CPU: "µs", MEMORY: "B"}
TOOL_RECORDS = 1_000_000
TOOL_TIMEOUT_S = 60
GOALS = (
    Goal(f"produce, {SHAPES[0]}", REDIS_CPU, WITHOUT_MODULE, 0.45),
    Goal(f"produce, {SHAPES[0]}", RATE, "redis", 2.0),
    Goal(f"produce, {SHAPES[0]}", RATE, "kafka", 1.0),
)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure rates, CPU time and memory per record, for every shape."""
    for shape in SHAPES:
        measured = sides(rig, rig.layouts(), shape, in_flight(shape))
        yield from rig.rows(f"produce, {shape}", measured, UNITS)
    for value_bytes in (100, 1024):
        yield from benchmark_tool(rig, value_bytes)


def benchmark_tool(rig: Rig, value_bytes: int) -> Iterator[Row]:
    """Run `redis-benchmark` or `valkey-benchmark`, if installed: XADD of the same records, with IDs from
    Redis.
    """
    program = shutil.which("valkey-benchmark") or shutil.which("redis-benchmark")
    if program is not None:
        side = functools.partial(tool_written, rig, program, value_bytes)
        name = f"{Path(program).name} -P 100 -c 50, XADD, {size_text(value_bytes)}"
        yield from rig.rows(name, {"redis": side}, {RATE: RECORDS_PER_SECOND})


def tool_written(rig: Rig, program: str, value_bytes: int) -> Sample:
    """Run Redis's own benchmark once."""
    count = rig.scaled(TOOL_RECORDS * 100 // value_bytes)
    fields = ("key", "k" * KEY_BYTES, "value", "v" * value_bytes, f"header.{HEADER[0]}", HEADER[1].decode())
    command = [program, "-s", rig.store.address.removeprefix("unix:"), "-n", str(count), "--csv"]
    with Meter({"redis": rig.store.pid}) as meter:
        done = run([*command, "-P", "100", "-c", "50", "XADD", STREAM, "*", *fields], TOOL_TIMEOUT_S)
    if done.returncode != 0:
        raise programs.LoadFailed(f"{program}: {done.stderr.decode()}")
    rig.store.free(STREAM)
    # The output is a line "test","rps",... and a line of values.
    rate = float(done.stdout.decode().strip().splitlines()[-1].split('","')[1].strip('"'))
    return Sample({RATE: rate}, meter.per_million(count))


def in_flight(shape: Shape) -> int:
    """Returns the number of batches of a shape in flight."""
    return max(1, IN_FLIGHT_BYTES // shape.batch_bytes)


def sides(
    rig: Rig, clusters: Mapping[str, Cluster], shape: Shape, depth: int
) -> dict[str, Callable[[], Sample]]:
    """Measure these brokers, and Redis itself, with this number of batches in flight."""
    measured: dict[str, Callable[[], Sample]] = {
        name: functools.partial(produced, cluster, shape, depth, rig.seconds)
        for name, cluster in clusters.items()
    }
    return measured | {"redis": functools.partial(written, rig, shape, depth)}


def produced(cluster: Cluster, shape: Shape, depth: int, seconds: float, acks: int = 1) -> Sample:
    """Produce into a new topic for a while."""
    topic = cluster.new_topic()
    requests = write_requests("produce", produce_requests(topic, 1, shape, 2 * depth, acks))
    rest()
    store = cluster.store
    before_s = store.cpu_seconds() if store is not None else 0
    with cluster.meter() as meter:
        options = ("--seconds", seconds, "--in-flight", depth)
        outcome = programs.run("requests", cluster.bootstrap, requests, *options)
    requests.unlink()
    values = {RATE: outcome.rate}
    if store is not None:
        values[REDIS_CPU] = (store.cpu_seconds() - before_s) * 1e6 / outcome.records
        entries = outcome.requests if cluster.entries_are_batches else outcome.records
        values[MEMORY] = memory_per_record(store, cluster.stream(topic), outcome.records, entries)
    cluster.drop_topic(topic)
    return Sample(values, meter.per_million(outcome.records, outcome.cpu_s))


def written(rig: Rig, shape: Shape, depth: int) -> Sample:
    """Write the same records into a stream for a while."""
    requests = write_requests("direct", entry_requests([STREAM], shape, 2 * depth))
    rest()
    before_s = rig.store.cpu_seconds()
    with Meter({"redis": rig.store.pid}) as meter:
        options = ("--seconds", rig.seconds, "--in-flight", depth)
        outcome = programs.run("direct", rig.store.address, requests, *options)
    requests.unlink()
    cpu_us = (rig.store.cpu_seconds() - before_s) * 1e6 / outcome.records
    used_bytes = memory_per_record(rig.store, STREAM, outcome.records, outcome.records)
    values = {RATE: outcome.rate, REDIS_CPU: cpu_us, MEMORY: used_bytes}
    rig.store.free(STREAM)
    return Sample(values, meter.per_million(outcome.records, outcome.cpu_s))


def memory_per_record(store: Store, stream: str, records: int, entries: int) -> float:
    """Returns MEMORY USAGE of a stream per record. Checks that all acknowledged entries are there."""
    length = int(store.client.xlen(stream))
    if length != entries:
        raise programs.LoadFailed(f"{stream} has {length} entries, {entries} were acknowledged")
    return float(store.client.memory_usage(stream, samples=0)) / records
