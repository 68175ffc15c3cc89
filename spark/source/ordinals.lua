-- How many records of a partition precede offsets, by its index (korvet's _index.lua), without returning any.
--
-- KEYS: stream, index, meta.  ARGV: bias, entries after the index that may be counted, offsets in the log.
-- Returns {} if only the entries themselves tell, now or always: the index may count entries at or after the first
-- offset that are no records, or is being corrected.  Else returns what changes when a compaction or a correction of
-- the index changes the numbers, the ID of the last entry in the index, and for each offset up to that entry the number
-- of records before it, those included that are gone.

local SEQUENCES = 1024
-- Entries per XRANGE.
local PAGE = 256
-- Size of the header of a record batch.
local HEADER_BYTES = 61

local stream, index, meta = KEYS[1], KEYS[2], KEYS[3]
local bias, budget = tonumber(ARGV[1]), tonumber(ARGV[2])

local function id_of(position)
  local ms = math.floor(position / SEQUENCES)
  return string.format('%.0f-%d', ms, position - ms * SEQUENCES)
end

-- Returns the number of records of an entry, and the position of the first one if it is a batch.  Only brokers have
-- written batches that the index covers; others need no right number.
local function records_of(fields)
  if #fields == 2 and fields[1] == 'batch' and #fields[2] >= HEADER_BYTES then
    return struct.unpack('>i4', fields[2], 58), struct.unpack('>i8', fields[2]) + bias
  end
  return 1
end

-- Returns the number of entries in [first, last] (XRANGE bounds) and of their records.  Stops after `most` entries.
local function count(first, last, most)
  local entries, records = 0, 0
  repeat
    local page = redis.call('XRANGE', stream, first, last, 'COUNT', PAGE)
    for _, entry in ipairs(page) do
      records = records + records_of(entry[2])
    end
    entries = entries + #page
    first = page[1] and '(' .. page[#page][1]
  until #page < PAGE or entries > most
  return entries, records
end

-- Returns the position of a point of the index and the number of records before it.
local function parts_of(member)
  local position, before = string.match(member, '^(%d+) (%d+) ')
  return tonumber(position), tonumber(before)
end

local found = redis.call('HMGET', meta, 'log', 'indexed_id', 'mixed', 'ordinals', 'remade', 'recount')
local packed, indexed_id, mixed, ordinals = found[1], found[2], found[3], found[4]
if not (packed and indexed_id and mixed) or tonumber(mixed) > tonumber(ARGV[3]) or found[5] or found[6] then
  return {}
end
local _, _, _, _, total, entries, live = struct.unpack('>ddddddd', packed)
local length = redis.call('XLEN', stream)
-- The index doesn't cover `length - live` entries yet, unless a native client deleted some that the index has.
if length - live < 0 or length - live > budget or count('(' .. indexed_id, '+', budget) ~= length - live then
  return {}
end

-- Returns the number of records before a position, which is at or after a point of the index.
local function before_from(member, position)
  local start, counted = parts_of(member)
  local after = '(' .. string.format('%.0f', start - bias)
  local following = redis.call('ZRANGEBYSCORE', index, after, '+inf', 'LIMIT', 0, 1)[1]
  local stop, total_counted = parts_of(following or '')
  if entries == total and stop and stop - start == total_counted - counted then
    -- Each position between the two points has a record.
    return counted + position - start
  elseif entries == total and stop and stop - position < position - start then
    local _, records = count(id_of(position), '(' .. id_of(stop), math.huge)
    return total_counted - records
  end
  local _, records = count(id_of(start), '(' .. id_of(position), math.huge)
  if entries ~= total then
    -- The first records of a batch that begins before the position and ends after it.
    local entry = redis.call('XRANGE', stream, id_of(position), '+', 'COUNT', 1)[1]
    local _, base = records_of(entry and entry[2] or {})
    records = records + math.max(0, position - (base or position))
  end
  return counted + records
end

local answer = { ordinals or '', indexed_id }
for at = 3, #ARGV do
  local floor = redis.call('ZREVRANGEBYSCORE', index, ARGV[at], '-inf', 'LIMIT', 0, 1)[1]
  if floor then
    answer[#answer + 1] = before_from(floor, ARGV[at] + bias)
  else
    local _, before = parts_of(redis.call('ZRANGE', index, 0, 0)[1] or '')
    answer[#answer + 1] = before or total
  end
end
return answer
