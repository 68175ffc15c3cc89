-- What every function of the library shares.  A *position* is an entry ID as one number, ms * 1024 + seq; the
-- offset that Kafka clients see is the position minus the topic's bias (1 on dense topics, else 0).
-- Numbers are doubles, exact to 2^53: positions reach that in the year 2248.

local SEQUENCES = 1024
local POSITION_LIMIT = 9007199254740992
-- A point of the index at most every so many records, bytes, or ms of append time.
local SPAN_RECORDS = 256
local SPAN_BYTES = 1048576
local SPAN_MS = 1000
-- Kafka's RecordBatch, magic 2 (KIP-98), up to its records.
local BATCH_HEADER_BYTES = 61
-- Entries fetched by one XRANGE: a reply of a few MB at worst where records are large.
local PAGE = 64

local function integer(number)
  return string.format('%.0f', number)
end

local function id_of(position)
  local ms = math.floor(position / SEQUENCES)
  return string.format('%.0f-%d', ms, position - ms * SEQUENCES)
end

-- The milliseconds and the sequence of an entry ID.
local function parts_of(id)
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(ms), tonumber(sequence)
end

local function id_less(left, right)
  local left_ms, left_sequence = parts_of(left)
  local right_ms, right_sequence = parts_of(right)
  if left_ms ~= right_ms then
    return left_ms < right_ms
  end
  return left_sequence < right_sequence
end

-- The first position behind an entry.  A sequence that no offset can name is behind its whole millisecond.
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

-- The position of an entry, or nil where no offset can name it.
local function position_at(id)
  local ms, sequence = parts_of(id)
  if sequence >= SEQUENCES or ms * SEQUENCES >= POSITION_LIMIT then
    return nil
  end
  return ms * SEQUENCES + sequence
end

-- A counter of a hash; nil if the field is missing, is not a decimal number, or is not below POSITION_LIMIT.
local function counter(hash, field)
  local found = redis.call('HGET', hash, field)
  local number = found and string.match(found, '^%d+$') and tonumber(found)
  return number and number < POSITION_LIMIT and number or nil
end

local function clock_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Increments a counter and returns the new number.  A damaged counter continues from Redis's clock (ms), which is
-- higher than any number that the counter had before.
local function count_up(hash, field)
  local number = counter(hash, field) or redis.call('HEXISTS', hash, field) == 1 and clock_ms() or 0
  redis.call('HSET', hash, field, integer(number + 1))
  return number + 1
end

-- Returns an error if the keyspace is not the one that the caller opened (it was emptied or replaced, or lost its
-- catalogue), else nil.  `topics` is the key of the catalogue; nil to leave that check out.
local function lost_keyspace(cluster, topics, id)
  local found = redis.call('HGET', cluster, 'id')
  if not found then
    return redis.error_reply('KEYSPACELOST the cluster id is gone from ' .. cluster)
  elseif found ~= id then
    return redis.error_reply('KEYSPACELOST ' .. cluster .. ' has another cluster id, ' .. found .. ' and not ' .. id)
  end
  local expected = topics and counter(cluster, 'topics') or 0
  if expected > 0 and redis.call('HLEN', topics) == 0 then
    local what = topics .. ' of ' .. integer(expected) .. ' topics'
    return redis.error_reply('KEYSPACELOST the catalogue ' .. what .. ' is gone')
  end
  return nil
end

-- What the header of a whole record batch says: its first record's offset, the number of its records, their largest
-- timestamp; nil where that is no header of one.
local function read_batch(batch)
  if #batch < BATCH_HEADER_BYTES or string.byte(batch, 17) ~= 2 then
    return nil
  end
  local base, length = struct.unpack('>i8i4', batch)
  local delta = struct.unpack('>i4', batch, 24)
  local records = struct.unpack('>i4', batch, 58)
  if length ~= #batch - 12 or records < 1 or delta ~= records - 1 then
    return nil
  end
  return base, records, (struct.unpack('>i8', batch, 36))
