WITH samples AS (
  -- The day in UTC, whatever the time zone of the session is.
  SELECT topic, as_of_ts, date_from_unix_date(CAST(floor(unix_millis(as_of_ts) / 86400000) AS INT)) AS day,
         sum(entries) AS entries, sum(appended_entries) AS appended_in_all, sum(memory_bytes) AS memory_bytes
  FROM {{ ref('stg_korvet__topic_sizes') }}
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
