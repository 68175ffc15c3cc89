"""Generations, rebalances and members of groups, and which groups read which topics.

All are computed from the history of group states, in the order of `__consumer_offsets`. A row compares itself
with earlier rows, never with a clock.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.spark.tables.catalog import OWNERS
from korvet.spark.tables.decode import CLASSIC, CONSUMER_PROTOCOL, GROUP_METADATA_KEY, spark_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

MEMBER_FIELDS = (
    "group_type",
    "instance_id",
    "client_id",
    "client_host",
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "topics",
    "assigned",
    "generation",
    "src_offset",
)
IS_NEW = "is_new"
"""A column that marks new rows, for tables that grow. States keep the column."""
IS_ASSIGNED_ANEW = "is_assigned_anew"
"""A column that marks the states of which a new record has an assignment, null without an assignment."""
STATE_FIELDS = (
    "group_type",
    "protocol_type",
    "generation",
    "protocol",
    "leader",
    "state_ms",
    "members",
    "tombstone",
    "value_version",
    "src_partition",
    "src_offset",
    "src_ts",
)

# Key versions of consumer, share and streams groups.
EPOCH_KEYS = (3, 11, 17)
MEMBER_KEYS = (5, 10, 19)
ASSIGNMENT_KEYS = (8, 14, 22)
_NO_NAMES = "cast(array() as array<string>)"


def group_states(records: DataFrame) -> DataFrame:
    """Return the states of groups of every type as those of a classic group, from decode.group_records.

    Each record of a classic group is a state. The other types have several records per state: here a state is
    an epoch, with its members and their assignments at its end. This takes one pass over the records of each
    group. If the records have IS_NEW, the states also have IS_ASSIGNED_ANEW.
    """
    spread = _by_state(_numbered(records))
    is_member, is_assignment = sf.col("role") == "member", sf.col("role") == "assignment"
    marks = [IS_NEW] if IS_NEW in records.columns else []
    state = sf.struct(*STATE_FIELDS, *marks)
    anew = [sf.bool_or(sf.when(is_assignment, sf.col(mark))).alias(IS_ASSIGNED_ANEW) for mark in marks]
    kind = (sf.col("group_type") == CLASSIC).alias("is_classic")
    gathered = spread.groupBy("group", kind, "state_no").agg(
        sf.first(sf.when(~is_member & ~is_assignment, state), ignorenulls=True).alias("state"),
        sf.collect_list(sf.when(is_member, sf.element_at("members", 1))).alias("present"),
        sf.collect_list(sf.when(is_assignment, sf.struct("member_id", "assigned"))).alias("owned"),
        *anew,
    )
    members = sf.when(sf.col("is_classic"), sf.col("state.members")).otherwise(
        sf.array_sort(sf.transform("present", _with_assignment))
    )
    return (
        gathered.where(sf.col("state").isNotNull())
        .withColumn("all_members", members)
        .select("group", "state.*", "all_members", *(IS_ASSIGNED_ANEW for _ in marks))
        .withColumn("members", sf.when(~sf.col("tombstone"), sf.col("all_members")))
        .withColumn("member_count", sf.coalesce(sf.size("members"), sf.lit(0)))
        .withColumn("protocol_type", _protocol_type())
        .withColumn("state_ts", spark_time(sf.col("state_ms")))
        .drop("all_members", "state_ms")
    )


def _protocol_type() -> Column:
    """As Kafka's ListGroups has it: that of a group of another type than classic is its type."""
    named = (sf.col("group_type") == CLASSIC) | sf.col("tombstone")
    return sf.when(named, sf.col("protocol_type")).otherwise(sf.col("group_type"))


def _numbered(records: DataFrame) -> DataFrame:
    """The records of states, each with its role and its epoch's number in the group.

    epoch_no: epochs up to the record. last_no: epochs of the group. next_no: epoch_no of the next record with
    the same role and member. ends: whether that next record is a tombstone.
    """
    version = sf.col("key_version")
    role = (
        sf.when(version == GROUP_METADATA_KEY, "classic")
        .when(version.isin(*EPOCH_KEYS), "epoch")
        .when(version.isin(*MEMBER_KEYS), "member")
        .when(version.isin(*ASSIGNMENT_KEYS), "assignment")
    )
    by_group = Window.partitionBy("group").orderBy("src_offset")
    of_one = Window.partitionBy("group", "role", "member_id").orderBy("src_offset")
    is_epoch = (sf.col("role") == "epoch").cast("bigint")
    return (
        records.withColumn("role", role)
        .where(sf.col("role").isNotNull())
        .withColumn("epoch_no", sf.sum(is_epoch).over(by_group))
        .withColumn("last_no", sf.sum(is_epoch).over(Window.partitionBy("group")))
        .withColumn("next_no", sf.lead("epoch_no").over(of_one))
        .withColumn("ends", sf.lead("tombstone").over(of_one))
    )


