-- Keeping index and log in shape.  Every call does a bounded piece of work and says whether there is more.

local PRUNED_POINTS = 1000
local TRIMMED_SPANS = 16

-- Drops points of spans that are gone as a whole, below the point that the first entry belongs to.  Returns whether
-- that was all.
local function prune(index, state, floor)
  local rank = redis.call('ZRANK', index, floor.member)
  local stale = redis.call('ZRANGE', index, 1, math.min(rank, PRUNED_POINTS))
  for _, member in ipairs(stale) do
    state.bytes = state.bytes - decode_point(member).span_bytes
  end
  if rank > 0 then
    redis.call('ZREMRANGEBYRANK', index, 0, math.min(rank, PRUNED_POINTS) - 1)
  end
  return rank <= PRUNED_POINTS
end

-- Counts span after span from the log start, and corrects the points, until one is met that was right: so are all
-- behind it.  That takes entries of one record each: then the length of the stream says how many records are gone.
-- Progress is kept in the meta field `scan`: position, entries before it, entries missing, and the furthest position
-- corrected so far, which proves nothing about what lies behind it.
local function recount_spans(keys, bias, state, found, floor, budget)
  local stream, index, meta = keys[1], keys[2], keys[3]
  if not prune(index, state, floor) then
    return false
  end
  local missing = state.live - found.length
  local position, before, furthest = floor.position, state.before - found.length, -1
  local scan = redis.call('HGET', meta, 'scan')
  if scan then
    local at, count, lacking, far = string.match(scan, '^(%S+) (%S+) (%S+) (%S+)$')
    furthest = tonumber(far)
    if tonumber(lacking) == missing and tonumber(at) >= position then
      position, before = tonumber(at), tonumber(count)
    end
  end
  if position == floor.position and floor.before ~= before then
    floor.before, floor.entries = before, before
    put_point(index, bias, floor)
  end
  while budget > 0 do
    local point = next_point(index, bias, position)
    local behind = point and '(' .. id_of(point.position) or '+'
    local count, bytes = measure(stream, bias, id_of(position), behind)
    if not point then
      state.bytes = state.bytes - state.span_bytes + bytes
      state.span_bytes = bytes
      state.point_before = before
      return true
    end
    local proven = point.before == before + count and point.position > furthest
    if point.before ~= before + count or point.span_bytes ~= bytes then
      state.bytes = state.bytes - point.span_bytes + bytes
      point.before = before + count
      point.entries = point.before
      point.span_bytes = bytes
      put_point(index, bias, point)
    end
    if proven then
      return true
    end
    position, before = point.position, point.before
    furthest = math.max(furthest, position)
    budget = budget - count - 1
  end
  redis.call(
    'HSET', meta, 'scan',
    table.concat({ integer(position), integer(before), integer(missing), integer(furthest) }, ' ')
  )
  return false
end

-- Corrects the index where entries are gone from the log's start only.  Returns whether that is all done, or nil where
-- others are gone too: entries of many records are not told apart by the length of the stream.
local function recount_start(keys, bias, state, found, floor)
  local stream, index = keys[1], keys[2]
  if not prune(index, state, floor) then
    return false
  end
  local point = next_point(index, bias, floor.position)
  local behind = point or state
  local last = point and '(' .. id_of(point.position) or '+'
  local count, bytes, records = measure(stream, bias, id_of(floor.position), last)
  if count + state.entries - behind.entries ~= found.length then
    return nil
  end
  floor.before, floor.entries = behind.before - records, behind.entries - count
  put_point(index, bias, floor)
  state.bytes = state.bytes - behind.span_bytes + bytes
  behind.span_bytes = bytes
  if point then
    put_point(index, bias, point)
  else
    state.point_before = floor.before
  end
  return true
end

-- KEYS: stream, index, meta.  ARGV: bias, entries at most.
-- Finds what native clients deleted (XDEL, XTRIM) and corrects the index.  Returns 1 when it is correct, 0: call
-- again, -1: korvet_fold is due first.
local function recount(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local bias, budget = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and budget) or budget < 1 then
    return redis.error_reply('ERR korvet_recount: malformed arguments')
  end
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  local state = load_meta(meta)
  if state.last ~= found.last then
    return -1
  end
  if state.live == found.length then
    return 1
  end
  local complete = true
  if found.length == 0 then
    clear_index(index, state)
  else
    local first = batch_of(found.first, found.first_fields, bias)
      or position_at(found.first)
      or position_after(found.first) - 1
    local floor = floor_point(index, bias, first)
    complete = nil
    if floor and state.entries == state.before then
      complete = recount_spans(keys, bias, state, found, floor, budget)
    elseif floor then
      complete = recount_start(keys, bias, state, found, floor)
    end
    if complete == nil then
      -- Somebody deleted the index, or parts of it, or batches from within the log: make it anew.
      clear_index(index, state)
      state.last = '0-0'
      save_meta(meta, state)
      return -1
    end
  end
  if complete then
    state.live = found.length
    redis.call('HDEL', meta, 'scan')
  end
  state.log_end = log_end(found, state, bias)
  state.log_start = log_start(found, state, state.log_end, bias)
  save_meta(meta, state)
  return complete and 1 or 0
end

-- Whether a span goes: its newest record is older than the cutoff, or what is left without it is still enough.
-- A span of records without timestamps (-1) is as old as its append.
local function outlived(span_max, append_ms, span_bytes, live_bytes, cutoff_ms, keep_bytes)
  if cutoff_ms then
    local newest = span_max and span_max >= 0 and span_max or append_ms
    if newest < cutoff_ms then
      return true
    end
  end
  return keep_bytes ~= nil and live_bytes - span_bytes >= keep_bytes
end

