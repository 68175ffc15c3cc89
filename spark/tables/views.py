"""Current offsets, lag and commit rate: functions from decoded tables to frames.

Record lag is the number of records at or after the committed offset. It is a difference of offsets only in
runs (korvet.spark.tables.runs), because offsets may be sparse. Time lag is the wait of the first of these
records, 0 without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.offsets.packing import SEQUENCE_BITS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Lowest time in an offset, the year 2001. No dense topic has 2^50 records, and no clock is set earlier.
FIRST_CLOCK_MS = 1_000_000_000_000
# Lowest offset that contains a time.
FIRST_CLOCK_OFFSET = FIRST_CLOCK_MS << SEQUENCE_BITS
DAY_MS = 86_400_000
LAG_COLUMNS = ("record_lag", "exact", "lag_ms", "lag_then", "first_unread_offset", "first_unread_ts")
# The extent of a partition, see korvet.spark.tables.readers.ENDS.
EXTENT = ("end_offset", "start_offset", "known_from")
GROUP_PARTITION = ("group", "topic", "partition")
LATEST_COMMIT_FIELDS = (
    "tombstone",
    "committed_offset",
    "leader_epoch",
    "metadata",
    "commit_ms",
    "commit_ts",
    "expire_ms",
    "topic_id",
    "src_partition",
    "src_offset",
    "src_ts",
)


def current_offsets(commits: DataFrame) -> DataFrame:
    """Return the newest commit of each group, topic and partition; no row if it is a tombstone.

    All commits of a group are in one partition of `__consumer_offsets`, so offsets give their order.
    """
    newest = commits.groupBy(*GROUP_PARTITION).agg(
        sf.max_by(sf.struct(*LATEST_COMMIT_FIELDS), sf.col("src_offset")).alias("newest")
    )
    return newest.select(*GROUP_PARTITION, "newest.*").where(~sf.col("tombstone")).drop("tombstone")


def pending_offsets(pending: DataFrame, commits: DataFrame, as_of_ms: int) -> DataFrame:
    """Return the newest of the commits of open transactions by group, topic and partition, with `pending_ms`.

    commits: those that count; a tombstone among them removes pending commits before it. pending_ms is
    `as_of_ms` minus the time of the record, and never negative.
    """
    age_ms = sf.lit(as_of_ms) - sf.unix_millis("src_ts")
    removed = commits.where("tombstone").groupBy(*GROUP_PARTITION).agg(sf.max("src_offset").alias("until"))
    kept = (
        pending.join(removed, [*GROUP_PARTITION], "left")
        .where(sf.col("until").isNull() | (sf.col("src_offset") > sf.col("until")))
        .drop("until")
    )
    newest = current_offsets(kept).withColumn("pending_ms", sf.greatest(age_ms, sf.lit(0)))
    return newest.withColumn("as_of_ts", sf.timestamp_millis(sf.lit(as_of_ms)))


def utc_day(time: Column) -> Column:
    """Return the day of a timestamp in UTC, whatever the time zone of the session is."""
    return sf.date_from_unix_date(sf.floor(sf.unix_millis(time) / sf.lit(DAY_MS)).cast("int"))


def appended_until(records: DataFrame, as_of_ms: int) -> DataFrame:
    """Return the records appended until `as_of_ms`, by the time in their offsets (ms << 10 | sequence).

    Dense offsets contain no time: all records of dense topics are returned.
    """
    return records.where(sf.shiftright("offset", SEQUENCE_BITS) <= as_of_ms)


def appended_ms(offset: Column, timestamp: Column) -> Column:
    """Return a record's append time in ms: from its offset if that contains a time, else its timestamp."""
    by_offset = sf.shiftright(offset, SEQUENCE_BITS)
    return sf.when(by_offset >= FIRST_CLOCK_MS, by_offset).otherwise(sf.unix_millis(timestamp))


def waits_from(offset: Column, timestamp: Column) -> Column:
    """Return the time from which a record waits, in ms: its timestamp, else its append time if known."""
    return sf.coalesce(sf.unix_millis(timestamp), appended_ms(offset, timestamp))


def record_lag(commits: DataFrame, log: DataFrame, as_of_ms: int, ends: DataFrame | None = None) -> DataFrame:
    """Return commits with LAG_COLUMNS: their lag as of now, their lag when they were made, and EXTENT.

    commits: with topic, partition, committed_offset and commit_ms. log: the topics' records (topic,
    partition, offset, timestamp), or runs of them (korvet.spark.tables.runs.RUNS); those below the smallest
    committed offset of a partition may be left out. ends: partitions with the columns of
    korvet.spark.tables.readers.ENDS; without it EXTENT is null.

    The unread records are those at or after the committed offset, `record_lag`, without those appended after
    the commit, `lag_then`. If not `exact`, both are upper bounds. lag_ms is `as_of_ms` minus the timestamp of
    the first unread record; 0 without one, and never negative, because a producer's clock may be ahead. It is
    null if that record has neither a timestamp nor an append time.
    """
    marks = commits.select(
        "topic",
        "partition",
        sf.col("committed_offset").alias("at_offset"),
        sf.col("commit_ms").alias("at_ms"),
        sf.struct(*(name for name in commits.columns if name not in ("topic", "partition"))).alias("mark"),
    )
    counted = unread(marks, log, ends)
    waited = sf.lit(as_of_ms) - waits_from(sf.col("first_unread_offset"), sf.col("first_unread_ts"))
    columns = counted.withColumn("lag_ms", waiting_ms(sf.col("record_lag"), waited)).select(
        "topic", "partition", "mark.*", *LAG_COLUMNS, "extent.*"
    )
    return columns.select(*commits.columns, *LAG_COLUMNS, *EXTENT)


