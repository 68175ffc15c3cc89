-- How fast a partition grows, and how old it is; and the cutoffs of log.retention.memory.ratio.

-- KEYS: stream, index, meta.  ARGV: bias, a time (ms, Redis's clock).
-- Counts what was appended since that time, by the append times of the index's points; entries count with the average
-- size of those in the log.  Reads O(log n) points, and leaves out what the index does not cover yet.
-- Returns {bytes appended since, time from which on they are counted (ms: the given time, or that of the first entry
-- if that is later), bytes in the log, time of the newest record in the first span (ms; -1 without one)}.
local function rate(keys, args)
  local bias, from_ms = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and from_ms) then
    return redis.error_reply('ERR korvet_rate: malformed arguments')
  end
  local log = load_log(keys[1], keys[2], keys[3], bias)
  local points = redis.call('ZCARD', log.index)
  if points == 0 or log.live_entries == 0 then
    return { 0, from_ms, 0, -1 }
  end
  local rank = first_that(0, points, function(candidate)
    return point_at(log, candidate).append_ms >= from_ms
  end)
  local first, second = point_at(log, 0), points > 1 and point_at(log, 1)
  local after, span = log.log_end + bias, log
  if second then
    after, span = second.position, second
  end
  local oldest_ms = newest_time(log, first.position, after, span.largest_in_span_ms, first.append_ms)
  if rank == points then
    return { 0, from_ms, log.live_bytes, oldest_ms }
  end
  local point = point_at(log, rank)
  local entries = log.entries_before - point.entries_before
  local since_ms = rank == 0 and point.append_ms or from_ms
  return { entries * log.live_bytes / log.live_entries, since_ms, log.live_bytes, oldest_ms }
end

-- KEYS: the hash of the cluster.  ARGV: the cutoffs, "" for none.  They free memory, so they are noted without any.  A
-- keyspace that was lost stays empty.
local function note_cutoffs(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    return 0
  elseif args[1] == '' then
    return redis.call('HDEL', keys[1], 'cutoffs')
  end
  return redis.call('HSET', keys[1], 'cutoffs', args[1])
end

redis.register_function({ function_name = 'korvet_rate' .. RELEASE, callback = rate, flags = { 'no-writes' } })
redis.register_function({
  function_name = 'korvet_note_cutoffs' .. RELEASE, callback = note_cutoffs, flags = FREES_MEMORY,
})
