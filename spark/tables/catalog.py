"""The tables that Spark makes of `__consumer_offsets`: their names and columns.

batch_tables and stored_tables return exactly these columns, in this order and of these types. Pure data,
without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from korvet.offsets.group_status import STATUSES

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUS: Final = f"{', '.join(STATUSES[:-1])} or {STATUSES[-1]}"
GROUP_PARTITION_COLUMNS: Final = """
    group string: the consumer group
    topic string: the topic it reads
    partition int: the topic's partition
"""
SOURCE_COLUMNS: Final = """
    src_partition int: partition of `__consumer_offsets`
    src_offset bigint: the record's offset in it
    src_ts timestamp: the record's timestamp
"""
COMMIT_COLUMNS: Final = """
    committed_offset bigint: the next offset to read
    leader_epoch int: -1 for none
    metadata string: the client's text
    commit_ms bigint: time of the commit, ms; null if unknown
    commit_ts timestamp: the same; null if Spark can't represent that time
    expire_ms bigint: the commit's own expiry time, -1 for none
    topic_id binary: 16 bytes; null if not recorded
"""
MEMBER_STRUCT: Final = "array<struct<topic:string,partitions:array<int>>>"
OWNERS: Final = (
    "array<struct<member_id:string,client_id:string,client_host:string,topic:string,partitions:array<int>>>"
)
WORKERS: Final = "array<struct<name:string,is_member:boolean,in_flight:bigint,idle_ms:bigint>>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    about: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and how it is kept up to date.

    kind: `history` (rows are added), `current` (one row per key as of now), `sums` (numbers that add
    up), `snapshot` (one row per key and time of update), or `answer` (computed from other tables when read).
    """

    name: str
    kind: str
    about: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> str:
        """The columns as Spark's DDL."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)


def parse_columns(text: str) -> tuple[Column, ...]:
    """Return columns from lines of `name type: meaning`."""
    parsed = []
    for line in text.split("\n"):
        if line.strip():
            head, _, about = line.strip().partition(": ")
            name, _, form = head.partition(" ")
            parsed.append(Column(name, form, about))
    return tuple(parsed)


def _table(name: str, kind: str, about: str, columns: str) -> Table:
    return Table(name, kind, about, parse_columns(columns))


_EXACT: Final = "exact boolean: false if record_lag is an upper bound\n"
_AS_OF: Final = "as_of_ts timestamp: the time that the row holds for\n"
_MEMBER: Final = f"""
    instance_id string: `group.instance.id` of a static member
    client_id string: `client.id`
    client_host string: the client's address
    session_timeout_ms int: requested by the client
    rebalance_timeout_ms int: requested by the client
    topics array<string>: its subscription; null if unreadable
    assigned {MEMBER_STRUCT}: its assignment; null if unreadable
    assigned_partitions int: number of assigned partitions
