"""The columns of the answers to korvet.spark.tables.questions. Pure data, without Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from korvet.spark.tables.catalog import GROUP_PARTITION_COLUMNS, parse_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.spark.tables.catalog import Column


@dataclass(frozen=True, slots=True)
class Answer:
    """What a question asks, the columns of its answer, and those that identify a row."""

    name: str
    question: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]


_READS: Final = Answer(
    "reads",
    "Who read what when? One row for each move of a committed offset.",
    ("group", "src_offset"),
    parse_columns(
        GROUP_PARTITION_COLUMNS
        + """
        from_offset bigint: the offset committed before; null for the first commit
        to_offset bigint: the committed offset; below from_offset after a rewind
        after_ts timestamp: time of the commit before; null for the first one
        until_ts timestamp: time of the commit
        generation int: the group's generation then; null if no state is recorded
        member_count int: number of its members then
        clients array<struct<client_id:string,client_host:string>>: its members then
        src_offset bigint: position of the commit; a group's commits are in one partition
        """
    ),
)
_SLO_DAYS: Final = Answer(
    "slo_days",
    "Was the wait within the objective? One row for each group and day.",
    ("group", "day"),
    parse_columns(
        """
        group string: the consumer group
        day date: the day (UTC)
        samples bigint: snapshots of the lag
        worst_lag_ms bigint: the longest wait
        measured_ms bigint: time that the samples cover
        over_ms bigint: of it the time in which a partition waited longer than the objective allows
        attained double: the fraction of the measured time without such a wait
        target double: the fraction that the objective asks for
        budget_ms bigint: the time that the objective allows for such waits
        budget_left_ms bigint: what is left of it; negative if it is overdrawn
        """
    ),
)
_TOPIC_GROWTH: Final = Answer(
    "topic_growth",
    "How fast do topics grow? One row for each topic and day.",
    ("topic", "day"),
    parse_columns(
        """
        topic string: the topic
        day date: the day (UTC)
        days int: days since the previous row
        entries bigint: entries at the day's last sample
        memory_bytes bigint: memory then, as Redis estimates it
        appended_entries bigint: entries added since the previous row
        growth_bytes bigint: change of the memory since the previous row
        """
    ),
)
_SILENCES: Final = Answer(
    "silences",
    "What did a consumer's silence cost? One row for each long time without a commit, with unread records.",
    ("group", "topic", "partition", "since_ts"),
    parse_columns(
        GROUP_PARTITION_COLUMNS
        + """
        since_ts timestamp: the commit before the silence
        until_ts timestamp: the commit after it; null if it lasts
        silent_ms bigint: how long it lasted so far
        most_unread bigint: the largest number of unread records
        longest_wait_ms bigint: the longest wait of a record
        unread_hours double: unread records times the hours that they waited
        """
    ),
)
ANSWERS: Final[Mapping[str, Answer]] = {
    answer.name: answer for answer in (_READS, _SLO_DAYS, _TOPIC_GROWTH, _SILENCES)
}