end

-- The record batch that an entry is as a whole, the one field `batch`: its first record's position, the number of its
-- records, their largest timestamp.  nil for any other entry: it has to end at the entry's own offset.
local function batch_of(id, fields, bias)
  if #fields ~= 2 or fields[1] ~= 'batch' then
    return nil
  end
  local base, records, time_ms = read_batch(fields[2])
  if not base or base < 0 or base + records - 1 + bias ~= position_at(id) then
    return nil
  end
  return base + bias, records, time_ms
end

-- Where an entry begins: the position of its first record.
local function start_of(id, fields, bias)
  return batch_of(id, fields, bias) or position_at(id) or position_after(id)
end

-- What Redis knows of a stream: {exists, length, added, last (ID), deleted (ID of the newest entry that XDEL took),
-- first (ID or nil), first_fields}; or nil and an error reply.
local function inspect(stream)
  local reply = redis.pcall('XINFO', 'STREAM', stream)
  if reply.err then
    if string.find(reply.err, 'no such key', 1, true) then
      return { exists = false, length = 0, added = 0, last = '0-0', deleted = '0-0' }
    end
    return nil, reply
  end
  local found = { exists = true }
  for at = 1, #reply, 2 do
    local name, value = reply[at], reply[at + 1]
    if name == 'length' then
      found.length = value
    elseif name == 'entries-added' then
      found.added = value
    elseif name == 'last-generated-id' then
      found.last = value
    elseif name == 'max-deleted-entry-id' then
      found.deleted = value
    elseif name == 'first-entry' and value then
      found.first, found.first_fields = value[1], value[2]
    end
  end
  return found
end

local function optional(number)
  return number and integer(number) or '-'
end

-- An index point: what is known of the records before one entry, and of the span that ends there.
-- Its score is the offset of the entry's first record.  The number of entries before it is written where that is not
-- the number of records.
local function encode_point(point)
  return table.concat({
    integer(point.position),
    integer(point.before),
    integer(point.append_ms),
    optional(point.run_max),
    optional(point.span_max),
    integer(point.span_bytes),
    point.entries ~= point.before and integer(point.entries) or nil,
  }, ' ')
end

local function decode_point(member)
  local position, before, append_ms, run_max, span_max, span_bytes, entries =
    string.match(member, '^(%d+) (%d+) (%d+) (%S+) (%S+) (%d+) ?(%d*)$')
  return {
    member = member,
    position = tonumber(position),
    before = tonumber(before),
    entries = tonumber(entries) or tonumber(before),
    append_ms = tonumber(append_ms),
    run_max = tonumber(run_max),
    span_max = tonumber(span_max),
    span_bytes = tonumber(span_bytes),
  }
end

local function put_point(index, bias, point)
  if point.member then
    redis.call('ZREM', index, point.member)
  end
  point.member = encode_point(point)
  redis.call('ZADD', index, integer(point.position - bias), point.member)
end

-- The last point at or before a position, or nil.
local function floor_point(index, bias, position)
  local found = redis.call('ZREVRANGEBYSCORE', index, integer(position - bias), '-inf', 'LIMIT', 0, 1)
  return found[1] and decode_point(found[1])
end

-- The first point behind a position, or nil.
local function next_point(index, bias, position)
  local found = redis.call('ZRANGEBYSCORE', index, '(' .. integer(position - bias), '+inf', 'LIMIT', 0, 1)
  return found[1] and decode_point(found[1])
end

-- The meta hash of a partition.  `last` is the entry up to which the index knows the stream, `tail` the last one that
-- an append of ours added; `log` holds, as big-endian doubles (text costs a script more than all its commands):
-- log end, time of the newest append, log start, where the lead over the clock is no burst of ours; how many records
-- there ever were up to `last` (before), and how many entries; of the entries still there (live) how many, their bytes,
-- the largest one; the newest point's count and time, and what lies behind that point.  A number that is not known is
-- NaN.  `gap` is the position of the first entry that compaction left: that none is before it moves no log start.
local LOG_FORMAT = '>dddddddddddddd'