def _by_state(numbered: DataFrame) -> DataFrame:
    """The records once for each state that they belong to, `state_no`.

    A member's record belongs to the epochs after it, up to the epoch of the member's next record. An
    assignment belongs to its epoch and the following ones, up to the epoch before the next assignment.
    """
    is_member, is_assignment = sf.col("role") == "member", sf.col("role") == "assignment"
    is_state = ~is_member & ~is_assignment
    first = sf.when(sf.col("role") == "classic", sf.col("src_offset")).otherwise(
        sf.col("epoch_no") + is_member.cast("bigint")
    )
    last = (
        sf.when(is_member, sf.coalesce("next_no", "last_no"))
        # A member that leaves keeps its last assignment until the end of its last epoch.
        .when(is_assignment & sf.col("ends"), sf.col("next_no"))
        .when(is_assignment, sf.coalesce(sf.col("next_no") - 1, "last_no"))
        .otherwise(first)
    )
    return (
        numbered.where(is_state | ~sf.col("tombstone"))
        .withColumns({"first_no": first, "until_no": last})
        .where(sf.col("first_no") <= sf.col("until_no"))
        .withColumn("state_no", sf.explode(sf.sequence("first_no", "until_no")))
    )


def _with_assignment(member: Column) -> Column:
    mine = sf.filter(sf.col("owned"), lambda owned: owned["member_id"] == member["member_id"])
    return member.withField("assigned", sf.get(mine, sf.lit(0))["assigned"])


def topic_ids() -> Column:
    """Return the distinct IDs of topics in the assignments of rows of decode.group_records: an aggregate."""
    topics = sf.transform("assigned", lambda part: part["topic"])
    return sf.array_distinct(sf.flatten(sf.collect_set(topics)))


def with_topic_names(records: DataFrame, names: Mapping[str, str]) -> DataFrame:
    """Return the rows of decode.group_records with topic names in place of topic IDs in assignments.

    names: by ID, in the form of Kafka's tools; an ID without a name stays.
    """
    if not names:
        return records
    # One literal, because there may be thousands.
    known = sf.from_json(sf.lit(json.dumps(dict(names))), "map<string,string>")
    named = sf.transform(
        "assigned",
        lambda part: part.withField(
            "topic", sf.coalesce(sf.try_element_at(known, part["topic"]), part["topic"])
        ),
    )
    return records.withColumn("assigned", named)


def uncommitted_partitions(states: DataFrame, commits: DataFrame) -> DataFrame:
    """Return the partitions that are assigned to active members of consumer groups and have no commit.

    states: of current_groups. commits: those that count, at least one of each partition. assigned_ms: when
    the group entered its state, null if that isn't known.
    """
    since_ms = sf.unix_millis(sf.coalesce("state_ts", "src_ts")).alias("assigned_ms")
    working = states.where(sf.col("group_type").isin(CLASSIC, CONSUMER_PROTOCOL))
    owned = (
        working.select("group", since_ms, sf.explode("members").alias("member"))
        .select("group", "assigned_ms", sf.explode("member.assigned").alias("part"))
        .select("group", "assigned_ms", "part.topic", sf.explode("part.partitions").alias("partition"))
    )
    return owned.distinct().join(commits, on=["group", "topic", "partition"], how="left_anti")


def group_generations(groups: DataFrame) -> DataFrame:
    """Return every recorded state of a group in order, with the members that joined and left since the last.

    A tombstone is a row without members: the group was deleted, or removed because it had neither members nor
    offsets.
    """
    in_order = Window.partitionBy("group").orderBy("src_offset")
    ids = sf.coalesce(sf.transform("members", lambda member: member["member_id"]), sf.expr(_NO_NAMES))
    before = sf.coalesce(sf.lag("member_ids").over(in_order), sf.expr(_NO_NAMES))
    owners = sf.flatten(sf.transform("members", _owned))
    return (
        groups.withColumn("at_ts", sf.coalesce("state_ts", "src_ts"))
        .withColumn("member_ids", ids)
        .withColumn("owners", sf.coalesce(owners, sf.expr(f"cast(array() as {OWNERS})")))
        .withColumn("before", before)
        .select(
            "*",
            sf.lag("generation").over(in_order).alias("previous_generation"),
            sf.size(sf.array_except("member_ids", "before")).alias("joined"),
            sf.size(sf.array_except("before", "member_ids")).alias("left"),
            sf.size("before").alias("members_before"),
            (sf.unix_millis("at_ts") - sf.unix_millis(sf.lag("at_ts").over(in_order))).alias(
                "previous_lasted_ms"
            ),
        )
        .withColumn("member_count", sf.size("member_ids"))
    )


def _owned(member: Column) -> Column:
    """What one member is assigned, as the elements of `owners`; none if its assignment is unreadable."""
    parts = sf.transform(
        member["assigned"],
        lambda part: sf.struct(
            member["member_id"].alias("member_id"),
            member["client_id"].alias("client_id"),
            member["client_host"].alias("client_host"),
            part["topic"].alias("topic"),
            part["partitions"].alias("partitions"),
        ),
    )
    return sf.coalesce(parts, sf.expr(f"cast(array() as {OWNERS})"))


