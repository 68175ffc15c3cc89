"""The queues of share groups (KIP-932): what their readers tell of each partition, and the table of them.

A record is left until it is accepted or archived. What is left is not one range of offsets, so a reader names
signed marks: the records at or after an offset count, or no longer count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as sf

from korvet.spark.tables.catalog import MEMBER_STRUCT, WORKERS
from korvet.spark.tables.views import GROUP_PARTITION, record_lag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

SHARE: Final = "share"
SHARE_STATE_TOPIC: Final = "__share_group_state"
SHARE_PARTITIONS_KEY: Final = 15
"""The record type with the partitions that a share group has initialised."""
QUEUES: Final = (
    "group string, topic string, partition int, start_offset bigint, first_offset bigint, held bigint, "
    "in_flight bigint, waiting_again bigint, deliveries int, dead bigint, "
    f"workers {WORKERS}, "
    "marks array<struct<offset:bigint,left:int,again:int>>"
)
"""Columns of Queue."""


SHARES: Final = (
    f"`group` string, key_version int, assigned {MEMBER_STRUCT}, tombstone boolean, src_offset bigint"
)
"""Columns of share_partitions."""


class Place(NamedTuple):
    """A partition of a share group."""

    group: str
    topic: str
    partition: int


class Worker(NamedTuple):
    """A member, or a native consumer of the Redis group, with its records. idle_ms: since it last asked."""

    name: str
    is_member: bool
    in_flight: int
    idle_ms: int


class Mark(NamedTuple):
    """An offset, and how often the records at or after it count as left, and as waiting again."""

    offset: int
    left: int
    again: int


class Queue(NamedTuple):
    """What a source tells of a share group in a partition. Numbers that it doesn't know are None.

    start_offset: the first that may be neither accepted nor archived. first_offset: of the first record that
    somebody has or can get. held: records that are left, beside those of `marks`; so is waiting_again.
    deliveries: the most of a record that is left. dead: records that wait to become dead letters.
    """

    group: str
    topic: str
    partition: int
    start_offset: int | None = None
    first_offset: int | None = None
    held: int = 0
    in_flight: int | None = None
    waiting_again: int = 0
    deliveries: int | None = None
    dead: int | None = None
    workers: Sequence[Worker] | None = None
    marks: Sequence[Mark] = ()


def as_frame(spark: SparkSession, queues: Iterable[Queue]) -> DataFrame:
    """Return queues as a frame (QUEUES)."""
    # Spark Connect takes arrays as lists only.
    rows = [
        queue._replace(workers=None if queue.workers is None else [*queue.workers], marks=[*queue.marks])
        for queue in queues
    ]
    return spark.createDataFrame(rows, QUEUES)


def share_partitions(records: DataFrame) -> DataFrame:
    """Return the newest record with the partitions of each share group (SHARES). records: of groups."""
    columns = ("assigned", "tombstone", "src_offset")
    newest = sf.max_by(sf.struct(*columns), "src_offset").alias("newest")
    found = records.where(sf.col("key_version") == SHARE_PARTITIONS_KEY).groupBy("group").agg(newest)
    return found.select("group", sf.lit(SHARE_PARTITIONS_KEY).alias("key_version"), "newest.*")


def are_there() -> Column:
    """Return whether rows of decode.group_records have partitions of share groups: an aggregate."""
    return sf.coalesce(sf.bool_or(sf.col("key_version") == SHARE_PARTITIONS_KEY), sf.lit(False))


def places(records: DataFrame) -> list[Place]:
    """Return the partitions of share groups, from decode.group_records with names of topics."""
    parts = share_partitions(records).where(~sf.col("tombstone"))
    named = parts.select("group", sf.explode("assigned").alias("part"))
    rows = named.select("group", "part.topic", sf.explode("part.partitions").alias("partition"))
    return sorted(Place(**row.asDict()) for row in rows.collect())


def positions(queues: DataFrame) -> DataFrame:
    """Return the offsets at which records are counted, and the first ones: is_first, left, again."""
    counted = queues.select(*GROUP_PARTITION, sf.inline("marks"), sf.lit(False).alias("is_first"))
    nothing = sf.lit(0)
    first = queues.where(sf.col("first_offset").isNotNull()).select(
        *GROUP_PARTITION,
        sf.col("first_offset").alias("offset"),
        nothing.alias("left"),
        nothing.alias("again"),
        sf.lit(True).alias("is_first"),
    )
    return counted.union(first).withColumnRenamed("offset", "committed_offset")


def queue_status(
    queues: DataFrame, log: DataFrame, as_of_ms: int, ends: DataFrame | None, behind_ms: int | None
) -> DataFrame:
    """Return the table `queues`. log and ends: as for views.record_lag. behind_ms: the limit of waiting."""
    at_ms = sf.lit(as_of_ms).cast("bigint")
    counted = record_lag(positions(queues).withColumn("commit_ms", at_ms), log, as_of_ms, ends)
    unread = sf.col("record_lag")
    totals = counted.groupBy(*GROUP_PARTITION).agg(
        sf.sum(sf.col("left") * unread).alias("left"),
        sf.sum(sf.col("again") * unread).alias("again"),
        sf.min("exact").alias("exact"),
        sf.max("end_offset").alias("end_offset"),
        sf.max_by(sf.struct("lag_ms", "first_unread_ts"), "is_first").alias("oldest"),
    )
    joined = queues.join(totals, [*GROUP_PARTITION], "left").withColumns(
        {
            # The greatest of null and 0 would be 0.
            "depth": sf.when(
                sf.col("left").isNotNull(), sf.greatest(sf.col("held") + sf.col("left"), sf.lit(0))
            ),
            "waiting_again": sf.col("waiting_again") + sf.col("again"),
            "exact": sf.coalesce("exact", sf.lit(True)),
            "as_of_ts": sf.timestamp_millis(sf.lit(as_of_ms)),
        }
    )
    is_empty = sf.col("depth") == 0
    lag_ms = sf.when(is_empty, sf.lit(0)).otherwise(sf.col("oldest.lag_ms"))
    late = sf.lit(False) if behind_ms is None else sf.col("lag_ms") > sf.lit(behind_ms)
    status = sf.when(sf.col("depth").isNull(), "UNKNOWN").when(late, "BEHIND").otherwise("OK")
    oldest_ts = sf.when(~is_empty, sf.col("oldest.first_unread_ts"))
    return joined.withColumns({"lag_ms": lag_ms, "oldest_ts": oldest_ts}).withColumn("status", status)
