"""The broker's costs of idle connections, and of consumers that wait for records."""

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
# Partitions of the topic that the consumers wait for.
PARTITIONS = 10
SETTLE_S = 1.0
KEYSPACE = "bench-connections"
LEAST_S = 3.0
UNITS = {"memory of one": "KB", "CPU of all, of one core": "%"}


def measure(rig: Rig) -> Iterator[Row]:
    """Measure memory and CPU time of a new broker each time: a used one would reuse memory."""
    for what, count, waiting in (("silent", CONNECTIONS, False), ("waiting consumers", CONSUMERS, True)):
        scaled = rig.scaled(count)
        sides = {KORVET: functools.partial(held, rig, scaled, waiting=waiting)}
        yield from rig.rows(f"connections, {scaled:,} {what}", sides, UNITS)


def held(rig: Rig, count: int, *, waiting: bool) -> Sample:
    """Hold connections for a while; with `waiting`, each always has one Fetch in flight."""
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
