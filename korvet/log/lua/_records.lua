-- Records among the arguments of a function, each of which becomes an entry.

-- Notes the newest entry of a record's key.  The fields of a record begin with `key`, `value`.
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

-- Notes the entry of a record in a transaction until korvet_mark ends the transaction.
local function note_pending(pending, args, at, id)
  if args[at] == 'key' then
    redis.call('HSET', pending, args[at + 1], id)
  end
end

-- The arguments of a batch begin with the *heads* of its records, three bytes each: half the number of field arguments,
-- big-endian, and half the place of the timestamp among these (0: none).

-- The most field arguments of a record, as in korvet/records/kernel/record_fields.py: what one `unpack` can take.
local MOST_STRINGS = 3900

-- Returns the number of field arguments of a record whose head begins at that byte, and how many are before its
-- timestamp; nil if it has none.
local function read_head(heads, at)
  local high, low, place = string.byte(heads, at, at + 2)
  return 2 * (256 * high + low), place > 0 and 2 * place - 1 or nil
end

-- Returns whether the arguments of a batch are as many records as it says.
local function records_are_sound(args, batch)
  local heads, size = args[batch.at] or '', 1
  if #heads ~= 3 * batch.count or batch.at + batch.size > #args + 1 then
    return false
  end
  for at = 1, #heads, 3 do
    local strings, before_timestamp = read_head(heads, at)
    if strings < 2 or strings > MOST_STRINGS or (before_timestamp and before_timestamp >= strings) then
      return false
    end
    size = size + strings
  end
  return size == batch.size
end

local BILLION = 1000000000

-- Returns a timestamp minus `ms` in decimal, exactly.  `text` is the timestamp in decimal, `time_ms` nearly its number.
local function relative_to(ms, text, time_ms)
  if math.abs(time_ms) <= EXACT_MS then
    return integer(time_ms - ms)
  end
  local sign, head, tail = string.match(text, '^(%-?)(%d+)(%d%d%d%d%d%d%d%d%d)$')
  local factor = sign == '-' and -1 or 1
  local low = factor * tail - ms % BILLION
  local carry = math.floor(low / BILLION)
  local high = factor * head - math.floor(ms / BILLION) + carry
  low = low - carry * BILLION
  if high < 0 and low > 0 then
    high, low = high + 1, low - BILLION
  end
  return high == 0 and integer(low) or integer(high) .. string.format('%09.0f', math.abs(low))
end

-- Returns the bytes of the strings `first` to `last`.
local function bytes_of(args, first, last)
  local bytes = 0
  for place = first, last do
    bytes = bytes + #args[place]
  end
  return bytes
end

-- Notes an entry for coordinators under `keys[4]` or `keys[5]`, if these are there.
local function note_entry(keys, args, at, size, id)
  if keys[5] then
    note_pending(keys[5], args, at, id)
  elseif keys[4] then
    note_latest(keys[4], args, at, size, id)
  end
end

-- Accounts for the entries of a span, a table of the position of the first record, the number of records, their bytes
-- and their largest timestamp, and begins the next one.
local function end_span(log, span)
  if span.records > 0 then
    add_records(log, span.position, span.records, span.records, span.newest_ms, span.bytes, log.now_ms)
    span.position = span.position + span.records
    span.records, span.bytes, span.newest_ms = 0, 0, -math.huge
  end
end

-- Counts an entry of `bytes` in a span.
local function count_entry(log, span, bytes, time_ms)
  span.records, span.bytes = span.records + 1, span.bytes + bytes
  if time_ms > span.newest_ms then
    span.newest_ms = time_ms
  end
  if bytes > log.largest_entry_bytes then
    log.largest_entry_bytes = bytes
  end
  if span.records == SPAN_RECORDS then
    end_span(log, span)
  end
end

-- Adds the records of a batch as entries, from position `base` on, and notes them under the fourth key and the fifth.
-- Returns the reply of the last XADD; if it is an error, nothing was added.
local function write_records(log, args, batch, base, keys)
  local heads, at, head_at = args[batch.at], batch.at + 1, 1
  local ms, sequence = math.floor(base / SEQUENCES), base % SEQUENCES
  local shifted, shift, time_ms, reply = nil, nil, nil, nil
  local ms_text = integer(ms)
  local span = { position = base, records = 0, bytes = 0, newest_ms = -math.huge }
  for position = base, base + batch.count - 1 do
    local size, timestamp_at = read_head(heads, head_at)
    local ends, sent = at + size - 1, nil
    time_ms = timestamp_at and time_ms or ms
    if timestamp_at then
      timestamp_at = at + timestamp_at
      sent = args[timestamp_at]
      local text = log.append_time or sent
      if text ~= shifted then
        time_ms = tonumber(text)
        shifted, shift = text, relative_to(ms, text, time_ms)
      end
      args[timestamp_at] = shift
    end
    local id, xadd = ms_text .. SUFFIXES[sequence], position == base and redis.pcall or redis.call
    reply = xadd('XADD', log.stream, id, unpack(args, at, ends))
    if reply.err then
      if sent then
        -- append_after may be called again with these arguments.
        args[timestamp_at] = sent
      end
      return reply
    end
    note_entry(keys, args, at, size, id)
    if log.complete then
      count_entry(log, span, bytes_of(args, at, ends), time_ms)
    end
    at, head_at, sequence = ends + 1, head_at + 3, sequence + 1
    if sequence == SEQUENCES then
      ms, sequence, shifted = ms + 1, 0, nil
      ms_text = integer(ms)
    end
  end
  end_span(log, span)
  return reply
end
