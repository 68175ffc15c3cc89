"""Unusual commits: rewinds, gaps in time, commits past the log end, and commits that lose records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.offsets.packing import SEQUENCE_BITS
from korvet.spark.tables.health import lost_records
from korvet.spark.tables.views import EXTENT, GROUP_PARTITION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from korvet.spark.tables.health import Rules

# The usual interval is the median of the last USUAL_INTERVALS intervals, and of at least MIN_INTERVALS.
USUAL_INTERVALS = 10
MIN_INTERVALS = 3
REWIND, GAP, LOST, PAST_END, UNKNOWN = "rewind", "gap", "lost_records", "past_end", "unknown_partition"


def moves(commits: DataFrame) -> DataFrame:
    """Return commits with `previous_offset`, `interval_ms` since the previous commit, and the usual interval.

    A tombstone ends the history of a group and partition: the commits before it are `is_removed`, and the
    next commit has no previous one.
    """
    # A tombstone has neither an offset nor a time, so the commit after it has no previous commit. All windows
    # have one order, so the commits are sorted once.
    in_order = Window.partitionBy(*GROUP_PARTITION).orderBy("src_offset")
    before = in_order.rowsBetween(-USUAL_INTERVALS, -1)
    interval = sf.when(sf.col("interval_ms").isNotNull(), sf.struct("life", "interval_ms"))
    of_this_life = sf.filter("intervals", lambda each: each["life"] == sf.col("life"))
    ordered = sf.sort_array(sf.transform(of_this_life, lambda each: each["interval_ms"]))
    return (
        commits.withColumns(
            {
                "life": sf.sum(sf.col("tombstone").cast("int")).over(in_order),
                "previous_offset": sf.lag("committed_offset").over(in_order),
                "previous_ms": sf.lag("commit_ms").over(in_order),
                "is_newest": sf.coalesce(sf.lead("tombstone").over(in_order), sf.lit(True)),
            }
        )
        .withColumn("interval_ms", sf.try_subtract("commit_ms", "previous_ms"))
        .withColumn("intervals", sf.collect_list(interval).over(before))
        .withColumn("is_removed", sf.col("life") < sf.max("life").over(Window.partitionBy(*GROUP_PARTITION)))
        .where(~sf.col("tombstone"))
        .withColumn("intervals", ordered)
        .withColumn("usual_interval_ms", _median(sf.col("intervals")))
        .drop("intervals", "life", "previous_ms")
    )


def _median(ordered: Column) -> Column:
    """The lower median of a sorted array; null below MIN_INTERVALS."""
    middle = sf.floor((sf.size(ordered) + 1) / 2).cast("int")
    return sf.when(sf.size(ordered) >= MIN_INTERVALS, sf.element_at(ordered, middle))


def anomalies(moved: DataFrame, ends: DataFrame | None, rules: Rules, *, complete: bool = True) -> DataFrame:
    """One row per thing that is odd about a commit of `moves`; a commit may have several.

    `ends` has the columns of readers.ENDS; if `complete`, a partition that is absent from `ends` does not
    exist. `ends` does not cover commits that were removed since, for example of a deleted topic. Without
    `ends`, only a commit whose offset lies after its own commit time is known to be past the end. Only the
    newest commit of a group can lose records.
    """
    usual = sf.col("usual_interval_ms")
    own_ms = sf.shiftright(sf.try_subtract("committed_offset", sf.lit(1)), SEQUENCE_BITS)
    past = own_ms > sf.try_add("commit_ms", sf.lit(rules.future_ms))
    unknown = sf.lit(False)
    placed = _with_extents(moved, ends)
    if ends is not None:
        beyond = sf.coalesce(sf.col("committed_offset") > sf.col("end_offset"), sf.lit(False))
        past = past | (beyond & ~sf.col("is_removed"))
        if complete:
            unknown = sf.col("end_offset").isNull() & ~sf.col("is_removed")
    loses = (sf.col("lost_records") > 0) & sf.col("is_newest") & ~sf.col("is_removed")
    kinds = sf.array_compact(
        sf.array(
            sf.when(sf.col("committed_offset") < sf.col("previous_offset"), REWIND),
            sf.when(
                (sf.col("interval_ms") > sf.try_multiply(usual, sf.lit(rules.gap_factor)))
                & (sf.col("interval_ms") > rules.gap_ms),
                GAP,
            ),
            sf.when(loses, LOST),
            sf.when(past, PAST_END),
            sf.when(unknown, UNKNOWN),
        )
    )
    exploded = placed.withColumn("kind", sf.explode(kinds))
    return exploded.withColumn("lost_records", sf.when(sf.col("kind") == LOST, sf.col("lost_records")))


def _with_extents(commits: DataFrame, ends: DataFrame | None) -> DataFrame:
    """The commits with the extent of their partition, null if unknown, and `lost_records`."""
    if ends is None:
        unknown = sf.lit(None).cast("bigint")
        return commits.withColumns(dict.fromkeys((*EXTENT, "lost_records"), unknown))
    placed = commits.join(sf.broadcast(ends), on=["topic", "partition"], how="left")
    return placed.withColumn("lost_records", lost_records())
