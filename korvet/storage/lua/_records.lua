-- Records among the arguments of a function, each of which becomes an entry.

-- Where the arguments of the records begin.
local RECORDS = 8

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

-- Returns whether `args` from RECORDS on are `count` well-formed records.
local function records_are_sound(args, count)
  local at = RECORDS
  for _ = 1, count do
    local size, timestamp_at = tonumber(args[at]), tonumber(args[at + 1])
    if not size or size < 2 or size % 2 ~= 0 or not timestamp_at or timestamp_at < 0 or timestamp_at > size then
      return false
    end
    if timestamp_at > 0 and not string.find(args[at + 1 + timestamp_at] or '', '^%-?%d+$') then
      return false
    end
    at = at + 2 + size
  end
  return at == #args + 1
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

-- Adds all records as entries, from position `base` on.  Returns nil, or the error reply of the first XADD; then
-- nothing was added.
local function write_records(log, args, count, base, options)
  local latest, pending, complete = options.latest, options.pending, options.complete
  local at, ms, ms_text, shifted, shift = RECORDS, nil, nil, nil, nil
  for position = base, base + count - 1 do
    local sequence = position % SEQUENCES
    if ms == nil or sequence == 0 then
      ms = math.floor(position / SEQUENCES)
      ms_text, shifted = integer(ms), nil
    end
    local id, xadd = ms_text .. '-' .. sequence, position == base and redis.pcall or redis.call
    local size, timestamp_at = tonumber(args[at]), tonumber(args[at + 1])
    local first, last, time_ms, sent = at + 2, at + 1 + size, ms, nil
    if timestamp_at > 0 then
      sent = args[at + 1 + timestamp_at]
      local text = options.append_time or sent
      time_ms = tonumber(text)
      if text ~= shifted then
        shifted, shift = text, relative_to(ms, text, time_ms)
      end
      args[at + 1 + timestamp_at] = shift
    end
    local added = xadd('XADD', log.stream, id, unpack(args, first, last))
    if added.err then
      if sent then
        -- append_after may be called again with these arguments.
        args[at + 1 + timestamp_at] = sent
      end
      return added
    end
    if pending then
      note_pending(pending, args, first, id)
    elseif latest then
      note_latest(latest, args, first, size, id)
    end
    if complete then
      local bytes = 0
      for place = first, last do
        bytes = bytes + #args[place]
      end
      add_entry(log, position, 1, time_ms, bytes, log.now_ms)
    end
    at = last + 1
  end
end
