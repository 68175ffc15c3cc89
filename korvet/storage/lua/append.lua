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
-- meta hash was saved: then `unchanged`.  It overlooks a last ID that was set ahead by XSETID: the XADD that follows
-- will notice.
local function look(stream, state)
  local length = redis.call('XLEN', stream)
  local expected = length > 0 and length == state.live
  if expected and not redis.call('XRANGE', stream, '(' .. state.last, '+', 'COUNT', 1)[1] then
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

-- Returns the batches that are remembered, or nil and a duplicate's base offset, or nil, nil and an error reply.
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
  if #packed == PRODUCER_BYTES then
    -- A marker came with this epoch, and no batch since.
    if first ~= 0 then
      return nil, nil, redis.error_reply('OUTOFORDERSEQUENCE a new epoch begins with sequence 0, not ' .. first)
    end
    return ''
  end
  local _, newest = struct.unpack(BATCH_FORMAT, packed, #packed - BATCH_BYTES + 1)
  if first == (newest == MAX_SEQUENCE_NUMBER and 0 or newest + 1) then
    return string.sub(packed, PRODUCER_BYTES + 1)
  end
  for at = PRODUCER_BYTES + 1, #packed, BATCH_BYTES do
    local known_first, known_last, base_offset = struct.unpack(BATCH_FORMAT, packed, at)
    if known_first == first and known_last == last then
      return nil, base_offset
    end
  end
  return nil, nil, redis.error_reply('OUTOFORDERSEQUENCE ' .. first .. ' follows ' .. newest)
end

-- What is kept of a producer whose batches have no sequence (a coordinator writes for it) and at its marker: its
-- batches only as long as its epoch stays the same.
local function seen_producer(packed, epoch, now_ms)
  local same = packed and struct.unpack('>d', packed) == epoch
  return struct.pack('>dd', epoch, now_ms) .. (same and string.sub(packed, PRODUCER_BYTES + 1) or '')
end

-- The newest batches of those in `packed` and of a producer's next ones, which have `total` records from `base_offset`
-- and the sequence `first` on; `counts` is how many the newest of them have each, "" where there is only one.
local function with_batches(packed, first, total, counts, base_offset)
  if counts == '' then
    local last = (first + total - 1) % (MAX_SEQUENCE_NUMBER + 1)
    packed = packed .. struct.pack(BATCH_FORMAT, first, last, base_offset)
  else
    local newest, known = { packed }, 0
    for count in string.gmatch(counts, '%d+') do
      known = known + tonumber(count)
    end
    local before = total - known
    for count in string.gmatch(counts, '%d+') do
      local begin = (first + before) % (MAX_SEQUENCE_NUMBER + 1)
      local last = (begin + count - 1) % (MAX_SEQUENCE_NUMBER + 1)
      newest[#newest + 1] = struct.pack(BATCH_FORMAT, begin, last, base_offset + before)
      before = before + count
    end
    packed = table.concat(newest)
  end
  return string.sub(packed, -REMEMBERED_BATCHES * BATCH_BYTES)
end

-- Checks an idempotent producer's mark on batches of `total` records from `base_offset` on; see with_batches for
-- `counts`.  `packed` is the producer's state, nil where it is not known.  Returns the state to be kept, or nil and a
-- duplicate's base offset, or nil, nil and an error reply.
local function next_producer(packed, epoch, first, total, counts, base_offset, now_ms)
  if first == -1 then
    local known_epoch = packed and struct.unpack('>d', packed)
    if known_epoch and epoch < known_epoch then
      return nil, nil, redis.error_reply('INVALIDPRODUCEREPOCH epoch ' .. epoch .. ' is older than ' .. known_epoch)
    end
    return seen_producer(packed, epoch, now_ms)
  end
  local last = (first + total - 1) % (MAX_SEQUENCE_NUMBER + 1)
  local batches, duplicate, fault = check_producer(packed, epoch, first, last)
  if not batches then
    return nil, duplicate, fault
  end
  return struct.pack('>dd', epoch, now_ms) .. with_batches(batches, first, total, counts, base_offset)
end

-- The open transactions after a batch of this producer, appended at log end `previous_end`: `open` itself, or longer
-- if a transaction begins; nil and an error reply if the producer has a transaction open and the batch is in none.
local function next_open(open, producer, transactional, previous_end)
  if find_open(open, producer) then
    if not transactional then
      return nil, redis.error_reply('INVALIDTXNSTATE the producer has a transaction open that the batch is not in')
    end
  elseif transactional then
    return open .. struct.pack(OPEN_FORMAT, producer, previous_end)
  end
  return open
end

-- The meta field of the producer that the first of these marks names; nothing where they name none there.
local function first_producer(marks)
  local id = string.match(marks, '^%d+')
  if id then
    return 'p:' .. id
  end
end

-- Checks the marks of batches of `total` records that follow each other from `base_offset` on, in a log that ends at
-- `previous_end`: each "<producer id> <epoch> <first sequence> <records>;", with "t" after the records if they are in
-- a transaction, and with the producer id -1 if they have none.  One mark is for all batches of a producer that follow
-- each other by sequence, too; then it ends with " <records>,<records>" of the newest of them, as many as are
-- remembered.  "" if no batch has a producer.  `first_packed` is what first_producer's field holds.
-- Returns the state to be kept by meta field, or nil and a duplicate's base offset, or nil, nil and an error reply.
-- Several batches are refused together, so that each may get its own answer.
local function check_marks(meta, state, marks, first_packed, total, previous_end, base_offset, now_ms)
  if marks == '' then
    return {}
  end
  local states, several, limit = {}, string.find(marks, '[,;].'), base_offset + total
  local open = state.open
  for id, epoch, first, count, transactional, counts in
    string.gmatch(marks, '(%-?%d+) (%-?%d+) (%-?%d+) (%d+)(t?)([ %d,]*);')
  do
    count = tonumber(count)
    if id ~= '-1' then
      local field = 'p:' .. id
      local packed = states[field] or first_packed
      first_packed = nil
      if packed == nil then
        packed = redis.call('HGET', meta, field)
      end
      local kept, duplicate, fault =
        next_producer(packed or nil, tonumber(epoch), tonumber(first), count, counts, base_offset, now_ms)
      if kept then
        open, fault = next_open(open, tonumber(id), transactional == 't', previous_end)
        kept = open and kept
      end
      if not kept then
        if several then
          return nil, nil, redis.error_reply('REFUSED one batch of several does not follow its producer\'s last')
        end
        return nil, duplicate, fault
      end
      states[field] = kept
    end
    base_offset = base_offset + count
    previous_end = base_offset
  end
  if open ~= state.open then
    states.open = open
  end
  if base_offset ~= limit then
    return nil, nil, redis.error_reply('ERR malformed marks of producers')
  end
  return states
end

-- The reply to a batch that was appended before.
local function duplicate_reply(state, found, bias, base_offset, previous_end, now_ms)
  local start, stable = log_start(found, state, previous_end, bias), first_open(state.open) or previous_end
  return { base_offset, previous_end, start, now_ms, 0, 1, 0, stable }
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
  local kept = {}
  for field, packed in pairs(producers) do
    kept[#kept + 1] = field
    kept[#kept + 1] = packed
  end
  save_meta(meta, state, unpack(kept))
  local lead_ms = bias == 0 and math.max(0, math.floor((base + count - 1) / SEQUENCES) - now_ms) or 0
  local stable = first_open(producers.open or state.open) or state.log_end
  return { base - bias, previous_end, start, now_ms, lead_ms, 0, indexed and 0 or 1, stable }
end

-- Accounts for entries of ours in the spans that korvet_guard is told of, the first record of them at `position`.
local function add_spans(index, bias, state, position, spans, now_ms)
  for records, entries, bytes, time_ms in string.gmatch(spans, '(%d+) (%d+) (%d+) (-?%d+);') do
    records = tonumber(records)
    add_records(index, bias, state, position, records, tonumber(entries), tonumber(time_ms), tonumber(bytes), now_ms)
    position = position + records
  end
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

-- Notes the entry of a record in a transaction, until that is decided.
local function note_pending(pending, args, at, id)
  if args[at] == 'key' then
    redis.call('HSET', pending, args[at + 1], id)
  end
end

-- The transaction whose records were noted is decided: on commit they are the newest of their keys, unless a newer one
-- came meanwhile.
local function decide_pending(latest, pending, committed)
  if committed then
    local found = redis.call('HGETALL', pending)
    for at = 1, #found, 2 do
      local known = redis.call('HGET', latest, found[at])
      if not known or id_less(known, found[at + 1]) then
        redis.call('HSET', latest, found[at], found[at + 1])
      end
    end
  end
  redis.call('DEL', pending)
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
    if options.pending then
      note_pending(options.pending, args, at + 2, id)
    elseif options.keeps_latest then
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
  local fewest_keys, most_keys = keeps_latest and 4 or 3, keeps_latest and 5 or 3
  local sound = #keys >= fewest_keys and #keys <= most_keys and #args >= 8 and bias and cap_ms and count
  if not sound or count < 1 then
    return redis.error_reply('ERR korvet_append: malformed arguments')
  end
  if not layout.are_sound(args, 8, count) then
    return redis.error_reply('ERR korvet_append: malformed records')
  end
  local state, first_packed = load_meta(meta, first_producer(args[7]))
  local found, fault = see(stream, state)
  if not found then
    return fault
  end
  redis.call('ZCARD', index)
  if keeps_latest then
    redis.call('HLEN', keys[4])
  end
  if keys[5] then
    redis.call('HLEN', keys[5])
  end
  fault = fence(state, args[5])
  if fault then
    return fault
  end
  local now_ms = clock_ms()
  local previous_end = log_end(found, state, bias)
  local base, throttled = next_base(found, state, bias, now_ms, cap_ms)
  local producers, duplicate
  producers, duplicate, fault =
    check_marks(meta, state, args[7], first_packed, count, previous_end, (base or 0) - bias, now_ms)
  if fault then
    return fault
  end
  if duplicate then
    return duplicate_reply(state, found, bias, duplicate, previous_end, now_ms)
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
    pending = keys[5],
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

-- KEYS: stream, index, meta; where the newest entry per key is kept track of, latest, and behind it pending where the
-- records are in a transaction.  No others: in a cluster's slot that is on its way, keys that are not there keep a call
-- from being served.
-- ARGV: bias, cap on the lead over the clock (ms), "1" where the newest entry per key is kept track of, "1" to stamp
-- records with the append time, writer's epoch (or ""), number of records, their producer's mark (see check_marks);
-- then per record: number of field arguments, place of the timestamp among them (0: none), the arguments.
-- Returns {base offset, previous log end, log start, append ms, lead ms, duplicate, behind, last stable offset}; behind
-- 1: the index lacks entries, korvet_fold is due.  The last stable offset is that of the log with these records.
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

-- What korvet_guard has let in for korvet_seal to confirm, in the same MULTI: {gate, stream's last ID before, number of
-- entries when all are there, what else is then to be written}.
local opened

-- KEYS: stream, index, meta, gate.
-- ARGV: bias, writer's epoch (or ""), entry that the append before this one ended with, position of the first
-- record, ID of the last entry, number of records, number of entries, the producers' marks (see check_marks), largest
-- entry (bytes), spans (each "<records> <entries> <bytes> <largest timestamp>;"), then, of a single entry, its field
-- arguments.
-- Lets batches in whose IDs the broker has assigned.  With fields: adds the entry.  Without: renames the stream to the
-- gate, where the XADDs behind this call in the same MULTI find it, and korvet_seal behind them; else there is no gate
-- and they add nothing.
-- Returns what korvet_append returns for the first batch.  Errors: REFUSED where the broker's view is not ours (nothing
-- is done, and korvet_append may be asked), and those of korvet_append but for THROTTLED.
local function guard(keys, args)
  opened = nil
  local stream, index, meta, gate = keys[1], keys[2], keys[3], keys[4]
  local bias, base, count = tonumber(args[1]), tonumber(args[4]), tonumber(args[6])
  local entries, largest = tonumber(args[7]), tonumber(args[9])
  local alone = #args > 10
  local sound = #keys == 4 and #args >= 10 and #args % 2 == 0 and bias and base and count and entries and largest
  if not sound or (alone and entries ~= 1) then
    return redis.error_reply('ERR korvet_guard: malformed arguments')
  end
  local state, first_packed = load_meta(meta, first_producer(args[8]))
  local found, fault = look(stream, state)
  if not found then
    return fault
  end
  redis.call('ZCARD', index)
  fault = fence(state, args[2])
  if fault then
    return fault
  end
  if state.tail ~= args[3] then
    return refused('another append came in between')
  end
  if not alone and (not found.exists or redis.call('EXISTS', gate) == 1) then
    return refused('the gate cannot be opened')
  end
  local now_ms = clock_ms()
  -- What was saved together needs no reckoning, which would parse an ID.
  local previous_end = found.last == state.last and state.log_end or log_end(found, state, bias)
  local producers, duplicate
  producers, duplicate, fault =
    check_marks(meta, state, args[8], first_packed, count, previous_end, base - bias, now_ms)
  if fault then
    return fault
  end
  if duplicate then
    return duplicate_reply(state, found, bias, duplicate, previous_end, now_ms)
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
  local function finish()
    if indexed then
      add_spans(index, bias, state, base, args[10], now_ms)
      state.big = math.max(state.big, largest)
    end
    return conclude(meta, state, found, bias, base, count, args[5], now_ms, previous_end, producers, indexed)
  end
  if alone then
    local added = redis.pcall('XADD', stream, args[5], unpack(args, 11))
    return added.err and added or finish()
  end
  redis.call('RENAME', stream, gate)
  opened = { gate = gate, last = found.last, length = found.length + entries, finish = finish }
  return redis.status_reply('OK')
end

-- KEYS: stream, gate.
-- What ends a MULTI that korvet_guard has opened the gate in: brings the stream back, and saves what is to be known of
-- the entries where all of them are there.
-- Returns what korvet_append returns for the first batch.  Errors: REFUSED where the guard let nothing in, or an ID was
-- taken (XSETID tells nobody): then none of them is there.
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
    for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. appended.last, '+')) do
      redis.call('XDEL', stream, entry[1])
    end
    return refused('an entry ID was taken')
  end
  return appended.finish()
end

-- The error reply for a marker that comes too late: a newer producer has written, or a newer coordinator marked.
local function overtaken(packed, epoch, newest_coordinator, coordinator)
  if newest_coordinator and coordinator < tonumber(newest_coordinator) then
    return redis.error_reply('FENCEDCOORDINATOR epoch ' .. coordinator .. ' is older than ' .. newest_coordinator)
  end
  local known_epoch = packed and struct.unpack('>d', packed) or -1
  if epoch < known_epoch then
    return redis.error_reply('INVALIDPRODUCEREPOCH epoch ' .. epoch .. ' is older than ' .. known_epoch)
  end
end

-- XADDs a marker.  Returns its fields, or nil and an error reply.
local function write_marker(stream, position, bias, args)
  local fields = { 'ctl', args[6], 'pid', args[3], 'epoch', args[4] }
  if args[7] ~= '' then
    fields = { 'batch', struct.pack('>i8', position - bias) .. string.sub(args[7], 9) }
  end
  local added = redis.pcall('XADD', stream, id_of(position), unpack(fields))
  if added.err then
    return nil, added
  end
  return fields
end

-- What a marker changes besides the stream: the transaction at `at` of state.open is over, and on abort remembered as
-- long as its records are there.  Returns the last stable offset then.
local function end_transaction(meta, aborted, state, at, first, offset, args)
  state.open = string.sub(state.open, 1, at - 1) .. string.sub(state.open, at + OPEN_BYTES)
  redis.call('HSET', meta, 'open', state.open)
  local stable = first_open(state.open) or offset + 1
  if args[6] == 'abort' then
    local member = table.concat({ args[3], integer(first), integer(stable) }, ' ')
    redis.call('ZADD', aborted, integer(offset), member)
  end
  return stable
end

-- KEYS: stream, index, meta, aborted, and where the newest entry per key is kept track of, latest and pending.
-- ARGV: bias, writer's epoch (or ""), producer id, producer's epoch, coordinator's epoch, "commit" or "abort", the
-- marker as a record batch, or "" where entries are records.
-- Ends a producer's transaction (WriteTxnMarkers): adds the marker, and fences the producer's older epochs.  Where no
-- transaction of it is open no marker is added, so that this can be repeated.
-- Returns {offset of the marker or -1, previous log end, log start, append ms, last stable offset, where the
-- transaction began or -1, behind}.
-- Errors: FENCED, FENCEDCOORDINATOR, INVALIDPRODUCEREPOCH, EXHAUSTED, WRONGTYPE, OOM.
local function mark(keys, args)
  local stream, index, meta, aborted = keys[1], keys[2], keys[3], keys[4]
  local bias, producer, epoch = tonumber(args[1]), tonumber(args[3]), tonumber(args[4])
  local coordinator, known_outcome = tonumber(args[5]), args[6] == 'commit' or args[6] == 'abort'
  local sound = (#keys == 4 or #keys == 6) and #args == 7 and known_outcome
  if not (sound and bias and producer and epoch and coordinator) then
    return redis.error_reply('ERR korvet_mark: malformed arguments')
  end
  local state = load_meta(meta)
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  redis.call('ZCARD', index)
  redis.call('ZCARD', aborted)
  if #keys == 6 then
    redis.call('HLEN', keys[5])
    redis.call('HLEN', keys[6])
  end
  local kept = redis.call('HMGET', meta, 'p:' .. args[3], 'c:' .. args[3])
  fault = fence(state, args[2]) or overtaken(kept[1], epoch, kept[2], coordinator)
  if fault then
    return fault
  end
  local now_ms = clock_ms()
  local previous_end = log_end(found, state, bias)
  local producers = { ['p:' .. args[3]] = seen_producer(kept[1], epoch, now_ms), ['c:' .. args[3]] = args[5] }
  local at, first = find_open(state.open, producer)
  if not at then
    for field, packed in pairs(producers) do
      redis.call('HSET', meta, field, packed)
    end
    local start = log_start(found, state, previous_end, bias)
    return { -1, previous_end, start, now_ms, first_open(state.open) or previous_end, -1, 0 }
  end
  local base = next_base(found, state, bias, now_ms, math.huge)
  if base + 1 >= POSITION_LIMIT then
    return redis.error_reply('EXHAUSTED no offset is left behind entry ' .. found.last)
  end

  notice_reset(index, state, found)
  local indexed = state.last == found.last or fold(stream, index, bias, state, found, FOLD_INLINE)
  local fields
  fields, fault = write_marker(stream, base, bias, args)
  if not fields then
    return fault
  end
  if indexed then
    local id = id_of(base)
    local _, _, time_ms = batch_of(id, fields, bias)
    add_entry(index, bias, state, base, 1, time_ms or entry_time(id, fields), payload_bytes(fields), now_ms)
  end
  local stable = end_transaction(meta, aborted, state, at, first, base - bias, args)
  if #keys == 6 then
    decide_pending(keys[5], keys[6], args[6] == 'commit')
  end
  local reply = conclude(meta, state, found, bias, base, 1, id_of(base), now_ms, previous_end, producers, indexed)
  return { reply[1], previous_end, reply[3], now_ms, stable, first, reply[7] }
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
-- Whatever became of the memory meanwhile: the stream has to come back.
redis.register_function({ function_name = 'korvet_seal', callback = seal, flags = { 'allow-oom' } })
redis.register_function('korvet_mark', mark)
redis.register_function({ function_name = 'korvet_settle', callback = settle, flags = { 'allow-oom' } })
redis.register_function('korvet_xadd', native_append)
redis.register_function({ function_name = 'korvet_fold', callback = fold_natives, flags = { 'allow-oom' } })
