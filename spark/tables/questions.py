"""Questions to the stored history as SQL views: who read what when, service levels, growth, silences.

Each view is one SELECT in Spark's SQL over the tables of korvet.spark.tables.catalog, so it can be copied
into another tool that has these tables.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Objectives:
    """The numbers in the views.

    A group meets its objective while no partition waits longer than max_lag_ms, in at least `target` of the
    time. A sample of lag holds until the next one, but no longer than sample_ms. A partition without a commit
    for silence_ms is silent.
    """

    max_lag_ms: int = 300_000
    target: float = 0.99
    sample_ms: int = 3_600_000
    silence_ms: int = 600_000

    def __post_init__(self) -> None:
        """Raises ValueError for a number outside its range."""
        if not 0 < self.target < 1:
            raise ValueError(f"target must be between 0 and 1, not {self.target}")
        for name in ("max_lag_ms", "sample_ms", "silence_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


_TABLE: Final = re.compile(r"\$\{prefix\}(\w+)")

# All records of a group are in one partition of `__consumer_offsets`, so offsets order commits and states.
_READS: Final = """
WITH events AS (
  SELECT `group`, src_offset, topic, `partition`, committed_offset, commit_ts, tombstone,
         CAST(NULL AS STRUCT<generation: INT, member_count: INT, member_ids: ARRAY<STRING>>) AS state
  FROM ${prefix}offset_commits
  UNION ALL
  SELECT `group`, src_offset, NULL, NULL, NULL, NULL, NULL,
         named_struct('generation', generation, 'member_count', member_count, 'member_ids', member_ids)
  FROM ${prefix}group_generations
),
placed AS (
  SELECT *, last_value(state) IGNORE NULLS OVER (
      PARTITION BY `group` ORDER BY src_offset ROWS UNBOUNDED PRECEDING) AS known
  FROM events
),
moves AS (
  SELECT *, lag(committed_offset) OVER commits AS from_offset, lag(commit_ts) OVER commits AS after_ts
  FROM placed
  WHERE topic IS NOT NULL
  WINDOW commits AS (PARTITION BY `group`, topic, `partition` ORDER BY src_offset)
),
clients AS (
  SELECT `group`, map_from_entries(collect_list(struct(
      member_id, named_struct('client_id', client_id, 'client_host', client_host)))) AS by_member
  FROM ${prefix}members
  GROUP BY `group`
)
SELECT moves.`group`, topic, `partition`, from_offset, committed_offset AS to_offset, after_ts,
       commit_ts AS until_ts, known.generation, known.member_count,
       array_compact(transform(known.member_ids, member -> by_member[member])) AS clients, src_offset
