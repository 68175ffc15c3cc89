"""The status of groups: Burrow's sliding-window rules for sparse offsets, stale groups, expiring offsets.

Burrow subtracts offsets from the log end. Offsets here may be sparse, so every lag is a number of records:
those at or after the committed offset that had been appended by then. The append time of a record is in its
offset (ms << 10 | sequence); on topics with dense offsets it is the timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.spark.tables.catalog import STATUSES
from korvet.spark.tables.decode import spark_time
from korvet.spark.tables.views import EXTENT, GROUP_PARTITION, appended_ms, record_lag

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of the rules, with Burrow's and Kafka's defaults. Times are in ms.

    window_commits: commits of a partition in the window (Burrow's intervals).
    recent_ms: a consumer is not STOPPED if it had read everything within this time (Burrow keeps ten log
    ends, one every 10 s).
    stale_ms: a group is stale if it has no members and no commit for this time.
    retention_ms: the cluster's offsets.retention.minutes. expiring_ms: look ahead of expiring_offsets.
    gap_factor, gap_ms: an interval between commits is a gap if it exceeds both this multiple of the usual
    interval and this time.
    future_ms: largest lead of the time in an offset over the commit time. A burst of appends causes a lead.
    """

    window_commits: int = 10
    recent_ms: int = 100_000
    stale_ms: int = 86_400_000
    retention_ms: int = 604_800_000
    expiring_ms: int = 86_400_000
    gap_factor: int = 5
    gap_ms: int = 60_000
    future_ms: int = 1_000


def recent_commits(commits: DataFrame, count: int) -> DataFrame:
    """Return the last commits of each group and partition since its last tombstone, `count` at most."""
    return recent_history(commits, count).where(~sf.col("tombstone"))


def recent_history(commits: DataFrame, count: int) -> DataFrame:
    """Return the commits of recent_commits and the last tombstone, `count` rows of each partition at most.

    Spark reduces the rows of every task to this number before it exchanges them.
    """
    newest_first = Window.partitionBy(*GROUP_PARTITION).orderBy(sf.col("src_offset").desc())
    chosen = commits.withColumn("age", sf.row_number().over(newest_first)).where(sf.col("age") <= count)
    tombstones = sf.when(sf.col("tombstone"), sf.col("src_offset"))
    deleted = sf.max(tombstones).over(Window.partitionBy(*GROUP_PARTITION))
    return (
        chosen.withColumn("deleted_at", deleted)
        .where(sf.col("deleted_at").isNull() | (sf.col("src_offset") >= sf.col("deleted_at")))
        .select(*commits.columns)
    )


def lost_records() -> Column:
    """Return the number of records deleted before they were read, by committed offset and views.EXTENT.

    It is an upper bound, because compaction may have deleted some records before; null if unknown.
    """
    committed, start = sf.col("committed_offset"), sf.col("start_offset")
    return sf.when(committed >= start, sf.lit(0)).when(committed >= sf.col("known_from"), start - committed)


def partition_lag(
    commits: DataFrame, log: DataFrame, as_of_ms: int, rules: Rules, ends: DataFrame | None = None
) -> DataFrame:
    """Return the lag of each committed partition as of now, and the numbers that decide its status.

    commits: the last commits of each partition at least. log and ends: as for views.record_lag.
    """
    known = commits.select(*GROUP_PARTITION, "committed_offset", "commit_ms", "tombstone", "src_offset")
    window = recent_commits(record_lag(known, log, as_of_ms, ends), rules.window_commits)
    # The order of recent_commits, so that the commits are sorted once.
    newest_first = Window.partitionBy(*GROUP_PARTITION).orderBy(sf.col("src_offset").desc())
    fell = sf.col("lag_then") < sf.lead("lag_then").over(newest_first)
    newest = sf.struct(
        "committed_offset",
        "record_lag",
        "exact",
        "lag_ms",
        "first_unread_offset",
        "first_unread_ts",
        *EXTENT,
    )
    return (
        window.withColumn("fell", sf.coalesce(fell, sf.lit(False)))
        .groupBy(*GROUP_PARTITION)
        .agg(
            sf.max_by(newest, "src_offset").alias("newest"),
            sf.count("*").alias("commits"),
            sf.min_by("commit_ms", "src_offset").alias("first_ms"),
            sf.max_by("commit_ms", "src_offset").alias("last_ms"),
            sf.min("committed_offset").alias("lowest"),
            sf.max("committed_offset").alias("highest"),
            (sf.min("lag_then") > 0).alias("always_behind"),
            sf.bool_or("fell").alias("lag_fell"),
        )
        .select("*", "newest.*", sf.timestamp_millis(sf.lit(as_of_ms)).alias("as_of_ts"))
        .drop("newest")
    )