local function known(number)
  if number == number then
    return number
  end
end

-- With the name of one more field, what that holds is the second value; false where there is none.
local function load_meta(meta, ...)
  local found = redis.call('HMGET', meta, 'log', 'last', 'tail', 'epoch', 'gap', 'open', ...)
  local state = {
    last = found[2] or '0-0',
    tail = found[3] or '',
    epoch = found[4],
    gap = tonumber(found[5] or '-1'),
    open = found[6] or '',
  }
  if not found[1] then
    state.log_end, state.at, state.log_start, state.jump = 0, 0, 0, 0
    state.before, state.entries, state.live, state.bytes, state.big, state.span_bytes = 0, 0, 0, 0, 0, 0
    return state, found[7]
  end
  local point_before, point_ms, span_max, run_max
  state.log_end, state.at, state.log_start, state.jump, state.before, state.entries, state.live, state.bytes, state.big,
    state.span_bytes, point_before, point_ms, span_max, run_max = struct.unpack(LOG_FORMAT, found[1])
  state.point_before, state.point_ms = known(point_before), known(point_ms)
  state.span_max, state.run_max = known(span_max), known(run_max)
  return state, found[7]
end

-- Further fields and their values are saved with it.
local function save_meta(meta, state, ...)
  local nan = 0 / 0
  local packed = struct.pack(
    LOG_FORMAT,
    state.log_end, state.at, state.log_start, state.jump,
    state.before, state.entries, state.live, math.max(0, state.bytes), state.big, math.max(0, state.span_bytes),
    state.point_before or nan, state.point_ms or nan, state.span_max or nan, state.run_max or nan
  )
  redis.call('HSET', meta, 'last', state.last, 'tail', state.tail, 'log', packed, ...)
  if state.newer_epoch then
    redis.call('HSET', meta, 'epoch', state.newer_epoch)
  end
end

-- The meta field `open` is the open transactions: for each the producer's id and where it begins, as big-endian
-- doubles, the oldest first.  A transaction begins at the log end before its first record: on clock topics there is a
-- gap between the two, and a reader of committed records stops before the gap, so that it needs no record for the gap.
local OPEN_FORMAT, OPEN_BYTES = '>dd', 16

-- The index in `open` of a producer's transaction, and the offset at which the transaction begins; nil if it has none.
local function find_open(open, producer)
  for at = 1, #open, OPEN_BYTES do
    local id, first = struct.unpack(OPEN_FORMAT, open, at)
    if id == producer then
      return at, first
    end
  end
end

-- Where the oldest open transaction begins: what is before that is decided.  nil if none is open.
local function first_open(open)
  if open ~= '' then
    local _, first = struct.unpack(OPEN_FORMAT, open)
    return first
  end
end

-- The error reply for a writer whose epoch is older than the partition's newest; a newer one than that is taken over
-- by `save_meta`.  "" is a writer that nobody fences.
local function fence(state, epoch)
  if epoch == '' or epoch == state.epoch then
    return nil
  end
  if state.epoch and tonumber(epoch) < tonumber(state.epoch) then
    return redis.error_reply('FENCED epoch ' .. epoch .. ' is older than ' .. state.epoch)
  end
  state.newer_epoch = epoch
end

-- Forget all points: nothing that they describe is there any more.
local function clear_index(index, state)
  redis.call('DEL', index)
  state.live = 0
  state.bytes = 0
  state.span_bytes = 0
  state.point_before = nil
  state.point_ms = nil
  state.span_max = nil
  state.run_max = nil
end

