"""The tables that come out of `__consumer_offsets`: what each is called, and its columns.

A contract: batch_tables and stored_tables give exactly these columns, in this order and of these types.
Pure data, without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

STATUSES: Final = ("OK", "WARNING", "STOPPED", "STALLED", "REWIND", "AHEAD", "LOST")
"""Of a partition, the worst last; a group has that of its worst partition."""
PLACE_COLUMNS: Final = """
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
    metadata string: what the client added
    commit_ms bigint: time of the commit, ms
    commit_ts timestamp: the same; null where Spark has no such time
    expire_ms bigint: the commit's own expiry time, -1 for none
    topic_id binary: 16 bytes, null when not recorded
"""
MEMBER_STRUCT: Final = "array<struct<topic:string,partitions:array<int>>>"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    about: str


@dataclass(frozen=True, slots=True)
class Table:
    """What a table is, and how it is kept up to date.

    kind: `history` (rows are only added), `current` (one row per key as of now), `sums` (numbers that add up)
    or `snapshot` (one row per key and time of update).
    """

    name: str
    kind: str
    about: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> str:
        """As Spark's DDL."""
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)


def _table(name: str, kind: str, about: str, columns: str) -> Table:
    parsed = []
    for line in columns.split("\n"):
        if line.strip():
            head, _, text = line.strip().partition(": ")
            column, _, form = head.partition(" ")
            parsed.append(Column(column, form, text))
    return Table(name, kind, about, tuple(parsed))


_AS_OF: Final = "as_of_ts timestamp: the time that the row holds for\n"
_MEMBER: Final = f"""
    instance_id string: `group.instance.id` of a static member
    client_id string: `client.id`
    client_host string: where it came from
    session_timeout_ms int: as it asked
    rebalance_timeout_ms int: as it asked
    topics array<string>: its subscription; null when that can't be read
    assigned {MEMBER_STRUCT}: its assignment; null when that can't be read
    assigned_partitions int: how many those are
"""

