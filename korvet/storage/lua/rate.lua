-- How fast a partition grows.

-- KEYS: stream, index, meta.  ARGV: bias, a time (ms, Redis's clock).
-- Counts what was appended since that time, by the append times of the index's points; entries count with the average
-- size of those in the log.  Reads O(log n) points, and leaves out what the index does not cover yet.
-- Returns {bytes appended since, time from which on they are counted (ms: the given time, or that of the first entry
-- if that is later), bytes in the log}.
local function rate(keys, args)
  local bias, from_ms = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and from_ms) then
    return redis.error_reply('ERR korvet_rate: malformed arguments')
  end
  local log = load_log(keys[1], keys[2], keys[3], bias)
  local points = redis.call('ZCARD', log.index)
  if points == 0 or log.live_entries == 0 then
    return { 0, from_ms, 0 }
  end
  local rank = first_that(0, points, function(candidate)
    return point_at(log, candidate).append_ms >= from_ms
  end)
  if rank == points then
    return { 0, from_ms, log.live_bytes }
  end
  local point = point_at(log, rank)
  local entries = log.entries_before - point.entries_before
  local since_ms = rank == 0 and point.append_ms or from_ms
  return { entries * log.live_bytes / log.live_entries, since_ms, log.live_bytes }
end

redis.register_function({ function_name = 'korvet_rate' .. RELEASE, callback = rate, flags = { 'no-writes' } })
