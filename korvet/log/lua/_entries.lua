-- Entries of a stream: their IDs, the records in them, and what Redis reports about the stream.
--
-- A *position* is an entry ID as one number, ms * 1024 + sequence.  An offset, as Kafka clients see it, is a position
-- minus the topic's *bias*: 1 with offset.assignment=dense, else 0.  Numbers are doubles, which are exact up to 2^53;
-- positions reach that limit in the year 2248.

local SEQUENCES = 1024
local POSITION_LIMIT = 9007199254740992
-- Timestamps up to here, before and after 1970, are exact in a double, and so is their difference from a position's ms.
local EXACT_MS = 4503599627370496
-- Entries per XRANGE: a reply of a few MB at worst if records are large.
local PAGE = 64
-- Size of the header of a Kafka RecordBatch (magic 2, KIP-98).
local BATCH_HEADER_BYTES = 61
-- Producer epochs are int16.
local MAX_PRODUCER_EPOCH = 32767
-- Timestamps are int64.
local MAX_TIMESTAMP_DIGITS = 19

-- What follows the ms in an entry ID, by the sequence: a text costs a script as much as ten numbers.
local SUFFIXES = {}
for sequence = 0, SEQUENCES - 1 do
  SUFFIXES[sequence] = '-' .. sequence
end

local function integer(number)
  return string.format('%.0f', number)
end

local function clock_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns the value of a field in a reply that lists names and values (XINFO); nil if the field is missing.
local function field_of(reply, name)
  for at = 1, #reply, 2 do
    if reply[at] == name then
      return reply[at + 1]
    end
  end
end

local function id_of(position)
  local ms = math.floor(position / SEQUENCES)
  return string.format('%.0f-%d', ms, position - ms * SEQUENCES)
end