"""

_ALL: Final = (
    _table(
        "offset_commits",
        "history",
        "Every readable commit and tombstone, one row per record.",
        GROUP_PARTITION_COLUMNS
        + COMMIT_COLUMNS
        + """
        tombstone boolean: the offset was removed; the commit's columns are null
        key_version int: 0 or 1
        value_version int: 0 to 4
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC); the stored table is partitioned by it",
    ),
    _table(
        "current_offsets",
        "current",
        "The newest commit of every group and partition; no row if it is a tombstone.",
        GROUP_PARTITION_COLUMNS + COMMIT_COLUMNS + SOURCE_COLUMNS,
    ),
    _table(
        "pending_offsets",
        "snapshot",
        "The offsets that open transactions will commit, or drop if they are aborted.",
        GROUP_PARTITION_COLUMNS
        + COMMIT_COLUMNS
        + SOURCE_COLUMNS
        + "pending_ms bigint: as_of_ts minus src_ts, never negative\n"
        + _AS_OF,
    ),
    _table(
        "record_lag",
        "snapshot",
        "The number of unread records: those at or after the committed offset or, without a commit, all.",
        GROUP_PARTITION_COLUMNS
        + "committed_offset bigint: the next offset to read; null without a commit\n"
        + "record_lag bigint: unread records; gaps and deleted records don't count\n"
        + _EXACT
        + _AS_OF,
    ),
    _table(
        "time_lag",
        "snapshot",
        "How long the first unread record has been waiting.",
        GROUP_PARTITION_COLUMNS
        + """
        committed_offset bigint: the next offset to read; null without a commit
        first_unread_offset bigint: null if everything is read
        first_unread_ts timestamp: its timestamp
        lag_ms bigint: as_of_ts minus that (or append) time, or 0; null without a commit
        """
        + _AS_OF,
    ),
    _table(
        "commit_rate",
        "sums",
        "Commits per group and minute; minutes without a commit have no row.",
        """
        group string: the consumer group
        minute timestamp: start of the minute, by commit time
        commits bigint: one for every partition committed
        """,
    ),
    _table(
        "group_records",
        "history",
        "Every readable record on groups of any kind, as Kafka's own formatters show it.",
        """
        group string: the group
        group_type string: classic, consumer (KIP-848), share (KIP-932) or streams (KIP-1071)
        key_version int: the record type, 2 to 23
        member_id string: the member, if the record is about one
        data string: key and value as JSON
        tombstone boolean: the value is null
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC); the stored table is partitioned by it",
    ),
    _table(
        "group_generations",
        "history",
        "Every recorded state of a group, with the members that joined and left since the previous state.",
        f"""
        group string: the consumer group
        group_type string: classic, consumer (KIP-848), share (KIP-932) or streams (KIP-1071)
        generation int: generation of a classic group, epoch of other groups
        protocol_type string: `consumer`, `connect` ...; empty for a group that only commits
        protocol string: the assignor
        leader string: member id of the leader
        at_ts timestamp: when the group entered this state
        member_count int: number of members
        member_ids array<string>: their member ids
        joined int: members that the previous state did not have
        left int: members of the previous state that are gone
        owners {OWNERS}: assignments by member and topic; the ID of a topic without a known name
        tombstone boolean: the group was removed
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC); the stored table is partitioned by it",
    ),
    _table(
        "rebalances",
        "history",
        "One row per new generation of a group.",
        """
        group string: the consumer group
        group_type string: as in group_generations
        kind string: formed (there were no members), rebalanced, or emptied (none are left)
        generation int: the new generation
        previous_generation int: null for the first recorded generation
        protocol string: the assignor
        member_count int: members now
        joined int: members that joined
        left int: members that left
        at_ts timestamp: when the generation began
        previous_lasted_ms bigint: duration of the previous state
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC); the stored table is partitioned by it",
    ),
    _table(
        "members",
        "current",
        "Every member that a group ever had, as last recorded.",
        """
        group string: the consumer group
        member_id string: its id, from the coordinator or the client
        group_type string: as in group_generations
        """
        + _MEMBER
        + """
        generation int: the last generation that contains it
        active boolean: the group's newest state contains it
        first_seen_ts timestamp: time of the first state that lists it
        last_seen_ts timestamp: time of the last state that lists it
        """,
    ),
    _table(
        "partition_status",
        "snapshot",
        "The status of every committed or assigned partition, with the underlying numbers.",
        GROUP_PARTITION_COLUMNS
        + f"status string: {_STATUS}\n"
        + f"""
        committed_offset bigint: the next offset to read; null if UNCOMMITTED
        record_lag bigint: unread records; without a commit, all existing records
        {_EXACT}
        lost_records bigint: upper bound of records deleted before they were read; null if unknown
        lag_ms bigint: how long the first unread record has been waiting; null without a commit
        consumed_per_s double: records read per second since first_commit_ts; null below two bursts of commits
        produced_per_s double: records appended per second in this time
        drain_ms bigint: record_lag over the difference of the rates; null if that isn't above 0 or is unknown
        commits bigint: bursts of commits in the window
        complete double: commits as a fraction of a full window
        usual_ms bigint: the usual interval between bursts; null with fewer than two
        first_commit_ts timestamp: the oldest commit in the window
        last_commit_ts timestamp: the newest commit in the window
        """
        + _AS_OF,
    ),
    _table(
        "group_status",
        "snapshot",
        "One row per group: the status of its worst partition.",
        """
        group string: the consumer group
        """
        + f"status string: {_STATUS}\n"
        + "".join(f"partitions_{name.lower()} bigint: partitions that are {name}\n" for name in STATUSES)
        + f"""
        topics bigint: topics with committed or assigned partitions
        partitions bigint: committed or assigned partitions
        record_lag bigint: unread records of all partitions; of a share group, its depth
        {_EXACT}
        lost_records bigint: records deleted before they were read, of all partitions
        time_lag_ms bigint: the longest wait of any partition
        drain_ms bigint: the longest drain_ms of any partition; null if one has none
        partitions_not_draining bigint: partitions that records are added to at least as fast as they are read
        worst_topic string: topic of the partition with this status
        worst_partition int: the partition with this status
        complete double: fraction of the least complete window
        last_commit_ts timestamp: the newest commit
        commit_age_ms bigint: time since that commit
        member_count int: members in the newest state
        generation int: generation of the newest state
        protocol_type string: protocol type of the newest state
        protocol string: assignor of the newest state
        """
        + _AS_OF,
    ),
    _table(
        "queues",
        "snapshot",
        "The queue of each share group (KIP-932) in each partition that it has begun to read.",
        GROUP_PARTITION_COLUMNS
        + """
        status string: OK, BEHIND (the oldest record waits longer than the limit) or UNKNOWN (so is the depth)
        start_offset bigint: the first offset that may be neither accepted nor archived; null if unknown
        end_offset bigint: the offset after the last record ever added
        depth bigint: records that are neither accepted nor archived; null if unknown
        exact boolean: false if depth is an upper bound
        in_flight bigint: records that members and Redis workers have; null through the Kafka protocol
        waiting_again bigint: records that wait to be delivered again, or (Kafka protocol) are in flight again
        deliveries int: the most deliveries of a record that is left; null if unknown
        dead bigint: records that wait to become dead letters; null through the Kafka protocol
        oldest_ts timestamp: timestamp of the first record of depth
        lag_ms bigint: as_of_ts minus that (or append) time, or 0
        """
        + f"workers {WORKERS}: members and Redis workers that took records; null through the Kafka protocol\n"
        + _AS_OF,
    ),
    _table(
        "stale_groups",
        "snapshot",
        "Groups, but share groups, without members that have not committed for `stale_ms`.",
        """
        group string: the consumer group
        idle_ms bigint: time since the last commit, or since the last state if there is no commit
        last_commit_ts timestamp: null if the group has no offset
        topics bigint: topics with committed offsets
        partitions bigint: partitions with committed offsets
        generation int: generation of the last state; null if there was none
        protocol_type string: protocol type of the last state
        """
        + _AS_OF,
    ),
    _table(
        "expiring_offsets",
        "snapshot",
        "Offsets that the coordinator removes within `expiring_ms`, by Kafka's rules.",
        GROUP_PARTITION_COLUMNS
        + """
        committed_offset bigint: the offset that will be removed
        commit_ts timestamp: time of the commit
        expires_ts timestamp: when the offset may be removed
        expires_in_ms bigint: time until then; negative if it is due
        """
        + _AS_OF,
    ),
    _table(
        "topic_consumers",
        "current",
        "Which group reads which topic, with its active members.",
        """
        topic string: the topic
        group string: the consumer group
        committed_partitions bigint: partitions with a committed offset
        assigned_partitions bigint: partitions assigned to active members
        members bigint: active members with an assignment in, or a subscription to, the topic
        client_ids array<string>: their client ids, sorted
        client_hosts array<string>: their hosts, sorted
        last_commit_ts timestamp: the newest commit on the topic
        """,
    ),
    _table(
        "anomalies",
        "history",
        "Unusual commits.",
        GROUP_PARTITION_COLUMNS
        + """
        kind string: rewind, gap, lost_records, past_end or unknown_partition
        committed_offset bigint: the committed offset
        previous_offset bigint: the previously committed offset
        interval_ms bigint: time since the previous commit
        usual_interval_ms bigint: the median of up to ten previous intervals; null below three
        end_offset bigint: the partition's log end when it was looked up; null if the partition doesn't exist
        lost_records bigint: upper bound of records deleted before they were read; null if unknown
        commit_ms bigint: time of the commit, ms; null if unknown
        commit_ts timestamp: the same
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC); the stored table is partitioned by it",
    ),
    _table(
        "topic_sizes",
        "snapshot",
        "The size of every partition of every topic.",
        """
        topic string: the topic
        partition int: its partition
        start_offset bigint: 0 until a record is deleted, then the offset of the first remaining record
        end_offset bigint: the offset after the last record ever added
        entries bigint: entries of the stream; one is a record, or a batch with `storage.layout=batch`
        appended_entries bigint: entries ever added
        memory_bytes bigint: memory of the stream, as Redis estimates it
        """
        + _AS_OF,
    ),
    _table(
        "quarantine",
        "history",
        "Every unreadable record.",
        """
        key binary: the record's key
        value binary: the record's value
        """
        + SOURCE_COLUMNS
        + """
        reason string: no key, damaged, or an unknown version
        src_date date: day of src_ts (UTC); the stored table is partitioned by it
        """,
    ),
)
TABLES: Final[Mapping[str, Table]] = {table.name: table for table in _ALL}
_ANSWERS: Final = (
    _table(
        "reads",
        "answer",
        "Who read what when: one row for each move of a committed offset.",
        GROUP_PARTITION_COLUMNS
        + """
        from_offset bigint: the offset committed before; null for the first one
        to_offset bigint: the committed offset; below from_offset after a rewind
        after_ts timestamp: time of the commit before
        until_ts timestamp: time of the commit
        generation int: generation of the group then
        member_count int: members of that generation
        clients array<struct<client_id:string,client_host:string>>: these members
        src_offset bigint: position of the commit in `__consumer_offsets`
        """,
    ),
    _table(
        "owners",
        "answer",
        "Who read what when, by assignment: one row for each time that a member had a partition, over all "
        "generations in a row that gave it to this member.",
        GROUP_PARTITION_COLUMNS
        + """
        member_id string: the member
        client_id string: its `client.id`
        client_host string: its address
        from_ts timestamp: when the first of these generations began
        until_ts timestamp: when the next generation began; null if it has the partition now
        generation int: the first of these generations
        last_generation int: the last of them
        commits bigint: commits on the partition in this time, whichever member made them
        from_offset bigint: the offset committed before them; null without one
        to_offset bigint: the last offset committed in this time
        last_commit_ts timestamp: time of the record of that commit
        """,
    ),
    _table(
        "rebalance_costs",
        "answer",
        "The rebalances, with the time without owners of partitions. The beginning of a rebalance is not "
        "recorded, so there are bounds. For a classic group they begin with the last join (0 with a "
        "cooperative assignor) and with the last commit in the generation before, and end when the "
        "assignment is recorded. A time without members is exact. Other groups keep their partitions in a "
        "rebalance.",
        """
        group string: the consumer group
        group_type string: as in group_generations
        kind string: as in rebalances
        generation int: the new generation
        protocol string: the assignor
        member_count int: members now
        joined int: members that joined
        left int: members that left
        at_ts timestamp: when the generation began
        previous_lasted_ms bigint: duration of the previous state
        unowned_at_least_ms bigint: lower bound of the time without owners; null if unknown
        unowned_at_most_ms bigint: upper bound; null if unknown
        src_offset bigint: position of the generation's record in `__consumer_offsets`
        """,
    ),
    _table(
        "slo_days",
        "answer",
        "Whether the wait was within the objective, by group and day (UTC).",
        """
        group string: the consumer group
        day date: the day
        samples bigint: measurements of the lag
        worst_lag_ms bigint: the longest wait
        measured_ms bigint: the part of the day that samples hold for
        over_ms bigint: the part of measured_ms with a partition that waited longer than the limit
        attained double: the fraction of measured_ms within the limit
        target double: the objective, a fraction of the time
        budget_ms bigint: the part of measured_ms that may be over the limit
        budget_left_ms bigint: what is left of it; negative if it is overdrawn
        complete double: measured_ms as a fraction of the day; below 1 the day is measured in part
        """,
    ),
    _table(
        "topic_growth",
        "answer",
        "How fast topics grow, by topic and day (UTC).",
        """
        topic string: the topic
        day date: the day
        days int: days since the day of the sample before
        entries bigint: entries at the last sample of the day
        memory_bytes bigint: memory at the last sample of the day
        appended_entries bigint: entries added since the day of the sample before
        growth_bytes bigint: change of memory since then
        """,
    ),
    _table(
        "silences",
        "answer",
        "What a consumer's silence costs: periods without a commit on a partition with unread records.",
        GROUP_PARTITION_COLUMNS
        + """
        since_ts timestamp: time of the last commit
        until_ts timestamp: time of the next commit; null if it is still silent
        silent_ms bigint: the duration
        most_unread bigint: the most unread records in this time
        longest_wait_ms bigint: the longest wait in this time
        unread_hours double: unread records times the hours that they waited
        """,
    ),
)
ANSWERS: Final[Mapping[str, Table]] = {table.name: table for table in _ANSWERS}
"""The answers of korvet.spark.tables.questions."""
NEED_RECORDS: Final = frozenset({"record_lag", "time_lag", "partition_status", "group_status", "queues"})
"""The tables that count the topics' records."""
NEED_NEWEST: Final = frozenset(
    {
        "current_offsets",
        "group_records",
        "group_generations",
        "rebalances",
        "members",
        "stale_groups",
        "expiring_offsets",
        "topic_consumers",
    }
)
"""The tables that need only records on groups, and the newest commit of each partition."""
NEED_NAMES: Final = frozenset({*NEED_RECORDS, "group_generations", "members", "topic_consumers"})
"""The tables with names of topics that newer groups record by ID."""
