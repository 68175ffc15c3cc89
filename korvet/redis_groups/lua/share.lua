-- Share groups (KIP-932) on the pending entries of Redis consumer groups.
--
-- A pending entry is a record that a share group has acquired: its consumer is the owner, its idle time the age of the
-- lock, its counter the number of deliveries.  Members of the Kafka group are the consumers `kafka:<member id>`; all
-- others are native, and own what they read in the same way.  Four consumers stand for nobody:
--   korvet:released    its entries can be acquired: they were released, or their lock has expired
--   korvet:unreadable  its entries are no records for Kafka clients: no offset names them, or they are record batches
--   korvet:rejected    its entries wait to become dead letters (KIP-1191): a member has rejected them,
--   korvet:exhausted   or they were delivered as often as the limit says
-- Entries that are delivered and no longer pending are accepted, or archived.

local MEMBER = 'kafka:'
local RELEASED, UNREADABLE = 'korvet:released', 'korvet:unreadable'
local REJECTED, EXHAUSTED = 'korvet:rejected', 'korvet:exhausted'
local NOBODY = { [RELEASED] = true, [UNREADABLE] = true, [REJECTED] = true, [EXHAUSTED] = true }
-- IDs in one XACK or XCLAIM, far below the number of arguments that Lua can pass, and entries of which one call of
-- korvet_share_acquire changes the owner or learns the age, at most: a few ms of Redis's time.
local AT_ONCE = 1000
-- Entries that are read before their sizes are known, and bytes of entries that are read at once.
local FIRST_READ, READ_BYTES = 32, 33554432
-- Bytes of entries after which korvet_share_dead returns no further one.
local MOST_COPIED = 4194304
-- Pending entries of native consumers that one call looks at.
local NATIVES_AT_ONCE = 500
-- Types of acknowledgements, as digits.
local GAPS, ACCEPTS, RELEASES, REJECTS, RENEWS = 48, 49, 50, 51, 52

-- Returns the IDs in rows of XPENDING.
local function ids_of(rows)
  local ids = {}
  for at, row in ipairs(rows) do
    ids[at] = row[1]
  end
  return ids
end