-- Returns the milliseconds and the sequence of an entry ID.
local function parts_of(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(sequence)
end

-- Compares decimal texts: both the milliseconds of a foreign entry ID and an offset may exceed 2^53.
local function decimal_less(left, right)
  if #left ~= #right then
    return #left < #right
  end
  return left < right
end

local function id_less(left, right)
  local left_ms, left_sequence = string.match(left, '^(%d+)-(%d+)$')
  local right_ms, right_sequence = string.match(right, '^(%d+)-(%d+)$')
  if left_ms ~= right_ms then
    return decimal_less(left_ms, right_ms)
  end
  return decimal_less(left_sequence, right_sequence)
end

-- Returns the first position after an entry.  The position after an entry whose sequence is too large for an offset is
-- the first one of the next millisecond.
local function position_after(id)
  if id == '0-0' then
    return 0
  end
  local ms, sequence = parts_of(id)
  if ms * SEQUENCES >= POSITION_LIMIT then
    return POSITION_LIMIT
  end
  return ms * SEQUENCES + math.min(sequence, SEQUENCES - 1) + 1
end

-- Returns the position of an entry; nil if the entry has no offset.
local function position_at(id)
  local ms, sequence = parts_of(id)
  if sequence >= SEQUENCES or ms * SEQUENCES >= POSITION_LIMIT then
    return nil
  end
  return ms * SEQUENCES + sequence
end

local function payload_bytes(fields)
  local size = 0
  for at = 1, #fields do
    size = size + #fields[at]
  end
  return size
end

-- Returns the base offset, the number of records and the largest timestamp of a record batch; nil if the value is not
-- one whole batch.
local function read_batch(value)
  if #value < BATCH_HEADER_BYTES or string.byte(value, 17) ~= 2 then
    return nil
  end
  local base_offset, length = struct.unpack('>i8i4', value)
  local last_offset_delta = struct.unpack('>i4', value, 24)
  local records = struct.unpack('>i4', value, 58)
  if length ~= #value - 12 or records < 1 or last_offset_delta ~= records - 1 then
    return nil
  end
  return base_offset, records, (struct.unpack('>i8', value, 36))
end

-- Returns the position of the first record, the number of records and their largest timestamp if an entry is a record
-- batch; nil for any other entry.  A batch is the only field, `batch`, and its last record has the entry's own offset.
local function batch_of(id, fields, bias)
  if #fields ~= 2 or fields[1] ~= 'batch' then
    return nil
  end
  local base_offset, records, time_ms = read_batch(fields[2])
  if not base_offset or base_offset < 0 or base_offset + records - 1 + bias ~= position_at(id) then
    return nil
  end
  return base_offset + bias, records, time_ms
end

-- Returns the position of an entry's first record.
local function start_of(id, fields, bias)
  return batch_of(id, fields, bias) or position_at(id) or position_after(id)
end

-- Returns whether a text is a number as the fields `pid` and `epoch` have it.
local function is_number(text)
  return #text <= 18 and string.find(text, '^%d+$') ~= nil
end

-- Returns the timestamp of an entry that is one record: entry ms plus `ts` if the fields are those that korvet writes,
-- else entry ms.
local function entry_time(id, fields)
  local ms = parts_of(id)
  local key, value, shift, producer, epoch = false, false, nil, false, false
  for at = 1, #fields, 2 do
    local name, text = fields[at], fields[at + 1]
    if name == 'value' and not value then
      value = true
    elseif name == 'key' and not key then
      key = true
    elseif name == 'ts' and not shift then
      local digits = string.match(text, '^%-?(%d+)$')
      if not digits or #digits > MAX_TIMESTAMP_DIGITS then
        return ms
      end
      shift = tonumber(text)
    elseif name == 'pid' and not producer and is_number(text) then
      producer = true
    elseif name == 'epoch' and not epoch and is_number(text) and tonumber(text) <= MAX_PRODUCER_EPOCH then
      epoch = true
    elseif string.sub(name, 1, 7) ~= 'header.' then
      if string.sub(name, 1, 11) ~= 'nullheader.' or text ~= '' then
        return ms
      end
    end
  end
  local time_ms = ms + (shift or 0)
  if producer ~= epoch or math.abs(shift or 0) > 2 ^ 63 or math.abs(time_ms) > 2 ^ 63 then
    return ms
  end
  return time_ms
end

-- Returns the position of the first record (nil if it has no offset), the number of records and their largest
-- timestamp, for an entry of either layout.
local function records_of(id, fields, bias)
  local position, records, time_ms = batch_of(id, fields, bias)
  if position then
    return position, records, time_ms
  end
  return position_at(id), 1, entry_time(id, fields)
end

-- Returns what Redis reports about a stream (XINFO STREAM): {exists, length, added (entries ever), last_id, deleted_id
-- (newest entry that was deleted with XDEL), first_id (nil if empty), first_fields}; or nil and an error reply.
local function inspect(stream)
  -- The error of XINFO would appear in the statistics of the server.
  if redis.call('EXISTS', stream) == 0 then
    return { exists = false, length = 0, added = 0, last_id = '0-0', deleted_id = '0-0' }
  end
  local reply = redis.pcall('XINFO', 'STREAM', stream)
  if reply.err then
    return nil, reply
  end
  local info = { exists = true }
  for at = 1, #reply, 2 do
    local name, value = reply[at], reply[at + 1]
    if name == 'length' then
      info.length = value
    elseif name == 'entries-added' then
      info.added = value
    elseif name == 'last-generated-id' then
      info.last_id = value
    elseif name == 'max-deleted-entry-id' then
      info.deleted_id = value
    elseif name == 'first-entry' and value then
      info.first_id, info.first_fields = value[1], value[2]
    end
  end
  return info
end

-- Returns the number, the bytes and the number of records of the entries in [first, last] (XRANGE bounds).
local function measure(stream, bias, first, last)
  local count, bytes, records = 0, 0, 0
  while true do
    local page = redis.call('XRANGE', stream, first, last, 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      local _, batched = batch_of(entry[1], entry[2], bias)
      count = count + 1
      bytes = bytes + payload_bytes(entry[2])
      records = records + (batched or 1)
    end
    if #page < PAGE then
      return count, bytes, records
    end
    first = '(' .. page[#page][1]
  end
end
