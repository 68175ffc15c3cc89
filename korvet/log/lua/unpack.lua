-- Batches in the replication stream: what replicas execute in place of KORVET.PUT of the server module, so they don't
-- need the module.

-- Where the numbers of a batch's header begin.
local ATTRIBUTES, BASE_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, RECORD_COUNT = 23, 28, 44, 52, 58
local TRANSACTIONAL = 16

-- Parts of what servers answer to a script if they have no module, or the user may not run its command.
local WITHOUT_MODULE = { 'nknown', 'NOPERM', 'ACL failure', 'user executing the script' }

-- Returns whether the error of a KORVET.PUT is one of these.
local function is_without_module(err)
  for _, part in ipairs(WITHOUT_MODULE) do
    if string.find(err, part, 1, true) then
      return true
    end
  end
  return false
end

-- Whether the server has the module, as far as is known.
local has_module = true

-- Reads a zigzag varint.  Returns it and the place after it.
local function varint(text, at)
  local value = string.byte(text, at)
  if value >= 128 then
    local scale, more = 128, nil
    value = value - 128
    repeat
      at = at + 1
      more = string.byte(text, at)
      value, scale = value + more % 128 * scale, scale * 128
    until more < 128
  end
  if value % 2 == 0 then
    return value / 2, at + 1
  end
  return -(value + 1) / 2, at + 1
end

-- Reads bytes after their size, a varint.  Returns them, nil for null, and the place after them.
local function sized(text, at)
  local size, first = varint(text, at)
  if size < 0 then
    return nil, first
  end
  return string.sub(text, first, first + size - 1), first + size
end

-- Returns the names and values of the fields that end each entry of a transaction; none for another batch.
local function producer_fields(batch)
  if math.floor(string.byte(batch, ATTRIBUTES) / TRANSACTIONAL) % 2 == 0 then
    return {}
  end
  local producer, epoch = struct.unpack('>i8', batch, PRODUCER_ID), struct.unpack('>i2', batch, PRODUCER_EPOCH)
  return { 'pid', integer(producer), 'epoch', integer(epoch) }
end

-- Reads `headers` headers.  Writes a name and a value for each into `fields` from `count` + 1 on.  Returns the place
-- after the headers.
local function read_headers(batch, at, headers, fields, count)
  local name, value
  for place = count + 1, count + 2 * headers, 2 do
    name, at = sized(batch, at)
    value, at = sized(batch, at)
    fields[place], fields[place + 1] = (value and 'header.' or 'nullheader.') .. name, value or ''
  end
  return at
end

-- Adds the records of a batch that the module has checked as entries, from `position` on.
local function add_unpacked(stream, position, timestamps, batch)
  local base_ms, records = struct.unpack('>i8', batch, BASE_TIMESTAMP), struct.unpack('>i4', batch, RECORD_COUNT)
  local producer, fields, at = producer_fields(batch), {}, BATCH_HEADER_BYTES + 1
  local ms, sequence = math.floor(position / SEQUENCES), position % SEQUENCES
  local ms_text, shifted, shift = integer(ms), nil, nil
  for _ = 1, records do
    local count, delta, key, value, headers = 0, nil, nil, nil, nil
    -- After the record's size: attributes, timestamp delta, offset delta, key, value, headers.
    delta, at = varint(batch, select(2, varint(batch, at)) + 1)
    key, at = sized(batch, select(2, varint(batch, at)))
    value, at = sized(batch, at)
    headers, at = varint(batch, at)
    if key then
      fields[1], fields[2], count = 'key', key, 2
    end
    if value then
      fields[count + 1], fields[count + 2], count = 'value', value, count + 2
    end
    if timestamps then
      if delta ~= shifted then
        shifted, shift = delta, integer(base_ms + delta - ms)
      end
      fields[count + 1], fields[count + 2], count = 'ts', shift, count + 2
    elseif count == 0 and headers == 0 and #producer == 0 then
      fields[1], fields[2], count = 'ts', '0', 2
    end
    if headers > 0 then
      at = read_headers(batch, at, headers, fields, count)
      count = count + 2 * headers
    end
    for place = 1, #producer do
      fields[count + place] = producer[place]
    end
    redis.call('XADD', stream, ms_text .. SUFFIXES[sequence], unpack(fields, 1, count + #producer))
    sequence = sequence + 1
    if sequence == SEQUENCES then
      ms, sequence, shifted = ms + 1, 0, nil
      ms_text = integer(ms)
    end
  end
end

-- KEYS: stream.  ARGV: ID of the first record's entry, "1" if each entry has the field `ts`, else "0", batch.
-- Adds the records of a batch that KORVET.PUT has added on the primary, as the same entries: by KORVET.PUT if the
-- server has it.  Brokers never call it.
local function add(keys, args)
  if #keys ~= 1 or #args ~= 3 then
    return redis.error_reply('ERR korvet_unpack: malformed arguments')
  end
  if has_module then
    local added = redis.pcall('KORVET.PUT', keys[1], args[1], args[2], 'korvet_unpack' .. RELEASE, args[3])
    if not added.err then
      return added
    end
    -- Without the module, or with another version.  If the stream refuses the entries, XADD reports that below.
    has_module = false
  end
  local ms, sequence = parts_of(args[1])
  add_unpacked(keys[1], ms * SEQUENCES + sequence, args[2] == '1', args[3])
  return redis.status_reply('OK')
end

-- A replica obeys its primary, whatever its own memory and state.
redis.register_function({
  function_name = 'korvet_unpack' .. RELEASE, callback = add, flags = { 'allow-oom', 'allow-stale' },
})
