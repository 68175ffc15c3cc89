"""Spark computes the status of groups from skewed commits, compared with as many even ones.

The commits of a group are in one partition of `__consumer_offsets`. In one case, one group has made half of
all commits; in the other, half of all groups, with half of the commits, are in one partition.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.rig.commits import BulkCommits, evenly, one_group_has_half, one_partition_has_half
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import KORVET, Row, Sample, interleaved
from korvet.spark.export.tables import batch_table
from korvet.spark.session.session import build_session
from korvet.spark.source.address import Address
from korvet.spark.tables.readers import RedisReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from benchmarks.rig.rig import Rig

COMMITS, GROUPS = 1_000_000, 100
EVEN = "even"
SKEWED = {
    "one group has half of the commits": one_group_has_half,
    "one partition has half of the commits": one_partition_has_half,
}
TABLES = ("group_status", "partition_status")
TIME = "time"
MOST = 1.3


def title(shape: str) -> str:
    """Returns the benchmark's name for a distribution of commits."""
    return f"status of {GROUPS} groups, {COMMITS:,} commits, {shape}"


GOALS = tuple(Goal(title(shape), table, EVEN, MOST) for shape in SKEWED for table in TABLES)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure the time of each table for each distribution, in the same rounds."""
    shapes = [shape for shape in SKEWED if rig.wanted(title(shape))]
    if not shapes:
        return
    written = []
    spark = build_session("skew", "local[*]")
    try:
        for number, spread in enumerate([evenly, *(SKEWED[shape] for shape in shapes)]):
            commits = BulkCommits(rig.store.client, f"bench-skew-{number}")
            written.append(commits)
            commits.write_up_to(spread(GROUPS, rig.scaled(COMMITS)))
        addresses = [Address(rig.store.url, commits.keyspace) for commits in written]
        sides = {
            name: lambda address=address: computed(spark, address)
            for name, address in zip([EVEN, *shapes], addresses, strict=True)
        }
        for compute in sides.values():
            compute()  # compiles and warms up
        for row in interleaved("", sides, rig.repeat, dict.fromkeys(TABLES, "s")):
            for shape in shapes:
                values = {KORVET: row.values[shape], EVEN: row.values[EVEN]}
                yield Row(title(shape), row.figure, row.unit, values)
    finally:
        spark.stop()
        for commits in written:
            commits.remove()
        rig.store.settle()


def computed(spark: SparkSession, address: Address) -> Sample:
    """Compute all rows of each table once, without writing them."""
    took = {}
    for table in TABLES:
        began = time.perf_counter()
        frame = batch_table(spark, RedisReader(address), table, time.time_ns() // 1_000_000)
        frame.write.format("noop").mode("overwrite").save()
        took[table] = time.perf_counter() - began
        spark.catalog.clearCache()
    return Sample(took)