def partition_status(lag: DataFrame, as_of_ms: int, rules: Rules) -> DataFrame:
    """Return the status of each committed partition. lag: of partition_lag."""
    return lag.withColumn("lost_records", lost_records()).withColumns(
        {
            "status": _partition_status(as_of_ms, rules),
            "complete": sf.col("commits") / sf.lit(rules.window_commits),
            "first_commit_ts": spark_time(sf.col("first_ms")),
            "last_commit_ts": spark_time(sf.col("last_ms")),
        }
    )


def _partition_status(as_of_ms: int, rules: Rules) -> Column:
    """The rules: two for offsets outside the log, then Burrow's in its order.

    Burrow has them in core/internal/evaluator, and in its wiki as "Consumer Lag Evaluation Rules".
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
        .when(sf.col("committed_offset") < sf.col("highest"), "REWIND")
        .when(several & (sf.col("lowest") == sf.col("highest")), "STALLED")
        .when(several & ~sf.col("lag_fell"), "WARNING")
        .otherwise("OK")
    )


def group_status(partitions: DataFrame, states: DataFrame, as_of_ms: int) -> DataFrame:
    """Return one row per group with offsets or a state: the status of its worst partition, with totals."""
    rank = sf.array_position(sf.array(*(sf.lit(name) for name in STATUSES)), sf.col("status"))
    count = {
        name: sf.count_if(sf.col("status") == name).alias(f"partitions_{name.lower()}") for name in STATUSES
    }
    worst = sf.max_by(sf.struct("topic", "partition"), sf.struct(rank, "lag_ms", "record_lag"))
    totals = partitions.groupBy("group").agg(
        sf.max_by("status", rank).alias("status"),
        # A set, because Spark counts distinct values in an exchange of their own.
        sf.size(sf.collect_set("topic")).alias("topics"),
        sf.count("*").alias("partitions"),
        *count.values(),
        sf.sum("record_lag").alias("record_lag"),
        sf.min("exact").alias("exact"),
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
            "exact": sf.coalesce("exact", sf.lit(True)),
            "commit_age_ms": sf.try_subtract(sf.lit(as_of_ms), "last_ms"),
            "worst_topic": sf.col("worst.topic"),
            "worst_partition": sf.col("worst.partition"),
            "as_of_ts": sf.timestamp_millis(sf.lit(as_of_ms)),
        }
    )


def stale_groups(current: DataFrame, states: DataFrame, as_of_ms: int, rules: Rules) -> DataFrame:
    """Return groups without members that have not committed for rules.stale_ms.

    For a group without commits the time of its last recorded state counts.
    """
    committed = current.groupBy("group").agg(
        sf.max("commit_ms").alias("last_commit_ms"),
        sf.size(sf.collect_set("topic")).alias("topics"),
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
    """Return offsets that the coordinator will remove within rules.expiring_ms, by Kafka's rules (KIP-211).

    A commit with an expiry time expires then. Other commits expire rules.retention_ms after the group became
    empty; after the commit if the group never had members. In a group with members, commits on topics without
    a subscription expire rules.retention_ms after the commit.
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
    # A member with an unknown subscription (another protocol, damaged bytes) may read any topic.
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
