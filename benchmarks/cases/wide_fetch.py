"""One Fetch of a thousand partitions: at their ends, waiting there, and with a record in each."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import Row, Sample
from benchmarks.rig.records import Shape, fetch_request, produce_requests, write_requests
from benchmarks.rig.servers import rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

PARTITIONS = 1_000
RECORD = Shape(100, 0)
# Consumers' defaults.
WAIT_MS = 500
LEAST_WAITING_S = 2.0
P50, P99 = "answer, p50", "answer, p99"
UNITS = {P50: "ms", P99: "ms"}
CPU = {"CPU of all processes, one request": "ms"}
EMPTY = "no records"
GOALS = (Goal(f"Fetch, {PARTITIONS:,} partitions, {EMPTY}", P50, "kafka", 1.2),)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure response times; for responses after a wait, the CPU time of the broker."""
    count = rig.scaled(PARTITIONS)
    clusters = rig.clusters()
    topics = {name: cluster.new_topic(count) for name, cluster in clusters.items()}
    waiting_s = rig.lasting(LEAST_WAITING_S)
    for what, wait_ms, seconds, held, units in (
        (EMPTY, 0, rig.seconds, False, UNITS),
        (f"{EMPTY}, waits {WAIT_MS} ms", WAIT_MS, waiting_s, False, CPU),
        ("one record in each", 0, rig.seconds, True, UNITS),
    ):
        if held:
            for name, cluster in clusters.items():
                fill(cluster, topics[name], count)
        sides = {
            name: functools.partial(asked, cluster, topics[name], count, wait_ms, seconds, held=held)
            for name, cluster in clusters.items()
        }
        yield from rig.rows(f"Fetch, {PARTITIONS:,} partitions, {what}", sides, units)
    for name, cluster in clusters.items():
        cluster.drop_topic(topics[name])


def fill(cluster: Cluster, topic: str, count: int) -> None:
    """Produce one record into each partition."""
    requests = write_requests("wide-fill", produce_requests(topic, count, RECORD, count))
    programs.run("requests", cluster.bootstrap, requests, "--rounds", 1)
    requests.unlink()
    rest()


def asked(cluster: Cluster, topic: str, count: int, wait_ms: int, seconds: float, *, held: bool) -> Sample:
    """Fetch all partitions from offset 0, one request after the other."""
    requests = write_requests("wide-fetch", [fetch_request(topic, count, wait_ms)])
    with cluster.meter() as meter:
        options = ("--seconds", seconds, "--in-flight", 1)
        outcome = programs.run("requests", cluster.bootstrap, requests, *options)
    requests.unlink()
    counts = outcome.counts
    if held and counts["reply_bytes"] < outcome.requests * count * RECORD.value_bytes:
        raise programs.LoadFailed(f"{topic}: not every partition was answered with its record")
    values = (counts["p50_ms"], counts["p99_ms"], 1000 * sum(meter.used.values()) / outcome.requests)
    return Sample(dict(zip((*UNITS, *CPU), values, strict=True)), meter.per_million(outcome.requests))
