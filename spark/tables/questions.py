"""Questions to the stored history as SQL views: who read what when, service levels, growth, silences.

Each view is one SELECT in Spark's SQL over the tables of korvet.spark.tables.catalog, so it can be copied
into another tool that has these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


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
  -- It is unknown how long the newest sample holds.
  WHERE next_ms IS NOT NULL
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
       CAST(round(measured_ms * (1 - ${target})) AS BIGINT) - over_ms AS budget_left_ms
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
