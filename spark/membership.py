"""Who works in groups: generations, rebalances, members, and which groups read which topics.

All from the history of group states, in the order of `__consumer_offsets`: what a row says of the time before
it comes from the rows in front of it, never from a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NO_NAMES = "cast(array() as array<string>)"


def group_generations(groups: DataFrame) -> DataFrame:
    """Every recorded state of a group in order, with who joined and left since the one before.

    A tombstone (the group was deleted, or forgotten when it had neither members nor offsets) is a row without
    members.
    """
    in_order = Window.partitionBy("group").orderBy("src_offset")
    ids = sf.coalesce(sf.transform("members", lambda member: member["member_id"]), sf.expr(_NO_NAMES))
    before = sf.coalesce(sf.lag("member_ids").over(in_order), sf.expr(_NO_NAMES))
    return (
        groups.withColumn("member_ids", ids)
        .withColumn("before", before)
        .select(
            "*",
            sf.coalesce("state_ts", "src_ts").alias("at_ts"),
            sf.lag("generation").over(in_order).alias("previous_generation"),
            sf.size(sf.array_except("member_ids", "before")).alias("joined"),
            sf.size(sf.array_except("before", "member_ids")).alias("left"),
            sf.size("before").alias("members_before"),
        )
        .withColumn("member_count", sf.size("member_ids"))
    )


def rebalances(generations: DataFrame) -> DataFrame:
    """One row per new generation of a group: what it was (`kind`), who came and went, and how long the
    generation before it lasted. A state written again within a generation is none, and neither is a new
    group's first state, which has no members.
    """
    in_order = Window.partitionBy("group").orderBy("src_offset")
    previous = sf.col("previous_generation")
    new = generations.where(~sf.col("tombstone") & (previous.isNull() | (sf.col("generation") != previous)))
    came, empty = sf.col("members_before") == 0, sf.col("member_count") == 0
    kind = sf.when(empty, "emptied").when(came, "formed").otherwise("rebalanced")
    since = sf.unix_millis("at_ts") - sf.unix_millis(sf.lag("at_ts").over(in_order))
    timed = new.withColumn("kind", kind).withColumn("previous_lasted_ms", since)
    return timed.where(~(came & empty))


def members(groups: DataFrame) -> DataFrame:
    """Everyone who was ever a member: as last recorded, when first and last, and whether still `active`.

    `last_seen_ts` is the time of the last state that lists the member; it goes on working until the next.
    """
    listed = groups.select(
        "group",
        "group_type",
        "generation",
        "src_offset",
        sf.coalesce("state_ts", "src_ts").alias("at_ts"),
        sf.inline_outer("members"),
    )
    # One row per state even without members, so that the newest state of a group is known.
    newest = Window.partitionBy("group")
    rows = listed.withColumn("newest_state", sf.max("src_offset").over(newest)).where(
        sf.col("member_id").isNotNull()
    )
    fields = sf.struct(
        "group_type",
        "instance_id",
        "client_id",
        "client_host",
        "session_timeout_ms",
        "rebalance_timeout_ms",
        "topics",
        "assigned",
        "generation",
        "newest_state",
        "src_offset",
    )
    latest = rows.groupBy("group", "member_id").agg(
        sf.max_by(fields, "src_offset").alias("last"),
        sf.min("at_ts").alias("first_seen_ts"),
        sf.max("at_ts").alias("last_seen_ts"),
    )
    return latest.select("group", "member_id", "last.*", "first_seen_ts", "last_seen_ts").select(
        "*",
        (sf.col("newest_state") == sf.col("src_offset")).alias("active"),
        assigned_partitions(sf.col("assigned")).alias("assigned_partitions"),
    )


def assigned_partitions(assigned: Column) -> Column:
    """How many partitions an assignment has, each counted once; 0 for none."""
    places = sf.transform(
        assigned,
        lambda part: sf.transform(part["partitions"], lambda number: sf.struct(part["topic"], number)),
    )
    return sf.coalesce(sf.size(sf.array_distinct(sf.flatten(places))), sf.lit(0))


def current_groups(groups: DataFrame) -> DataFrame:
    """The newest recorded state of every group; none where that is a tombstone."""
    fields = ("tombstone", "generation", "protocol_type", "protocol", "leader", "state_ts", "members")
    newest = groups.groupBy("group").agg(
        sf.max_by(sf.struct(*fields, "src_ts", "src_offset"), sf.col("src_offset")).alias("newest")
    )
    return (
        newest.select("group", "newest.*")
        .where(~sf.col("tombstone"))
        .drop("tombstone")
        .withColumn("member_count", sf.coalesce(sf.size("members"), sf.lit(0)))
    )


def topic_consumers(current: DataFrame, everyone: DataFrame) -> DataFrame:
    """Which group reads which topic, now: by what it committed, and by what its active members are assigned
    or asked for.
    """
    committed = current.groupBy("topic", "group").agg(
        sf.count("*").alias("committed_partitions"), sf.max("commit_ts").alias("last_commit_ts")
    )
    who = ("group", "member_id", "client_id", "client_host")
    active = everyone.where("active")
    wanted = active.select(*who, sf.explode("topics").alias("topic"))
    parts = active.select(*who, sf.explode("assigned").alias("part")).select(
        *who, sf.col("part.topic").alias("topic"), sf.explode_outer("part.partitions").alias("partition")
    )
    working = (
        wanted.unionByName(parts, allowMissingColumns=True)
        .groupBy("topic", "group")
        .agg(
            sf.countDistinct("member_id").alias("members"),
            sf.countDistinct("partition").alias("assigned_partitions"),
            sf.sort_array(sf.collect_set("client_id")).alias("client_ids"),
            sf.sort_array(sf.collect_set("client_host")).alias("client_hosts"),
        )
    )
    zero, no_names = sf.lit(0), sf.expr(_NO_NAMES)
    return committed.join(working, on=["topic", "group"], how="full").select(
        "topic",
        "group",
        sf.coalesce("committed_partitions", zero).alias("committed_partitions"),
        sf.coalesce("assigned_partitions", zero).alias("assigned_partitions"),
        sf.coalesce("members", zero).alias("members"),
        sf.coalesce("client_ids", no_names).alias("client_ids"),
        sf.coalesce("client_hosts", no_names).alias("client_hosts"),
        "last_commit_ts",
    )