-- Accounts for `records` more in so many entries, `size` bytes in all, the first of them at `position` and the others
-- right behind it; `time_ms` is their largest timestamp.  `position` is nil where no offset names it: then they start
-- no span, unless they are the very first, which the last position of their millisecond stands for.
local function add_records(index, bias, state, position, records, entries, time_ms, size, append_ms)
  if position == nil and state.point_before == nil then
    position = math.min(append_ms * SEQUENCES + SEQUENCES, POSITION_LIMIT) - 1
  end
  local due = position
    and (
      state.point_before == nil
      or state.before - state.point_before >= SPAN_RECORDS
      or append_ms - state.point_ms >= SPAN_MS
      or state.span_bytes >= SPAN_BYTES
    )
  if due then
    if state.span_max and (state.run_max == nil or state.span_max > state.run_max) then
      state.run_max = state.span_max
    end
    put_point(index, bias, {
      position = position,
      before = state.before,
      entries = state.entries,
      append_ms = append_ms,
      run_max = state.run_max,
      span_max = state.span_max,
      span_bytes = state.span_bytes,
    })
    state.point_before = state.before
    state.point_ms = append_ms
    state.span_max = nil
    state.span_bytes = 0
  end
  state.before = state.before + records
  state.entries = state.entries + entries
  state.live = state.live + entries
  state.bytes = state.bytes + size
  state.span_bytes = state.span_bytes + size
  if state.span_max == nil or time_ms > state.span_max then
    state.span_max = time_ms
  end
end

-- The same for one entry of so many records.
local function add_entry(index, bias, state, position, records, time_ms, size, append_ms)
  add_records(index, bias, state, position, records, 1, time_ms, size, append_ms)
  if size > state.big then
    state.big = size
  end
end

-- Where the log begins, as an offset: 0 until something is gone, then the first entry still there.  What compaction
-- took is gone from within the log, even where nothing is left before it.
local function log_start(found, state, log_end, bias)
  local start, first = state.log_start, nil
  if found.length == 0 then
    first = log_end
  elseif not found.unchanged and (start > 0 or found.added > found.length) then
    first = start_of(found.first, found.first_fields, bias) - bias
  end
  if first and first + bias > state.gap then
    start = math.max(start, first)
  end
  return math.min(start, log_end)
end

-- After a compaction that left nothing whatever comes next is the first entry; `base` is what is about to come, or nil.
local function end_gap(meta, state, found, base, bias)
  if state.gap < POSITION_LIMIT then
    return
  end
  local position = found.first and start_of(found.first, found.first_fields, bias) or base
  if position then
    state.gap = position
    redis.call('HSET', meta, 'gap', integer(position))
  end
end

-- Where the log ends, as an offset.  It never decreases, whatever native clients delete.
local function log_end(found, state, bias)
  return math.max(state.log_end, position_after(found.last) - bias)
end

local function payload_bytes(fields)
  local size = 0
  for at = 1, #fields do
    size = size + #fields[at]
  end
  return size
end

-- Producers' epochs are int16.
local MAX_EPOCH = 32767

-- Whether a text is a number as `pid` and `epoch` have them.
local function is_number(text)
  return #text <= 18 and string.find(text, '^%d+$') ~= nil
end

-- When a record was made: entry ms plus `ts` where the fields are the ones that we write, else entry ms.
local function entry_time(id, fields)
  local ms = parts_of(id)
  local key, value, shift, producer, epoch = false, false, nil, false, false
  for at = 1, #fields, 2 do
    local name = fields[at]
    if name == 'value' and not value then
      value = true
    elseif name == 'key' and not key then
      key = true
    elseif name == 'ts' and not shift then
      if not string.find(fields[at + 1], '^%-?%d+$') then
        return ms
      end
      shift = tonumber(fields[at + 1])
    elseif name == 'pid' and not producer and is_number(fields[at + 1]) then
      producer = true
    elseif name == 'epoch' and not epoch and is_number(fields[at + 1]) and tonumber(fields[at + 1]) <= MAX_EPOCH then
      epoch = true
    elseif string.sub(name, 1, 7) ~= 'header.' then
      if string.sub(name, 1, 11) ~= 'nullheader.' or fields[at + 1] ~= '' then
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

