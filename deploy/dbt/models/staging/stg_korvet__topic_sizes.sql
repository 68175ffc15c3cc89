SELECT `topic`,
       `partition`,
       `start_offset`,
       `end_offset`,
       `entries`,
       `appended_entries`,
       `memory_bytes`,
       `as_of_ts`
FROM {{ source('korvet', 'topic_sizes') }}
