-- Questions about one partition.  None of these functions writes.

local function point_at(log, rank)
  return decode_point(redis.call('ZRANGE', log.index, rank, rank)[1])
end

-- KEYS: stream, index, meta.  ARGV: bias, from offset, to offset.
-- Returns {"ok", number of records in [from, to)}, or {"fold"} / {"recount"}: call that first.
local function count(keys, args)
  local bias, first, last = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  if #keys ~= 3 or not (bias and first and last) then
    return redis.error_reply('ERR korvet_count: malformed arguments')
  end
  local log, reply = open_indexed(keys[1], keys[2], keys[3], bias)
  if not log then
    return reply
  end
  if last <= first then
    return { 'ok', 0 }
  end
  local from = counted_from(log, current_start(log, current_end(log)))
  return { 'ok', records_before(log, math.max(last + bias, from)) - records_before(log, math.max(first + bias, from)) }
end

-- Returns the rank of the point to look for a timestamp from: the last one before which all records are older (0 if
-- there is none), or the last one at or before an offset.
local function first_rank(log, points, time_ms, offset)
  local rank, high = 0, points - 1
  while rank < high do
    local middle = math.ceil((rank + high) / 2)
    local largest_ms = point_at(log, middle).largest_before_ms
    if largest_ms == nil or largest_ms < time_ms then
      rank = middle
    else
      high = middle - 1
    end
  end
  local floor = floor_point(log, offset + log.bias)
  return floor and math.max(rank, redis.call('ZRANK', log.index, floor.member)) or rank
end

-- A timestamp and an entry's ms are rounded to 1,024 at most, and so is their sum.
local ROUNDING = 2048

