-- Deletes from the log start (retention, DeleteRecords), and forgets idle producers.

-- Spans deleted by one call.
local TRIMMED_SPANS = 16
-- Fields looked at by one HSCAN for idle producers.
local SCANNED_FIELDS = 500

-- Opens an indexed log, and brings its start and end up to date.  Returns what open_indexed returns.
local function open_current(keys, bias)
  local log, reply = open_indexed(keys[1], keys[2], keys[3], bias)
  if log then
    log.log_end = current_end(log)
    log.log_start = current_start(log, log.log_end)
  end
  return log, reply
end

-- Returns the time of the newest record from position `first` to before position `after`.  Records without timestamps
-- (-1) are as old as their append.  So are entries of native clients on dense topics: their timestamps are the
-- milliseconds of their entry IDs, which are no times there.
local function newest_time(log, first, after, largest_ms, append_ms)
  if not largest_ms or largest_ms < 0 then
    return append_ms
  end
  local first_ms, last_ms = math.floor(first / SEQUENCES), math.floor((after - 1) / SEQUENCES)
  if log.bias > 0 and first_ms <= largest_ms and largest_ms <= last_ms then
    return append_ms
  end
  return largest_ms
end

-- Returns whether retention deletes a span: its newest record is older than the cutoff, or the log without the span has
-- enough bytes.
local function expires(newest_ms, span_bytes, live_bytes, cutoff_ms, keep_bytes)
  if cutoff_ms and newest_ms < cutoff_ms then
    return true
  end
  return keep_bytes ~= nil and live_bytes - span_bytes >= keep_bytes
end

-- Returns how many of the first points of the index end a span that retention deletes, the last of these points, the
-- bytes that are left without these spans, and the position at which the rest begins.  No span goes that reaches beyond
-- the offset `stable`.
local function expired_spans(log, members, stable, cutoff_ms, keep_bytes)
  local count, last, bytes = 0, nil, log.live_bytes
  local first = members[1] and decode_point(members[1]).position
  for at = 2, #members do
    local point = decode_point(members[at])
    local newest_ms = newest_time(log, first, point.position, point.largest_in_span_ms, point.append_ms)
    local goes = expires(newest_ms, point.span_bytes, bytes, cutoff_ms, keep_bytes)
    if point.position - log.bias > stable or not goes then
      break
    end
    count, last, bytes, first = count + 1, point, bytes - point.span_bytes, point.position
  end
  return count, last, bytes, first
end

local function delete_all(log)
  local deleted = redis.call('XTRIM', log.stream, 'MAXLEN', 0)
  clear_index(log)
  log.log_start = log.log_end
  keep_start(log, POSITION_LIMIT)
  return deleted
end

-- Deletes the spans before a point; `bytes` is the bytes of the entries that stay.  The log starts after the last entry
-- that goes: readers there have missed nothing.
local function delete_spans(log, point, bytes)
  local last = redis.call('XREVRANGE', log.stream, '(' .. id_of(point.position), '-', 'COUNT', 1)[1]
  local deleted = redis.call('XTRIM', log.stream, 'MINID', id_of(point.position))
  redis.call('ZREMRANGEBYSCORE', log.index, '-inf', '(' .. integer(point.position - log.bias))
  log.live_entries = log.live_entries - deleted
  log.live_bytes = bytes
  local first = redis.call('XRANGE', log.stream, '-', '+', 'COUNT', 1)[1]
  if last then
    log.log_start = math.max(log.log_start, position_after(last[1]) - log.bias)
    keep_start(log, first and start_of(first[1], first[2], log.bias) or POSITION_LIMIT)
  end
  return deleted
end