local function acknowledge_ids(stream, group, ids)
  for first = 1, #ids, AT_ONCE do
    redis.call('XACK', stream, group, unpack(ids, first, math.min(#ids, first + AT_ONCE - 1)))
  end
end

-- Returns the position before an offset ("": nil); that of ID 0-0, which no entry has, if there is none before it.
local function position_before(offset, bias)
  return offset ~= '' and math.max(0, tonumber(offset) + bias - 1) or nil
end

-- Gives entries to a consumer; their counters stay, or become `deliveries`.  They look as if they had waited for long,
-- unless they are `fresh`: then native consumers do not claim them.  Entries that are gone from the stream are not
-- pending any more then.
local function hand_over(stream, group, consumer, ids, deliveries, fresh)
  for first = 1, #ids, AT_ONCE do
    local command = { 'XCLAIM', stream, group, consumer, 0 }
    for at = first, math.min(#ids, first + AT_ONCE - 1) do
      command[#command + 1] = ids[at]
    end
    if not fresh then
      command[#command + 1] = 'TIME'
      command[#command + 1] = 0
    end
    if deliveries then
      command[#command + 1] = 'RETRYCOUNT'
      command[#command + 1] = deliveries
    end
    command[#command + 1] = 'JUSTID'
    redis.call(unpack(command))
  end
end

-- Archives entries: nobody gets them again.  If the group keeps dead letters, they go to `consumer` first.  Adds their
-- number to `rule.archived`.
local function archive(stream, group, ids, consumer, rule)
  rule.archived = (rule.archived or 0) + #ids
  if rule.keeps then
    hand_over(stream, group, consumer, ids, nil, true)
  else
    acknowledge_ids(stream, group, ids)
  end
end

-- Ends the deliveries of entries, as rows of XPENDING: those with `rule.limit` deliveries are archived, the others
-- released; those after the position `last`, if there is one, as if they had never been delivered.  Returns the number
-- of archived and of released ones.
local function end_deliveries(stream, group, rows, rule, last)
  local archived, released, early = {}, {}, {}
  for _, row in ipairs(rows) do
    local position = last and position_at(row[1])
    local ids = position and position > last and early or row[4] >= rule.limit and archived or released
    ids[#ids + 1] = row[1]
  end
  archive(stream, group, archived, EXHAUSTED, rule)
  hand_over(stream, group, RELEASED, released)
  hand_over(stream, group, RELEASED, early, 0)
  return #archived, #released + #early
end

-- Returns the consumers with pending entries: how many entries members have and how many wait to become dead letters,
-- the members, and the native consumers; else an error reply, or nil if there is no such group.
local function owners_of(stream, group)
  local summary = redis.pcall('XPENDING', stream, group)
  if summary.err then
    return nil, string.sub(summary.err, 1, 7) ~= 'NOGROUP' and summary or nil
  end
  local locked, dead, members, natives = 0, 0, {}, {}
  for _, row in ipairs(summary[4] or {}) do
    local name = row[1]
    if string.sub(name, 1, #MEMBER) == MEMBER then
      locked = locked + row[2]
      members[#members + 1] = name
    elseif not NOBODY[name] then
      natives[#natives + 1] = name
    elseif name == REJECTED or name == EXHAUSTED then
      dead = dead + row[2]
    end
  end
  return { locked = locked, dead = dead, members = members, natives = natives }
end

-- Ends the deliveries whose locks have expired.  Returns how many there were, and whether there may be more.
local function expire_members(stream, group, owners, rule)
  local left = AT_ONCE
  for _, name in ipairs(owners.members) do
    local rows = redis.call('XPENDING', stream, group, 'IDLE', rule.lock_ms, '-', '+', left, name)
    end_deliveries(stream, group, rows, rule, rule.last)
    owners.locked = owners.locked - #rows
    left = left - #rows
    if left == 0 then
      break
    end
  end
  return AT_ONCE - left, left == 0
end

-- As expire_members, for the next NATIVES_AT_ONCE entries of native consumers after the cursor, the name of a consumer
-- and the ID of one of its entries.  Returns also the next cursor.  Native consumers may have a million entries, so
-- each call looks at a page.
local function expire_natives(stream, group, natives, rule, name, id)
  local left, expired = NATIVES_AT_ONCE, 0
  for _, native in ipairs(natives) do
    if native >= name then
      local rows = redis.call(
        'XPENDING', stream, group, native == name and id ~= '' and '(' .. id or '-', '+', left, native
      )
      local idle = {}
      for _, row in ipairs(rows) do
        if row[3] >= rule.lock_ms then
          idle[#idle + 1] = row
        end
      end
      end_deliveries(stream, group, idle, rule)
      expired, left = expired + #idle, left - #rows
      if left == 0 then
        return expired, native, rows[#rows][1]
      end
    end
  end
  return expired, '', ''
end

-- Returns whether an entry is a transaction marker, as offsets/entry_fields.py defines it.
local function is_marker(fields)
  if #fields ~= 6 or not (fields[1] == 'ctl' or fields[3] == 'ctl' or fields[5] == 'ctl') then
    return false
  end
  local found = {}
  for at = 1, 6, 2 do
    found[fields[at]] = fields[at + 1]
  end
  local outcome, producer, epoch = found.ctl, found.pid, found.epoch
  return (outcome == 'commit' or outcome == 'abort') and producer and epoch and is_number(producer)
    and is_number(epoch) and tonumber(epoch) <= MAX_PRODUCER_EPOCH
end

-- Returns the producer of a record in a transaction, nil for other records.
local function producer_of(fields)
  for at = 1, #fields, 2 do
    if fields[at] == 'pid' then
      return is_number(fields[at + 1]) and fields[at + 1] or nil
    end
  end
end

-- Returns the aborted transactions with markers at or after an offset: by producer, the first and the last offset of
-- each.
local function aborted_from(key, offset)
  local by_producer, after = {}, integer(offset)
  repeat
    local page = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, AT_ONCE)
    for at = 1, #page, 2 do
      local producer, first = string.match(page[at], '^(%d+) (%d+)')
      local list = by_producer[producer] or {}
      list[#list + 1] = { tonumber(first), tonumber(page[at + 1]) }
      by_producer[producer] = list
      after = '(' .. page[at + 1]
    end
  until #page < 2 * AT_ONCE
  return by_producer
end

-- Returns whether a record is in an aborted transaction.
local function is_aborted(take, position, fields)
  local producer = producer_of(fields)
  if not producer then
    return false
  end
  local offset = position - take.bias
  take.aborted = take.aborted or aborted_from(take.aborted_key, offset)
  for _, span in ipairs(take.aborted[producer] or {}) do
    if span[1] <= offset and offset <= span[2] then
      return true
    end
  end
  return false
end

-- Returns whether an entry is no record that the group gets: a marker, or of an aborted transaction that it leaves out.
local function is_gap(take, position, fields)
  return is_marker(fields) or (take.is_committed and position and is_aborted(take, position, fields))
end

-- Returns whether an entry is, or looks like, a whole record batch, whose records cannot be acquired one by one.
local function resembles_batch(fields)
  local value = #fields == 2 and fields[1] == 'batch' and fields[2]
  return value and #value >= BATCH_HEADER_BYTES and string.byte(value, 17) == 2
end

-- Decides on a released entry that was just delivered to the member, `deliveries` times by now.  `take`: what the call
-- acquires.
local function admit(take, id, fields, deliveries)
  local position = position_at(id)
  if not position or resembles_batch(fields) then
    take.unreadable[#take.unreadable + 1] = id
    return
  end
  local size = payload_bytes(fields)
  if take.bytes < size and take.entries[1] then
    local list = take.back[deliveries - 1] or {}
    list[#list + 1] = id
    take.back[deliveries - 1] = list
    take.is_full = true
  elseif is_gap(take, position, fields) then
    take.gaps[#take.gaps + 1] = id
  else
    take.room, take.bytes = take.room - 1, take.bytes - size
    take.entries[#take.entries + 1] = { id, fields }
    take.positions[#take.positions + 1] = position
    take.deliveries[position] = deliveries
    take.size = take.size + size
  end
end

-- Returns how many entries to ask for next.
local function count_next(take)
  local seen = #take.entries
  if seen == 0 then
    return math.max(1, math.min(take.room, FIRST_READ, math.floor(READ_BYTES / take.largest_bytes)))
  end
  local fitting = math.ceil(take.bytes / math.max(1, take.size / seen))
  return math.max(1, math.min(take.room, fitting, seen * 8, math.floor(READ_BYTES / take.largest_bytes)))
end

local function is_done(take)
  return take.room <= 0 or take.bytes <= 0 or take.is_full or take.examined >= take.most_examined
end

-- Goes on with entries that wait to become dead letters, up to AT_ONCE of each kind: keeps native consumers from
-- claiming them, or archives them if the group keeps no dead letters any more.
local function attend_dead(stream, group, rule)
  for _, consumer in ipairs({ REJECTED, EXHAUSTED }) do
    local idle_ms = rule.keeps and math.floor(rule.lock_ms / 4) or 0
    local ids = ids_of(redis.call('XPENDING', stream, group, 'IDLE', idle_ms, '-', '+', AT_ONCE, consumer))
    if rule.keeps then
      hand_over(stream, group, consumer, ids, nil, true)
    else
      acknowledge_ids(stream, group, ids)
    end
  end
end

-- Returns how many of the first released entries, rows of XPENDING, may be acquired together, and whether these are
-- suspects (KAFKA-17541): records that were delivered half as often as the limit says, so one of them may be what ends
-- their owners.  They are not acquired with others; half of them the first time, a quarter the second time, and so on,
-- and each is alone the last time.  So one record cannot use up all deliveries of many.
local function count_together(rows, limit)
  local from, count = math.max(2, math.ceil(limit / 2)), 0
  local function is_suspect(row)
    return from <= row[4] and row[4] < limit
  end
  local are_suspects = rows[1] and is_suspect(rows[1])
  while rows[count + 1] and is_suspect(rows[count + 1]) == are_suspects do
    count = count + 1
  end
  if not are_suspects then
    return count, false
  end
  local most, together = math.floor(count / 2 ^ (rows[1][4] - from + 1)), 1
  while together < most and math.max(rows[together][4], rows[together + 1][4]) < limit - 1 do
    together = together + 1
  end
  return together, true
end

-- Acquires released entries up to the last position that may be read.  Returns whether none is left there.
local function take_released(take, stream, group, rule)
  local lower = take.after and '(' .. id_of(take.after) or '-'
  local upper = take.last and id_of(take.last) or '+'
  while not is_done(take) do
    local count = count_next(take)
    local rows = redis.call('XPENDING', stream, group, lower, upper, count, RELEASED)
    local together, are_suspects = count_together(rows, rule.limit)
    if are_suspects and take.entries[1] then
      return false
    end
    local ids, deliveries, over = {}, {}, {}
    for at = 1, together do
      local row = rows[at]
      if row[4] >= rule.limit then
        over[#over + 1] = row[1]
      else
        ids[#ids + 1] = row[1]
        deliveries[row[1]] = row[4] + 1
      end
    end
    archive(stream, group, over, EXHAUSTED, rule)
    take.examined = take.examined + together
    if ids[1] then
      for _, entry in ipairs(redis.call('XCLAIM', stream, group, take.consumer, 0, unpack(ids))) do
        if entry then
          admit(take, entry[1], entry[2], deliveries[entry[1]])
        end
      end
    end
    if are_suspects and take.entries[1] then
      return false
    elseif #rows < count and together == #rows then
      return not take.is_full
    end
  end
  return false
end

-- Returns the acquired offsets as runs without holes of equal deliveries, in order: first, last, deliveries each.
local function runs_of(take)
  local positions, runs = take.positions, {}
  local first, last, deliveries
  for _, position in ipairs(positions) do
    local count = take.deliveries[position]
    if first and position == last + 1 and count == deliveries then
      last = position
    else
      if first then
        runs[#runs + 1] = integer(first - take.bias) .. ' ' .. integer(last - take.bias) .. ' ' .. deliveries
      end
      first, last, deliveries = position, position, count
    end
  end
  if first then
    runs[#runs + 1] = integer(first - take.bias) .. ' ' .. integer(last - take.bias) .. ' ' .. deliveries
  end
  return table.concat(runs, ' ')
end

-- Releases what a member has between two IDs, as if it had never been delivered.
local function give_back(stream, group, consumer, first, last)
  local rows
  repeat
    rows = redis.pcall('XPENDING', stream, group, first, last, AT_ONCE, consumer)
    hand_over(stream, group, RELEASED, rows.err and {} or ids_of(rows), 0)
  until #rows < AT_ONCE
end

-- KEYS: stream, aborted.
-- ARGV: 1 group, 2 member, 3 bias, 4 records and 5 bytes to acquire at most, 6 the bytes of the largest known entry,
-- 7 locks that members may have, 8 deliveries of a record at most, 9 how long a lock lasts (ms), 10 the offset before
-- which records may be acquired ("": all), 11 "1" if records of aborted transactions are gaps, 12 "1" to look for
-- expired locks of members, 13 "1" to look for those of native consumers, from the cursor 14, 15 on, 16 the offset
-- after which records are acquired ("": all), 17 "1" if archived records become dead letters, 18 and 19 the first and
-- the last ID of entries that the member has read and cannot take as they are ("": none): they are released first.
-- Acquires released records; new ones are for XREADGROUP.  The first record is acquired even if it is larger than the
-- limit of bytes.
-- Returns nothing if there is no such group; else: the runs of runs_of; "<1 if the limits of the call may have left
-- released records, else 0> <1 if new records can be read: no released one is left before them, else 0> <locks of
-- members> <1 if native consumers have pending entries, else 0> <expired locks that were found> <records that were
-- archived because of the limit> <1 if records wait to become dead letters, else 0>"; the next cursor (name, ID); the
-- entries.
local function acquire(keys, args)
  local stream, group = keys[1], args[1]
  local bias, most = tonumber(args[3]), tonumber(args[4])
  local rule = {
    limit = tonumber(args[8]), lock_ms = tonumber(args[9]), keeps = args[17] == '1', archived = 0,
    last = position_before(args[10], bias),
  }
  if args[18] ~= '' then
    give_back(stream, group, MEMBER .. args[2], args[18], args[19])
  end
  local owners, fault = owners_of(stream, group)
  if not owners then
    return fault or {}
  end
  if owners.dead > 0 and (args[13] == '1' or not rule.keeps) then
    attend_dead(stream, group, rule)
  end
  local expired, unseen, name, id = 0, false, args[14], args[15]
  if args[12] == '1' then
    expired, unseen = expire_members(stream, group, owners, rule)
  end
  if args[13] == '1' then
    local found
    found, name, id = expire_natives(stream, group, owners.natives, rule, name, id)
    expired = expired + found
  end
  local room = math.min(most, tonumber(args[7]) - owners.locked)
  local take = {
    consumer = MEMBER .. args[2], bias = bias, room = room, bytes = tonumber(args[5]), size = 0,
    largest_bytes = math.max(1, tonumber(args[6])), last = rule.last,
    after = args[16] ~= '' and tonumber(args[16]) + bias or nil, is_committed = args[11] == '1',
    aborted_key = keys[2], examined = 0, most_examined = math.max(AT_ONCE, 2 * most),
    entries = {}, positions = {}, deliveries = {}, gaps = {}, unreadable = {}, back = {},
  }
  local exhausted, reads_new = room > 0 and take_released(take, stream, group, rule), false
  if exhausted then
    -- What was read too early before is among the released entries; no more of that is read.
    reads_new = not (take.last and redis.call('XPENDING', stream, group, id_of(take.last + 1), '+', 1, RELEASED)[1])
  end
  acknowledge_ids(stream, group, take.gaps)
  hand_over(stream, group, UNREADABLE, take.unreadable)
  for deliveries, ids in pairs(take.back) do
    hand_over(stream, group, RELEASED, ids, deliveries)
  end
  local state = string.format(
    '%d %d %d %d %d %d %d', (unseen or (room > 0 and not exhausted)) and 1 or 0, reads_new and 1 or 0,
    owners.locked + #take.entries, #owners.natives > 0 and 1 or 0, expired, rule.archived,
    rule.keeps and owners.dead + rule.archived > 0 and 1 or 0
  )
  return { runs_of(take), state, name, id, take.entries }
end

-- Returns the position after the entry that was delivered last, and what Redis reports of the group, for which it lists
-- all groups; nil if there is no such group.
local function following_position(stream, group)
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, one in ipairs(groups.err and {} or groups) do
    if field_of(one, 'name') == group then
      return position_after(field_of(one, 'last-delivered-id')), one
    end
  end
end

-- Returns the position of the group's start: that of its oldest entry that is neither accepted nor archived.
local function start_position(stream, group)
  local oldest = redis.pcall('XPENDING', stream, group, '-', '+', 1)
  if oldest.err then
    return nil
  end
  return oldest[1] and position_after(oldest[1][1]) - 1 or following_position(stream, group)
end

-- Returns the pending entries of the member at these positions, nil if it has not all of them.
local function rows_between(stream, group, consumer, first, last)
  local count = last - first + 1
  if count <= AT_ONCE * 10 then
    local rows = redis.call('XPENDING', stream, group, id_of(first), id_of(last), count + 1, consumer)
    return #rows == count and rows or nil
  end
end

-- Returns, by type, the IDs of all ranges, and for RELEASES their rows; nil if the member has no lock on a record in
-- one of them, and where that range ends.  Positions before `start` are left out.
local function sort_by_type(stream, args, bias, start, consumer, lock_ms)
  local by_type = { [GAPS] = {}, [ACCEPTS] = {}, [RELEASES] = {}, [REJECTS] = {}, [RENEWS] = {} }
  for at = 7, #args, 3 do
    local begin, last, types = tonumber(args[at]) + bias, tonumber(args[at + 1]) + bias, args[at + 2]
    local first = math.max(begin, start)
    local rows = first > last and {} or rows_between(stream, args[1], consumer, first, last)
    if not rows then
      return nil, last
    end
    local code, differ = string.byte(types), #types > 1
    for place, row in ipairs(rows) do
      if row[3] >= lock_ms then
        return nil, last
      end
      if differ then
        code = string.byte(types, first - begin + place)
      end
      local list = by_type[code]
      list[#list + 1] = code == RELEASES and row or row[1]
    end
  end
  return by_type
end

-- Returns how many entries a consumer has, -1 if there is no such group.
local function count_locks(stream, group, consumer)
  local summary = redis.pcall('XPENDING', stream, group)
  for _, row in ipairs(summary[4] or {}) do
    if row[1] == consumer then
      return tonumber(row[2])
    end
  end
  return summary.err and -1 or 0
end

-- Returns the IDs of all ranges if all are accepted and they are all that the member has, and none of its locks has
-- expired; else nil.  This looks at the ends of the ranges: with XACK 2.0 us per record in place of 3.3 us.
local function all_accepted(stream, args, bias, consumer, lock_ms)
  local group, count, ids, after = args[1], 0, {}, '-'
  for at = 7, #args, 3 do
    count = args[at + 2] == '1' and count + tonumber(args[at + 1]) - tonumber(args[at]) + 1 or -math.huge
  end
  if count ~= count_locks(stream, group, consumer)
    or redis.call('XPENDING', stream, group, 'IDLE', lock_ms, '-', '+', 1, consumer)[1] then
    return nil
  end
  for at = 7, #args, 3 do
    local first, last = tonumber(args[at]) + bias, tonumber(args[at + 1]) + bias
    while first <= last do
      local ms = math.floor(first / SEQUENCES)
      local text, base, following = integer(ms), ms * SEQUENCES, math.min(last, ms * SEQUENCES + SEQUENCES - 1) + 1
      local row = redis.call('XPENDING', stream, group, after, '+', 1, consumer)[1]
      if not row or row[1] ~= text .. SUFFIXES[first - base] then
        return nil
      end
      for sequence = first - base, following - base - 1 do
        ids[#ids + 1] = text .. SUFFIXES[sequence]
      end
      first, after = following, '(' .. ids[#ids]
    end
  end
  return not redis.call('XPENDING', stream, group, after, '+', 1, consumer)[1] and ids or nil
end

-- KEYS: stream.  ARGV: 1 group, 2 member, 3 bias, 4 how long a lock lasts (ms), 5 deliveries of a record at most, 6 "1"
-- if archived records become dead letters; then for each range of offsets, in order: the first one, the last one, and
-- the type of each or of all of them, a digit: 0 gap, 1 accept, 2 release, 3 reject, 4 renew.
-- Offsets before the group's start are left out.  If the member has no lock on another one, nothing is changed, and the
-- reply is {-1}; it is {-2} if a range ends after all records that were acquired, and some are pending.
-- Returns the numbers of records that were accepted, rejected (and gaps), archived because of the limit, released and
-- renewed.
local function acknowledge_records(keys, args)
  local stream, group, consumer, lock_ms = keys[1], args[1], MEMBER .. args[2], tonumber(args[4])
  local accepted = all_accepted(stream, args, tonumber(args[3]), consumer, lock_ms)
  if accepted then
    acknowledge_ids(stream, group, accepted)
    return { #accepted, 0, 0, 0, 0 }
  end
  local start = start_position(stream, group)
  if not start then
    return { -1 }
  end
  local by_type, last = sort_by_type(stream, args, tonumber(args[3]), start, consumer, lock_ms)
  if not by_type then
    local following = following_position(stream, group)
    return { last >= following and start < following and -2 or -1 }
  end
  local rule = { limit = tonumber(args[5]), keeps = args[6] == '1' }
  acknowledge_ids(stream, group, by_type[ACCEPTS])
  acknowledge_ids(stream, group, by_type[GAPS])
  archive(stream, group, by_type[REJECTS], REJECTED, rule)
  local archived, released = end_deliveries(stream, group, by_type[RELEASES], rule)
  hand_over(stream, group, consumer, by_type[RENEWS], nil, true)
  return { #by_type[ACCEPTS], #by_type[GAPS] + #by_type[REJECTS], archived, released, #by_type[RENEWS] }
end

-- KEYS: stream.  ARGV: group, member, deliveries of a record at most, "1" if archived records become dead letters,
-- bias, the offset before which records may be acquired ("": all).
-- Ends all deliveries of a member, which is gone.  Returns the numbers of records that were archived and released.
local function release_member(keys, args)
  local stream, group, consumer = keys[1], args[1], MEMBER .. args[2]
  local rule, last = { limit = tonumber(args[3]), keeps = args[4] == '1' }, position_before(args[6], tonumber(args[5]))
  local archived, released, rows = 0, 0, nil
  repeat
    rows = redis.pcall('XPENDING', stream, group, '-', '+', AT_ONCE, consumer)
    if rows.err then
      return { 0, 0 }
    end
    local over, back = end_deliveries(stream, group, rows, rule, last)
    archived, released = archived + over, released + back
  until #rows < AT_ONCE
  redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
  return { archived, released }
end

-- KEYS: stream.  ARGV: group, the ID after which a new group begins ("$": the last one).
-- Makes the group unless it exists.  Members of the past without pending entries are forgotten.  Returns whether the
-- group was made.
local function initialise(keys, args)
  local stream, group = keys[1], args[1]
  local made = redis.pcall('XGROUP', 'CREATE', stream, group, args[2], 'MKSTREAM')
  if not made.err then
    return 1
  elseif string.sub(made.err, 1, 9) ~= 'BUSYGROUP' then
    return made
  end
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local name = field_of(consumer, 'name')
    if string.sub(name, 1, #MEMBER) == MEMBER and field_of(consumer, 'pending') == 0 then
      redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
    end
  end
  return 0
end

-- KEYS: stream.  ARGV: group, the ID after which it begins.
-- Makes the group anew, whether it exists or not: nothing is pending, and nobody has a lock.
local function restart(keys, args)
  redis.pcall('XGROUP', 'DESTROY', keys[1], args[1])
  return redis.call('XGROUP', 'CREATE', keys[1], args[1], args[2], 'MKSTREAM')
end

-- KEYS: stream, index.  ARGV: group, bias.
-- Returns nothing if there is no such group; else: the offset of its start, the records that members, native consumers
-- and nobody (released ones) have, those that Kafka clients cannot read, those that wait to become dead letters, the
-- entries that were never delivered (-1: the index has to catch up), and the timestamp (ms) of the first of them that
-- somebody has or can get (-1: there is none).
local function view(keys, args)
  local stream, group, bias = keys[1], args[1], tonumber(args[2])
  local following, info = following_position(stream, group)
  if not following then
    return {}
  end
  local counts = { members = 0, natives = 0, [RELEASED] = 0, [UNREADABLE] = 0, [REJECTED] = 0, [EXHAUSTED] = 0 }
  local first
  for _, row in ipairs(redis.call('XPENDING', stream, group)[4] or {}) do
    local name = row[1]
    local kind = string.sub(name, 1, #MEMBER) == MEMBER and 'members' or counts[name] and name or 'natives'
    counts[kind] = counts[kind] + row[2]
    if name == RELEASED or not NOBODY[name] then
      local id = redis.call('XPENDING', stream, group, '-', '+', 1, name)[1][1]
      first = first and id_less(first, id) and first or id
    end
  end
  local oldest = redis.call('XPENDING', stream, group, '-', '+', 1)[1]
  local start = oldest and position_after(oldest[1]) - 1 or following
  local budget = { entries = AT_ONCE * 20, bytes = READ_BYTES }
  local delivered = field_of(info, 'last-delivered-id')
  local left = count_after(stream, keys[2], delivered, budget)
  local entry = redis.call('XRANGE', stream, first or '(' .. delivered, '+', 'COUNT', 1)[1]
  return {
    math.max(0, start - bias), counts.members, counts.natives, counts[RELEASED], counts[UNREADABLE],
    counts[REJECTED] + counts[EXHAUSTED], left or -1, entry and entry_time(entry[1], entry[2]) or -1,
  }
end

-- KEYS: stream.  ARGV: group, bias.
-- Returns nothing if there is no such group; else: the offset of its start, the offset after the entry that was
-- delivered last, how many records are delivered and neither accepted nor archived, 1 if more than AT_ONCE entries are
-- pending, else 0; then, of the first AT_ONCE pending entries, runs of consecutive offsets with the same owners and
-- deliveries: first, last, deliveries, and 0 if nobody has them (released), 1 if somebody does, 2 if they are archived.
local function list_pending(keys, args)
  local stream, group, bias = keys[1], args[1], tonumber(args[2])
  local following = following_position(stream, group)
  if not following then
    return {}
  end
  local live, all = 0, redis.call('XPENDING', stream, group)
  for _, row in ipairs(all[4] or {}) do
    if row[1] == RELEASED or not NOBODY[row[1]] then
      live = live + row[2]
    end
  end
  local last, deliveries, kind
  local rows = redis.call('XPENDING', stream, group, '-', '+', AT_ONCE)
  local start = rows[1] and position_after(rows[1][1]) - 1 or following
  local reply = { math.max(0, start - bias), math.max(0, following - bias), live, all[1] > AT_ONCE and 1 or 0 }
  for _, row in ipairs(rows) do
    local position = position_at(row[1])
    if position then
      local owner = row[2] == RELEASED and 0 or NOBODY[row[2]] and 2 or 1
      if position ~= (last or -1) + 1 or row[4] ~= deliveries or owner ~= kind then
        deliveries, kind = row[4], owner
        for _, number in ipairs({ position - bias, 0, deliveries, kind }) do
          reply[#reply + 1] = number
        end
      end
      last = position
      reply[#reply - 2] = last - bias
    end
  end
  return reply
end

-- KEYS: stream, aborted.
-- ARGV: 1 group, 2 bias, 3 how many at most, 4 "1" with the fields of the entries, 5 the offset before which they are
-- ("": all), 6 "1" if records of aborted transactions are gaps.  Beyond MOST_COPIED bytes there is no further one.
-- Returns the records that wait to become dead letters, first those that were rejected: for each the entry ID, the
-- offset (-1: none names the entry), the deliveries, 1 if it was rejected, else 0, the fields of the entry, empty if
-- they are not asked for or the entry is gone, and 1 if it is a gap, of which no letter is due, else 0.
local function list_dead(keys, args)
  local stream, group, bias, most, found, size = keys[1], args[1], tonumber(args[2]), tonumber(args[3]), {}, 0
  local take = { bias = bias, aborted_key = keys[2], is_committed = args[6] == '1' }
  local last = position_before(args[5], bias)
  for _, consumer in ipairs({ REJECTED, EXHAUSTED }) do
    local rows = redis.pcall('XPENDING', stream, group, '-', last and id_of(last) or '+', most, consumer)
    for _, row in ipairs(rows.err and {} or rows) do
      if #found == most or size > MOST_COPIED then
        return found
      end
      local id, position = row[1], position_at(row[1])
      local entry = redis.call('XRANGE', stream, id, id)[1]
      local fields = entry and entry[2] or {}
      found[#found + 1] = {
        id, position and position - bias or -1, row[4], consumer == REJECTED and 1 or 0,
        args[4] == '1' and fields or {}, is_gap(take, position, fields) and 1 or 0,
      }
      size = size + payload_bytes(fields)
    end
  end
  return found
end

-- KEYS: stream.  ARGV: group, IDs of entries.
-- Archives records that have become dead letters, unless somebody has them again.
local function forget_dead(keys, args)
  local stream, group, ids = keys[1], args[1], {}
  for at = 2, #args do
    local row = redis.pcall('XPENDING', stream, group, args[at], args[at], 1)[1]
    if row and (row[2] == REJECTED or row[2] == EXHAUSTED) then
      ids[#ids + 1] = args[at]
    end
  end
  acknowledge_ids(stream, group, ids)
  return #ids
end

-- Share consumers go on while the memory is full: what all groups have accepted can be deleted.
redis.register_function({
  function_name = 'korvet_share_acquire' .. RELEASE, callback = acquire, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'korvet_share_acknowledge' .. RELEASE, callback = acknowledge_records, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'korvet_share_release' .. RELEASE, callback = release_member, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'korvet_share_forget' .. RELEASE, callback = forget_dead, flags = { 'allow-oom' },
})
redis.register_function('korvet_share_initialise' .. RELEASE, initialise)
redis.register_function('korvet_share_restart' .. RELEASE, restart)
redis.register_function({ function_name = 'korvet_share_view' .. RELEASE, callback = view, flags = { 'no-writes' } })
redis.register_function({
  function_name = 'korvet_share_pending' .. RELEASE, callback = list_pending, flags = { 'no-writes' },
})
redis.register_function({
  function_name = 'korvet_share_dead' .. RELEASE, callback = list_dead, flags = { 'no-writes' },
})
