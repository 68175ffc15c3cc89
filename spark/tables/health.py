"""The status of groups, stale groups, and expiring offsets.

The status of a partition follows from its last commits, as in Burrow, but its rules fit sparse offsets and
consumers that pause. Offsets here may be sparse, so every lag is a number of records: those at or after the
committed offset that had been appended by then. The append time of a record is in its offset
(ms << 10 | sequence); on topics with dense offsets it is the timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.offsets.group_status import STATUSES
from korvet.spark.records.commits import SLOTS_MS
from korvet.spark.tables.decode import spark_time
from korvet.spark.tables.drain import group_drain, partition_drain
from korvet.spark.tables.queues import SHARE
from korvet.spark.tables.views import EXTENT, GROUP_PARTITION, appended_ms, record_lag

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Commits in the same slot of the shortest length are one burst, and count as one.
BURST_MS: Final = SLOTS_MS[0]
WINDOW_COLUMNS: Final = (*GROUP_PARTITION, "committed_offset", "commit_ms", "src_offset")


@dataclass(frozen=True, slots=True)
class Rules:
    """The limits of the rules, with Burrow's and Kafka's defaults. Times are in ms.

    window_commits: bursts of commits of a partition in the window (Burrow's intervals).
    known_commits: bursts from which the habits of a consumer are known.
    silence_factor: a silence counts if it exceeds this multiple of the usual interval.
    silence_ms: a shorter silence never counts.
    reaction_ms: the time that a consumer has for a record: Kafka's max.poll.interval.ms, after which the
    coordinator takes a member for dead.
    behind_ms: a partition is BEHIND if its first unread record has waited longer; None for no limit.
    stale_ms: a group is stale if it has no members and no commit for this time.
    retention_ms: the cluster's offsets.retention.minutes. expiring_ms: look ahead of expiring_offsets.
    gap_factor, gap_ms: an interval between commits is a gap if it exceeds both this multiple of the usual
    interval and this time.
    future_ms: largest lead of the time in an offset over the commit time. A burst of appends causes a lead.
    """

    window_commits: int = 10
    known_commits: int = 3
    silence_factor: int = 3
    silence_ms: int = 60_000
    reaction_ms: int = 300_000
    behind_ms: int | None = 300_000
    stale_ms: int = 86_400_000
    retention_ms: int = 604_800_000
    expiring_ms: int = 86_400_000
    gap_factor: int = 5
    gap_ms: int = 60_000
    future_ms: int = 1_000


def recent_history(commits: DataFrame, count: int) -> DataFrame:
    """Return the commits that the status of each group and partition depends on, and the last tombstone.

    These are the `count` newest ones, and the last ones of as many slots of time of each length in SLOTS_MS,
    by the timestamps of their records. They follow the last tombstone, which is among them.
    """
    return _kept(_placed(commits, count), count).select(*commits.columns)


def recent_commits(commits: DataFrame, count: int) -> DataFrame:
    """Return the commits of recent_history that are in the window, the newest `count` ones and bursts.

    Columns: WINDOW_COLUMNS, and these. is_burst: whether a commit is the last one of its burst. pause_ms: how
    long the usual pause of the partition is, which its bursts may be too close together to show; 0 without
    pauses. highest: the highest offset of all commits of recent_history, which may have been committed long
    before the window.
    """
    placed = _kept(_placed(commits.select(*WINDOW_COLUMNS, "tombstone", "src_ts"), count), count)
    of_partition = Window.partitionBy(*GROUP_PARTITION)
    pauses = [
        _usual_pause_ms(
            sf.collect_list(sf.when(_is_of(ms, count), sf.col(f"slot_{ms}"))).over(of_partition), ms
        )
        for ms in SLOTS_MS[1:]
    ]
    is_burst = _is_of(BURST_MS, count)
    return (
        placed.where(~sf.col("tombstone"))
        .withColumns(
            {
                "pause_ms": sf.greatest(*pauses),
                "is_burst": is_burst,
                "highest": sf.max("committed_offset").over(of_partition),
            }
        )
        .where((sf.col("age") <= count) | is_burst)
        .select(*WINDOW_COLUMNS, "is_burst", "pause_ms", "highest")
    )


def _placed(commits: DataFrame, count: int) -> DataFrame:
    """The commits with their age, 1 for the newest, and for each length of SLOTS_MS their slot, whether they
    are the last one in it, and its age. A tombstone is a slot of its own.
    """
    newest_first = Window.partitionBy(*GROUP_PARTITION).orderBy(sf.col("src_offset").desc())
    written_ms = sf.coalesce(sf.unix_millis("src_ts"), sf.lit(0))
    slots = {f"slot_{ms}": sf.floor(written_ms / sf.lit(ms)) for ms in SLOTS_MS}
    alone = sf.col("tombstone") | sf.lag("tombstone").over(newest_first)
    lasts = {
        f"last_{ms}": sf.coalesce(
            alone | (sf.lag(f"slot_{ms}").over(newest_first) != sf.col(f"slot_{ms}")), sf.lit(True)
        )
        for ms in SLOTS_MS
    }
    ages = {f"age_{ms}": sf.sum(sf.col(f"last_{ms}").cast("int")).over(newest_first) for ms in SLOTS_MS}
    age = sf.row_number().over(newest_first)
    return commits.withColumns(slots).withColumns({**lasts, "age": age}).withColumns(ages)


def _kept(placed: DataFrame, count: int) -> DataFrame:
    """The rows of _placed that count, from the last tombstone on."""
    tombstones = sf.when(sf.col("tombstone"), sf.col("src_offset"))
    deleted = sf.max(tombstones).over(Window.partitionBy(*GROUP_PARTITION))
    counted = sf.col("age") <= count
    for ms in SLOTS_MS:
        counted |= _is_of(ms, count)
    return (
        placed.where(counted)
        .withColumn("deleted_at", deleted)
        .where(sf.col("deleted_at").isNull() | (sf.col("src_offset") >= sf.col("deleted_at")))
    )


def _is_of(slot_ms: int, count: int) -> Column:
    """Whether a row of _placed is the last one in one of the newest slots of a length."""
    return sf.col(f"last_{slot_ms}") & (sf.col(f"age_{slot_ms}") <= count)


def _usual_pause_ms(slots: Column, slot_ms: int) -> Column:
    """The longest pause such that a third of the time passes in pauses as long or longer.

    slots: the slots with commits, newest first or last. A step to the next one is as long as the pause before
    it, and one slot.
    """
    steps = _steps(sf.sort_array(slots))
    total = sf.array_max(slots) - sf.array_min(slots)

    def is_usual(step: Column) -> Column:
        as_long = sf.filter(steps, lambda other: other >= step)
        return sf.aggregate(as_long, sf.lit(0).cast("bigint"), lambda sum_, each: sum_ + each) * 3 >= total

    usual = sf.array_max(sf.filter(steps, is_usual))
    return sf.coalesce(sf.greatest(usual - 1, sf.lit(0)) * slot_ms, sf.lit(0))


def _steps(numbers: Column) -> Column:
    """The differences between neighbours in an array."""
    later = sf.slice(numbers, 2, sf.size(numbers))
    return sf.transform(later, lambda number, index: sf.try_subtract(number, sf.get(numbers, index)))


def lost_records() -> Column:
    """Return the number of records deleted before they were read, by committed offset and views.EXTENT.

    It is an upper bound, because compaction may have deleted some records before; null if unknown.
    """
    committed, start = sf.col("committed_offset"), sf.col("start_offset")
    return sf.when(committed >= start, sf.lit(0)).when(committed >= sf.col("known_from"), start - committed)


def partition_lag(
    window: DataFrame,
    log: DataFrame,
    as_of_ms: int,
    ends: DataFrame | None = None,
    uncommitted: DataFrame | None = None,
) -> DataFrame:
    """Return the lag of each partition as of now, and what decides its status.

    window: of recent_commits. log and ends: as for views.record_lag. uncommitted: partitions as
    membership.uncommitted_partitions returns them. Their lag is that of the log start, and their time lag is
    unknown, because the consumer decides where it begins. Those that don't exist are left out.
    """
    window = window.withColumn("assigned_ms", sf.lit(None).cast("bigint"))
    if uncommitted is not None:
        from_start = uncommitted.withColumns({"committed_offset": sf.lit(0), "is_burst": sf.lit(False)})
        window = window.unionByName(from_start, allowMissingColumns=True)
    newest_first = Window.partitionBy(*GROUP_PARTITION).orderBy(sf.col("src_offset").desc())
    fell = sf.col("lag_then") < sf.lead("lag_then").over(newest_first)
    is_committed = sf.col("src_offset").isNotNull()
    newest = sf.struct(
        sf.when(is_committed, sf.col("committed_offset")).alias("committed_offset"),
        "record_lag",
        "exact",
        sf.when(is_committed, sf.col("lag_ms")).alias("lag_ms"),
        "first_unread_offset",
        "first_unread_ts",
        "pause_ms",
        "highest",
        "assigned_ms",
        *EXTENT,
    )
    burst = sf.when(sf.col("is_burst"), sf.struct("src_offset", "commit_ms", "record_lag", "lag_then"))
    counted = record_lag(window, log, as_of_ms, ends)
    if ends is not None:
        counted = counted.where(is_committed | sf.col("end_offset").isNotNull())
    return (
        counted.withColumn("fell", sf.coalesce(fell, sf.lit(False)))
        .groupBy(*GROUP_PARTITION)
        .agg(
            # The one row of an uncommitted partition has no src_offset: max_by would return null for it.
            sf.max_by(newest, sf.coalesce("src_offset", sf.lit(-1))).alias("newest"),
            sf.sort_array(sf.collect_list(burst)).alias("bursts"),
            (sf.min("committed_offset") == sf.max("committed_offset")).alias("unchanged"),
            (sf.min("lag_then") > 0).alias("always_behind"),
            sf.bool_or("fell").alias("lag_fell"),
        )
        .select("*", "newest.*", sf.timestamp_millis(sf.lit(as_of_ms)).alias("as_of_ts"))
        .withColumns(_burst_columns())
        .drop("newest", "bursts")
    )


def _burst_columns() -> dict[str, Column]:
    """Number, first one, times and usual interval of the bursts."""
    bursts = sf.col("bursts")
    intervals = sf.sort_array(sf.array_compact(_steps(bursts["commit_ms"])))
    # The lower median.
    median_ms = sf.get(intervals, sf.floor((sf.size(intervals) - 1) / 2).cast("int"))
    return {
        "commits": sf.size(bursts),
        "first": sf.get(bursts, sf.lit(0)),
        "first_ms": sf.get(bursts, sf.lit(0))["commit_ms"],
        "last_ms": sf.get(bursts, sf.size(bursts) - 1)["commit_ms"],
        "usual_ms": sf.when(sf.size(bursts) > 1, sf.greatest(median_ms, "pause_ms")),
    }


def partition_status(lag: DataFrame, as_of_ms: int, rules: Rules) -> DataFrame:
    """Return the status of each committed or assigned partition. lag: of partition_lag."""
    of_group = Window.partitionBy("group")
    return (
        lag.withColumn("lost_records", lost_records())
        .withColumn("group_last_ms", sf.max("last_ms").over(of_group))
        .withColumns(
            {
                "status": _partition_status(as_of_ms, rules),
                "complete": sf.col("commits") / sf.lit(rules.window_commits),
                "first_commit_ts": spark_time(sf.col("first_ms")),
                "last_commit_ts": spark_time(sf.col("last_ms")),
                **partition_drain(as_of_ms),
            }
        )
    )


def _partition_status(as_of_ms: int, rules: Rules) -> Column:
    """The rules in order. docs/explain/group-status.md says what each is for."""
    now_ms = sf.lit(as_of_ms)
    patience_ms = sf.try_multiply(sf.coalesce("usual_ms", sf.lit(0)), sf.lit(rules.silence_factor))
    first_unread_ms = appended_ms(sf.col("first_unread_offset"), sf.col("first_unread_ts"))
    waited_ms = sf.try_subtract(now_ms, first_unread_ms)
    # A record without a known time may have come just now.
    may_react = sf.coalesce(waited_ms <= sf.greatest(patience_ms, sf.lit(rules.reaction_ms)), sf.lit(True))
    is_new = sf.col("commits") < rules.known_commits
    longest_ms = sf.greatest(sf.try_subtract("last_ms", "first_ms"), patience_ms, sf.lit(rules.silence_ms))
    silent = sf.try_subtract(now_ms, "last_ms") > longest_ms
    group_silent = sf.try_subtract(now_ms, "group_last_ms") > longest_ms
    late = sf.lit(False) if rules.behind_ms is None else sf.col("lag_ms") > sf.lit(rules.behind_ms)
    return (
        sf.when(sf.col("lost_records") > 0, "LOST")
        .when(sf.col("committed_offset") > sf.col("end_offset"), "AHEAD")
        .when(sf.col("record_lag") == 0, "OK")
        .when(
            sf.col("committed_offset").isNull(),
            sf.when(sf.col("assigned_ms") < now_ms - rules.reaction_ms, "UNCOMMITTED").otherwise("UNKNOWN"),
        )
        .when(sf.col("committed_offset") < sf.col("highest"), "REWIND")
        .when(late & (may_react | is_new), "BEHIND")
        .when(is_new, "UNKNOWN")
        .when(may_react, "OK")
        .when(silent, sf.when(group_silent, "STOPPED").otherwise("STALLED"))
        .when(sf.col("always_behind") & sf.col("unchanged"), "STALLED")
        .when(sf.col("always_behind") & ~sf.col("lag_fell"), "WARNING")
        .when(late, "BEHIND")
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
        *(column.alias(name) for name, column in group_drain().items()),
        worst.alias("worst"),
        spark_time(sf.max("last_ms")).alias("last_commit_ts"),
        sf.max("last_ms").alias("last_ms"),
        sf.min("complete").alias("complete"),
    )
    known = states.select("group", "generation", "protocol_type", "protocol", "member_count")
    zero = sf.lit(0)
    numbers = ["topics", "partitions", "record_lag", "partitions_not_draining", "member_count"]
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
    """Return groups without members, but share groups, that have not committed for rules.stale_ms.

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
    is_share = sf.coalesce(sf.col("protocol_type") == SHARE, sf.lit(False))
    return (
        committed.join(known, on="group", how="full")
        .withColumn("idle_ms", sf.try_subtract(sf.lit(as_of_ms), since_ms))
        # A share group commits nothing, and may have only Redis workers.
        .where((sf.coalesce("member_count", sf.lit(0)) == 0) & ~is_share)
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