FROM moves LEFT JOIN clients ON moves.`group` = clients.`group`
WHERE NOT tombstone AND (from_offset IS NULL OR from_offset <> committed_offset)
"""
# A group has the owners of its newest state. States in a row that give a partition to the same member are one
# time: their numbers differ from the count of the member's states by the same amount.
_OWNERS: Final = """
WITH states AS (
  SELECT `group`, src_offset, at_ts, generation, group_type, owners,
         row_number() OVER in_order AS state_no, lead(at_ts) OVER in_order AS next_ts
  FROM ${prefix}group_generations
  WINDOW in_order AS (PARTITION BY `group` ORDER BY src_offset)
),
named AS (
  SELECT translate(base64(topic_id), '+/=', '-_') AS id, max(topic) AS name
  FROM ${prefix}offset_commits
  WHERE topic_id IS NOT NULL
  GROUP BY topic_id
),
assigned AS (
  SELECT `group`, state_no, at_ts, next_ts, generation, group_type, inline(owners) FROM states
),
had AS (
  SELECT DISTINCT `group`, state_no, at_ts, next_ts, generation, member_id, client_id, client_host,
         coalesce(name, topic) AS topic, explode(partitions) AS `partition`
  FROM assigned LEFT JOIN named ON topic = id AND group_type <> 'classic'
),
events AS (
  SELECT `group`, src_offset, topic, `partition`, committed_offset, src_ts, tombstone,
         CAST(NULL AS INT) AS state_no
  FROM ${prefix}offset_commits
  UNION ALL
  SELECT `group`, src_offset, NULL, NULL, NULL, NULL, NULL, state_no FROM states
),
placed AS (
  SELECT `group`, src_offset, topic, `partition`, committed_offset, src_ts, tombstone,
         max(state_no) OVER (PARTITION BY `group` ORDER BY src_offset ROWS UNBOUNDED PRECEDING) AS state_no
  FROM events
),
moves AS (
  SELECT *, lag(committed_offset) OVER (
      PARTITION BY `group`, topic, `partition` ORDER BY src_offset) AS before_offset
  FROM placed
  WHERE topic IS NOT NULL
),
committed AS (
  SELECT `group`, topic, `partition`, state_no, count(*) AS commits, max(src_offset) AS src_offset,
         min_by(before_offset, src_offset) AS from_offset, max_by(committed_offset, src_offset) AS to_offset,
         max_by(src_ts, src_offset) AS commit_ts
  FROM moves
  WHERE NOT tombstone AND state_no IS NOT NULL
  GROUP BY `group`, topic, `partition`, state_no
),
joined AS (
  SELECT had.*, commits, src_offset, from_offset, to_offset, commit_ts,
         had.state_no - row_number() OVER (
             PARTITION BY had.`group`, had.topic, had.`partition`, member_id ORDER BY had.state_no) AS life
  FROM had LEFT JOIN committed
    ON had.`group` = committed.`group` AND had.topic = committed.topic
   AND had.`partition` = committed.`partition` AND had.state_no = committed.state_no
)
SELECT `group`, topic, `partition`, member_id, max_by(client_id, state_no) AS client_id,
       max_by(client_host, state_no) AS client_host, min_by(at_ts, state_no) AS from_ts,
       max_by(next_ts, state_no) AS until_ts, min_by(generation, state_no) AS generation,
       max_by(generation, state_no) AS last_generation, coalesce(sum(commits), 0) AS commits,
       min_by(from_offset, src_offset) AS from_offset, max_by(to_offset, src_offset) AS to_offset,
       max_by(commit_ts, src_offset) AS last_commit_ts
