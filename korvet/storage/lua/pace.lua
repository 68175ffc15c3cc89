-- A rate that several clients share.

-- KEYS: string, the time up to which the rate is used, and the time of the last call (us).
-- ARGV: number of records, records per second.
-- Reserves time for the records.  Returns the ms after which they may be sent.  Unused time isn't made up for.
local function pace(keys, args)
  local records, rate = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 1 or #args ~= 2 or not (records and rate and records >= 1 and rate > 0) then
    return redis.error_reply('ERR korvet_pace: 1 key, then number of records, records per second')
  end
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  local used, seen = string.match(redis.call('GET', keys[1]) or '', '^(%d+) ?(%d*)$')
  -- If the clock was set back, the used time moves back by as much.
  local used_us = (tonumber(used) or 0) - math.max(0, (tonumber(seen) or 0) - now_us)
  local begin_us = math.max(now_us, used_us)
  local end_us = begin_us + records * 1000000 / rate
  local kept_ms = math.max(1, math.ceil((end_us - now_us) / 1000))
  redis.call('SET', keys[1], integer(end_us) .. ' ' .. integer(now_us), 'PX', integer(kept_ms))
  return math.ceil((begin_us - now_us) / 1000)
end

redis.register_function('korvet_pace', pace)
