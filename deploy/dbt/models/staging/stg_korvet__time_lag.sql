SELECT `group`,
       `topic`,
       `partition`,
       `committed_offset`,
       `first_unread_offset`,
       `first_unread_ts`,
       `lag_ms`,
       `as_of_ts`
FROM {{ source('korvet', 'time_lag') }}
