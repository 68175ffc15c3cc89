-- Appends.  Everything is checked before the first write: a script that fails half way is not rolled back.

local FOLD_INLINE = 256
local MAX_SEQUENCE_NUMBER = 2147483647
local REMEMBERED_BATCHES = 5

-- `text` - `ms` as decimal text, exact for any int64.
local function difference(text, ms)
  if #text <= 15 then
    return integer(tonumber(text) - ms)
  end
  local sign, digits = string.match(text, '^(%-?)(%d+)$')
  sign = sign == '-' and -1 or 1
  local high = sign * tonumber(string.sub(digits, 1, -10)) - math.floor(ms / 1e9)
  local low = sign * tonumber(string.sub(digits, -9)) - ms % 1e9
  local carry = math.floor(low / 1e9)
  high = high + carry
  low = low - carry * 1e9
  if high < 0 and low > 0 then
    high = high + 1
    low = 1e9 - low
    return string.format('-%s%0' .. (high == 0 and 1 or 9) .. '.0f', high == 0 and '' or integer(-high), low)
  end
  if high == 0 then
    return integer(low)
  end
  return string.format('%.0f%09.0f', high, low)
end

-- Accounts for entries behind state.last, up to `budget` of them.  Returns whether that was all.
local function fold(stream, index, bias, state, found, budget)
  local bytes = 0
  while budget > 0 and bytes < 4 * SPAN_BYTES do
    local asked = math.min(PAGE, budget)
    local page = redis.call('XRANGE', stream, '(' .. state.last, '+', 'COUNT', asked)
    for _, entry in ipairs(page) do
      local id, fields = entry[1], entry[2]
      local size = payload_bytes(fields)
      local ms = parts_of(id)
      local position, records, time_ms = batch_of(id, fields, bias)
      if not position then
        position, records, time_ms = position_at(id), 1, entry_time(id, fields)
      end
      add_entry(index, bias, state, position, records, time_ms, size, ms)
      bytes = bytes + size
    end
    if #page < asked then
      state.last = found.last
      return true
    end
    state.last = page[#page][1]
    budget = budget - #page
  end
  return state.last == found.last
end

-- What Redis knows of a stream, as `inspect` says it; cheaper where only our appends have changed the stream since the
-- meta hash was saved: then `unchanged`.  It overlooks a last ID that was set ahead by XSETID: the XADD that follows will
-- notice.
local function look(stream, state)
  local length = redis.call('XLEN', stream)
  if length > 0 and length == state.live and not redis.call('XRANGE', stream, '(' .. state.last, '+', 'COUNT', 1)[1] then
    return { exists = true, length = length, last = state.last, unchanged = true }
  end
  return inspect(stream)
end

-- The stream behind what the index knows was deleted by a native client: begin anew, offsets go on.
local function notice_reset(index, state, found)
  if found.last ~= state.last and id_less(found.last, state.last) then
    clear_index(index, state)
    state.log_start = math.max(state.log_start, found.exists and 0 or state.log_end)
    state.last = '0-0'
  end
end

-- A clock that was set back, or a native entry of the future, is nothing that waiting here would mend: the cap on the
-- lead is for bursts of ours.
local function note_jump(state, previous_end, now_ms)
  if now_ms < state.at or previous_end > state.log_end then
    state.jump = math.max(state.jump, previous_end)
  end
end

-- What an append finds: the position it may begin at, or an error reply.
local function next_base(found, state, bias, now_ms, cap_ms)
  local previous_end = log_end(found, state, bias)
  local base = math.max(previous_end, 0) + bias
  if bias == 0 then
    base = math.max(base, now_ms * SEQUENCES)
    note_jump(state, previous_end, now_ms)
    local lead_ms = math.floor(base / SEQUENCES) - now_ms
    if lead_ms > cap_ms and state.jump <= now_ms * SEQUENCES then
      return nil, redis.error_reply('THROTTLED ' .. integer(lead_ms - cap_ms))
    end
  end
  return base
end

-- Kafka's producer state (KIP-98) is kept as big-endian doubles: epoch, time, and for each of the last batches, five at
-- the most, first sequence, last one and base offset.
local PRODUCER_BYTES = 16
local BATCH_FORMAT, BATCH_BYTES = '>ddd', 24

-- Returns the batches to be remembered of that, or nil and a duplicate's base offset, or nil, nil and an error reply.
local function check_producer(packed, epoch, first, last)
  if not packed then
    return ''
  end
  local known_epoch = struct.unpack('>d', packed)
  if epoch < known_epoch then
    return nil, nil, redis.error_reply('INVALIDPRODUCEREPOCH epoch ' .. epoch .. ' is older than ' .. known_epoch)
  end
  if epoch > known_epoch then
    if first ~= 0 then
      return nil, nil, redis.error_reply('OUTOFORDERSEQUENCE a new epoch begins with sequence 0, not ' .. first)
    end
    return ''
  end
  local _, newest = struct.unpack(BATCH_FORMAT, packed, #packed - BATCH_BYTES + 1)
  if first == (newest == MAX_SEQUENCE_NUMBER and 0 or newest + 1) then
    local full = #packed == PRODUCER_BYTES + REMEMBERED_BATCHES * BATCH_BYTES
    return string.sub(packed, PRODUCER_BYTES + 1 + (full and BATCH_BYTES or 0))
  end
  for at = PRODUCER_BYTES + 1, #packed, BATCH_BYTES do
    local known_first, known_last, base_offset = struct.unpack(BATCH_FORMAT, packed, at)
    if known_first == first and known_last == last then
      return nil, base_offset
    end
  end
  return nil, nil, redis.error_reply('OUTOFORDERSEQUENCE ' .. first .. ' follows ' .. newest)
end

-- Checks an idempotent producer's mark on a batch of `count` records at `base_offset`.  `packed` is the producer's state,
-- nil where it is not known.  Returns the state to be kept, or nil and a duplicate's base offset, or nil, nil and an
-- error reply.
local function next_producer(packed, epoch, first, count, base_offset, now_ms)
  local last = (first + count - 1) % (MAX_SEQUENCE_NUMBER + 1)
  local batches, duplicate, fault = check_producer(packed, epoch, first, last)
  if not batches then
    return nil, duplicate, fault
  end
  return struct.pack('>dd', epoch, now_ms) .. batches .. struct.pack(BATCH_FORMAT, first, last, base_offset)
end

-- Checks the marks of batches of `total` records that follow each other from `base_offset` on: each "<producer id>
-- <epoch> <first sequence> <records>;", with the producer id -1 where a batch has none, or "" where no batch has one.
-- Returns the state to be kept by meta field, or nil and a duplicate's base offset, or nil, nil and an error reply.
-- Several batches are refused together, so that each may get its own answer.
local function check_marks(meta, marks, total, base_offset, now_ms)
  if marks == '' then
    return {}
  end
  local states, several, limit = {}, string.find(marks, ';.'), base_offset + total
  for id, epoch, first, count in string.gmatch(marks, '(%-?%d+) (%-?%d+) (%-?%d+) (%d+);') do
    count = tonumber(count)
    if id ~= '-1' then
      local field = 'p:' .. id
      local packed = states[field] or redis.call('HGET', meta, field) or nil
      local state, duplicate, fault =
        next_producer(packed, tonumber(epoch), tonumber(first), count, base_offset, now_ms)
      if not state then
        if several then
          return nil, nil, redis.error_reply('REFUSED one batch of several does not follow its producer\'s last')
        end
        return nil, duplicate, fault
      end
      states[field] = state
    end
    base_offset = base_offset + count
  end
  if base_offset ~= limit then
    return nil, nil, redis.error_reply('ERR malformed marks of producers')
  end
  return states
end

-- What is the same for all appends once the records are there: the meta hash.  Returns their reply.
local function conclude(meta, state, found, bias, base, count, last, now_ms, previous_end, producers, indexed)
  local start = log_start(found, state, previous_end, bias)
  if found.length == 0 and start > 0 and previous_end + bias > state.gap then
    start = base - bias
  end
  end_gap(meta, state, found, base, bias)
  state.tail = last
  if indexed then
    state.last = state.tail
  end
  state.log_end = base + count - bias
  state.log_start = start
  state.at = now_ms
  save_meta(meta, state)
  for field, packed in pairs(producers) do
    redis.call('HSET', meta, field, packed)
  end
  local lead_ms = bias == 0 and math.max(0, math.floor((base + count - 1) / SEQUENCES) - now_ms) or 0
  return { base - bias, previous_end, start, now_ms, lead_ms, 0, indexed and 0 or 1 }
end

-- Whether `args` from `at` on are `count` well-formed records.
local function records_are_sound(args, at, count)
  for _ = 1, count do
    local size, stamp = tonumber(args[at]), tonumber(args[at + 1])
    if not size or size < 2 or size % 2 ~= 0 or not stamp or stamp < 0 or stamp > size then
      return false
    end
    if stamp > 0 and not string.find(args[at + 1 + stamp] or '', '^%-?%d+$') then
      return false
    end
    at = at + 2 + size
  end
  return at == #args + 1
end

-- Notes the newest entry per record key; fields begin with key, value.
local function note_latest(latest, args, at, size, id)
  if args[at] ~= 'key' then
    return
  end
  if size >= 4 and args[at + 2] == 'value' then
    redis.call('HSET', latest, args[at + 1], id)
  else
    redis.call('HDEL', latest, args[at + 1])
  end
end

-- XADDs all records.  Returns nil, or the error reply of the first one (then nothing was written).
local function write_records(keys, args, at, count, base, options)
  local stream, index, latest, state = keys[1], keys[2], keys[4], options.state
  local ms_text, ms, shifted, shift
  for i = 0, count - 1 do
    local position = base + i
    local sequence = position % SEQUENCES
    if ms == nil or sequence == 0 then
      ms = math.floor(position / SEQUENCES)
      ms_text = integer(ms)
      shifted = nil
    end
    local id = ms_text .. '-' .. sequence
    local size, stamp = tonumber(args[at]), tonumber(args[at + 1])
    local time_ms, sent = ms, nil
    if stamp > 0 then
      local place = at + 1 + stamp
      local text = options.stamp_ms or args[place]
      if text ~= shifted then
        shifted = text
        shift = difference(text, ms)
      end
      sent = args[place]
      args[place] = shift
      time_ms = tonumber(text)
    end
    if i == 0 then
      local added = redis.pcall('XADD', stream, id, unpack(args, at + 2, at + 1 + size))
      if added.err then
        if stamp > 0 then
          args[at + 1 + stamp] = sent
        end
        return added
      end
    else
      redis.call('XADD', stream, id, unpack(args, at + 2, at + 1 + size))
    end
    if options.keeps_latest then
      note_latest(latest, args, at + 2, size, id)
    end
    if options.indexed then
      local bytes = 0
      for place = at + 2, at + 1 + size do
        bytes = bytes + #args[place]
      end
      add_entry(index, options.bias, state, position, 1, time_ms, bytes, options.now_ms)
    end
    at = at + 2 + size
  end
  return nil
end

-- Whether `args` from `at` on are the largest timestamp and a batch of `count` records.
local function batch_is_sound(args, at, count)
  if #args ~= at + 1 or not tonumber(args[at]) then
    return false
  end
  local _, records = read_batch(args[at + 1])
  return records == count
end

-- XADDs a batch as one entry.  Returns nil, or the error reply (then nothing was written).
local function write_batch(keys, args, at, count, base, options)
  local bias, state = options.bias, options.state
  local batch = struct.pack('>i8', base - bias) .. string.sub(args[at + 1], 9)
  local added = redis.pcall('XADD', keys[1], id_of(base + count - 1), 'batch', batch)
  if added.err then
    return added
  end
  if options.indexed then
    add_entry(keys[2], bias, state, base, count, tonumber(args[at]), #'batch' + #batch, options.now_ms)
  end
  return nil
end

-- How the records of an append become entries: what is to be checked before the first write, and the writing.
local AS_ENTRIES = { are_sound = records_are_sound, write = write_records }
local AS_ONE_ENTRY = { are_sound = batch_is_sound, write = write_batch }

-- What `append` does, the stream looked at by `see`: `look` or `inspect`.  Returns nil where it was not as `look` said.
local function append_as_seen(layout, keys, args, see)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local bias, cap_ms, count = tonumber(args[1]), tonumber(args[2]), tonumber(args[6])
  local keeps_latest = args[3] == '1'
  if #keys ~= (keeps_latest and 4 or 3) or #args < 8 or not (bias and cap_ms and count) or count < 1 then
    return redis.error_reply('ERR korvet_append: malformed arguments')
  end
  if not layout.are_sound(args, 8, count) then
    return redis.error_reply('ERR korvet_append: malformed records')
  end
  local state = load_meta(meta)
  local found, fault = see(stream, state)
  if not found then
    return fault
  end
  redis.call('ZCARD', index)
  if keeps_latest then
    redis.call('HLEN', keys[4])
  end
  fault = fence(state, args[5])
  if fault then
    return fault
  end
  local now_ms = clock_ms()
  local previous_end = log_end(found, state, bias)
  local base, throttled = next_base(found, state, bias, now_ms, cap_ms)
  local producers, duplicate
  producers, duplicate, fault = check_marks(meta, args[7], count, (base or 0) - bias, now_ms)
  if fault then
    return fault
  end
  if duplicate then
    return { duplicate, previous_end, log_start(found, state, previous_end, bias), now_ms, 0, 1, 0 }
  end
  if not base then
    return throttled
  end
  if base + count >= POSITION_LIMIT then
    return redis.error_reply('EXHAUSTED no offset is left behind entry ' .. found.last)
  end

  local is_new = state.at == 0
  notice_reset(index, state, found)
  local indexed = state.last == found.last or fold(stream, index, bias, state, found, FOLD_INLINE)
  fault = layout.write(keys, args, 8, count, base, {
    state = state,
    bias = bias,
    now_ms = now_ms,
    keeps_latest = keeps_latest,
    stamp_ms = args[4] == '1' and integer(now_ms) or nil,
    indexed = indexed,
  })
  if fault then
    return not found.unchanged and fault or nil
  end
  if is_new and bias == 1 then
    redis.call('HSET', meta, 'bias', '1')
  end
  local last = id_of(base + count - 1)
  return conclude(meta, state, found, bias, base, count, last, now_ms, previous_end, producers, indexed)
end

local function append(layout, keys, args)
  return append_as_seen(layout, keys, args, look) or append_as_seen(layout, keys, args, inspect)
end

-- KEYS: stream, index, meta, and latest where that is kept: in a cluster's slot that is on its way keys that are not
-- there keep a call from being served.
-- ARGV: bias, cap on the lead over the clock (ms), "1" where the newest entry per key is kept track of, "1" to stamp
-- records with the append time, writer's epoch (or ""), number of records, their producer's mark (see check_marks); then per record:
-- number of field arguments, place of the timestamp among them (0: none), the arguments.
-- Returns {base offset, previous log end, log start, append ms, lead ms, duplicate, behind}; behind 1: the index
-- lacks entries, korvet_fold is due.
-- Errors: THROTTLED <ms>, FENCED, OUTOFORDERSEQUENCE, INVALIDPRODUCEREPOCH, EXHAUSTED, WRONGTYPE, OOM.
local function append_records(keys, args)
  return append(AS_ENTRIES, keys, args)
end

-- The same for records that are to be one entry.  ARGV from the 8th on: their largest timestamp, the record batch;
-- its base offset is set here.
local function append_batch(keys, args)
  return append(AS_ONE_ENTRY, keys, args)
end

local function refused(why)
  return redis.error_reply('REFUSED ' .. why)
end

-- KEYS: stream, index, meta, gate.
-- ARGV: bias, writer's epoch (or ""), entry that the append before this one ended with, position of the first
-- record, ID of the first entry, ID of the last, number of records, the producers' marks (see check_marks), largest
-- entry (bytes), spans (each "<records> <entries> <bytes> <largest timestamp>;"), then the field arguments of the
-- first entry.
-- Adds the first entry of batches whose IDs the broker has assigned.  More than one entry: renames the stream to the
-- gate, where the XADDs behind this call in the same MULTI find it; else there is no gate and they add nothing.
-- Returns what korvet_append returns for the first batch.  Errors: REFUSED where the broker's view is not ours (nothing
-- is done, and korvet_append may be asked), and those of korvet_append but for THROTTLED.
local function guard(keys, args)
  local stream, index, meta, gate = keys[1], keys[2], keys[3], keys[4]
  local bias, base, count, largest = tonumber(args[1]), tonumber(args[4]), tonumber(args[7]), tonumber(args[9])
  if #keys ~= 4 or not (bias and base and count and largest) or #args < 12 or #args % 2 ~= 0 then
    return redis.error_reply('ERR korvet_guard: malformed arguments')
  end
  local state = load_meta(meta)
  local found, fault = look(stream, state)
  if not found then
    return fault
  end
  redis.call('ZCARD', index)
  fault = fence(state, args[2])
  if fault then
    return fault
  end
  local alone = args[5] == args[6]
  if state.tail ~= args[3] or (not alone and redis.call('EXISTS', gate) == 1) then
    return refused('another append came in between')
  end
  local now_ms = clock_ms()
  -- What was saved together needs no reckoning, which would parse an ID.
  local previous_end = found.last == state.last and state.log_end or log_end(found, state, bias)
  local producers, duplicate
  producers, duplicate, fault = check_marks(meta, args[8], count, base - bias, now_ms)
  if fault then
    return fault
  end
  if duplicate then
    return { duplicate, previous_end, log_start(found, state, previous_end, bias), now_ms, 0, 1, 0 }
  end
  local lowest = math.max(previous_end, 0) + bias
  if base < lowest or (bias == 1 and base > lowest) or base + count >= POSITION_LIMIT then
    return refused('an entry lies in the way')
  end
  if bias == 0 then
    note_jump(state, previous_end, now_ms)
  end

  notice_reset(index, state, found)
  local indexed = state.last == found.last or fold(stream, index, bias, state, found, FOLD_INLINE)
  local added = redis.pcall('XADD', stream, args[5], unpack(args, 11))
  if added.err then
    return added
  end
  if not alone then
    redis.call('RENAME', stream, gate)
  end
  if indexed then
    local position = base
    for records, entries, bytes, time_ms in string.gmatch(args[10], '(%d+) (%d+) (%d+) (-?%d+);') do
      records = tonumber(records)
      add_records(
        index, bias, state, position, records, tonumber(entries), tonumber(time_ms), tonumber(bytes), now_ms
      )
      position = position + records
    end
    state.big = math.max(state.big, largest)
  end
  return conclude(meta, state, found, bias, base, count, args[6], now_ms, previous_end, producers, indexed)
end

-- KEYS: stream, index, meta.  ARGV: bias, ID of an entry.
-- For an append by korvet_guard whose outcome is unknown: refuses it from now on, and tells whether it took effect.
-- Returns {log end, log start, now (ms), fields of the entry (none where there is no such entry)}.
local function settle(keys, args)
  local stream, meta = keys[1], keys[3]
  local bias = tonumber(args[1])
  if #keys ~= 3 or #args ~= 2 or not bias then
    return redis.error_reply('ERR korvet_settle: malformed arguments')
  end
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  local state = load_meta(meta)
  redis.call('HDEL', meta, 'tail')
  local new_end = log_end(found, state, bias)
  local entry = redis.call('XRANGE', stream, args[2], args[2])[1]
  return { new_end, log_start(found, state, new_end, bias), clock_ms(), entry and entry[2] or {} }
end

-- For native writers: FCALL korvet_xadd 3 stream index meta field value [field value ...].  As XADD with the ID rule
-- of our appends, so that every entry has an offset at any rate.  Returns the entry's ID.
local function native_append(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  if #keys ~= 3 or #args < 2 or #args % 2 ~= 0 then
    return redis.error_reply('ERR korvet_xadd: 3 keys (stream, index, meta), then field value [field value ...]')
  end
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  redis.call('ZCARD', index)
  local state = load_meta(meta)
  local bias = tonumber(redis.call('HGET', meta, 'bias') or '0')
  local now_ms = clock_ms()
  local base
  -- Batches may run far ahead of the clock, as their records' times are in them.
  base, fault = next_base(found, state, bias, now_ms, state.entries == state.before and 1000 or math.huge)
  if not base then
    return fault
  end
  if base + 1 >= POSITION_LIMIT then
    return redis.error_reply('EXHAUSTED no offset is left behind entry ' .. found.last)
  end
  notice_reset(index, state, found)
  local indexed = state.last == found.last or fold(stream, index, bias, state, found, FOLD_INLINE)
  local id = id_of(base)
  local added = redis.pcall('XADD', stream, id, unpack(args))
  if added.err then
    return added
  end
  if indexed then
    add_entry(index, bias, state, base, 1, entry_time(id, args), payload_bytes(args), now_ms)
    state.last = id
  end
  state.log_start = log_start(found, state, log_end(found, state, bias), bias)
  state.log_end = base + 1 - bias
  end_gap(meta, state, found, base, bias)
  state.at = now_ms
  save_meta(meta, state)
  return id
end

-- KEYS: stream, index, meta.  ARGV: bias, entries at most.
-- Brings the index up to what native clients added.  Returns 1 when it is complete, else 0: call again.
local function fold_natives(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local bias, budget = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and budget) or budget < 1 then
    return redis.error_reply('ERR korvet_fold: malformed arguments')
  end
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  local state = load_meta(meta)
  if state.last == found.last then
    return 1
  end
  redis.call('ZCARD', index)
  notice_reset(index, state, found)
  local complete = state.last == found.last or fold(stream, index, bias, state, found, budget)
  end_gap(meta, state, found, nil, bias)
  state.log_start = log_start(found, state, log_end(found, state, bias), bias)
  local new_end = log_end(found, state, bias)
  if new_end > state.log_end then
    state.jump = math.max(state.jump, new_end)
    state.log_end = new_end
  end
  save_meta(meta, state)
  return complete and 1 or 0
end

redis.register_function('korvet_append', append_records)
redis.register_function('korvet_append_batch', append_batch)
redis.register_function('korvet_guard', guard)
redis.register_function({ function_name = 'korvet_settle', callback = settle, flags = { 'allow-oom' } })
redis.register_function('korvet_xadd', native_append)
redis.register_function({ function_name = 'korvet_fold', callback = fold_natives, flags = { 'allow-oom' } })