def rebalances(generations: DataFrame) -> DataFrame:
    """Return one row per new generation of a group: kind, changes, and duration of the previous state.

    States of the same generation, and the first state of a new group, which has no members, are left out.
    """
    previous = sf.col("previous_generation")
    new = generations.where(~sf.col("tombstone") & (previous.isNull() | (sf.col("generation") != previous)))
    came, empty = sf.col("members_before") == 0, sf.col("member_count") == 0
    kind = sf.when(empty, "emptied").when(came, "formed").otherwise("rebalanced")
    return new.withColumn("kind", kind).where(~(came & empty))


def members(groups: DataFrame) -> DataFrame:
    """Return every member that a group ever had: last record, first and last time, and `active`.

    `last_seen_ts` is the time of the last state that lists the member. The member may be active until the
    next state.
    """
    latest = members_seen(groups)
    return with_activity(latest, groups)


def members_seen(groups: DataFrame) -> DataFrame:
    """Return every member as in the last state that lists it, with that state's src_offset."""
    rows = groups.select(
        "group",
        "group_type",
        "generation",
        "src_offset",
        sf.coalesce("state_ts", "src_ts").alias("first_seen_ts"),
        sf.coalesce("state_ts", "src_ts").alias("last_seen_ts"),
        sf.inline("members"),
    )
    return merged_members(rows.withColumn("pass", sf.lit(0)))


def merged_members(rows: DataFrame) -> DataFrame:
    """Return one row per member, the newest one with the first and the last time of all.

    If several rows are of the same state, the one with the highest `pass` counts.
    """
    latest = rows.groupBy("group", "member_id").agg(
        sf.max_by(sf.struct(*MEMBER_FIELDS), sf.struct("src_offset", "pass")).alias("last"),
        sf.min("first_seen_ts").alias("first_seen_ts"),
        sf.max("last_seen_ts").alias("last_seen_ts"),
    )
    return latest.select("group", "member_id", "last.*", "first_seen_ts", "last_seen_ts")


def with_activity(seen: DataFrame, groups: DataFrame) -> DataFrame:
    """Return members with `active` (in their group's newest state) and their number of partitions."""
    newest = groups.groupBy("group").agg(sf.max("src_offset").alias("newest_state"))
    return (
        seen.join(newest, on="group", how="left")
        .withColumn("active", sf.coalesce(sf.col("newest_state") == sf.col("src_offset"), sf.lit(False)))
        .withColumn("assigned_partitions", assigned_partitions(sf.col("assigned")))
        .drop("newest_state")
    )


def group_seed(records: DataFrame) -> DataFrame:
    """Return the records that later states depend on.

    These are the newest classic state of a group; or its newest epoch, the newest records of each member
    until then, and all later records.
    """
    version = sf.col("key_version")
    of_group = Window.partitionBy("group")
    is_epoch = version.isin(*EPOCH_KEYS)
    epoch_at = sf.max(sf.when(is_epoch, sf.col("src_offset"))).over(of_group)
    before = sf.coalesce(sf.col("src_offset") <= sf.col("epoch_at"), sf.lit(False))
    of_key = Window.partitionBy("group", "key_version", "member_id", "is_before")
    return (
        records.where(version.isin(GROUP_METADATA_KEY, *EPOCH_KEYS, *MEMBER_KEYS, *ASSIGNMENT_KEYS))
        .withColumn("epoch_at", epoch_at)
        .withColumn("is_before", before)
        .withColumn("newest", sf.max("src_offset").over(of_key))
        .where(
            (sf.col("src_offset") == sf.col("newest"))
            | (~sf.col("is_before") & (version != GROUP_METADATA_KEY))
        )
        .select(*records.columns)
    )


def assigned_partitions(assigned: Column) -> Column:
    """Return the number of distinct partitions in an assignment; 0 for null."""
    partitions = sf.transform(
        assigned,
        lambda part: sf.transform(part["partitions"], lambda number: sf.struct(part["topic"], number)),
    )
    return sf.coalesce(sf.size(sf.array_distinct(sf.flatten(partitions))), sf.lit(0))


def current_groups(groups: DataFrame) -> DataFrame:
    """Return the newest recorded state of every group; no row if it is a tombstone."""
    fields = ("tombstone", "group_type", "generation", "protocol_type", "protocol", "leader", "state_ts")
    newest = groups.groupBy("group").agg(
        sf.max_by(sf.struct(*fields, "members", "src_ts", "src_offset"), "src_offset").alias("newest")
    )
    return (
        newest.select("group", "newest.*")
        .where(~sf.col("tombstone"))
        .drop("tombstone")
        .withColumn("member_count", sf.coalesce(sf.size("members"), sf.lit(0)))
    )


def topic_consumers(current: DataFrame, everyone: DataFrame) -> DataFrame:
    """Return which group reads which topic now, by its commits, assignments and subscriptions."""
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
