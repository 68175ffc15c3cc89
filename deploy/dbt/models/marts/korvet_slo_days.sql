WITH worst AS (
  SELECT `group`, as_of_ts, max(lag_ms) AS lag_ms FROM {{ ref('stg_korvet__time_lag') }} GROUP BY `group`, as_of_ts
),
spans AS (
  -- The day in UTC, whatever the time zone of the session is.
  SELECT `group`, date_from_unix_date(CAST(floor(unix_millis(as_of_ts) / 86400000) AS INT)) AS day,
         lag_ms, least({{ var('korvet_sample_ms') }}, next_ms - unix_millis(as_of_ts)) AS span_ms
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
         sum(CASE WHEN lag_ms > {{ var('korvet_max_lag_ms') }} THEN span_ms ELSE 0 END) AS over_ms
  FROM spans
  GROUP BY `group`, day
)
SELECT *, 1 - try_divide(over_ms, measured_ms) AS attained, CAST({{ var('korvet_target') }} AS DOUBLE) AS target,
       CAST(round(measured_ms * (1 - {{ var('korvet_target') }})) AS BIGINT) AS budget_ms,
       CAST(round(measured_ms * (1 - {{ var('korvet_target') }})) AS BIGINT) - over_ms AS budget_left_ms
FROM days
