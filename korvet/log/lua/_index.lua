-- The sparse index of a partition, a sorted set: finds offsets by count, time or bytes without reading the log.
--
-- A *point* describes the log before one entry, and a *span* is the entries from one point to the next.  The score of a
-- point is the offset of the entry's first record; its member is, between spaces,
--   position              of the entry's first record
--   records_before        all records before the entry, those included that are gone
--   append_ms             when the entry was appended
--   largest_before_ms     largest timestamp before the entry; "-" if there is none
--   largest_in_span_ms    largest timestamp in the span that ends here; "-" if there is none
--   span_bytes            bytes of that span
--   entries_before        all entries before the entry; left out if it equals records_before

-- A new point comes after SPAN_RECORDS records, SPAN_BYTES bytes or SPAN_MS ms of append time.
local SPAN_RECORDS = 256
local SPAN_BYTES = 1048576
local SPAN_MS = 1000

local function optional(number)
  return number and integer(number) or '-'
end

local function encode_point(point)
  return table.concat({
    integer(point.position),
    integer(point.records_before),
    integer(point.append_ms),
    optional(point.largest_before_ms),
    optional(point.largest_in_span_ms),
    integer(point.span_bytes),
    point.entries_before ~= point.records_before and integer(point.entries_before) or nil,
  }, ' ')
end

local function decode_point(member)
  local position, records_before, append_ms, largest_before_ms, largest_in_span_ms, span_bytes, entries_before =
    string.match(member, '^(%d+) (%d+) (%d+) (%S+) (%S+) (%d+) ?(%d*)$')
  return {
    member = member,
    position = tonumber(position),
    records_before = tonumber(records_before),
    entries_before = tonumber(entries_before) or tonumber(records_before),
    append_ms = tonumber(append_ms),
    largest_before_ms = tonumber(largest_before_ms),
    largest_in_span_ms = tonumber(largest_in_span_ms),
    span_bytes = tonumber(span_bytes),
  }
end

-- Adds a point, or replaces the one that `point` was decoded from.
local function put_point(log, point)
  if point.member then
    redis.call('ZREM', log.index, point.member)
  end
  point.member = encode_point(point)
  redis.call('ZADD', log.index, integer(point.position - log.bias), point.member)
end

-- Returns the last point at or before a position, or nil.
local function floor_point(log, position)
  local found = redis.call('ZREVRANGEBYSCORE', log.index, integer(position - log.bias), '-inf', 'LIMIT', 0, 1)
  return found[1] and decode_point(found[1])
end

-- Returns the first point after a position, or nil.
local function next_point(log, position)
  local found = redis.call('ZRANGEBYSCORE', log.index, '(' .. integer(position - log.bias), '+inf', 'LIMIT', 0, 1)
  return found[1] and decode_point(found[1])
end

-- Deletes all points: none of the entries that they describe is left.
local function clear_index(log)
  redis.call('DEL', log.index)
  log.live_entries = 0
  log.live_bytes = 0
  log.span_bytes = 0
  log.point_records_before = nil
  log.point_append_ms = nil
  log.largest_in_span_ms = nil
  log.largest_before_ms = nil
end

-- Adds a point at `position`, where the records of an append begin.
local function start_span(log, position, append_ms)
  local largest_ms = log.largest_in_span_ms
  if largest_ms and (log.largest_before_ms == nil or largest_ms > log.largest_before_ms) then
    log.largest_before_ms = largest_ms
  end
  put_point(log, {
    position = position,
    records_before = log.records_before,
    entries_before = log.entries_before,
    append_ms = append_ms,
    largest_before_ms = log.largest_before_ms,
    largest_in_span_ms = largest_ms,
    span_bytes = log.span_bytes,
  })
  log.point_records_before = log.records_before
  log.point_append_ms = append_ms
  log.largest_in_span_ms = nil
  log.span_bytes = 0
end

-- Returns whether the next entry begins a span.
local function begins_span(log, append_ms)
  local point_records = log.point_records_before
  return point_records == nil
    or log.records_before - point_records >= SPAN_RECORDS
    or append_ms - log.point_append_ms >= SPAN_MS
    or log.span_bytes >= SPAN_BYTES
end

