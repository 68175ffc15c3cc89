WITH events AS (
  SELECT `group`, src_offset, topic, `partition`, committed_offset, commit_ts, tombstone,
         CAST(NULL AS STRUCT<generation: INT, member_count: INT, member_ids: ARRAY<STRING>>) AS state
  FROM {{ ref('stg_korvet__offset_commits') }}
  UNION ALL
  SELECT `group`, src_offset, NULL, NULL, NULL, NULL, NULL,
         named_struct('generation', generation, 'member_count', member_count, 'member_ids', member_ids)
  FROM {{ ref('stg_korvet__group_generations') }}
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
  FROM {{ ref('stg_korvet__members') }}
  GROUP BY `group`
)
SELECT moves.`group`, topic, `partition`, from_offset, committed_offset AS to_offset, after_ts,
       commit_ts AS until_ts, known.generation, known.member_count,
       array_compact(transform(known.member_ids, member -> by_member[member])) AS clients, src_offset
FROM moves LEFT JOIN clients ON moves.`group` = clients.`group`
WHERE NOT tombstone AND (from_offset IS NULL OR from_offset <> committed_offset)
