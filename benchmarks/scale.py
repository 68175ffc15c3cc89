"""How the status of groups scales: memory of the driver, evenness of tasks and time, by number of commits.

    ./dev bench scale --commits 1000000 --commits 10000000 --shards 2

Starts a Redis Cluster on loopback without persistence, fills it with commits (about 80 bytes of memory each),
and computes the table group_status on a small Spark cluster: the driver in this process and two executors
with one core each. Commits are added from size to size.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from redis.cluster import RedisCluster as Client
from rich.console import Console
from rich.table import Table

from benchmarks.rig.commits import BulkCommits, evenly, one_group_has_half, one_partition_has_half
from benchmarks.rig.measuring import main_thread_seconds
from korvet.embedded.binary import find_server
from korvet.spark.export.tables import batch_table
from korvet.spark.session.session import build_session
from korvet.spark.source.address import Address
from korvet.spark.tables.readers import RedisReader
from tests.support.cluster import RedisCluster
from tests.support.spark_cluster import standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

GROUPS = 200
SPREADS = {"even": evenly, "group": one_group_has_half, "partition": one_partition_has_half}
EXECUTOR_MB = 1024
SAMPLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Tasks:
    """The tasks of the stage that took the most time: those that read the commits."""

    number: int
    median_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """live: in the heap of the driver's JVM afterwards, without garbage; heap: the most, with garbage.

    resident: the most of the driver's Python. loads: of the main threads of the Redis servers.
    """

    commits: int
    seconds: float
    live_mb: float
    heap_mb: float
    resident_mb: float
    loads: list[float]


def resident_mb() -> float:
    """Returns the resident memory of this process."""
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")
    )
    return int(line.split()[1]) / 1024


class Watch:
    """Samples the largest heap and resident memory of the driver while a block runs."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm = spark._jvm
        self._done = threading.Event()
        self.resident_mb = 0.0
        self.heap_mb = 0.0
        self.live_mb = 0.0

    def __enter__(self) -> Watch:
        self._jvm.java.lang.System.gc()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()
        return self

    def _used_mb(self) -> float:
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        return float(runtime.totalMemory() - runtime.freeMemory()) / (1 << 20)

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.resident_mb = max(self.resident_mb, resident_mb())
            self.heap_mb = max(self.heap_mb, self._used_mb())

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self._jvm.java.lang.System.gc()
        self.live_mb = self._used_mb()


def measure(spark: SparkSession, redis: RedisCluster, address: Address, commits: int) -> Measured:
    """Compute group_status once, without writing it."""
    spark.sparkContext.setJobDescription(str(commits))
    before = [main_thread_seconds(node.client) for node in redis.nodes]
    began = time.perf_counter()
    with Watch(spark) as watch:
        frame = batch_table(spark, RedisReader(address), "group_status", time.time_ns() // 1_000_000)
        frame.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - began
    used = [main_thread_seconds(node.client) - then for node, then in zip(redis.nodes, before, strict=True)]
    spark.catalog.clearCache()
    memory = (watch.live_mb, watch.heap_mb, watch.resident_mb)
    return Measured(commits, seconds, *memory, [each / seconds for each in used])


def tasks_of(log: Path) -> dict[str, Tasks]:
    """Returns the tasks by job description, from the log of a session's events."""
    described: dict[int, str] = {}
    run_s: dict[int, list[float]] = defaultdict(list)
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            text = event["Properties"].get("spark.job.description")
            described |= dict.fromkeys(event["Stage IDs"], text)
        elif event["Event"] == "SparkListenerTaskEnd":
            run_s[event["Stage ID"]].append(event["Task Metrics"]["Executor Run Time"] / 1000)
    found: dict[str, Tasks] = {}
    for stage in sorted(run_s, key=lambda stage: sum(run_s[stage])):
        if described.get(stage) is not None:
            times = run_s[stage]
            found[described[stage]] = Tasks(len(times), statistics.median(times), max(times))
    return found


@contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkSession]:
    """A session whose driver has little memory, with a log of its events in `folder/events`."""
    (events := folder / "events").mkdir()
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": f"{EXECUTOR_MB}m",
        "spark.sql.shuffle.partitions": "8",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    with standalone_cluster(folder, EXECUTOR_MB) as url:
        spark = build_session("scale", url, conf=conf)
        try:
            yield spark
        finally:
            spark.stop()


@click.command()
@click.option("--commits", "sizes", type=click.IntRange(min=GROUPS), multiple=True, default=(1_000_000,))
@click.option("--shards", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--spread", type=click.Choice(list(SPREADS)), default="even", show_default=True)
@click.option("--max-redis-cpu", "max_cpu", type=click.FloatRange(0, 1, min_open=True))
@click.option(
    "--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the figures."
)
def main(sizes: tuple[int, ...], shards: int, spread: str, max_cpu: float | None, path: Path | None) -> None:
    """Measure the table group_status for growing numbers of commits."""
    say = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="korvet-scale-") as name:
        folder = Path(name)
        (folder / "redis").mkdir()
        redis = RedisCluster(str(find_server().path), folder / "redis", primaries=shards)
        try:
            client: Any = Client.from_url(redis.nodes[0].url, protocol=2, socket_timeout=60)
            commits = BulkCommits(client, "korvet", writers=shards)
            address = Address(redis.nodes[0].url, max_cpu=max_cpu)
            measured = []
            with spark_cluster(folder) as spark:
                for size in sorted(sizes):
                    began = time.perf_counter()
                    commits.write_up_to(SPREADS[spread](GROUPS, size))
                    say.print(f"wrote {size:,} commits: {time.perf_counter() - began:.0f} s", highlight=False)
                    if not measured:
                        measure(spark, redis, address, 0)  # compiles and warms up
                    measured.append(measure(spark, redis, address, size))
                    say.print(measured[-1])
        finally:
            redis.stop()
        (log,) = [each for each in (folder / "events").iterdir() if each.is_file()]
        tasks = tasks_of(log)
    rows = [(each, tasks[str(each.commits)]) for each in measured]
    show(rows)
    if path is not None:
        path.write_text(json.dumps([{**vars_of(each), **vars_of(ran)} for each, ran in rows], indent=2))


def vars_of(figures: Measured | Tasks) -> dict[str, Any]:
    """Returns the fields of a result."""
    return {name: getattr(figures, name) for name in figures.__slots__}


def show(rows: list[tuple[Measured, Tasks]]) -> None:
    """Print a table."""
    table = Table(
        "commits",
        "s",
        "commits/s",
        "tasks",
        "median s",
        "longest s",
        "live MB",
        "heap MB",
        "Python MB",
        "loads",
    )
    for each, ran in rows:
        table.add_row(
            f"{each.commits:,}",
            f"{each.seconds:.1f}",
            f"{each.commits / each.seconds:,.0f}",
            str(ran.number),
            f"{ran.median_s:.2f}",
            f"{ran.longest_s:.2f}",
            f"{each.live_mb:.0f}",
            f"{each.heap_mb:.0f}",
            f"{each.resident_mb:.0f}",
            ", ".join(f"{load:.2f}" for load in each.loads),
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
