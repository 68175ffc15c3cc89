"""What the decoded tables say about groups: pure functions from DataFrame to DataFrame.

Lag is never a difference of offsets: offsets are sparse. Record lag counts the records at or beyond the
committed offset; time lag is how long the first of them has been waiting, 0 when there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.offsets.packing import SEQUENCE_BITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE = ("group", "topic", "partition")
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
    """The newest commit of every group, topic and partition; none where that is a tombstone.

    All commits of a group are in one partition of `__consumer_offsets`, so its offsets order them.
    """
    newest = commits.groupBy(*PLACE).agg(
        sf.max_by(sf.struct(*LATEST_COMMIT_FIELDS), sf.col("src_offset")).alias("newest")
    )
    return newest.select(*PLACE, "newest.*").where(~sf.col("tombstone")).drop("tombstone")


def appended_until(records: DataFrame, as_of_ms: int) -> DataFrame:
    """The records that were in their topics at that time, by the time in their offsets (ms << 10 | sequence).

    Dense offsets tell no time: of topics that have them all records count.
    """
    return records.where(sf.shiftright("offset", SEQUENCE_BITS) <= as_of_ms)


def record_lag(current: DataFrame, records: DataFrame, as_of_ms: int) -> DataFrame:
    """Every current offset with its lag: `record_lag` (records), `lag_ms`, `first_unread_offset` and `_ts`.

    `records` are the topics' records (topic, partition, offset, timestamp); those below the smallest
    committed offset of a partition may be left out. One running count over both, from the end of each
    partition down: a commit's count is exact whatever gaps the offsets have. `lag_ms` is `as_of_ms` minus
    the timestamp of the first unread record, 0 without one and never negative (a producer's clock may be
    ahead).
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
    """Commits per group and minute, one per partition committed; minutes without one have no row."""
    minute = sf.date_trunc("minute", "commit_ts").alias("minute")
    return (
        commits.where(~sf.col("tombstone") & sf.col("commit_ts").isNotNull())
        .groupBy("group", minute)
        .agg(sf.count("*").alias("commits"))
    )
