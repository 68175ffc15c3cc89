"""Metadata of every topic, with ten thousand partitions in the cluster."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.measuring import KORVET, Row, Sample
from benchmarks.rig.records import METADATA, Request, framed, write_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

PARTITIONS = 10_000
TOPICS = 10
UNITS = {"all topics, p50": "ms", "all topics, p99": "ms", "bytes": "B"}


def measure(rig: Rig) -> Iterator[Row]:
    """Measure time and size of the response, requested repeatedly by one client."""
    count = rig.scaled(PARTITIONS)
    topics = [rig.korvet.new_topic(count // TOPICS) for _ in range(TOPICS)]
    sides = {KORVET: functools.partial(asked, rig.korvet, rig.seconds)}
    yield from rig.rows(f"Metadata, {count:,} partitions", sides, UNITS)
    for topic in topics:
        rig.korvet.drop_topic(topic)


def asked(cluster: Cluster, seconds: float) -> Sample:
    """Request Metadata v9 of all topics (a null list), one request after the other."""
    body = b"\0" + b"\0\0\0" + b"\0"  # all topics, no auto-creation, no authorized operations, no tags
    requests = write_requests("metadata", [Request(framed(METADATA, 9, body, flexible=True), 1, 0)])
    with cluster.meter() as meter:
        options = ("--seconds", seconds, "--in-flight", 1)
        outcome = programs.run("requests", cluster.bootstrap, requests, *options)
    requests.unlink()
    counts = outcome.counts
    values = (counts["p50_ms"], counts["p99_ms"], counts["reply_bytes"] / counts["requests"])
    return Sample(dict(zip(UNITS, values, strict=True)), meter.per_million(outcome.records))