-- Accounts for `records` new records in `entries` entries of `size` bytes in all.  The first record is at `position`,
-- the others follow without a gap, and `time_ms` is their largest timestamp.  If `position` is nil (no offset), the
-- records start no span, unless they are the first ones of the log: then the span starts at the last position of their
-- millisecond.
local function add_records(log, position, records, entries, time_ms, size, append_ms)
  local point_records = log.point_records_before
  if point_records == nil then
    -- From here on, all are noted that may be no records (note_mixed).
    redis.call('HSETNX', log.meta, 'mixed', '0')
  end
  if position == nil and point_records == nil then
    position = math.min(append_ms * SEQUENCES + SEQUENCES, POSITION_LIMIT) - 1
  end
  if position and begins_span(log, append_ms) then
    start_span(log, position, append_ms)
  end
  log.records_before = log.records_before + records
  log.entries_before = log.entries_before + entries
  log.live_entries = log.live_entries + entries
  log.live_bytes = log.live_bytes + size
  log.span_bytes = log.span_bytes + size
  if log.largest_in_span_ms == nil or time_ms > log.largest_in_span_ms then
    log.largest_in_span_ms = time_ms
  end
end

-- Accounts for one new entry, which holds `records` records.
local function add_entry(log, position, records, time_ms, size, append_ms)
  add_records(log, position, records, 1, time_ms, size, append_ms)
  if size > log.largest_entry_bytes then
    log.largest_entry_bytes = size
  end
end

-- Notes that the index counts entries before a position that are no records of consumers, or that may be none: markers,
-- records of aborted transactions, entries without an offset, and batches of native clients.
local function note_mixed(log, position)
  redis.call('HSET', log.meta, 'mixed', integer(position - log.bias))
end

