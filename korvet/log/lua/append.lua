-- The append: korvet_append decides on each batch of a group, and adds those that it accepts.

-- Numbers are packed, because reading them as text would take longer than all commands of a small append.
local CALL_NUMBERS, CALL_NUMBERS_BYTES = '>ddddddd', 56
local BATCH_NUMBERS, BATCH_NUMBERS_BYTES = '>dddddd', 48
-- Places of the arguments that all batches of a call share, and of the first batch.
local NUMBERS, EPOCH, FIRST_BATCH = 1, 2, 3

-- The timestamps of entries: those that producers sent, or the append time; none if the entry ID is the time.
local SENT, APPEND_TIME = 1, 2
-- How a batch arrives, see korvet_append.
local RECORDS, WHOLE, PACKED = 1, 2, 3

-- Returns the numbers that all batches of a call share; nil if they are malformed.
local function read_call(args)
  local packed = args[NUMBERS]
  if not args[EPOCH] or #packed ~= CALL_NUMBERS_BYTES then
    return nil
  end
  local bias, lead_cap_ms, stamps, session, serial, unanswered, seen_end = struct.unpack(CALL_NUMBERS, packed)
  return {
    bias = bias, lead_cap_ms = lead_cap_ms, stamps = stamps, epoch = args[EPOCH],
    session = session, serial = serial, unanswered = unanswered, seen_end = seen_end,
  }
end

-- Returns whether the arguments of a batch have its form and its number of records.
local function is_sound(args, batch)
  if batch.form == RECORDS then
    return records_are_sound(args, batch)
  elseif batch.form == WHOLE then
    local _, records = read_batch(args[batch.at + 1] or '')
    return batch.size == 2 and tonumber(args[batch.at]) and records == batch.count
  end
  local packed = args[batch.at] or ''
  return batch.form == PACKED and batch.size == 1 and #packed > BATCH_HEADER_BYTES
    and struct.unpack('>i4', packed, RECORD_COUNT) == batch.count
end

