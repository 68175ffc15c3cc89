-- What all appends have in common.  Everything that can fail is checked before the first write, types of keys included
-- (ZCARD, HLEN): Redis does not roll back a function that fails half way.

-- Entries of native clients that one append accounts for, at most; for more, korvet_fold is due.
local FOLD_INLINE = 256

-- Sets log.info.  Returns nil, or an error reply.
local function look_closely(log)
  local fault
  log.info, fault = inspect(log.stream)
  return fault
end

-- The same at less cost if only brokers' appends have changed the stream since the meta hash was saved: then
-- `info.unchanged` is set.  That overlooks a last ID that was set ahead with XSETID, or by an entry that was deleted.
-- The next XADD fails then, except that of a batch that ends after that ID; hence `seen_end` in `begin_append`.
local function look(log)
  local length = redis.call('XLEN', log.stream)
  local expected = length > 0 and length == log.live_entries
  if expected and not redis.call('XRANGE', log.stream, '(' .. log.indexed_id, '+', 'COUNT', 1)[1] then
    log.info = { exists = true, length = length, last_id = log.indexed_id, unchanged = true }
    return nil
  end
  return look_closely(log)
end

-- Notes the time, and the log end before the append.  `seen_end` is the offset after the last record that the caller
-- has seen: no other record gets an offset before it, even if its entry is gone.
local function begin_append(log, seen_end)
  log.now_ms = clock_ms()
  -- If the index is complete, the log end was saved with it, and current_end would only parse an ID.
  local log_end = log.info.last_id == log.indexed_id and log.log_end or current_end(log)
  log.previous_end = math.max(log_end, seen_end or 0)
end

-- Notes a lead over the clock that a step of the clock or a foreign entry caused.  Waiting does not end such a lead,
-- and the cap on the lead is for bursts of appends.
local function note_jump(log)
  if log.now_ms < log.appended_ms or log.previous_end > log.log_end then
    log.foreign_jump = math.max(log.foreign_jump, log.previous_end)
  end
end

-- Returns the position at which an append may begin, or nil and an error reply.
local function next_base(log, lead_cap_ms)
  local base = log.previous_end + log.bias
  if log.bias == 0 then
    base = math.max(base, log.now_ms * SEQUENCES)
    note_jump(log)
    local lead_ms = math.floor(base / SEQUENCES) - log.now_ms
    if lead_ms > lead_cap_ms then
      if log.foreign_jump <= log.now_ms * SEQUENCES then
        return nil, redis.error_reply('THROTTLED ' .. integer(lead_ms - lead_cap_ms))
      end
      -- The jump lasts until the clock has caught up with the records that came during the jump, too.
      log.foreign_jump = math.max(log.foreign_jump, base)
    end
  end
  return base
end

-- Returns the error reply if `count` records from `base` on would exceed the largest position, else nil.
local function exhausted(log, base, count)
  if base + count >= POSITION_LIMIT then
    return redis.error_reply('EXHAUSTED no offset is left after entry ' .. log.info.last_id)
  end
end

-- Saves the log after an append of `count` records from `base` on; `fields` are further meta fields that the append
-- changes, and `complete` is whether the index covers the log.  Returns the log start before the append, how far its
-- last record is ahead of the clock (ms), and the last stable offset after it.
local function conclude(log, base, count, fields, complete)
  local bias, previous_end = log.bias, log.previous_end
  note_gap(log)
  local start = current_start(log, previous_end)
  begin_at(log, base)
  if complete then
    log.indexed_id = id_of(base + count - 1)
  end
  log.log_end = base + count - bias
  log.log_start = start
  log.appended_ms = log.now_ms
  local saved = {}
  for field, value in pairs(fields) do
    saved[#saved + 1] = field
    saved[#saved + 1] = value
  end
  save_log(log, unpack(saved))
  local lead_ms = bias == 0 and math.max(0, math.floor((base + count - 1) / SEQUENCES) - log.now_ms) or 0
  return start, lead_ms, last_stable_offset(fields.open or log.open, log.log_end)
end