-- Returns whether an entry of a native client is one record of consumers.  `position` is nil without an offset.
local function is_record(position, fields)
  if not position or (#fields == 2 and fields[1] == 'batch') then
    return false
  end
  return #fields ~= 6 or (fields[1] ~= 'ctl' and fields[3] ~= 'ctl' and fields[5] ~= 'ctl')
end

-- Accounts for up to `budget` entries after log.indexed_id.  Returns whether that was all.  On dense topics, whose IDs
-- are no times, entries count as appended now.  A span begins after the entries before it, also if a batch of a native
-- client has their offsets.
local function fold(log, budget)
  local bytes, now_ms, free = 0, log.bias > 0 and clock_ms() or nil, position_after(log.indexed_id)
  while budget > 0 and bytes < 4 * SPAN_BYTES do
    local asked = math.min(PAGE, budget)
    local page = redis.call('XRANGE', log.stream, '(' .. log.indexed_id, '+', 'COUNT', asked)
    for _, entry in ipairs(page) do
      local id, fields = entry[1], entry[2]
      local size, ms = payload_bytes(fields), parts_of(id)
      local position, records, time_ms = records_of(id, fields, log.bias)
      local start = position and math.max(position, free)
      add_entry(log, start, records, time_ms, size, position and now_ms or ms)
      if not is_record(position, fields) then
        note_mixed(log, position_after(id))
      end
      free = position and position + records or position_after(id)
      bytes = bytes + size
    end
    if #page < asked then
      log.indexed_id = log.info.last_id
      return true
    end
    log.indexed_id = page[#page][1]
    budget = budget - #page
  end
  return log.indexed_id == log.info.last_id
end

-- An *ordinal* is the number of records that were ever appended before a position, if those that are gone had been at
-- the log start.  So ordinals never decrease, and the difference of two ordinals is the number of records between two
-- positions.  The ordinal of a position is its records_before plus the *shift*, which makes up for what compactions
-- and repairs of the index changed in records_before.  The meta field `ordinals` holds the shift and the *edition*, a
-- number that changes whenever the ordinal of a position within the log may have changed.

-- Returns the shift and the edition.
local function shift_of(log)
  local shift, edition = string.match(redis.call('HGET', log.meta, 'ordinals') or '0 0', '^(%-?%d+) (%d+)$')
  return tonumber(shift), tonumber(edition)
end

-- Adds to the shift and begins a new edition.
local function shift_ordinals(log, difference)
  local shift, edition = shift_of(log)
  redis.call('HSET', log.meta, 'ordinals', integer(shift + difference) .. ' ' .. integer(edition + 1))
end

-- Notes `unseen` when the index is complete.  `added` is what Redis reports as entries-added.
local function note_unseen(log, added)
  local unseen = added - log.entries_before
  if unseen ~= log.unseen then
    log.unseen = unseen
    redis.call('HSET', log.meta, 'unseen', integer(unseen))
  end
end

-- Brings the index up to what native clients added, `budget` entries at most.  Returns whether the index is complete
-- then.  If a native client deleted the stream, or set its last ID back, the index starts over, and offsets continue
-- after the log end.
local function catch_up(log, budget)
  local last_id = log.info.last_id
  if log.indexed_id == last_id then
    return true
  end
  note_gap(log)
  if id_less(last_id, log.indexed_id) then
    clear_index(log)
    -- Entries that are still there are counted a second time.
    shift_ordinals(log, 0)
    log.log_start = math.max(log.log_start, log.info.exists and 0 or log.log_end)
    log.indexed_id = '0-0'
    if last_id == '0-0' then
      note_unseen(log, 0)
      return true
    end
  end
  local complete = fold(log, budget)
  if complete then
    note_unseen(log, log.info.added)
  end
  return complete
end

-- Returns the log if its index is complete and correct.  Else returns nil and the reply that names the function to call
-- first, {"fold"} or {"recount"}, or an error reply.
local function open_indexed(stream, index, meta, bias)
  local log, fault = open_log(stream, index, meta, bias)
  if not log then
    return nil, fault
  end
  if log.indexed_id ~= log.info.last_id then
    return nil, { 'fold' }
  end
  if log.live_entries ~= log.info.length then
    return nil, { 'recount' }
  end
  return log
end

-- Returns the number of entries in [first, last] (XRANGE bounds); nil if the budget does not suffice.  `budget`: how
-- many entries and bytes may still be counted, which is reduced.
local function count_entries(stream, first, last, budget)
  local count, page = 0, nil
  repeat
    page = redis.call('XRANGE', stream, first, last, 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      budget.bytes = budget.bytes - payload_bytes(entry[2])
    end
    count, budget.entries = count + #page, budget.entries - #page
    if budget.entries < 0 or budget.bytes < 0 then
      return nil
    end
    first = #page > 0 and '(' .. page[#page][1]
  until #page < PAGE
  return count
end

-- Returns the number of live entries after entry `last_id`; exact if the index is complete and correct.  Entries that
-- the index does not cover yet are counted within a budget, see count_entries; nil if it does not suffice.
local function count_after(stream, index, last_id, budget)
  local newest = redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')
  if not newest[1] then
    return count_entries(stream, '(' .. last_id, '+', budget)
  end
  local last_point = decode_point(newest[1])
  local bias = last_point.position - tonumber(newest[2])
  local following = next_point({ index = index, bias = bias }, position_after(last_id) - 1)
  if not following then
    return count_entries(stream, '(' .. last_id, '+', budget)
  end
  budget.tail = budget.tail or count_entries(stream, id_of(last_point.position), '+', budget)
  if not budget.tail then
    return nil
  end
  local before = 0
  if id_less(last_id, id_of(following.position)) then
    before = measure(stream, 0, '(' .. last_id, '(' .. id_of(following.position))
  end
  local between = last_point.entries_before - following.entries_before
  return before + between + budget.tail
end

-- Returns the number of records before a position, those included that are gone.  The index has to be complete and
-- correct.  `near`: a position up to this one, from the log start on, and its records_before, if these are known.
local function records_before(log, position, near)
  if position >= position_after(log.indexed_id) then
    return log.records_before
  end
  local floor = floor_point(log, position)
  if not floor then
    local first = redis.call('ZRANGE', log.index, 0, 0)[1]
    return first and decode_point(first).records_before or log.records_before
  end
  if floor.position == position then
    return floor.records_before
  end
  local id, has_batches = id_of(position), log.entries_before ~= log.records_before
  if near and not has_batches and near.position > floor.position and near.position <= position then
    floor = near
  end
  local _, _, records = measure(log.stream, log.bias, id_of(floor.position), '(' .. id)
  if has_batches then
    -- The first records of a batch that begins before the position and ends after it.
    local next_entry = redis.call('XRANGE', log.stream, id, '+', 'COUNT', 1)[1]
    local start = next_entry and start_of(next_entry[1], next_entry[2], log.bias) or position
    records = records + math.max(0, position - start)
  end
  return floor.records_before + records
end

-- Returns the position of the log start if it is inside a batch, the first records of which DeleteRecords deleted; else
-- 0.  No record before that position counts.
local function counted_from(log, log_start)
  local info = log.info
  if not info.first_id or log.entries_before == log.records_before then
    return 0
  end
  local position = log_start + log.bias
  return start_of(info.first_id, info.first_fields, log.bias) < position and position or 0
end

-- Notes that the index is about to be made again from the start, which counts the present records a second time.
local function note_remaking(log)
  local noted = integer(log.records_before) .. ' ' .. integer(position_after(log.info.last_id))
  redis.call('HSETNX', log.meta, 'remade', noted)
end

-- Once the index has been made again: lets ordinals continue as they were.
local function settle_ordinals(log)
  local noted = redis.call('HGET', log.meta, 'remade')
  if noted then
    local records, position = string.match(noted, '^(%d+) (%d+)$')
    shift_ordinals(log, tonumber(records) - records_before(log, tonumber(position)))
    redis.call('HDEL', log.meta, 'remade')
  end
end
