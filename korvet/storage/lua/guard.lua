-- Guarded appends: the broker assigns the entry IDs, and Redis checks that nothing came in between.
--
-- One entry is an argument of korvet_guard, which adds it.  More entries are added by commands in one MULTI, by an XADD
-- for each, or by one KORVET.ADD for a whole batch: korvet_guard renames the stream to the *gate*, the key that these
-- commands use, and korvet_seal renames it back.  If the guard refuses, the gate does not exist and the commands add
-- nothing (XADD by NOMKSTREAM).  MULTI is atomic, so no other client ever sees the gate.  For a user who may not run
-- MULTI, brokers call korvet_append instead: another client could add to the stream's name, and the log would be lost.

-- Limits how far ahead of the clock a broker may begin after a pause.  The broker estimates the clock, and does not
-- know yet if the clock was set back, or stood still.
local MOST_AHEAD_MS = 1000

-- Where the fields of the only entry begin.
local FIELDS = 11

local function refused(why)
  return redis.error_reply('REFUSED ' .. why)
end

-- What korvet_guard let in and korvet_seal has to confirm, in the same MULTI: {gate, last_id (of the stream before),
-- length (of the stream after all commands), finish (saves the log and returns the reply)}.
local opened

-- Returns the refusal if the log does not end with entry `own_last_id` of the broker, or the gate cannot be opened
-- (false if no gate is needed); else nil.
local function not_as_expected(log, own_last_id, gate)
  if log.own_last_id ~= own_last_id then
    return refused('another append came in between')
  end
  if gate and (not log.info.exists or redis.call('EXISTS', gate) == 1) then
    return refused('the gate cannot be opened')
  end
end

-- Returns whether `count` records can have the positions from `base` on: these are free, and on dense topics next.
local function can_begin_at(log, base, count)
  local lowest = log.previous_end + log.bias
  return base >= lowest and (log.bias == 0 or base == lowest) and base + count < POSITION_LIMIT
end

-- Accounts for new entries, the first record of which is at `position`.
local function add_spans(log, position, spans)
  for records, entries, bytes, time_ms in string.gmatch(spans, '(%d+) (%d+) (%d+) (-?%d+);') do
    records = tonumber(records)
    add_records(log, position, records, tonumber(entries), tonumber(time_ms), tonumber(bytes), log.now_ms)
    position = position + records
  end
end

-- KEYS: stream, index, meta, gate.
-- ARGV: bias, writer's epoch (or ""), last entry of the append before this one, position of the first record, ID of the
-- last entry, number of records, number of entries, the producers of the batches (see PRODUCERS_PATTERN), size of the
-- largest entry (bytes), spans (each "<records> <entries> <bytes> <largest timestamp>;"); then, for a single entry, its
-- field arguments.
-- Lets batches in whose entry IDs the broker assigned.  With fields: adds the entry.  Without: opens the gate for the
-- commands that follow in the same MULTI, and korvet_seal after them.
-- Returns the reply of korvet_append for the first batch, or OK if the gate is open.  Errors: REFUSED if the log is not
-- as the broker expects (nothing is done, and korvet_append may be called instead), and the errors of korvet_append
-- except THROTTLED.
local function guard(keys, args)
  opened = nil
  local gate, bias, base, count = keys[4], tonumber(args[1]), tonumber(args[4]), tonumber(args[6])
  local entries, largest_bytes, alone = tonumber(args[7]), tonumber(args[9]), #args >= FIELDS
  local sound = #keys == 4 and #args >= FIELDS - 1 and #args % 2 == 0
  if not (sound and bias and base and count and entries and largest_bytes) or (alone and entries ~= 1) then
    return redis.error_reply('ERR korvet_guard: malformed arguments')
  end
  local log, first_stored = load_log(keys[1], keys[2], keys[3], bias, first_producer(args[8]))
  local fault = look(log)
  if fault then
    return fault
  end
  redis.call('ZCARD', log.index)
  fault = fence(log, args[2]) or not_as_expected(log, args[3], not alone and gate)
  if fault then
    return fault
  end
  begin_append(log)
  local verdict, result = check_producers(log, args[8], first_stored, count, base - bias)
  if verdict == DUPLICATE then
    return duplicate_reply(log, result)
  elseif verdict == REFUSED then
    return result
  end
  if not can_begin_at(log, base, count) then
    return refused('an entry lies in the way')
  end
  if bias == 0 then
    if base > math.max(log.previous_end, (log.now_ms + MOST_AHEAD_MS) * SEQUENCES) then
      return refused('the position is ahead of the clock')
    end
    note_jump(log)
  end

  local complete = catch_up(log, FOLD_INLINE)
  local function finish()
    if complete then
      add_spans(log, base, args[10])
      log.largest_entry_bytes = math.max(log.largest_entry_bytes, largest_bytes)
    end
    return conclude(log, base, count, args[5], result, complete)
  end
  if alone then
    local added = redis.pcall('XADD', log.stream, args[5], unpack(args, FIELDS))
    return added.err and added or finish()
  end
  -- korvet_seal runs the same command, so a user who may not close the gate cannot open it.
  redis.call('RENAMENX', log.stream, gate)
  opened = { gate = gate, last_id = log.info.last_id, length = log.info.length + entries, finish = finish }
  return redis.status_reply('OK')
end

-- KEYS: stream, gate.
-- Ends a MULTI in which korvet_guard opened the gate: renames the stream back, and saves the log if all entries are
-- there.
-- Returns the reply of korvet_append for the first batch.  Errors: REFUSED if the guard let nothing in, if an entry ID
-- was taken (`look` overlooks XSETID), or if KORVET.ADD refused; then none of the entries is there.
local function seal(keys, args)
  local stream, gate = keys[1], keys[2]
  if #keys ~= 2 or #args ~= 0 then
    return redis.error_reply('ERR korvet_seal: malformed arguments')
  end
  if redis.call('EXISTS', gate) == 0 or redis.call('RENAMENX', gate, stream) == 0 then
    return refused('the gate was closed')
  end
  local appended = opened
  opened = nil
  if not appended or appended.gate ~= gate then
    return refused('the gate was opened by another call')
  end
  if redis.call('XLEN', stream) ~= appended.length then
    for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. appended.last_id, '+')) do
      redis.call('XDEL', stream, entry[1])
    end
    return refused('not all entries were added')
  end
  return appended.finish()
end

-- KEYS: stream, index, meta.  ARGV: bias, ID of an entry.
-- For a guarded append whose outcome is unknown: refuses it from now on, and reports whether it took effect.
-- Returns {log end, log start, now (ms), fields of the entry (empty if there is no such entry)}.
local function read_back(keys, args)
  local bias = tonumber(args[1])
  if #keys ~= 3 or #args ~= 2 or not bias then
    return redis.error_reply('ERR korvet_read_back: malformed arguments')
  end
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  if not log then
    return fault
  end
  redis.call('HDEL', log.meta, 'own_last_id')
  local log_end = current_end(log)
  local entry = redis.call('XRANGE', log.stream, args[2], args[2])[1]
  return { log_end, current_start(log, log_end), clock_ms(), entry and entry[2] or {} }
end

redis.register_function('korvet_guard' .. RELEASE, guard)
-- Allowed when memory is full: the stream has to be renamed back.
redis.register_function({ function_name = 'korvet_seal' .. RELEASE, callback = seal, flags = { 'allow-oom' } })
redis.register_function({
  function_name = 'korvet_read_back' .. RELEASE, callback = read_back, flags = { 'allow-oom' },
})
