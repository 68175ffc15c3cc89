"""The latency of producers while a topic in the same Redis is scanned, with and without `maxRedisCpu`.

A process reads as a task of a Spark job does. Spark itself would take the cores that the broker needs.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.cases.latency import ACKNOWLEDGED_P99, END_TO_END_P99, RATE, WARM_UP_S, timed
from benchmarks.rig.commits import BulkCommits, evenly
from benchmarks.rig.measuring import KORVET, Sample, main_thread_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.measuring import Row
    from benchmarks.rig.rig import Rig

COMMITS, GROUPS = 1_000_000, 100
KEYSPACE = "bench-scan"
# Least number of seconds: enough for the 99th percentile.
LEAST_S = 3.0
BOUND = 0.1
UNLIMITED, ALONE = "scan without maxRedisCpu", "without a scan"
SCANNED, LOAD = "records scanned per second", "load of Redis's main thread"
UNITS = {END_TO_END_P99: "ms", ACKNOWLEDGED_P99: "ms", LOAD: "%", SCANNED: "1/s"}


def measure(rig: Rig) -> Iterator[Row]:
    """Measure percentiles of the latency, the scan's rate, and the load of Redis."""
    name = f"latency at {RATE:,} msg/s beside a scan with maxRedisCpu={BOUND}"
    if not rig.wanted(name):
        return
    commits = BulkCommits(rig.store.client, KEYSPACE)
    try:
        commits.write_up_to(evenly(GROUPS, rig.scaled(COMMITS)))
        bounds: dict[str, tuple[str, ...] | None] = {KORVET: (str(BOUND),), UNLIMITED: (), ALONE: None}
        sides = {side: functools.partial(beside, rig, bound) for side, bound in bounds.items()}
        yield from rig.rows(name, sides, UNITS)
    finally:
        commits.remove()
        rig.store.settle()


def beside(rig: Rig, bound: tuple[str, ...] | None) -> Sample:
    """Send numbered records at the rate beside a scan. bound: of the scan; None without a scan."""
    if bound is None:
        return measured(rig)
    with scanning(rig, bound) as scan:
        sample = measured(rig)
    return Sample({**sample.values, SCANNED: scan.records / scan.seconds}, sample.cpu)


def measured(rig: Rig) -> Sample:
    """Send numbered records at the rate, and measure their latency and the load of Redis."""
    before_s, began_s = main_thread_seconds(rig.store.client), time.monotonic()
    sample = timed(rig.korvet, WARM_UP_S + rig.lasting(LEAST_S), 0)
    used_s = main_thread_seconds(rig.store.client) - before_s
    load = used_s / (time.monotonic() - began_s)
    return Sample({**sample.values, LOAD: 100 * load}, sample.cpu)


@dataclass(slots=True)
class Scan:
    """What a scan has read when it has ended."""

    records: int = 0
    seconds: float = 1.0


@contextmanager
def scanning(rig: Rig, bound: tuple[str, ...]) -> Iterator[Scan]:
    """Scan the commits until the end of the block."""
    command = [sys.executable, "-m", "benchmarks.rig.scanner", rig.store.url, KEYSPACE, *bound]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    found = Scan()
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{command!r} ended with {process.wait()}")
        try:
            yield found
        finally:
            out, _ = process.communicate()
    records, seconds = out.split()
    found.records, found.seconds = int(records), float(seconds)