-- What Redis knows of a stream and what the index does, where they agree; else nil, nil and the reply that says what is
-- to be called first, {"fold"} or {"recount"}, or an error reply.
local function in_step(stream, meta)
  local found, fault = inspect(stream)
  if not found then
    return nil, nil, fault
  end
  local state = load_meta(meta)
  if state.last ~= found.last then
    return nil, nil, { 'fold' }
  end
  if state.live ~= found.length then
    return nil, nil, { 'recount' }
  end
  return found, state
end

-- Number and bytes of the entries in [first, last] (XRANGE bounds), and the number of records in them.
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

local function count_entries(stream, first, last)
  return (measure(stream, 0, first, last))
end

-- Live entries behind entry `last_id`, from the index; exact where that is up to date (korvet_fold, korvet_recount).
local function count_after(stream, index, last_id)
  local newest = redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')
  if not newest[1] then
    return count_entries(stream, '(' .. last_id, '+')
  end
  local tail = decode_point(newest[1])
  local bias = tail.position - tonumber(newest[2])
  local behind = next_point(index, bias, position_after(last_id) - 1)
  if not behind then
    return count_entries(stream, '(' .. last_id, '+')
  end
  local span = 0
  if id_less(last_id, id_of(behind.position)) then
    span = count_entries(stream, '(' .. last_id, '(' .. id_of(behind.position))
  end
  return span + tail.entries - behind.entries + count_entries(stream, id_of(tail.position), '+')
end

local function field_of(reply, name)
  for position = 1, #reply, 2 do
    if reply[position] == name then
      return reply[position + 1]
    end
  end
  return nil
end

-- The meta field "commit:<group>" is what a Redis group was last brought in step with:
--   "<log position> <offset>"              a commit; the group stands right there
--   "<log position> <offset> <native>"     a commit; the group stands elsewhere, as native consumers went on
--   "<log position> <offset> <native> n"   a commit that was read off the group itself
--   "<log position> - <native>"            a deletion that left the group to its native consumers
-- Returns the log position, the offset ("-": deleted), where the group stood then, and "n" or "", all of them text.
local function decode_projection(field)
  local position, offset, native, origin = string.match(field, '^(%d+) (%S+) ?(%d*) ?(n?)$')
  return position, offset, native == '' and offset or native, origin
end

local function encode_projection(position, offset, native, origin)
  if origin ~= '' then
    return table.concat({ position, offset, native, origin }, ' ')
  end
  return position .. ' ' .. offset .. (native ~= offset and ' ' .. native or '')
end

-- Runs of deleted pending entries that are stepped over; behind them a group is taken to stand no further.
local GAPS = 64

-- Where a Redis group stands, as an offset in text: at its oldest pending entry that still exists, else behind the last
-- one delivered.  In a record batch that is at the offset committed before, where that one is in its middle: what comes
-- before is done.
local function native_offset(stream, name, pending, delivered, bias, committed)
  local from, found = '-', nil
  for _ = 1, pending > 0 and GAPS or 0 do
    local oldest = redis.call('XPENDING', stream, name, from, '+', 1)[1]
    found = oldest and redis.call('XRANGE', stream, oldest[1], '+', 'COUNT', 1)[1]
    if not found or found[1] == oldest[1] then
      break
    end
    from = found[1]
  end
  if not found then
    return integer(math.max(0, position_after(delivered) - bias))
  end
  local start = start_of(found[1], found[2], bias)
  local middle = (tonumber(committed) or 0) + bias
  if start < middle and middle <= (position_at(found[1]) or 0) then
    start = middle
  end
  return integer(start - bias)
end
