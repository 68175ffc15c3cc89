"""Connections that send nothing, and consumers that wait for records: what they cost the broker."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.measuring import KORVET, Row, Sample, resident_bytes
from benchmarks.rig.servers import Korvet, rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig

CONNECTIONS = 5_000
CONSUMERS = 1_000
# Of the topic that the consumers wait for.
PARTITIONS = 10
SETTLE_S = 1.0
KEYSPACE = "bench-connections"
LEAST_S = 3.0
UNITS = {"memory of one": "KB", "CPU of all, of one core": "%"}


def measure(rig: Rig) -> Iterator[Row]:
    """Memory and CPU, of a new broker each time: one that has worked takes memory that it had before."""
    for what, count, waiting in (("silent", CONNECTIONS, False), ("waiting consumers", CONSUMERS, True)):
        scaled = rig.scaled(count)
        sides = {KORVET: functools.partial(held, rig, scaled, waiting=waiting)}
        yield from rig.rows(f"connections, {scaled:,} {what}", sides, UNITS)


def held(rig: Rig, count: int, *, waiting: bool) -> Sample:
    """Hold so many connections for a while; with `waiting` each has one Fetch under way all the time."""
    with contextlib.closing(Korvet(rig.store, KEYSPACE)) as korvet:
        cluster = korvet.cluster
        options = ("--topic", cluster.new_topic(PARTITIONS), "--partitions", PARTITIONS) if waiting else ()
        pid = cluster.pids["broker"]
        before_bytes = resident_bytes(pid)
        with programs.idling(cluster.bootstrap, count, *options):
            rest(SETTLE_S)
            grown_bytes = resident_bytes(pid) - before_bytes
            with cluster.meter() as meter:
                time.sleep(rig.lasting(LEAST_S))
    share = 100 * meter.used["broker"] / meter.took_s
    return Sample({"memory of one": grown_bytes / count / 1024, "CPU of all, of one core": share})
