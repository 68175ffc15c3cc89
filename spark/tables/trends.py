"""Lag and commits over time, in steps of equal length, for charts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.spark.tables.views import DAY_MS, GROUP_PARTITION, unread, waiting_ms, waits_from

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Steps of a chart.
MAX_STEPS = 96
# Lengths of a step in s, round numbers.
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Span:
    """The time from `from_ms` to `as_of_ms`, in steps of `step_ms`. The last step may be shorter."""

    from_ms: int
    as_of_ms: int
    step_ms: int

    @classmethod
    def over(cls, first_ms: int | None, as_of_ms: int, longest_ms: int) -> Span:
        """Return the time since the first commit, at most `longest_ms`, in at most MAX_STEPS steps."""
        begin_ms = max(
            as_of_ms - longest_ms, min(as_of_ms - 1000, as_of_ms if first_ms is None else first_ms)
        )
        length_ms = as_of_ms - begin_ms
        fitting = [step for step in _STEPS_S if step * 1000 * (MAX_STEPS - 1) >= length_ms]
        days = -(-length_ms // (DAY_MS * (MAX_STEPS - 1)))
        step_ms = fitting[0] * 1000 if fitting else days * DAY_MS
        return cls(begin_ms // step_ms * step_ms, as_of_ms, step_ms)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return -(-(self.as_of_ms - self.from_ms) // self.step_ms)

    def end_ms(self, step: Column) -> Column:
        """Return the end of a step in ms; `as_of_ms` for the last step."""
        return sf.least(sf.lit(self.from_ms) + (step + 1) * self.step_ms, sf.lit(self.as_of_ms))

    def step_of(self, at_ms: Column) -> Column:
        """Return the step of a time: 0 for earlier times, the last one for later times.

        The end of a step belongs to the step.
        """
        # Limited first: a record may contain any time, and a difference may exceed 64 bits.
        within = sf.least(sf.greatest(at_ms, sf.lit(self.from_ms)), sf.lit(self.as_of_ms))
        step = sf.ceil((within - self.from_ms) / sf.lit(self.step_ms)) - 1
        return sf.least(sf.greatest(step, sf.lit(0)), sf.lit(self.steps - 1)).cast("int")


def positions_over_time(commits: DataFrame, span: Span) -> DataFrame:
    """Return the committed offsets of each group and partition at the ends of steps.

    Columns: group, topic, partition, committed_offset, and the first_step and last_step of those at whose end
    it was the newest. There is no row before the first commit, and none after a tombstone.
    """
    # If a commit has no usable time, the record's timestamp counts.
    at_ms = sf.coalesce("commit_ms", sf.unix_millis("src_ts"))
    newest = commits.groupBy(*GROUP_PARTITION, span.step_of(at_ms).alias("first_step")).agg(
        sf.max_by(sf.struct("committed_offset", "tombstone"), "src_offset").alias("newest")
    )
    following = sf.lead("first_step").over(Window.partitionBy(*GROUP_PARTITION).orderBy("first_step"))
    last = sf.coalesce(following - 1, sf.lit(span.steps - 1)).alias("last_step")
    placed = newest.select(*GROUP_PARTITION, "newest.*", "first_step", last)
    return placed.where(~sf.col("tombstone")).drop("tombstone")


def at_steps(positions: DataFrame, span: Span) -> DataFrame:
    """Return positions once for each of their steps, `step`, with its end, `at_ms`."""
    step = sf.explode(sf.sequence("first_step", "last_step")).alias("step")
    every = positions.select("*", step).drop("first_step", "last_step")
    return every.withColumn("at_ms", span.end_ms(sf.col("step")))


def lag_over_time(positions: DataFrame, log: DataFrame, span: Span) -> DataFrame:
    """Return positions once for each of their steps, with `record_lag` and `lag_ms` at its end.

    positions: of positions_over_time. log: as for views.record_lag. The unread records at a time are those
    appended until then, without those below the position; the first of them is the next one by offset.
    """
    # What is at or after an offset is counted once, and what was appended after a step is, too.
    steps = sf.explode(sf.sequence(sf.lit(0), sf.lit(span.steps - 1))).alias("step")
    moments = positions.select("topic", "partition").distinct().select("topic", "partition", steps)
    both = positions.unionByName(moments, allowMissingColumns=True)
    marks = both.select(
        "topic",
        "partition",
        sf.coalesce("committed_offset", sf.lit(0).cast("bigint")).alias("at_offset"),
        span.end_ms(sf.col("step")).alias("at_ms"),
        sf.struct("group", "committed_offset", "first_step", "last_step", "step").alias("mark"),
    )
    mark, moment = sf.col("mark"), sf.col("moment")
    by_step = Window.partitionBy("topic", "partition").orderBy("mark.step")
    whole = by_step.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    of_step = sf.when(mark["step"].isNotNull(), sf.struct("mark.step", "appended_later"))
    length = mark["last_step"] - mark["first_step"] + 1
    counted = (
        unread(marks, log)
        .withColumn("moments", sf.collect_list(of_step).over(whole))
        .where(mark["step"].isNull())
        .select(
            "mark.group",
            "topic",
            "partition",
            "mark.committed_offset",
            "record_lag",
            waits_from(sf.col("first_unread_offset"), sf.col("first_unread_ts")).alias("from_ms"),
            sf.explode(sf.slice("moments", mark["first_step"] + 1, length)).alias("moment"),
        )
        .withColumn("record_lag", sf.greatest(sf.col("record_lag") - moment["appended_later"], sf.lit(0)))
    )
    waited = span.end_ms(moment["step"]) - sf.col("from_ms")
    return counted.select(
        *GROUP_PARTITION,
        "moment.step",
        "committed_offset",
        "record_lag",
        waiting_ms(sf.col("record_lag"), waited).alias("lag_ms"),
    )


def group_trends(lag: DataFrame, commits: DataFrame, span: Span) -> DataFrame:
    """Return one row per group: `lag`, an array of (step, record_lag, lag_ms); `commits`, of (step, commits).

    record_lag is the sum over the group's partitions, lag_ms the maximum. Steps without values are left out.
    """
    lags = (
        lag.groupBy("group", "step")
        .agg(sf.sum("record_lag").alias("record_lag"), sf.max("lag_ms").alias("lag_ms"))
        .groupBy("group")
        .agg(sf.collect_list(sf.struct("step", "record_lag", "lag_ms")).alias("lag"))
    )
    made = (
        commits.where(~sf.col("tombstone") & (sf.col("commit_ms") > span.from_ms))
        .groupBy("group", span.step_of(sf.col("commit_ms")).alias("step"))
        .agg(sf.count("*").alias("commits"))
        .groupBy("group")
        .agg(sf.collect_list(sf.struct("step", "commits")).alias("commits"))
    )
    return lags.join(made, on="group", how="full")
