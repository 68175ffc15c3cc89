-- Appends by native clients: korvet assigns the entry IDs, and brokers find the entries as they find those of XADD.

-- The cap on the lead over the clock (ms) on topics whose entries are records.  Record batches may run ahead of the
-- clock without a cap, since the times of their records are in the batch.
local LEAD_CAP_MS = 1000

-- Opens the log (stream, index, meta) for an append of a record.  Returns the log and the position of the record; or
-- nil, nil and an error reply.
local function open_for_native(keys)
  local bias = tonumber(redis.call('HGET', keys[3], 'bias') or '0')
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  if not log then
    return nil, nil, fault
  end
  redis.call('ZCARD', log.index)
  begin_append(log)
  local has_batches = log.entries_before ~= log.records_before
  local base, throttled = next_base(log, has_batches and math.huge or LEAD_CAP_MS)
  fault = throttled or exhausted(log, base, 1)
  if fault then
    return nil, nil, fault
  end
  return log, base
end

-- Saves the log after an append of the record at `base`; `complete` is whether the index covers the log.
local function conclude_native(log, base, complete)
  if complete then
    log.indexed_id = id_of(base)
  end
  note_gap(log)
  log.log_start = current_start(log, log.previous_end)
  log.log_end = base + 1 - log.bias
  begin_at(log, base)
  log.appended_ms = log.now_ms
  save_log(log)
end

-- KEYS: stream, index, meta.  ARGV: field value [field value ...].
-- XADD with the entry IDs of brokers' appends, so every entry has an offset at any rate.  Returns the entry's ID.
local function xadd(keys, args)
  if #keys ~= 3 or #args < 2 or #args % 2 ~= 0 then
    return redis.error_reply('ERR korvet_xadd: 3 keys (stream, index, meta), then field value [field value ...]')
  end
  local log, base, fault = open_for_native(keys)
  if not log then
    return fault
  end
  local complete, id = catch_up(log, FOLD_INLINE), id_of(base)
  local added = redis.pcall('XADD', log.stream, id, unpack(args))
  if added.err then
    return added
  end
  if complete then
    add_entry(log, base, 1, entry_time(id, args), payload_bytes(args), log.now_ms)
    if not is_record(base, args) then
      note_mixed(log, base + 1)
    end
  end
  conclude_native(log, base, complete)
  return id
end

redis.register_function('korvet_xadd', xadd)