-- Returns the batches among the arguments; nil if an argument is malformed.
local function read_batches(args)
  local batches, at = {}, FIRST_BATCH
  while at <= #args do
    if #args[at] < BATCH_NUMBERS_BYTES then
      return nil
    end
    local form, size, count, epoch, first, transactional = struct.unpack(BATCH_NUMBERS, args[at])
    local producer = #args[at] > BATCH_NUMBERS_BYTES and string.sub(args[at], BATCH_NUMBERS_BYTES + 1) or nil
    local batch = {
      form = form, at = at + 1, size = size, count = count, producer = producer,
      epoch = epoch, first = first, transactional = transactional == 1,
    }
    if not (size >= 0 and size % 1 == 0 and count >= 1 and is_sound(args, batch)) then
      return nil
    end
    batches[#batches + 1] = batch
    at = at + 1 + size
  end
  return at == #args + 1 and batches[1] and batches
end

-- Adds a batch as one entry.
local function write_whole(log, args, batch, base)
  local data = struct.pack('>i8', base - log.bias) .. string.sub(args[batch.at + 1], 9)
  local added = redis.pcall('XADD', log.stream, id_of(base + batch.count - 1), 'batch', data)
  if not added.err and log.complete then
    add_entry(log, base, batch.count, tonumber(args[batch.at]), #'batch' + #data, log.now_ms)
  end
  return added
end

-- Adds a batch whose records the server module makes entries of, or this function if the server has no module.  It does
-- that only if the first entry ID is certain to be free: `look` overlooks a last ID that was set ahead.
local function write_packed(log, args, batch, base)
  local stamps, data = log.call.stamps == SENT, args[batch.at]
  local added = redis.pcall('KORVET.PUT', log.stream, id_of(base), stamps and 1 or 0, 'korvet_unpack' .. RELEASE, data)
  if added.err and is_without_module(added.err) and not (log.info.unchanged and base == log.first) then
    add_unpacked(log.stream, base, stamps, data)
    -- What was added is not measured.
    log.complete, log.lacks_module = false, true
    return {}
  elseif added.err then
    return added
  end
  if log.complete then
    local position, spans = base, added[1]
    for at = 1, #spans, 24 do
      local records, bytes, newest_ms = struct.unpack('>ddd', spans, at)
      add_records(log, position, records, records, newest_ms, bytes, log.now_ms)
      position = position + records
    end
    log.largest_entry_bytes = math.max(log.largest_entry_bytes, added[2])
  end
  return added
end

local WRITE = { [RECORDS] = write_records, [WHOLE] = write_whole, [PACKED] = write_packed }

-- Returns `done` with this call: `added` has a bit for each of its batches that was added.
local function with_call(log, base_offset, added)
  local call = log.call
  local session, serial = call.session, call.serial
  if call.unanswered == serial then
    -- One call in flight, as mostly: the rest would take longer than a command.
    return struct.pack('>ddddd', session, session, serial, base_offset, added)
  end
  local _, of = struct.unpack(DONE_FORMAT, log.done)
  local at = of == session and DONE_BYTES + 1 or #log.done + 1
  while at <= #log.done and struct.unpack(CALL_FORMAT, log.done, at) < call.unanswered do
    at = at + CALL_BYTES
  end
  local kept = string.sub(log.done, at)
  return struct.pack(DONE_FORMAT, session, session) .. kept .. struct.pack(CALL_FORMAT, serial, base_offset, added)
end

-- Decides on a batch at the position `base` and adds it if it is accepted.  Returns the number that the reply has for
-- it, or nil and an error reply.  `states` are the meta fields of producers; `fields` gets what changes.
local function append_one(log, keys, args, batch, base, log_end, states, fields)
  local field, state, open = nil, nil, log.open
  if batch.producer then
    local verdict, result, refused_state
    field = producer_field(batch.producer)
    verdict, result, open, refused_state = check_producer(log, states, batch, base - log.bias, log_end)
    if verdict == DUPLICATE then
      return -1 - result
    elseif verdict == REFUSED then
      if refused_state then
        fields[field], states[field] = refused_state, refused_state
      end
      return nil, result
    end
    state = result
  end
  local fault = exhausted(log, base, batch.count)
  if fault then
    return nil, fault
  end
  if log.complete == nil then
    log.complete = catch_up(log, FOLD_INLINE)
  end
  local added = WRITE[batch.form](log, args, batch, base, keys)
  if added.err then
    log.fault = added
    return nil, added
  end
  if state then
    fields[field], states[field] = state, state
    if open ~= log.open then
      fields.open, log.open = open, open
    end
  end
  return base - log.bias
end

-- Decides on all batches.  Returns their answers, the position after the last record, and the bits of those that were
-- added; nil if the stream was not as `look` found it.
local function append_all(log, keys, args, batches, first, states, fields)
  local answers, base, log_end, added = {}, first, log.previous_end, 0
  log.first = first
  for at, batch in ipairs(batches) do
    local answer, refusal = nil, log.fault
    if not refusal then
      answer, refusal = append_one(log, keys, args, batch, base, log_end, states, fields)
    end
    if log.fault and base == first and log.info.unchanged then
      return nil
    elseif answer and answer >= 0 then
      base, added = base + batch.count, added + 2 ^ (at - 1)
      log_end = base - log.bias
    end
    answers[at] = answer or refusal.err
  end
  return answers, base, added
end

-- Returns what the reply says of the index.
local function index_incomplete(log)
  return log.lacks_module and 2 or log.complete == false and 1 or 0
end

-- Appends after `look` or `look_closely` examined the stream.  Returns nil if the stream was not as `look` found it.
local function append_after(examine, keys, args, call, batches)
  local field = batches[1].producer and producer_field(batches[1].producer)
  local log, stored = load_log(keys[1], keys[2], keys[3], call.bias, unpack({ field }))
  local fault = examine(log)
  if fault then
    return fault
  end
  for at = 4, #keys do
    redis.call('HLEN', keys[at])
  end
  fault = fence(log, call.epoch) or damage_of(log)
  if fault then
    return fault
  elseif struct.unpack('>d', log.done) ~= call.session then
    return redis.error_reply('SESSION another connection appends')
  end
  begin_append(log, call.seen_end)
  local one_entry = not batches[2] and batches[1].count == 1 and log.indexed_id == log.info.last_id
  if not one_entry or begins_span(log, log.now_ms) then
    redis.call('ZCARD', log.index)
  end
  local first, throttled = next_base(log, call.lead_cap_ms)
  if throttled then
    return throttled
  end

  log.call, log.append_time = call, call.stamps == APPEND_TIME and integer(log.now_ms) or nil
  local fields = {}
  local answers, next, added = append_all(log, keys, args, batches, first, field and { [field] = stored } or {}, fields)
  if not answers then
    return nil
  end
  local start, lead_ms, stable
  if added > 0 then
    fields.done = with_call(log, first - log.bias, added)
    start, lead_ms, stable = conclude(log, first, next - first, fields, log.complete)
  else
    start, lead_ms, stable = current_start(log, log.previous_end), 0, last_stable_offset(log.open, log.previous_end)
    for name, value in pairs(fields) do
      redis.call('HSET', log.meta, name, value)
    end
  end
  return { log.previous_end, start, log.now_ms, lead_ms, index_incomplete(log), stable, unpack(answers) }
end

-- KEYS: stream, index, meta; on topics whose newest entry per key is noted, the hash of these entries, latest, and for
-- records in a transaction after that the hash of its entries, pending.  No others: in a cluster's slot that is being
-- migrated, a call is not served if one of its keys does not exist.
-- ARGV: the numbers of the call; writer's epoch (or ""); for each batch its numbers, and its other arguments.
-- Numbers are big-endian doubles.  Those of the call: bias; cap on the lead over the clock (ms); 1 if entries have the
-- timestamps that producers sent, 2 for the append time, 0 for that of the entry ID; session, which korvet_begin
-- returned; serial number of this call in the session; that of the oldest call whose reply the caller does not have;
-- the offset after the last record that readers have seen, 0 if that is not known, -1 if entries are records.
-- Those of a batch: form; number of its other arguments; records; producer epoch; first sequence; 1 if it is in a
-- transaction; and after these numbers the producer id as text (none without a producer).  The other arguments by form:
--   1  the heads of the records (see read_head), and the field arguments of each
--   2  the largest timestamp, and the record batch, which becomes one entry with its base offset set
--   3  the record batch, not compressed, for the server module
-- Each batch is appended as a whole or not at all, whatever becomes of the others.  If the stream refuses one, those
-- after it get its error.
-- Returns {previous log end, log start, now (ms), lead (ms), index incomplete, last stable offset} and for each batch
-- its base offset, -1 minus its base offset if it was appended before, or the text of an error.  Index incomplete is 1
-- if korvet_fold is due, and 2 if that is because the server has no module, or not for the caller.  The last stable
-- offset is that of the log with these batches.
-- Errors of a batch: OUTOFORDERSEQUENCE, SEQUENCEGAP, UNKNOWNPRODUCER, INVALIDPRODUCEREPOCH, INVALIDTXNSTATE,
-- EXHAUSTED, DAMAGED (the state of its producer), and errors of KORVET.PUT.  Errors of the call, after which nothing is
-- done: THROTTLED <ms>, FENCED, SESSION (another connection has begun one), DAMAGED, WRONGTYPE, OOM.
local function append(keys, args)
  local call = #keys >= 3 and #keys <= 5 and read_call(args)
  local batches = call and read_batches(args)
  if not batches then
    return redis.error_reply('ERR korvet_append: malformed arguments')
  elseif call.seen_end == 0 then
    -- The caller does not know what readers have seen.
    return append_after(look_closely, keys, args, call, batches)
  end
  return append_after(look, keys, args, call, batches) or append_after(look_closely, keys, args, call, batches)
end

-- As korvet_append, and also while Redis is at maxmemory, within the allowance.  Error NOALLOWANCE.
local function append_within(keys, args)
  return beyond_allowance(1) or append(keys, args)
end

redis.register_function('korvet_append' .. RELEASE, append)
redis.register_function({
  function_name = 'korvet_append_within' .. RELEASE, callback = append_within, flags = { 'allow-oom' },
})

-- KEYS: stream, index, meta.  ARGV: bias, writer's epoch (or ""), the session of the caller's calls so far (0: none).
-- Begins a session: calls of all earlier ones are refused from now on, also those that are still on their way.
-- Returns {session, log end, log start, now (ms)} and what of the caller's calls took effect: for each the serial
-- number, the offset of its first record, and the bits of its batches (see DONE_FORMAT).
-- Errors: FENCED, DAMAGED, WRONGTYPE.
local function begin(keys, args)
  local bias, caller = tonumber(args[1]), tonumber(args[3])
  if #keys ~= 3 or #args ~= 3 or not (bias and caller) then
    return redis.error_reply('ERR korvet_begin: malformed arguments')
  end
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  fault = fault or fence(log, args[2]) or damage_of(log)
  if fault then
    return fault
  end
  local former, of = struct.unpack(DONE_FORMAT, log.done)
  -- A session that a failover has taken back must not begin a second time, for another caller.
  local now_ms = clock_ms()
  local session = math.max(former + 1, now_ms)
  local done = struct.pack(DONE_FORMAT, session, of) .. string.sub(log.done, DONE_BYTES + 1)
  redis.call('HSET', log.meta, 'done', done)
  if log.newer_epoch then
    redis.call('HSET', log.meta, 'epoch', log.newer_epoch)
  end
  -- A broker of the release before expects the log to end with this entry.
  redis.call('HDEL', log.meta, 'own_last_id')
  local log_end = current_end(log)
  local reply = { session, log_end, current_start(log, log_end), now_ms }
  for at = DONE_BYTES + 1, of == caller and #done or 0, CALL_BYTES do
    local serial, base_offset, batches = struct.unpack(CALL_FORMAT, done, at)
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = serial, base_offset, batches
  end
  return reply
end

redis.register_function({ function_name = 'korvet_begin' .. RELEASE, callback = begin, flags = { 'allow-oom' } })