def waiting_ms(record_lag: Column, waited_ms: Column) -> Column:
    """Return how long the first unread record has waited, in ms: 0 without one, never negative."""
    # The greatest of null and 0 would be 0.
    waiting = sf.when(waited_ms.isNotNull(), sf.greatest(waited_ms, sf.lit(0)))
    return sf.when(record_lag == 0, sf.lit(0)).otherwise(waiting)


def unread(marks: DataFrame, log: DataFrame, ends: DataFrame | None = None) -> DataFrame:
    """Return marks with what is unread at them, and the extent of their partition.

    marks: topic, partition, at_offset, at_ms and `mark`. log and ends: as for record_lag. Columns: those of
    the marks; record_lag, the records at or after at_offset; appended_later, those of any offset appended
    after at_ms; lag_then, record_lag without these; first_unread_offset, first_unread_ts; exact; `extent`.

    All are running totals over the marks, runs and ends of a partition, from the last one down, so one
    exchange is enough.
    """
    from_the_end = (Window.unboundedPreceding, Window.currentRow)
    partition = Window.partitionBy("topic", "partition")
    # At the same offset the record comes first, because it is unread. At the same time it comes last, because
    # it had been appended. The end of the partition comes before everything.
    by_offset = partition.orderBy(
        sf.col("extent").isNull(), sf.col("at_offset").desc(), sf.col("is_run").desc()
    ).rowsBetween(*from_the_end)
    by_time = partition.orderBy(sf.col("at_ms").desc(), "is_run").rowsBetween(*from_the_end)
    run = sf.col("run")
    placed = (
        _placed(marks, log, ends)
        .withColumn("at_or_after", sf.sum("records").over(by_offset))
        .withColumn("run", sf.last("run", ignorenulls=True).over(by_offset))
        .withColumn("exact", sf.coalesce(sf.min("run_is_exact").over(by_offset), sf.lit(True)))
        .withColumn("extent", sf.last("extent", ignorenulls=True).over(by_offset))
        .withColumn("appended_later", sf.sum("records").over(by_time))
        .where(sf.col("mark").isNotNull())
        # Of the run in which the mark is, these records are before the mark. An offset may be any number.
        .withColumn("before", sf.greatest(sf.try_subtract("at_offset", run["offset"]), sf.lit(0)))
    )
    first_ms, share = sf.unix_millis(run["timestamp"]), sf.col("before") / run["records"]
    estimate = sf.timestamp_millis(first_ms + sf.floor((run["last_ms"] - first_ms) * share))
    record_lag = sf.col("at_or_after") - sf.col("before")
    return placed.withColumns(
        {
            "record_lag": record_lag,
            "lag_then": sf.greatest(record_lag - sf.col("appended_later"), sf.lit(0)),
            "first_unread_offset": run["offset"] + sf.col("before"),
            "first_unread_ts": sf.when(sf.col("before") > 0, estimate).otherwise(run["timestamp"]),
        }
    )


def as_runs(log: DataFrame) -> DataFrame:
    """Return a log as runs (korvet.spark.tables.runs.RUNS): each record becomes a run of one."""
    if "records" in log.columns:
        return log
    return log.select(
        "topic",
        "partition",
        "offset",
        sf.lit(1).cast("bigint").alias("records"),
        "timestamp",
        sf.unix_millis("timestamp").alias("last_ms"),
        appended_ms(sf.col("offset"), sf.col("timestamp")).alias("at_ms"),
        sf.lit(True).alias("exact"),
    )


def _placed(marks: DataFrame, log: DataFrame, ends: DataFrame | None) -> DataFrame:
    """Marks, runs (`run`) and ends (`extent`) in one frame, with their places in the log.

    The place of a run is that of its last record, so that marks in the run come after it from the end.
    """
    runs = as_runs(log).select(
        "topic",
        "partition",
        (sf.col("offset") + sf.col("records") - 1).alias("at_offset"),
        "at_ms",
        "records",
        sf.lit(1).alias("is_run"),
        sf.col("exact").alias("run_is_exact"),
        sf.struct("offset", "records", "timestamp", "last_ms").alias("run"),
    )
    nothing = {"records": sf.lit(0).cast("bigint"), "is_run": sf.lit(0)}
    both = runs.unionByName(marks.withColumns(nothing), allowMissingColumns=True)
    if ends is None:
        unknown = sf.struct(*(sf.lit(None).cast("bigint").alias(name) for name in EXTENT))
        return both.withColumn("extent", sf.when(sf.lit(False), unknown))
    placed = ends.select("topic", "partition", sf.struct(*EXTENT).alias("extent")).withColumns(nothing)
    return both.unionByName(placed, allowMissingColumns=True)


def commit_rate(commits: DataFrame) -> DataFrame:
    """Return commits per group and minute, one per committed partition. Minutes without one have no row."""
    minute = sf.date_trunc("minute", "commit_ts").alias("minute")
    return (
        commits.where(~sf.col("tombstone") & sf.col("commit_ts").isNotNull())
        .groupBy("group", minute)
        .agg(sf.count("*").alias("commits"))
    )
