-- Appends by script: korvet_append and korvet_append_batch assign the entry IDs and add every record.

-- Places of the arguments of korvet_append_batch.
local NEWEST, SEEN_END, BATCH = RECORDS, RECORDS + 1, RECORDS + 2

-- Returns whether `args` from RECORDS on are the largest timestamp, the end that readers have seen, and a batch of
-- `count` records.
local function batch_is_sound(args, count)
  if #args ~= BATCH or not (tonumber(args[NEWEST]) and tonumber(args[SEEN_END])) then
    return false
  end
  local _, records = read_batch(args[BATCH])
  return records == count
end

-- Adds a batch as one entry, its first record at position `base`.  Returns nil, or the error reply of the XADD.
local function write_batch(log, args, count, base, options)
  local batch = struct.pack('>i8', base - log.bias) .. string.sub(args[BATCH], 9)
  local added = redis.pcall('XADD', log.stream, id_of(base + count - 1), 'batch', batch)
  if added.err then
    return added
  end
  if options.complete then
    add_entry(log, base, count, tonumber(args[NEWEST]), #'batch' + #batch, log.now_ms)
  end
end

-- The two layouts: what is checked of the records before the first write, how the records become entries, and which
-- argument is the end that readers have seen (see `begin_append`).
local AS_ENTRIES = { are_sound = records_are_sound, write = write_records }
local AS_ONE_ENTRY = { are_sound = batch_is_sound, write = write_batch, seen_end = SEEN_END }

-- Returns an error reply if the arguments are malformed, else nil.
local function check_arguments(layout, keys, args)
  local count, keeps_latest = tonumber(args[6]), args[3] == '1'
  local keys_are_sound = #keys == 3
  if keeps_latest then
    keys_are_sound = #keys == 4 or #keys == 5
  end
  if not keys_are_sound or #args < RECORDS or not (tonumber(args[1]) and tonumber(args[2]) and count) or count < 1 then
    return redis.error_reply('ERR korvet_append: malformed arguments')
  end
  if not layout.are_sound(args, count) then
    return redis.error_reply('ERR korvet_append: malformed records')
  end
end

-- Decides on an append before anything is written.  Returns the position of the first record and the meta fields of the
-- producers; or nil and the reply (an error, or that of a duplicate).
local function admit(log, args, first_stored, count, seen_end)
  local fault = fence(log, args[5])
  if fault then
    return nil, fault
  end
  begin_append(log, seen_end)
  local base, throttled = next_base(log, tonumber(args[2]))
  local verdict, result = check_producers(log, args[7], first_stored, count, (base or 0) - log.bias)
  if verdict == DUPLICATE then
    return nil, duplicate_reply(log, result)
  elseif verdict == REFUSED then
    return nil, result
  end
  fault = throttled or exhausted(log, base, count)
  if fault then
    return nil, fault
  end
  return base, result
end

-- Appends after `look` or `look_closely` examined the stream.  Returns nil if the stream was not as `look` found it.
local function append_after(examine, layout, keys, args)
  local bias, count, latest = tonumber(args[1]), tonumber(args[6]), keys[4]
  local log, first_stored = load_log(keys[1], keys[2], keys[3], bias, first_producer(args[7]))
  local fault = examine(log)
  if fault then
    return fault
  end
  redis.call('ZCARD', log.index)
  for at = 4, #keys do
    redis.call('HLEN', keys[at])
  end
  local base, result = admit(log, args, first_stored, count, tonumber(args[layout.seen_end]))
  if not base then
    return result
  end

  local complete = catch_up(log, FOLD_INLINE)
  fault = layout.write(log, args, count, base, {
    latest = latest,
    pending = keys[5],
    append_time = args[4] == '1' and integer(log.now_ms) or nil,
    complete = complete,
  })
  if fault then
    return not log.info.unchanged and fault or nil
  end
  return conclude(log, base, count, id_of(base + count - 1), result, complete)
end

local function append(layout, keys, args)
  local fault = check_arguments(layout, keys, args)
  if fault then
    return fault
  elseif args[layout.seen_end] == '0' then
    -- The caller does not know what readers have seen.
    return append_after(look_closely, layout, keys, args)
  end
  return append_after(look, layout, keys, args) or append_after(look_closely, layout, keys, args)
end

-- KEYS: stream, index, meta; on topics whose newest entry per key is noted, the hash of these entries, latest, and for
-- records in a transaction after that the hash of its entries, pending.  No others: in a cluster's slot that is being
-- migrated, a call is not served if one of its keys does not exist.
-- ARGV: bias, cap on the lead over the clock (ms), "1" to note the newest entry per key, "1" to stamp records with the
-- append time, writer's epoch (or ""), number of records, their producers (see PRODUCERS_PATTERN); then for each
-- record: number of field arguments, place of the timestamp among them (0: none), the arguments.
-- Returns {base offset, previous log end, log start, append ms, lead ms, duplicate, index incomplete, last stable
-- offset}.  Index incomplete is 1 if korvet_fold is due.  The last stable offset is that of the log with these records.
-- Errors: THROTTLED <ms>, FENCED, OUTOFORDERSEQUENCE, SEQUENCEGAP, UNKNOWNPRODUCER, INVALIDPRODUCEREPOCH,
-- INVALIDTXNSTATE, EXHAUSTED, WRONGTYPE, OOM.
local function append_records(keys, args)
  return append(AS_ENTRIES, keys, args)
end

-- The same for records that become one entry.  ARGV from the 8th on: their largest timestamp, the offset after the last
-- record that readers have seen (0: unknown), the record batch.  The function sets the base offset in the batch.
local function append_batch(keys, args)
  return append(AS_ONE_ENTRY, keys, args)
end

-- As korvet_append, and also while Redis is at maxmemory, within the allowance.  Error NOALLOWANCE.
local function append_within(keys, args)
  return beyond_allowance(1) or append(AS_ENTRIES, keys, args)
end

redis.register_function('korvet_append' .. RELEASE, append_records)
redis.register_function({
  function_name = 'korvet_append_within' .. RELEASE, callback = append_within, flags = { 'allow-oom' },
})
redis.register_function('korvet_append_batch' .. RELEASE, append_batch)
