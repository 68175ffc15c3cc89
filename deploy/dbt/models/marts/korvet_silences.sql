WITH commits AS (
  SELECT `group`, topic, `partition`, tombstone, coalesce(commit_ts, src_ts) AS since_ts,
         lead(coalesce(commit_ts, src_ts)) OVER (
             PARTITION BY `group`, topic, `partition` ORDER BY src_offset) AS until_ts
  FROM {{ ref('stg_korvet__offset_commits') }}
),
newest AS (SELECT max(as_of_ts) AS now_ts FROM {{ ref('stg_korvet__time_lag') }}),
silences AS (
  SELECT `group`, topic, `partition`, since_ts, until_ts, coalesce(until_ts, now_ts) AS end_ts,
         unix_millis(coalesce(until_ts, now_ts)) - unix_millis(since_ts) AS silent_ms
  FROM commits CROSS JOIN newest
  WHERE NOT tombstone
),
lags AS (
  SELECT time_lag.`group`, time_lag.topic, time_lag.`partition`, time_lag.as_of_ts, lag_ms, record_lag,
         least({{ var('korvet_sample_ms') }}, coalesce(unix_millis(lead(time_lag.as_of_ts) OVER (
             PARTITION BY time_lag.`group`, time_lag.topic, time_lag.`partition` ORDER BY time_lag.as_of_ts))
             - unix_millis(time_lag.as_of_ts), 0)) AS span_ms
  FROM {{ ref('stg_korvet__time_lag') }} AS time_lag JOIN {{ ref('stg_korvet__record_lag') }} AS record_lag
    ON time_lag.`group` = record_lag.`group` AND time_lag.topic = record_lag.topic
   AND time_lag.`partition` = record_lag.`partition` AND time_lag.as_of_ts = record_lag.as_of_ts
)
SELECT silences.`group`, silences.topic, silences.`partition`, since_ts, until_ts, silent_ms,
       max(record_lag) AS most_unread, max(lag_ms) AS longest_wait_ms,
       sum(record_lag * span_ms) / 3600000 AS unread_hours
FROM silences JOIN lags
  ON silences.`group` = lags.`group` AND silences.topic = lags.topic
 AND silences.`partition` = lags.`partition` AND lags.as_of_ts > since_ts AND lags.as_of_ts <= end_ts
WHERE silent_ms > {{ var('korvet_silence_ms') }}
GROUP BY silences.`group`, silences.topic, silences.`partition`, since_ts, until_ts, silent_ms
HAVING max(record_lag) > 0