_ALL: Final = (
    _table(
        "offset_commits",
        "history",
        "Every readable commit and tombstone, one row per record.",
        PLACE_COLUMNS
        + COMMIT_COLUMNS
        + """
        tombstone boolean: the offset was removed; the commit's columns are null
        key_version int: 0 or 1
        value_version int: 0 to 4
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC), which the stored table is partitioned by",
    ),
    _table(
        "current_offsets",
        "current",
        "The newest commit of every group and partition; none where it is a tombstone.",
        PLACE_COLUMNS + COMMIT_COLUMNS + SOURCE_COLUMNS,
    ),
    _table(
        "record_lag",
        "snapshot",
        "Unread records, counted: those at or beyond the committed offset.",
        PLACE_COLUMNS
        + "committed_offset bigint: the next offset to read\n"
        + "record_lag bigint: unread records; gaps and deleted records are none\n"
        + _AS_OF,
    ),
    _table(
        "time_lag",
        "snapshot",
        "How long the first unread record has been waiting.",
        PLACE_COLUMNS
        + """
        committed_offset bigint: the next offset to read
        first_unread_offset bigint: null when all is read
        first_unread_ts timestamp: its timestamp
        lag_ms bigint: as_of_ts minus that, never negative; 0 when all is read
        """
        + _AS_OF,
    ),
    _table(
        "commit_rate",
        "sums",
        "Commits per group and minute; minutes without one have no row.",
        """
        group string: the consumer group
        minute timestamp: beginning of the minute, by commit time
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
        member_id string: of records on one member
        data string: key and value as JSON
        tombstone boolean: the value is null
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC), which the stored table is partitioned by",
    ),
    _table(
        "group_generations",
        "history",
        "Every recorded state of a group, with who joined and left since the one before.",
        """
        group string: the consumer group
        group_type string: classic, consumer (KIP-848), share (KIP-932) or streams (KIP-1071)
        generation int: generation of a classic group, epoch of the others
        protocol_type string: `consumer`, `connect` ...; empty for a group that only commits
        protocol string: the assignor
        leader string: member id of the leader
        at_ts timestamp: when the group came into this state
        member_count int: how many members
        member_ids array<string>: who
        joined int: members that the state before did not have
        left int: members of the state before that are gone
        tombstone boolean: the group was removed
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC), which the stored table is partitioned by",
    ),
    _table(
        "rebalances",
        "history",
        "One row per new generation of a group.",
        """
        group string: the consumer group
        group_type string: as in group_generations
        kind string: formed (there were no members), rebalanced, or emptied (none are left)
        generation int: the new one
        previous_generation int: null for the first on record
        protocol string: the assignor
        member_count int: members now
        joined int: members that came
        left int: members that went
        at_ts timestamp: when the generation began
        previous_lasted_ms bigint: how long the state before it had lasted
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC), which the stored table is partitioned by",
    ),
    _table(
        "members",
        "current",
        "Everyone who was ever a member, as last recorded.",
        """
        group string: the consumer group
        member_id string: the coordinator's name for it
        group_type string: as in group_generations
        """
        + _MEMBER
        + """
        generation int: the last that it was in
        active boolean: it is in the group's newest state
        first_seen_ts timestamp: time of the first state that lists it
        last_seen_ts timestamp: time of the last state that lists it
        """,
    ),
    _table(
        "partition_status",
        "snapshot",
        "Burrow's verdict on every committed partition, with what it rests on.",
        PLACE_COLUMNS
        + """
        status string: OK, WARNING, STOPPED, STALLED, REWIND, AHEAD or LOST
        committed_offset bigint: the next offset to read
        record_lag bigint: unread records
        lost_records bigint: records deleted before they were read, at most; null where that is not known
        lag_ms bigint: how long the first of them has been waiting
        commits bigint: commits in the window
        complete double: those as a part of a full window
        first_commit_ts timestamp: the oldest in the window
        last_commit_ts timestamp: the newest
        """
        + _AS_OF,
    ),
    _table(
        "group_status",
        "snapshot",
        "One row per group: the status of its worst partition.",
        """
        group string: the consumer group
        status string: OK, WARNING, STOPPED, STALLED, REWIND, AHEAD or LOST
        """
        + "".join(f"partitions_{name.lower()} bigint: partitions that are {name}\n" for name in STATUSES)
        + """
        topics bigint: topics with committed offsets
        partitions bigint: partitions with committed offsets
        record_lag bigint: unread records of all
        lost_records bigint: records deleted before they were read, of all
        time_lag_ms bigint: the longest wait of any
        worst_topic string: the partition that the status is of
        worst_partition int: the partition that the status is of
        complete double: the least complete window
        last_commit_ts timestamp: the newest commit
        commit_age_ms bigint: how long ago
        member_count int: members in the newest state
        generation int: of the newest state
        protocol_type string: of the newest state
        protocol string: of the newest state
        """
        + _AS_OF,
    ),
    _table(
        "stale_groups",
        "snapshot",
        "Groups without members that have not committed for `stale_ms`.",
        """
        group string: the consumer group
        idle_ms bigint: since the last commit, or the last state when there is none
        last_commit_ts timestamp: null when it holds no offset
        topics bigint: topics with committed offsets
        partitions bigint: partitions with committed offsets
        generation int: of the last state; null when it never had one
        protocol_type string: of the last state
        """
        + _AS_OF,
    ),
    _table(
        "expiring_offsets",
        "snapshot",
        "Offsets that the coordinator removes within `expiring_ms`, by Kafka's rules.",
        PLACE_COLUMNS
        + """
        committed_offset bigint: what will be forgotten
        commit_ts timestamp: when it was committed
        expires_ts timestamp: when it may be removed
        expires_in_ms bigint: until then; negative when it is due
        """
        + _AS_OF,
    ),
    _table(
        "topic_consumers",
        "current",
        "Which group reads which topic, and who its active members are.",
        """
        topic string: the topic
        group string: the consumer group
        committed_partitions bigint: partitions with a committed offset
        assigned_partitions bigint: partitions that active members are assigned
        members bigint: active members that are assigned or subscribed to the topic
        client_ids array<string>: theirs, sorted
        client_hosts array<string>: theirs, sorted
        last_commit_ts timestamp: the newest commit on the topic
        """,
    ),
    _table(
        "anomalies",
        "history",
        "What is odd about a commit.",
        PLACE_COLUMNS
        + """
        kind string: rewind, gap, lost_records, past_end or unknown_partition
        committed_offset bigint: what was committed
        previous_offset bigint: the commit before
        interval_ms bigint: time since the commit before
        usual_interval_ms bigint: the median of up to ten intervals before; null below three
        end_offset bigint: the partition's log end when looked at; null when it does not exist
        lost_records bigint: records deleted before they were read, at most; null where that is not known
        commit_ms bigint: time of the commit, ms
        commit_ts timestamp: the same
        """
        + SOURCE_COLUMNS
        + "src_date date: day of src_ts (UTC), which the stored table is partitioned by",
    ),
    _table(
        "quarantine",
        "history",
        "Every record that can't be read.",
        """
        key binary: as it is
        value binary: as it is
        """
        + SOURCE_COLUMNS
        + """
        reason string: no key, damaged, or a version from the future
        src_date date: day of src_ts (UTC), which the stored table is partitioned by
        """,
    ),
)
TABLES: Final[Mapping[str, Table]] = {table.name: table for table in _ALL}
NEED_RECORDS: Final = frozenset({"record_lag", "time_lag", "partition_status", "group_status"})
"""The tables that count the topics' records."""