FROM joined
GROUP BY `group`, topic, `partition`, member_id, life
"""
# When a rebalance begins, nothing is recorded. Members commit until then, and the coordinator records the
# assignment when all have joined and the leader has sent it. at_ts is the time of the last join.
_REBALANCE_COSTS: Final = """
WITH events AS (
  SELECT `group`, src_offset, src_ts, CAST(NULL AS STRING) AS group_type, CAST(NULL AS STRING) AS kind,
         CAST(NULL AS INT) AS generation, CAST(NULL AS INT) AS previous_generation,
         CAST(NULL AS STRING) AS protocol, CAST(NULL AS INT) AS member_count, CAST(NULL AS INT) AS joined,
         CAST(NULL AS INT) AS `left`, CAST(NULL AS TIMESTAMP) AS at_ts,
         CAST(NULL AS BIGINT) AS previous_lasted_ms
  FROM ${prefix}offset_commits
  WHERE NOT tombstone
  UNION ALL
  SELECT `group`, src_offset, src_ts, group_type, kind, generation, previous_generation, protocol,
         member_count, joined, `left`, at_ts, previous_lasted_ms
  FROM ${prefix}rebalances
),
placed AS (
  SELECT *,
         last_value(CASE WHEN kind IS NULL THEN struct(src_offset, src_ts) END) IGNORE NULLS OVER before
             AS newest_commit,
         last_value(CASE WHEN kind IS NOT NULL THEN struct(src_offset, src_ts, kind) END) IGNORE NULLS
             OVER before AS previous
  FROM events
  WINDOW before AS (PARTITION BY `group` ORDER BY src_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
),
kinds AS (
  SELECT *, kind = 'formed' AND previous_generation IS NOT NULL AND previous.kind = 'emptied' AS was_empty,
         kind = 'rebalanced' AND group_type = 'classic' AS was_shared
  FROM placed
  WHERE kind IS NOT NULL
),
bounds AS (
  SELECT *,
         CASE WHEN was_empty THEN previous.src_ts
              WHEN was_shared AND newest_commit.src_offset > previous.src_offset THEN newest_commit.src_ts
              END AS since_ts,
         CASE WHEN was_empty THEN previous.src_ts
              WHEN was_shared AND protocol LIKE '%cooperative%' THEN src_ts
              WHEN was_shared THEN at_ts END AS surely_since_ts
  FROM kinds
)
SELECT `group`, group_type, kind, generation, protocol, member_count, joined, `left`, at_ts,
       previous_lasted_ms,
       CASE WHEN surely_since_ts IS NOT NULL
            THEN greatest(0, unix_millis(src_ts) - unix_millis(surely_since_ts)) END AS unowned_at_least_ms,
       CASE WHEN since_ts IS NOT NULL
            THEN greatest(0, unix_millis(src_ts) - unix_millis(since_ts)) END AS unowned_at_most_ms,
       src_offset
FROM bounds
"""
_SLO_DAYS: Final = """
WITH worst AS (
  SELECT `group`, as_of_ts, max(lag_ms) AS lag_ms FROM ${prefix}time_lag GROUP BY `group`, as_of_ts
),
spans AS (
  -- The day in UTC, whatever the time zone of the session is.
  SELECT `group`, date_from_unix_date(CAST(floor(unix_millis(as_of_ts) / 86400000) AS INT)) AS day,
         lag_ms, least(${sample_ms}, next_ms - unix_millis(as_of_ts)) AS span_ms
  FROM (
    SELECT *, unix_millis(lead(as_of_ts) OVER (PARTITION BY `group` ORDER BY as_of_ts)) AS next_ms
    FROM worst
  ) AS samples
  -- It is unknown how long the newest sample holds. Without a wait, nothing is measured.
  WHERE next_ms IS NOT NULL AND lag_ms IS NOT NULL
),
days AS (
  SELECT `group`, day, count(*) AS samples, max(lag_ms) AS worst_lag_ms,
         sum(span_ms) AS measured_ms,
         sum(CASE WHEN lag_ms > ${max_lag_ms} THEN span_ms ELSE 0 END) AS over_ms
  FROM spans
  GROUP BY `group`, day
)
SELECT *, 1 - try_divide(over_ms, measured_ms) AS attained, CAST(${target} AS DOUBLE) AS target,
       CAST(round(measured_ms * (1 - ${target})) AS BIGINT) AS budget_ms,
       CAST(round(measured_ms * (1 - ${target})) AS BIGINT) - over_ms AS budget_left_ms,
       measured_ms / 86400000 AS complete
FROM days
"""
_TOPIC_GROWTH: Final = """
WITH samples AS (
  -- The day in UTC, whatever the time zone of the session is.
  SELECT topic, as_of_ts, date_from_unix_date(CAST(floor(unix_millis(as_of_ts) / 86400000) AS INT)) AS day,
         sum(entries) AS entries, sum(appended_entries) AS appended_in_all, sum(memory_bytes) AS memory_bytes
  FROM ${prefix}topic_sizes
  GROUP BY topic, as_of_ts
),
days AS (
  SELECT topic, day, max_by(entries, as_of_ts) AS entries,
         max_by(appended_in_all, as_of_ts) AS appended_in_all, max_by(memory_bytes, as_of_ts) AS memory_bytes
  FROM samples
  GROUP BY topic, day
)
SELECT topic, day, datediff(day, lag(day) OVER before) AS days, entries, memory_bytes,
       CASE WHEN appended_in_all >= lag(appended_in_all) OVER before
            THEN appended_in_all - lag(appended_in_all) OVER before
            WHEN lag(appended_in_all) OVER before IS NOT NULL THEN appended_in_all END AS appended_entries,
       memory_bytes - lag(memory_bytes) OVER before AS growth_bytes
FROM days
WINDOW before AS (PARTITION BY topic ORDER BY day)
"""
_SILENCES: Final = """
WITH commits AS (
  SELECT `group`, topic, `partition`, tombstone, coalesce(commit_ts, src_ts) AS since_ts,
         lead(coalesce(commit_ts, src_ts)) OVER (
             PARTITION BY `group`, topic, `partition` ORDER BY src_offset) AS until_ts
  FROM ${prefix}offset_commits
),
newest AS (SELECT max(as_of_ts) AS now_ts FROM ${prefix}time_lag),
silences AS (
  SELECT `group`, topic, `partition`, since_ts, until_ts, coalesce(until_ts, now_ts) AS end_ts,
         unix_millis(coalesce(until_ts, now_ts)) - unix_millis(since_ts) AS silent_ms
  FROM commits CROSS JOIN newest
  WHERE NOT tombstone
),
lags AS (
  SELECT time_lag.`group`, time_lag.topic, time_lag.`partition`, time_lag.as_of_ts, lag_ms, record_lag,
         least(${sample_ms}, coalesce(unix_millis(lead(time_lag.as_of_ts) OVER (
             PARTITION BY time_lag.`group`, time_lag.topic, time_lag.`partition` ORDER BY time_lag.as_of_ts))
             - unix_millis(time_lag.as_of_ts), 0)) AS span_ms
  FROM ${prefix}time_lag AS time_lag JOIN ${prefix}record_lag AS record_lag
    ON time_lag.`group` = record_lag.`group` AND time_lag.topic = record_lag.topic
   AND time_lag.`partition` = record_lag.`partition` AND time_lag.as_of_ts = record_lag.as_of_ts
)
SELECT silences.`group`, silences.topic, silences.`partition`, since_ts, until_ts, silent_ms,
       max(record_lag) AS most_unread, max(lag_ms) AS longest_wait_ms,
       sum(record_lag * span_ms) / 3600000 AS unread_hours
FROM silences JOIN lags
  ON silences.`group` = lags.`group` AND silences.topic = lags.topic
 AND silences.`partition` = lags.`partition` AND lags.as_of_ts > since_ts AND lags.as_of_ts <= end_ts
WHERE silent_ms > ${silence_ms}
GROUP BY silences.`group`, silences.topic, silences.`partition`, since_ts, until_ts, silent_ms
HAVING max(record_lag) > 0
"""
QUESTIONS: Final[Mapping[str, str]] = {
    "reads": _READS,
    "owners": _OWNERS,
    "rebalance_costs": _REBALANCE_COSTS,
    "slo_days": _SLO_DAYS,
    "topic_growth": _TOPIC_GROWTH,
    "silences": _SILENCES,
}
"""The SELECT of each view, with placeholders for the prefix of the tables and the objectives."""


def question_sql(name: str, prefix: str = "", objectives: Objectives | None = None) -> str:
    """Return the SELECT of a view over tables named prefix + name. Raises KeyError for an unknown view."""
    numbers = objectives or Objectives()
    return (
        Template(QUESTIONS[name])
        .substitute(
            prefix=prefix,
            max_lag_ms=numbers.max_lag_ms,
            target=numbers.target,
            sample_ms=numbers.sample_ms,
            silence_ms=numbers.silence_ms,
        )
        .strip()
    )


def answer(name: str, table: Callable[[str], DataFrame], objectives: Objectives | None = None) -> DataFrame:
    """Return the answer to a question over tables that `table` returns by their names.

    Creates temporary views with names of its own. Raises KeyError for an unknown question.
    """
    prefix = f"asked_{uuid.uuid4().hex}_"
    frames = {needed: table(needed) for needed in sorted(set(_TABLE.findall(QUESTIONS[name])))}
    for needed, frame in frames.items():
        frame.createOrReplaceTempView(prefix + needed)
    spark = next(iter(frames.values())).sparkSession
    return spark.sql(question_sql(name, prefix, objectives))
