-- Redis consumer groups beside the Kafka groups of the same name.
--
-- The meta field `commit:<group>` is the *projection* of a group: the last commit with which the Redis group was
-- brought in step, and the offset at which the Redis group was then.
--   "<log position> <offset>"              a commit; the Redis group was at the same offset
--   "<log position> <offset> <native>"     a commit; the Redis group was elsewhere, as native consumers had continued
--   "<log position> <offset> <native> n"   a commit that was read from the Redis group itself
--   "<log position> - <native>"            a deletion that left the Redis group to its native consumers

-- Returns the log position, the offset ("-" for a deletion), the offset of the Redis group, and "n" or "", all as text.
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

-- Runs of deleted pending entries that are skipped in search of a pending entry that exists.
local GAPS = 64

-- Returns the offset of a Redis group, as text: that of its oldest pending entry that still exists, or the one after
-- the entry delivered last if that is earlier (XGROUP SETID went back) or nothing is pending.  If the pending entry is
-- a record batch and the offset committed before is inside the batch, it is the committed offset: the records before it
-- are done.  Returns also the offset without that exception, at which a group is that has a batch pending with the log
-- start inside.
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
  local following = position_after(delivered)
  if not found then
    local offset = integer(math.max(0, following - bias))
    return offset, offset
  end
  local start = start_of(found[1], found[2], bias)
  local whole = integer(math.max(0, math.min(start, following) - bias))
  local inside = (tonumber(committed) or 0) + bias
  if start < inside and inside <= (position_at(found[1]) or 0) then
    start = inside
  end
  return integer(math.max(0, math.min(start, following) - bias)), whole
end
