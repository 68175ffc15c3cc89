SELECT `group`,
       `topic`,
       `partition`,
       `committed_offset`,
       `record_lag`,
       `as_of_ts`
FROM {{ source('korvet', 'record_lag') }}
