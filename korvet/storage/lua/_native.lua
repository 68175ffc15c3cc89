-- What appends for native clients have in common: korvet assigns the entry IDs, and brokers find the entries as they
-- find those of XADD.

-- The cap on the lead over the clock (ms) on topics whose entries are records.  Record batches may run ahead of the
-- clock without a cap, since the times of their records are in the batch.
local LEAD_CAP_MS = 1000

-- Opens the log (stream, index, meta) for an append of `count` records.  Returns the log and the position of the first
-- record; or nil, nil and an error reply.
local function open_for_native(keys, count)
  local bias = tonumber(redis.call('HGET', keys[3], 'bias') or '0')
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  if not log then
    return nil, nil, fault
  end
  redis.call('ZCARD', log.index)
  begin_append(log)
  local has_batches = log.entries_before ~= log.records_before
  local base, throttled = next_base(log, has_batches and math.huge or LEAD_CAP_MS)
  fault = throttled or exhausted(log, base, count)
  if fault then
    return nil, nil, fault
  end
  return log, base
end

-- Saves the log after an append of `count` records from `base` on; `complete` is whether the index covers the log.
local function conclude_native(log, base, count, complete)
  if complete then
    log.indexed_id = id_of(base + count - 1)
  end
  note_gap(log)
  log.log_start = current_start(log, log.previous_end)
  log.log_end = base + count - log.bias
  begin_at(log, base)
  log.appended_ms = log.now_ms
  save_log(log)
end
