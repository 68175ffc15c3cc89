-- Keeps the index in step with native clients: korvet_fold accounts for what they added, korvet_recount for what they
-- deleted.  Each call does a bounded amount of work and reports whether more is left.

-- Points deleted by one call.
local PRUNED_POINTS = 1000

-- KEYS: stream, index, meta.  ARGV: bias, entries at most.
-- Brings the index up to what native clients added.  Returns 1 when the index is complete, else 0: call again.
local function fold_natives(keys, args)
  local bias, budget = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and budget) or budget < 1 then
    return redis.error_reply('ERR korvet_fold: malformed arguments')
  end
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  if not log then
    return fault
  end
  if log.indexed_id == log.info.last_id then
    settle_ordinals(log)
    return 1
  end
  redis.call('ZCARD', log.index)
  local complete = catch_up(log, budget)
  end_gap(log, nil)
  note_both_ends(log)
  save_log(log)
  if complete then
    settle_ordinals(log)
  end
  return complete and 1 or 0
end

-- Deletes the points before `floor`, the point that the first entry belongs to: no entry of their spans is left.
-- Returns whether that was all of them.
local function prune(log, floor)
  local rank = redis.call('ZRANK', log.index, floor.member)
  local stale = redis.call('ZRANGE', log.index, 1, math.min(rank, PRUNED_POINTS))
  for _, member in ipairs(stale) do
    log.live_bytes = log.live_bytes - decode_point(member).span_bytes
  end
  if rank > 0 then
    redis.call('ZREMRANGEBYRANK', log.index, 0, math.min(rank, PRUNED_POINTS) - 1)
  end
  return rank <= PRUNED_POINTS
end

-- The progress of recount_spans is the meta field `recount`: position reached, records before it, entries missing when
-- it began, and the furthest position at which a point was corrected.

-- Returns the position to continue from, the records before it and the furthest corrected position.
local function recount_progress(log, floor, missing)
  local position, before, furthest = floor.position, log.records_before - log.info.length, -1
  local saved = redis.call('HGET', log.meta, 'recount')
  if saved then
    local saved_position, saved_before, saved_missing, saved_furthest =
      string.match(saved, '^(%S+) (%S+) (%S+) (%S+)$')
    furthest = tonumber(saved_furthest)
    if tonumber(saved_missing) == missing and tonumber(saved_position) >= position then
      position, before = tonumber(saved_position), tonumber(saved_before)
    end
  end
  return position, before, furthest
end

-- Counts span after span from the log start, and corrects the points, until it finds a point that is right: then all
-- points after that one are right, too.  A point that this recount has corrected proves nothing about those after it.
-- The entries have to be one record each: then the length of the stream shows how many records are gone.  Returns
-- whether that is all done.
local function recount_spans(log, floor, budget)
  if not prune(log, floor) then
    return false
  end
  local missing = log.live_entries - log.info.length
  local position, before, furthest = recount_progress(log, floor, missing)
  if position == floor.position and floor.records_before ~= before then
    floor.records_before, floor.entries_before = before, before
    put_point(log, floor)
  end
  while budget > 0 do
    local point = next_point(log, position)
    local span_end = point and '(' .. id_of(point.position) or '+'
    local count, bytes = measure(log.stream, log.bias, id_of(position), span_end)
    if not point then
      log.live_bytes = log.live_bytes - log.span_bytes + bytes
      log.span_bytes = bytes
      log.point_records_before = before
      return true
    end
    local was_right = point.records_before == before + count and point.position > furthest
    if point.records_before ~= before + count or point.span_bytes ~= bytes then
      log.live_bytes = log.live_bytes - point.span_bytes + bytes
      point.records_before = before + count
      point.entries_before = point.records_before
      point.span_bytes = bytes
      put_point(log, point)
    end
    if was_right then
      return true
    end
    position, before = point.position, point.records_before
    furthest = math.max(furthest, position)
    budget = budget - count - 1
  end
  local progress = { integer(position), integer(before), integer(missing), integer(furthest) }
  redis.call('HSET', log.meta, 'recount', table.concat(progress, ' '))
  return false
end

-- Corrects the index if only entries at the log start are gone.  Returns whether that is all done; nil if others are
-- gone, too: the length of the stream does not show how many records were in entries of many records.
local function recount_start(log, floor)
  if not prune(log, floor) then
    return false
  end
  local point = next_point(log, floor.position)
  -- The newest span ends where the log ends.
  local span_end = point or log
  local last = point and '(' .. id_of(point.position) or '+'
  local count, bytes, records = measure(log.stream, log.bias, id_of(floor.position), last)
  if count + log.entries_before - span_end.entries_before ~= log.info.length then
    return nil
  end
  floor.records_before, floor.entries_before = span_end.records_before - records, span_end.entries_before - count
  put_point(log, floor)
  log.live_bytes = log.live_bytes - span_end.span_bytes + bytes
  span_end.span_bytes = bytes
  if point then
    put_point(log, point)
  else
    log.point_records_before = floor.records_before
  end
  return true
end

-- Returns whether the index is correct now, or nil if it has to be made again from the start: a client deleted the
-- index or a part of it, or deleted batches from within the log.
local function correct_index(log, budget)
  local info = log.info
  if info.length == 0 then
    clear_index(log)
    return true
  end
  local first = batch_of(info.first_id, info.first_fields, log.bias)
    or position_at(info.first_id)
    or position_after(info.first_id) - 1
  local floor = floor_point(log, first)
  if not floor then
    return nil
  elseif log.entries_before == log.records_before then
    return recount_spans(log, floor, budget)
  end
  return recount_start(log, floor)
end

-- KEYS: stream, index, meta.  ARGV: bias, entries at most.
-- Finds what native clients deleted (XDEL, XTRIM) and corrects the index.  Returns 1 when the index is correct, 0: call
-- again, -1: call korvet_fold first.
local function recount(keys, args)
  local bias, budget = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and budget) or budget < 1 then
    return redis.error_reply('ERR korvet_recount: malformed arguments')
  end
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  if not log then
    return fault
  end
  if log.indexed_id ~= log.info.last_id then
    return -1
  end
  if log.live_entries == log.info.length then
    return 1
  end
  local complete = correct_index(log, budget)
  if complete == nil then
    note_remaking(log)
    clear_index(log)
    log.indexed_id = '0-0'
    save_log(log)
    return -1
  end
  if complete then
    log.live_entries = log.info.length
    redis.call('HDEL', log.meta, 'recount')
    if log.info.first_id and not id_less(log.info.deleted_id, log.info.first_id) then
      -- Not only entries at the log start may be gone.
      shift_ordinals(log, 0)
    end
  end
  log.log_end = current_end(log)
  log.log_start = current_start(log, log.log_end)
  save_log(log)
  return complete and 1 or 0
end

local FREES_MEMORY = { 'allow-oom' }
redis.register_function({ function_name = 'korvet_fold' .. RELEASE, callback = fold_natives, flags = FREES_MEMORY })
redis.register_function({ function_name = 'korvet_recount' .. RELEASE, callback = recount, flags = FREES_MEMORY })
