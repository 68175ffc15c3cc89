-- Questions about one partition.  None of these writes.

-- Records before a position, those included that are gone; the index is complete and correct.
local function records_before(stream, index, bias, state, position)
  if position >= position_after(state.last) then
    return state.before
  end
  local floor = floor_point(index, bias, position)
  if not floor then
    local first = redis.call('ZRANGE', index, 0, 0)[1]
    return first and decode_point(first).before or state.before
  end
  if floor.position == position then
    return floor.before
  end
  local id = id_of(position)
  local _, _, records = measure(stream, bias, id_of(floor.position), '(' .. id)
  if state.entries ~= state.before then
    -- The first records of a batch that goes on behind the position.
    local next_entry = redis.call('XRANGE', stream, id, '+', 'COUNT', 1)[1]
    local start = next_entry and start_of(next_entry[1], next_entry[2], bias) or position
    records = records + math.max(0, position - start)
  end
  return floor.before + records
end

-- KEYS: stream, index, meta.  ARGV: bias, from offset, to offset.
-- Returns {"ok", number of records in [from, to)}, or {"fold"} / {"recount"}: call that first.
local function count(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local bias, first, last = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  if #keys ~= 3 or not (bias and first and last) then
    return redis.error_reply('ERR korvet_count: malformed arguments')
  end
  local found, state, reply = in_step(stream, meta)
  if not found then
    return reply
  end
  if last <= first then
    return { 'ok', 0 }
  end
  local upper = records_before(stream, index, bias, state, last + bias)
  return { 'ok', upper - records_before(stream, index, bias, state, first + bias) }
end

-- The rank of the last point before which every record is older than `time_ms` (0 where there is none).
local function oldest_rank(index, points, time_ms)
  local low, high = 0, points - 1
  while low < high do
    local middle = math.ceil((low + high) / 2)
    local point = decode_point(redis.call('ZRANGE', index, middle, middle)[1])
    if point.run_max == nil or point.run_max < time_ms then
      low = middle
    else
      high = middle - 1
    end
  end
  return low
end

-- KEYS: stream, index, meta.  ARGV: bias, timestamp (ms), offset to look from, points to look at at most.
-- Finds a span that may hold a record with that timestamp or a later one; none before it does.
-- Returns {"ok", span's first offset, first offset behind it or -1}, {"none"}, {"more", offset to go on from},
-- or {"fold"}.
local function find_time(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local bias, time_ms = tonumber(args[1]), tonumber(args[2])
  local from, budget = tonumber(args[3]), tonumber(args[4])
  if #keys ~= 3 or not (bias and time_ms and from and budget) then
    return redis.error_reply('ERR korvet_find_time: malformed arguments')
  end
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  local state = load_meta(meta)
  if state.last ~= found.last then
    return { 'fold' }
  end
  local points = redis.call('ZCARD', index)
  if points == 0 then
    return { 'none' }
  end
  local rank = oldest_rank(index, points, time_ms)
  local floor = floor_point(index, bias, from + bias)
  if floor then
    rank = math.max(rank, redis.call('ZRANK', index, floor.member))
  end
  local members = redis.call('ZRANGE', index, rank, rank + budget)
  for at = 2, #members do
    local point = decode_point(members[at])
    if point.span_max and point.span_max >= time_ms then
      return { 'ok', decode_point(members[at - 1]).position - bias, point.position - bias }
    end
  end
  local last = decode_point(members[#members])
  if rank + #members < points then
    return { 'more', last.position - bias }
  end
  if state.span_max and state.span_max >= time_ms then
    return { 'ok', last.position - bias, -1 }
  end
  return { 'none' }
end

-- KEYS: stream, index, meta.  ARGV: bias.
-- Returns {log start, log end, entries, bytes, largest record's bytes, epoch or "", largest timestamp or "",
-- last ID, behind (1: korvet_fold is due), the offset behind the newest entry that XDEL took or 0, the last stable
-- offset: where the oldest open transaction begins, else the log end}.
local function bounds(keys, args)
  local stream, meta = keys[1], keys[3]
  local bias = tonumber(args[1])
  if #keys ~= 3 or not bias then
    return redis.error_reply('ERR korvet_bounds: malformed arguments')
  end
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  local state = load_meta(meta)
  local finish = log_end(found, state, bias)
  local newest = state.span_max
  if state.run_max and (newest == nil or state.run_max > newest) then
    newest = state.run_max
  end
  local start = log_start(found, state, finish, bias)
  return {
    start,
    finish,
    found.length,
    state.bytes,
    state.big,
    state.epoch or '',
    newest and integer(newest) or '',
    found.last,
    state.last == found.last and 0 or 1,
    math.max(0, position_after(found.deleted) - bias),
    math.max(first_open(state.open) or finish, start),
  }
end

-- KEYS: index.  ARGV: offset, bytes.
-- Where a reader that wants so many bytes from the offset on should stop: the offset of an index point, or -1 where
-- the offset lies behind the last one.
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

-- KEYS: stream, index, meta.  ARGV: bias, bytes.
-- Returns {"ok", the first offset with no more bytes of records from it on than so many, were all of the average size},
-- or {"fold"} / {"recount"}: call that first.
local function before_bytes(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local bias, bytes = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and bytes) then
    return redis.error_reply('ERR korvet_before_bytes: malformed arguments')
  end
  local found, state, reply = in_step(stream, meta)
  if not found then
    return reply
  end
  local oldest = redis.call('ZRANGE', index, 0, 0)[1]
  if not oldest or state.bytes <= bytes then
    return { 'ok', 0 }
  end
  local wanted = state.before - (state.before - decode_point(oldest).before) * bytes / state.bytes
  local rank, points = 0, redis.call('ZCARD', index)
  while rank < points do
    local middle = math.floor((rank + points) / 2)
    if decode_point(redis.call('ZRANGE', index, middle, middle)[1]).before < wanted then
      rank = middle + 1
    else
      points = middle
    end
  end
  -- It lies behind the point before that one, and no further than that one.
  local around = redis.call('ZRANGE', index, rank - 1, rank)
  local low = decode_point(around[1]).position + 1
  local high = around[2] and decode_point(around[2]).position or position_after(state.last)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if records_before(stream, index, bias, state, middle) < wanted then
      low = middle + 1
    else
      high = middle
    end
  end
  return { 'ok', low - bias }
end

local READS = { 'no-writes' }
redis.register_function({ function_name = 'korvet_count', callback = count, flags = READS })
redis.register_function({ function_name = 'korvet_find_time', callback = find_time, flags = READS })
redis.register_function({ function_name = 'korvet_bounds', callback = bounds, flags = READS })
redis.register_function({ function_name = 'korvet_before_bytes', callback = before_bytes, flags = READS })
redis.register_function({ function_name = 'korvet_reading_limit', callback = reading_limit, flags = READS })