-- KEYS: stream, index, meta.  ARGV: bias, oldest timestamp to keep (ms) or "", bytes to keep or "".
-- Retention: drops spans from the log's start, the last one too, but none with records of an open transaction or behind
-- it.  Returns {"ok", entries dropped, more (1: call again), log start, log end}, or {"fold"} / {"recount"}: call that
-- first.
local function trim(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local bias, cutoff_ms, keep_bytes = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  if #keys ~= 3 or not bias then
    return redis.error_reply('ERR korvet_trim: malformed arguments')
  end
  local found, state, reply = in_step(stream, meta)
  if not found then
    return reply
  end
  state.log_end = log_end(found, state, bias)
  state.log_start = log_start(found, state, state.log_end, bias)
  local members = redis.call('ZRANGE', index, 0, TRIMMED_SPANS)
  if found.length == 0 or #members == 0 then
    return { 'ok', 0, 0, state.log_start, state.log_end }
  end
  local bytes, target, whole = state.bytes, nil, false
  local reached, stable = 1, first_open(state.open) or state.log_end
  while reached < #members do
    local point = decode_point(members[reached + 1])
    local span_bytes = point.span_bytes
    local goes = outlived(point.span_max, point.append_ms, span_bytes, bytes, cutoff_ms, keep_bytes)
    if point.position - bias > stable or not goes then
      break
    end
    bytes = bytes - span_bytes
    target = point
    reached = reached + 1
  end
  local more = reached == TRIMMED_SPANS + 1
  if reached == #members and not more and stable == state.log_end then
    whole = outlived(state.span_max, state.at, state.span_bytes, bytes, cutoff_ms, keep_bytes)
  end
  local dropped = 0
  if whole then
    dropped = redis.call('XTRIM', stream, 'MAXLEN', 0)
    clear_index(index, state)
    state.log_start = state.log_end
  elseif target then
    dropped = redis.call('XTRIM', stream, 'MINID', id_of(target.position))
    redis.call('ZREMRANGEBYSCORE', index, '-inf', '(' .. integer(target.position - bias))
    state.live = state.live - dropped
    state.bytes = bytes
    local left = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    local position = left and start_of(left[1], left[2], bias)
    state.log_start = math.min(position and position - bias or state.log_end, state.log_end)
  else
    return { 'ok', 0, 0, state.log_start, state.log_end }
  end
  save_meta(meta, state)
  return { 'ok', dropped, more and 1 or 0, state.log_start, state.log_end }
end

-- KEYS: stream, index, meta.  ARGV: bias, offset, or "" for the log end.
-- Drops the entries of which every record is before an offset, a number of spans by one call.  Returns {"ok", entries
-- dropped (call again until there are none), log start, log end}, {"range", 0, log start, log end} where the offset is
-- not in the log, or {"fold"} / {"recount"}: call that first.
local function delete_before(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local bias, offset = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or #args ~= 2 or not bias or (args[2] ~= '' and not offset) then
    return redis.error_reply('ERR korvet_delete_before: malformed arguments')
  end
  local found, state, reply = in_step(stream, meta)
  if not found then
    return reply
  end
  state.log_end = log_end(found, state, bias)
  state.log_start = log_start(found, state, state.log_end, bias)
  offset = offset or state.log_end
  if offset < 0 or offset > state.log_end then
    return { 'range', 0, state.log_start, state.log_end }
  end
  if offset <= state.log_start or found.length == 0 then
    return { 'ok', 0, state.log_start, state.log_end }
  end
  local far = redis.call('ZRANGEBYSCORE', index, '-inf', integer(offset), 'LIMIT', TRIMMED_SPANS, 1)[1]
  local position = far and decode_point(far).position or offset + bias
  local dropped = redis.call('XTRIM', stream, 'MINID', id_of(position))
  if dropped == 0 and far then
    position = offset + bias
    dropped = redis.call('XTRIM', stream, 'MINID', id_of(position))
  end
  state.log_start = math.max(state.log_start, position - bias)
  if redis.call('XLEN', stream) == 0 then
    clear_index(index, state)
  end
  save_meta(meta, state)
  return { 'ok', dropped, state.log_start, state.log_end }
end

-- KEYS: meta.  ARGV: forget producers that were last seen before this time (ms), HSCAN cursor.  Those with an open
-- transaction are kept.
-- Returns {next cursor ("0": done), producers forgotten}.
local function expire_producers(keys, args)
  local cutoff_ms = tonumber(args[1])
  if #keys ~= 1 or not cutoff_ms then
    return redis.error_reply('ERR korvet_expire_producers: malformed arguments')
  end
  local open = load_meta(keys[1]).open
  local page = redis.call('HSCAN', keys[1], args[2], 'MATCH', 'p:*', 'COUNT', 500)
  local forgotten = 0
  for at = 1, #page[2], 2 do
    local _, seen_ms = struct.unpack('>dd', page[2][at + 1])
    local id = string.sub(page[2][at], 3)
    if seen_ms < cutoff_ms and not find_open(open, tonumber(id)) then
      redis.call('HDEL', keys[1], page[2][at], 'c:' .. id)
      forgotten = forgotten + 1
    end
  end
  return { page[1], forgotten }
end

local FREES_MEMORY = { 'allow-oom' }

redis.register_function({ function_name = 'korvet_recount', callback = recount, flags = FREES_MEMORY })
redis.register_function({ function_name = 'korvet_trim', callback = trim, flags = FREES_MEMORY })
redis.register_function({ function_name = 'korvet_delete_before', callback = delete_before, flags = FREES_MEMORY })
redis.register_function({
  function_name = 'korvet_expire_producers',
  callback = expire_producers,
  flags = FREES_MEMORY,
})
