"""Connections that send nothing: what each costs the broker in memory, and all of them in CPU."""

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
SETTLE_S = 1.0
KEYSPACE = "bench-connections"
LEAST_S = 3.0
UNITS = {"memory of one": "KB", "CPU of all, of one core": "%"}


def measure(rig: Rig) -> Iterator[Row]:
    """Memory and CPU, of a new broker each time: one that has worked takes memory that it had before."""
    count = rig.scaled(CONNECTIONS)
    sides = {KORVET: functools.partial(held, rig, count)}
    yield from rig.rows(f"{count:,} connections", sides, UNITS)


def held(rig: Rig, count: int) -> Sample:
    """Hold so many connections for a while."""
    with contextlib.closing(Korvet(rig.store, KEYSPACE)) as korvet:
        pid = korvet.cluster.pids["broker"]
        before_bytes = resident_bytes(pid)
        with programs.idling(korvet.cluster.bootstrap, count):
            rest(SETTLE_S)
            grown_bytes = resident_bytes(pid) - before_bytes
            with korvet.cluster.meter() as meter:
                time.sleep(max(rig.seconds, LEAST_S))
    share = 100 * meter.used["broker"] / meter.took_s
    return Sample({"memory of one": grown_bytes / count / 1024, "CPU of all, of one core": share})
