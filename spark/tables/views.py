"""Current offsets, lag and commit rate: functions from decoded tables to frames.

Lag is never a difference of offsets, because offsets are sparse. Record lag is the number of records at or
after the committed offset. Time lag is the wait of the first of them, 0 without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.offsets.packing import SEQUENCE_BITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


def appended_until(records: DataFrame, as_of_ms: int) -> DataFrame:
    """Return the records appended until `as_of_ms`, by the time in their offsets (ms << 10 | sequence).

    Dense offsets contain no time: all records of dense topics are returned.
    """
    return records.where(sf.shiftright("offset", SEQUENCE_BITS) <= as_of_ms)


def record_lag(current: DataFrame, records: DataFrame, as_of_ms: int) -> DataFrame:
    """Return current offsets with `record_lag`, `lag_ms`, `first_unread_offset` and `first_unread_ts`.

    records: the topics' records (topic, partition, offset, timestamp); those below the smallest committed
    offset of a partition may be left out. One running count over commits and records, from the end of each
    partition down, is exact despite gaps between offsets. lag_ms is `as_of_ms` minus the timestamp of the
    first unread record; 0 without one, and never negative, because a producer's clock may be ahead.
    """
    entries = records.select(
        "topic",
        "partition",
        "offset",
        sf.lit(1).alias("is_record"),
        sf.struct(
            sf.col("offset").alias("first_unread_offset"), sf.col("timestamp").alias("first_unread_ts")
        ).alias("unread"),
    )
    marks = current.select(
        "topic",
        "partition",
        sf.col("committed_offset").alias("offset"),
        sf.lit(0).alias("is_record"),
        sf.struct(*(name for name in current.columns if name not in ("topic", "partition"))).alias("mark"),
    )
    from_the_end = (
        Window.partitionBy("topic", "partition")
        .orderBy(sf.col("offset").desc(), sf.col("is_record").desc())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    counted = (
        entries.unionByName(marks, allowMissingColumns=True)
        .withColumn("record_lag", sf.sum("is_record").over(from_the_end))
        .withColumn("first_unread", sf.last("unread", ignorenulls=True).over(from_the_end))
        .where(sf.col("is_record") == 0)
        .select("topic", "partition", "mark.*", "record_lag", "first_unread.*")
    )
    waiting = sf.lit(as_of_ms) - sf.unix_millis("first_unread_ts")
    lag_ms = sf.when(sf.col("record_lag") == 0, sf.lit(0)).otherwise(sf.greatest(waiting, sf.lit(0)))
    return counted.select(
        *current.columns, "record_lag", "first_unread_offset", "first_unread_ts"
    ).withColumn("lag_ms", lag_ms)


def commit_rate(commits: DataFrame) -> DataFrame:
    """Return commits per group and minute, one per committed partition. Minutes without one have no row."""
    minute = sf.date_trunc("minute", "commit_ts").alias("minute")
    return (
        commits.where(~sf.col("tombstone") & sf.col("commit_ts").isNotNull())
        .groupBy("group", minute)
        .agg(sf.count("*").alias("commits"))
    )
