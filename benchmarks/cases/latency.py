"""End-to-end latency at a fixed rate with acks=1: alone, and while a thousand other consumers wait."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import Row, Sample
from benchmarks.rig.records import KEY_BYTES, Request, produce_request, record_batch, write_requests
from benchmarks.rig.servers import rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

RATE = 1_000
VALUE_BYTES = 100
IDLE_CONSUMERS = 1_000
IDLE_PARTITIONS = 10
# The load client measures nothing in the first second.
WARM_UP_S = 1.0
# Least number of records: enough for the 99th percentile.
LEAST_S = 3.0
END_TO_END_P99, ACKNOWLEDGED_P99 = "produce to consume, p99", "acknowledgement, p99"
UNITS = {"produce to consume, p50": "ms", END_TO_END_P99: "ms", ACKNOWLEDGED_P99: "ms"}
NAMES = {0: f"latency at {RATE:,} msg/s"}
NAMES[IDLE_CONSUMERS] = f"{NAMES[0]}, {IDLE_CONSUMERS:,} idle consumers"
GOALS = tuple(
    Goal(name, figure, "kafka", 1.0)
    for name in NAMES.values()
    for figure in (END_TO_END_P99, ACKNOWLEDGED_P99)
)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure percentiles, without and with idle consumers."""
    for idle, benchmark in NAMES.items():
        sides = {
            name: functools.partial(timed, cluster, WARM_UP_S + rig.lasting(LEAST_S), idle)
            for name, cluster in rig.clusters().items()
        }
        yield from rig.rows(benchmark, sides, UNITS)


def timed(cluster: Cluster, seconds: float, idle: int) -> Sample:
    """Send numbered records at the rate, and measure their latencies."""
    topic = cluster.new_topic()
    requests = write_requests("latency", numbered_requests(topic, int(seconds * RATE)))
    with contextlib.ExitStack() as stack:
        if idle:
            idle_topic = cluster.new_topic(IDLE_PARTITIONS)
            stack.callback(cluster.drop_topic, idle_topic)
            options = ("--topic", idle_topic, "--partitions", IDLE_PARTITIONS)
            stack.enter_context(programs.idling(cluster.bootstrap, idle, *options))
        rest(1.0)
        with cluster.meter() as meter:
            outcome = programs.run("latency", cluster.bootstrap, requests, topic, "--rate", RATE)
    requests.unlink()
    cluster.drop_topic(topic)
    names = dict(zip(UNITS, ("p50_ms", "p99_ms", "ack_p99_ms"), strict=True))
    values = {figure: outcome.counts[name] for figure, name in names.items()}
    return Sample(values, meter.per_million(outcome.records, outcome.cpu_s))


def numbered_requests(topic: str, count: int) -> list[Request]:
    """Returns requests of one record each, whose value begins with its number."""
    made = []
    for number in range(count):
        key = secrets.token_hex(KEY_BYTES // 2).encode()
        value = number.to_bytes(4, "big") + os.urandom(VALUE_BYTES - 4)
        made.append(produce_request(topic, 0, record_batch([(key, value)]), 1))
    return made