-- KEYS: stream, index, meta.  ARGV: bias, timestamp (ms), offset to look from, points to look at at most.
-- Finds the first span that may hold a record with that timestamp or a later one.  Those of the index are doubles, so
-- far from 1970 it looks for earlier ones, too.
-- Returns {"ok", offset at which the span begins, offset at which the next span begins or -1, log start}, {"none"},
-- {"more", offset to continue from}, or {"fold"}: call that first.
local function find_time(keys, args)
  local bias, time_ms = tonumber(args[1]), tonumber(args[2])
  local from, budget = tonumber(args[3]), tonumber(args[4])
  if #keys ~= 3 or not (bias and time_ms and from and budget) then
    return redis.error_reply('ERR korvet_find_time: malformed arguments')
  end
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  if not log then
    return fault
  end
  if log.indexed_id ~= log.info.last_id then
    return { 'fold' }
  end
  local points = redis.call('ZCARD', log.index)
  if points == 0 then
    return { 'none' }
  end
  if math.abs(time_ms) > EXACT_MS then
    time_ms = time_ms - ROUNDING
  end
  local log_start = current_start(log, current_end(log))
  local rank = first_rank(log, points, time_ms, math.max(from, log_start))
  local members = redis.call('ZRANGE', log.index, rank, rank + budget)
  for at = 2, #members do
    local point = decode_point(members[at])
    if point.largest_in_span_ms and point.largest_in_span_ms >= time_ms then
      return { 'ok', decode_point(members[at - 1]).position - bias, point.position - bias, log_start }
    end
  end
  local last = decode_point(members[#members])
  if rank + #members < points then
    return { 'more', last.position - bias }
  end
  if log.largest_in_span_ms and log.largest_in_span_ms >= time_ms then
    return { 'ok', last.position - bias, -1, log_start }
  end
  return { 'none' }
end

-- Returns the largest timestamp of the log, or nil.
local function largest_timestamp(log)
  local in_span, before = log.largest_in_span_ms, log.largest_before_ms
  if before and (in_span == nil or before > in_span) then
    return before
  end
  return in_span
end

-- KEYS: stream, index, meta.  ARGV: bias.
-- Returns {log start, log end, entries, bytes, size of the largest entry (bytes), epoch or "", largest timestamp or
-- "", last ID, index incomplete (1: korvet_fold is due), offset after the newest entry that was deleted with XDEL or
-- 0, last stable offset}.
local function bounds(keys, args)
  local bias = tonumber(args[1])
  if #keys ~= 3 or not bias then
    return redis.error_reply('ERR korvet_bounds: malformed arguments')
  end
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  if not log then
    return fault
  end
  local info, log_end, largest_ms = log.info, current_end(log), largest_timestamp(log)
  local log_start = current_start(log, log_end)
  return {
    log_start,
    log_end,
    info.length,
    log.live_bytes,
    log.largest_entry_bytes,
    log.epoch or '',
    largest_ms and integer(largest_ms) or '',
    info.last_id,
    log.indexed_id == info.last_id and 0 or 1,
    math.max(0, position_after(info.deleted_id) - bias),
    math.max(last_stable_offset(log.open, log_end), log_start),
  }
end

-- KEYS: index.  ARGV: offset, bytes.
-- Returns the offset of the index point at which a reader of about `bytes` from `offset` on should stop;
-- -1 if the offset is at or after the last point.
local function reading_limit(keys, args)
  local offset, bytes = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 1 or not (offset and bytes) then
    return redis.error_reply('ERR korvet_reading_limit: malformed arguments')
  end
  local points = redis.call('ZRANGEBYSCORE', keys[1], '(' .. args[1], '+inf', 'WITHSCORES', 'LIMIT', 0, 64)
  local limit, size = -1, 0
  for at = 1, #points, 2 do
    size = size + decode_point(points[at]).span_bytes
    if limit >= 0 and size > bytes then
      break
    end
    limit = tonumber(points[at + 1])
  end
  return limit
end

-- Returns the smallest number in [low, high] for which `test` holds.  `test` holds for all numbers from some one on;
-- `high` if it holds for none before.
local function first_that(low, high, test)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if test(middle) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- KEYS: stream, index, meta.  ARGV: bias, bytes.
-- Returns {"ok", the first offset from which on the records have at most `bytes`, if all records had the average
-- size}, or {"fold"} / {"recount"}: call that first.
local function before_bytes(keys, args)
  local bias, bytes = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and bytes) then
    return redis.error_reply('ERR korvet_before_bytes: malformed arguments')
  end
  local log, reply = open_indexed(keys[1], keys[2], keys[3], bias)
  if not log then
    return reply
  end
  local oldest = redis.call('ZRANGE', log.index, 0, 0)[1]
  if not oldest or log.live_bytes <= bytes then
    return { 'ok', 0 }
  end
  local live_records = log.records_before - decode_point(oldest).records_before
  local wanted = log.records_before - live_records * bytes / log.live_bytes
  local rank = first_that(0, redis.call('ZCARD', log.index), function(candidate)
    return point_at(log, candidate).records_before >= wanted
  end)
  -- The position is after the point before this rank, and not after the point of this rank.
  local around = redis.call('ZRANGE', log.index, rank - 1, rank)
  local high = around[2] and decode_point(around[2]).position or position_after(log.indexed_id)
  local position = first_that(decode_point(around[1]).position + 1, high, function(candidate)
    return records_before(log, candidate) >= wanted
  end)
  return { 'ok', position - bias }
end

local READS = { 'no-writes' }
redis.register_function({ function_name = 'korvet_count' .. RELEASE, callback = count, flags = READS })
redis.register_function({ function_name = 'korvet_find_time' .. RELEASE, callback = find_time, flags = READS })
redis.register_function({ function_name = 'korvet_bounds' .. RELEASE, callback = bounds, flags = READS })
redis.register_function({ function_name = 'korvet_before_bytes' .. RELEASE, callback = before_bytes, flags = READS })
redis.register_function({ function_name = 'korvet_reading_limit' .. RELEASE, callback = reading_limit, flags = READS })