-- KEYS: stream, index, meta.  ARGV: bias, oldest timestamp to keep (ms) or "", bytes to keep or "", the high watermark,
-- or "" if that is the log end, highest epoch of the partition's leader ("": a writer that is never fenced).
-- Retention: deletes spans from the log start, the last one too, but none with records of an open transaction, or after
-- its first record or the high watermark.  Returns {"ok", entries deleted, more (1: call again), log start, log end},
-- or {"fold"} / {"recount"}: call that first.  Error FENCED.
local function trim(keys, args)
  local bias, cutoff_ms, keep_bytes = tonumber(args[1]), tonumber(args[2]), tonumber(args[3])
  if #keys ~= 3 or #args ~= 5 or not bias then
    return redis.error_reply('ERR korvet_trim: malformed arguments')
  end
  local log, reply = open_current(keys, bias)
  local fault = log and fence_leader(log.epoch, args[5])
  if not log or fault then
    return fault or reply
  end
  if log.info.length == 0 then
    return { 'ok', 0, 0, log.log_start, log.log_end }
  end
  local stable = math.min(last_stable_offset(log.open, log.log_end), tonumber(args[4]) or log.log_end)
  local members = redis.call('ZRANGE', log.index, 0, TRIMMED_SPANS)
  local count, point, bytes, first = expired_spans(log, members, stable, cutoff_ms, keep_bytes)
  local more, deleted = count == TRIMMED_SPANS, 0
  local whole_log_goes = false
  if count + 1 == #members and not more and stable == log.log_end then
    -- Brokers may have appended nothing yet.
    local append_ms = math.max(log.appended_ms, log.point_append_ms or 0)
    local newest_ms = newest_time(log, first, log.log_end + bias, log.largest_in_span_ms, append_ms)
    whole_log_goes = expires(newest_ms, log.span_bytes, bytes, cutoff_ms, keep_bytes)
  end
  if whole_log_goes or point then
    deleted = whole_log_goes and delete_all(log) or delete_spans(log, point, bytes)
    save_log(log)
  end
  return { 'ok', deleted, more and 1 or 0, log.log_start, log.log_end }
end

-- KEYS: stream, index, meta.  ARGV: bias, offset, or "" for the log end, highest epoch as for `trim`.
-- Deletes the entries whose records are all before an offset, a few spans in one call.  Returns {"ok", entries deleted
-- (call again until there are none), log start, log end}, {"range", 0, log start, log end} if the offset is not in the
-- log, or {"fold"} / {"recount"}: call that first.  Error FENCED.
local function delete_before(keys, args)
  local bias, offset = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or #args ~= 3 or not bias or (args[2] ~= '' and not offset) then
    return redis.error_reply('ERR korvet_delete_before: malformed arguments')
  end
  local log, reply = open_current(keys, bias)
  local fault = log and fence_leader(log.epoch, args[3])
  if not log or fault then
    return fault or reply
  end
  offset = offset or log.log_end
  if offset < 0 or offset > log.log_end then
    return { 'range', 0, log.log_start, log.log_end }
  end
  if offset <= log.log_start then
    return { 'ok', 0, log.log_start, log.log_end }
  end
  local far = redis.call('ZRANGEBYSCORE', log.index, '-inf', integer(offset), 'LIMIT', TRIMMED_SPANS, 1)[1]
  local position = far and decode_point(far).position or offset + bias
  local deleted = redis.call('XTRIM', log.stream, 'MINID', id_of(position))
  if deleted == 0 and far then
    position = offset + bias
    deleted = redis.call('XTRIM', log.stream, 'MINID', id_of(position))
  end
  log.log_start = math.max(log.log_start, position - bias)
  local first = redis.call('XRANGE', log.stream, '-', '+', 'COUNT', 1)[1]
  keep_start(log, first and start_of(first[1], first[2], bias) or POSITION_LIMIT)
  if not first then
    clear_index(log)
  end
  save_log(log)
  return { 'ok', deleted, log.log_start, log.log_end }
end

-- KEYS: meta.  ARGV: forget producers whose last append was before this time (ms), HSCAN cursor.
-- Producers with an open transaction are kept.  Returns {next cursor ("0": done), producers forgotten}.
local function expire_producers(keys, args)
  local meta, cutoff_ms = keys[1], tonumber(args[1])
  if #keys ~= 1 or not cutoff_ms then
    return redis.error_reply('ERR korvet_expire_producers: malformed arguments')
  end
  local open = redis.call('HGET', meta, 'open') or ''
  local cursor, found = unpack(redis.call('HSCAN', meta, args[2], 'MATCH', 'p:*', 'COUNT', SCANNED_FIELDS))
  local forgotten = 0
  for at = 1, #found, 2 do
    local _, seen_ms = struct.unpack(PRODUCER_FORMAT, found[at + 1])
    local id = string.sub(found[at], 3)
    if seen_ms < cutoff_ms and not find_open(open, tonumber(id)) then
      redis.call('HDEL', meta, found[at], 'c:' .. id, 'd:' .. id)
      forgotten = forgotten + 1
    end
  end
  return { cursor, forgotten }
end

local FREES_MEMORY = { 'allow-oom' }
redis.register_function({ function_name = 'korvet_trim' .. RELEASE, callback = trim, flags = FREES_MEMORY })
redis.register_function({
  function_name = 'korvet_delete_before' .. RELEASE, callback = delete_before, flags = FREES_MEMORY,
})
redis.register_function({
  function_name = 'korvet_expire_producers' .. RELEASE, callback = expire_producers, flags = FREES_MEMORY,
})
