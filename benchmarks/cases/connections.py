"""Connections that send nothing: what each costs the broker in memory, and all of them in CPU."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.measuring import KORVET, Row, Sample, resident_bytes
from benchmarks.rig.servers import rest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

CONNECTIONS = 5_000
SETTLE_S = 1.0
LEAST_S = 3.0
UNITS = {"memory of one": "KB", "CPU of all, of one core": "%"}


def measure(rig: Rig) -> Iterator[Row]:
    """Memory and CPU; the first time counts most, since a process keeps what it was given once."""
    count = rig.scaled(CONNECTIONS)
    sides = {KORVET: functools.partial(held, rig.korvet, count, max(rig.seconds, LEAST_S))}
    yield from rig.rows(f"{count:,} connections", sides, UNITS)


def held(cluster: Cluster, count: int, seconds: float) -> Sample:
    """Hold so many connections for a while."""
    pid = cluster.pids["broker"]
    before_bytes = resident_bytes(pid)
    with programs.idling(cluster.bootstrap, count):
        rest(SETTLE_S)
        grown_bytes = resident_bytes(pid) - before_bytes
        with cluster.meter() as meter:
            time.sleep(seconds)
    share = 100 * meter.used["broker"] / meter.took_s
    return Sample({"memory of one": grown_bytes / count / 1024, "CPU of all, of one core": share})
