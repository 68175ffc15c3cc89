"""Which groups are in trouble: Burrow's sliding-window rules re-stated for sparse offsets, and what is stale
or about to expire.

Burrow compares a consumer's offsets with the log's end. Here a distance of offsets says nothing, so every
"lag" is a count of records: those at or beyond the committed offset that had been appended by then. When a
record was appended is in its offset (ms << 10 | sequence), or, on topics with dense offsets, its timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.offsets.packing import SEQUENCE_BITS
from korvet.spark.tables.catalog import STATUSES
from korvet.spark.tables.decode import spark_time
from korvet.spark.tables.views import PLACE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The year 2001: no topic that counts from 0 gets as far as 2^50 records, and no clock was set before.
FIRST_CLOCK_MS = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class Rules:
    """What the verdicts depend on; Burrow's and Kafka's defaults, times in ms.

    window_commits: how many commits of a partition are looked at (Burrow's intervals).
    recent_ms: a consumer that had read everything within this time is not called stopped (Burrow keeps ten
    log ends, one every 10 s).
    stale_ms: a group without members has not committed for this long.
    retention_ms: offsets.retention.minutes of the cluster. expiring_ms: how far ahead to look.
    gap_factor: commits stopped for this many times the usual interval, and gap_ms at least.
    future_ms: how far an offset's own time may be ahead of the commit's (a burst of appends may be).
    """

    window_commits: int = 10
    recent_ms: int = 100_000
    stale_ms: int = 86_400_000
    retention_ms: int = 604_800_000
    expiring_ms: int = 86_400_000
    gap_factor: int = 5
    gap_ms: int = 60_000
    future_ms: int = 1_000


def appended_ms(offset: Column, timestamp: Column) -> Column:
    """When a record was appended, in ms: by its offset where that holds a time, else by its timestamp."""
    by_offset = sf.shiftright(offset, SEQUENCE_BITS)
    return sf.when(by_offset >= FIRST_CLOCK_MS, by_offset).otherwise(sf.unix_millis(timestamp))


def recent_commits(commits: DataFrame, count: int) -> DataFrame:
    """The last `count` commits of every place, none from before its last tombstone.

    Spark cuts every task's rows to as many before it exchanges any.
    """
    newest_first = Window.partitionBy(*PLACE).orderBy(sf.col("src_offset").desc())
    chosen = commits.withColumn("age", sf.row_number().over(newest_first)).where(sf.col("age") <= count)
    deleted = sf.max(sf.when(sf.col("tombstone"), sf.col("src_offset"))).over(Window.partitionBy(*PLACE))
    return (
        chosen.withColumn("deleted_at", deleted)
        .where(sf.col("deleted_at").isNull() | (sf.col("src_offset") > sf.col("deleted_at")))
        .select(*commits.columns)
    )


def with_lag_then(window: DataFrame, records: DataFrame) -> DataFrame:
    """Commits with `lag_then`: the records that were unread when the commit was made.

    The number of records appended until then, less those below the committed offset: two running counts over
    the commits and the records of a partition together, one in the order of time and one of offsets.
    """
    marks = window.select(
        *PLACE,
        "committed_offset",
        "src_offset",
        "commit_ms",
        sf.col("committed_offset").alias("at_offset"),
        sf.col("commit_ms").alias("at_ms"),
        sf.lit(0).alias("is_record"),
    )
    entries = records.select(
        "topic",
        "partition",
        sf.col("offset").alias("at_offset"),
        appended_ms(sf.col("offset"), sf.col("timestamp")).alias("at_ms"),
        sf.lit(1).alias("is_record"),
    )
    partition = Window.partitionBy("topic", "partition")
    until_here = (Window.unboundedPreceding, Window.currentRow)
    # At the same offset the mark comes first: that record is unread. At the same time it comes last.
    by_offset = partition.orderBy("at_offset", "is_record").rowsBetween(*until_here)
    by_time = partition.orderBy("at_ms", sf.col("is_record").desc()).rowsBetween(*until_here)
    counted = marks.unionByName(entries, allowMissingColumns=True).select(
        "*",
        sf.sum("is_record").over(by_offset).alias("below"),
        sf.sum("is_record").over(by_time).alias("appended"),
    )
    lag_then = sf.greatest(sf.col("appended") - sf.col("below"), sf.lit(0))
    return (
        counted.where(sf.col("is_record") == 0)
        .withColumn("lag_then", lag_then)
        .select(*PLACE, "committed_offset", "commit_ms", "src_offset", "lag_then")
    )


def with_places(frame: DataFrame, ends: DataFrame | None) -> DataFrame:
    """Commits with `end_offset`, and with `lost_records`: how many records were deleted before they were read
    (at most, as a compaction may have taken some earlier); null where that is not known.

    `ends` are places as korvet.spark.tables.readers.ENDS; None where nothing is known of them.
    """
    if ends is None:
        unknown = sf.lit(None).cast("bigint")
        return frame.withColumns({"end_offset": unknown, "lost_records": unknown})
    committed, start = sf.col("committed_offset"), sf.col("start_offset")
    lost = sf.when(committed >= start, sf.lit(0)).when(committed >= sf.col("known_from"), start - committed)
    placed = frame.join(sf.broadcast(ends), on=["topic", "partition"], how="left")
    return placed.withColumn("lost_records", lost).drop("start_offset", "known_from")


def partition_status(
    lag: DataFrame, window: DataFrame, as_of_ms: int, rules: Rules, ends: DataFrame | None = None
) -> DataFrame:
    """The verdict on every committed partition, from its lag now, its last commits with `lag_then`, and where
    the partition begins and ends (see `with_places`).
    """
    in_order = Window.partitionBy(*PLACE).orderBy("src_offset")
    fell = sf.col("lag_then") < sf.lag("lag_then").over(in_order)
    seen = (
        window.withColumn("fell", sf.coalesce(fell, sf.lit(False)))
        .groupBy(*PLACE)
        .agg(
            sf.count("*").alias("commits"),
            sf.min_by("commit_ms", "src_offset").alias("first_ms"),
            sf.max_by("commit_ms", "src_offset").alias("last_ms"),
            sf.max_by("committed_offset", "src_offset").alias("last_offset"),
            sf.min("committed_offset").alias("lowest"),
            sf.max("committed_offset").alias("highest"),
            (sf.min("lag_then") > 0).alias("always_behind"),
            sf.bool_or("fell").alias("lag_fell"),
        )
    )
    judged = with_places(lag, ends).join(seen, on=list(PLACE), how="inner")
    return judged.withColumns(
        {
            "status": _partition_status(as_of_ms, rules),
            "complete": sf.col("commits") / sf.lit(rules.window_commits),
            "first_commit_ts": spark_time(sf.col("first_ms")),
            "last_commit_ts": spark_time(sf.col("last_ms")),
            "as_of_ts": sf.timestamp_millis(sf.lit(as_of_ms)),
        }
    )


def _partition_status(as_of_ms: int, rules: Rules) -> Column:
    """Two rules on offsets that are not in the log, then Burrow's in its order (core/internal/evaluator, wiki
    "Consumer Lag Evaluation Rules").
    """
    unread = sf.col("record_lag") > 0
    silent = sf.try_subtract(sf.lit(as_of_ms), "last_ms") > sf.try_subtract("last_ms", "first_ms")
    first_unread_ms = appended_ms(sf.col("first_unread_offset"), sf.col("first_unread_ts"))
    recently_done = sf.coalesce(first_unread_ms > sf.lit(as_of_ms - rules.recent_ms), sf.lit(False))
    several = sf.col("commits") > 1
    return (
        sf.when(sf.col("lost_records") > 0, "LOST")
        .when(sf.col("committed_offset") > sf.col("end_offset"), "AHEAD")
        .when(~unread, "OK")
        .when(silent & ~recently_done, "STOPPED")
        .when(~sf.col("always_behind"), "OK")
        .when(sf.col("last_offset") < sf.col("highest"), "REWIND")
        .when(several & (sf.col("lowest") == sf.col("highest")), "STALLED")
        .when(several & ~sf.col("lag_fell"), "WARNING")
        .otherwise("OK")
    )


def group_status(partitions: DataFrame, states: DataFrame, as_of_ms: int) -> DataFrame:
    """One row per group that has offsets or a state: the status of its worst partition, and how many have
    which.
    """
    rank = sf.array_position(sf.array(*(sf.lit(name) for name in STATUSES)), sf.col("status"))
    count = {
        name: sf.count_if(sf.col("status") == name).alias(f"partitions_{name.lower()}") for name in STATUSES
    }
    worst = sf.max_by(sf.struct("topic", "partition"), sf.struct(rank, "lag_ms", "record_lag"))
    totals = partitions.groupBy("group").agg(
        sf.max_by("status", rank).alias("status"),
        sf.countDistinct("topic").alias("topics"),
        sf.count("*").alias("partitions"),
        *count.values(),
        sf.sum("record_lag").alias("record_lag"),
        sf.sum("lost_records").alias("lost_records"),
        sf.max("lag_ms").alias("time_lag_ms"),
        worst.alias("worst"),
        spark_time(sf.max("last_ms")).alias("last_commit_ts"),
        sf.max("last_ms").alias("last_ms"),
        sf.min("complete").alias("complete"),
    )
    known = states.select("group", "generation", "protocol_type", "protocol", "member_count")
    zero = sf.lit(0)
    numbers = ["topics", "partitions", "record_lag", "member_count"]
    numbers += [f"partitions_{name.lower()}" for name in STATUSES]
    joined = totals.join(known, on="group", how="full")
    return joined.withColumns(
        {
            **{name: sf.coalesce(name, zero) for name in numbers},
            "status": sf.coalesce("status", sf.lit("OK")),
            "commit_age_ms": sf.try_subtract(sf.lit(as_of_ms), "last_ms"),
            "worst_topic": sf.col("worst.topic"),
            "worst_partition": sf.col("worst.partition"),
            "as_of_ts": sf.timestamp_millis(sf.lit(as_of_ms)),
        }
    )


def stale_groups(current: DataFrame, states: DataFrame, as_of_ms: int, rules: Rules) -> DataFrame:
    """Groups that nobody works for any more: no members, and no commit for rules.stale_ms.

    One that never committed counts from its last recorded state.
    """
    committed = current.groupBy("group").agg(
        sf.max("commit_ms").alias("last_commit_ms"),
        sf.countDistinct("topic").alias("topics"),
        sf.count("*").alias("partitions"),
    )
    known = states.select(
        "group", "generation", "protocol_type", "member_count", sf.coalesce("state_ts", "src_ts").alias("at")
    )
    since_ms = sf.coalesce("last_commit_ms", sf.unix_millis("at"))
    return (
        committed.join(known, on="group", how="full")
        .withColumn("idle_ms", sf.try_subtract(sf.lit(as_of_ms), since_ms))
        .where(sf.coalesce("member_count", sf.lit(0)) == 0)
        .where(sf.col("idle_ms") > rules.stale_ms)
        .withColumns(
            {
                "topics": sf.coalesce("topics", sf.lit(0)),
                "partitions": sf.coalesce("partitions", sf.lit(0)),
                "last_commit_ts": spark_time(sf.col("last_commit_ms")),
                "as_of_ts": sf.timestamp_millis(sf.lit(as_of_ms)),
            }
        )
    )


def expiring_offsets(current: DataFrame, states: DataFrame, as_of_ms: int, rules: Rules) -> DataFrame:
    """Offsets that the coordinator will remove within rules.expiring_ms, by Kafka's rules (KIP-211).

    A commit with its own expiry time keeps that. Else rules.retention_ms count from when an empty group of
    members became empty, from the commit where a group never had members, and, in a group with members, from
    the commit too but only for topics that none of them is subscribed to.
    """
    subscribed = sf.coalesce(
        sf.flatten(sf.transform("members", lambda member: member["topics"])),
        sf.expr("cast(array() as array<string>)"),
    )
    known = states.select(
        "group",
        "member_count",
        sf.col("protocol_type").alias("kind"),
        sf.when(sf.col("protocol_type") != "", sf.unix_millis("state_ts")).alias("empty_ms"),
        subscribed.alias("subscribed"),
        sf.exists("members", lambda member: member["topics"].isNull()).alias("unclear"),
    )
    joined = current.join(known, on="group", how="left")
    working = sf.coalesce(sf.col("member_count"), sf.lit(0)) > 0
    # Who does not say what it reads (another protocol, a damaged subscription) may read anything.
    held = working & (
        sf.array_contains("subscribed", sf.col("topic")) | sf.coalesce("unclear", sf.lit(False))
    )
    base_ms = sf.when(~working, sf.coalesce("empty_ms", "commit_ms")).otherwise(sf.col("commit_ms"))
    expires_ms = sf.when(sf.col("expire_ms") >= 0, sf.col("expire_ms")).otherwise(
        sf.try_add(base_ms, sf.lit(rules.retention_ms))
    )
    return (
        joined.where(~sf.coalesce(held, sf.lit(False)))
        .withColumn("expires_ms", expires_ms)
        .where(sf.col("expires_ms") <= sf.lit(as_of_ms + rules.expiring_ms))
        .withColumns(
            {
                "expires_ts": spark_time(sf.col("expires_ms")),
                "expires_in_ms": sf.try_subtract("expires_ms", sf.lit(as_of_ms)),
                "as_of_ts": sf.timestamp_millis(sf.lit(as_of_ms)),
            }
        )
    )
