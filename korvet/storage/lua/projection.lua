-- Commits of Kafka groups projected onto the Redis consumer group of the same name, in the slot of one stream.
-- The meta field "commit:<group>" holds "<log position> <committed offset>" of the newest commit projected.

-- Decimals are compared as text: a number in Lua is a double, and both the milliseconds of a foreign entry ID
-- and an offset may exceed 2^53.
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

local function field_of(reply, name)
  for position = 1, #reply, 2 do
    if reply[position] == name then
      return reply[position + 1]
    end
  end
  return nil
end

-- XINFO GROUPS of one group, or nil where the stream or the group does not exist.
local function find_group(stream, group)
  if redis.call('EXISTS', stream) == 0 then
    return nil
  end
  for _, candidate in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if field_of(candidate, 'name') == group then
      return candidate
    end
  end
  return nil
end

-- Entries that a group standing at `last_id` has behind it: with this as ENTRIESREAD the lag that Redis
-- reports is the number of entries that are still there to be read.
local function entries_read(stream, index, last_id)
  if redis.call('EXISTS', stream) == 0 then
    return 0
  end
  local added = field_of(redis.call('XINFO', 'STREAM', stream), 'entries-added')
  return math.max(0, added - count_after(stream, index, last_id))
end

-- Acknowledges up to `limit` pending entries in [first, last]; returns how many there were.
local function acknowledge(stream, group, first, last, limit)
  local pending = redis.call('XPENDING', stream, group, first, last, limit)
  if #pending == 0 then
    return 0
  end
  local ids = {}
  for position, entry in ipairs(pending) do
    ids[position] = entry[1]
  end
  redis.call('XACK', stream, group, unpack(ids))
  return #pending
end

-- Moves the group to `last_id`, creating it (and an empty stream) when it is not there.
local function move_group(stream, index, group, exists, last_id)
  local read = entries_read(stream, index, last_id)
  if exists then
    redis.call('XGROUP', 'SETID', stream, group, last_id, 'ENTRIESREAD', read)
  else
    redis.call('XGROUP', 'CREATE', stream, group, last_id, 'MKSTREAM', 'ENTRIESREAD', read)
  end
end

-- KEYS: stream, index, meta.
-- ARGV: group, log position of the commit, committed offset, entry ID of the offset before it, pending entries
-- to acknowledge at most.
-- Returns 0 when a newer commit (or this one) was projected before, 1 when it is done, 2 when pending entries
-- are left: then the same call is to be repeated.
local function project_commit(keys, args)
  local stream, index, meta = keys[1], keys[2], keys[3]
  local name, position, offset, last_id, limit = args[1], args[2], args[3], args[4], tonumber(args[5])
  local field = 'commit:' .. name
  local rewind = false
  local stored = redis.call('HGET', meta, field)
  if stored then
    local stored_position, stored_offset = string.match(stored, '^(%d+) (%d+)$')
    if not decimal_less(stored_position, position) then
      return 0
    end
    rewind = decimal_less(offset, stored_offset)
  end
  local group = find_group(stream, name)
  if group == nil then
    move_group(stream, index, name, false, last_id)
  else
    local through = rewind and '+' or last_id
    if field_of(group, 'pending') > 0 and acknowledge(stream, name, '-', through, limit) == limit then
      return 2
    end
    local delivered = field_of(group, 'last-delivered-id')
    if rewind or id_less(delivered, last_id) then
      move_group(stream, index, name, true, last_id)
    elseif not field_of(group, 'entries-read') then
      move_group(stream, index, name, true, delivered)
    end
  end
  redis.call('HSET', meta, field, position .. ' ' .. offset)
  return 1
end

-- KEYS: stream, meta.
-- ARGV: group, log position of what deletes the commits, "1" to destroy the group although native consumers
-- use it.
-- Forgets what was projected up to that position and destroys the Redis group.  Returns 1 when it was destroyed,
-- else 0: a newer commit was projected, there is no such group, or it is in use.
local function drop_group(keys, args)
  local stream, meta, name, position = keys[1], keys[2], args[1], args[2]
  local field = 'commit:' .. name
  local stored = redis.call('HGET', meta, field)
  if stored and decimal_less(position, string.match(stored, '^%d+')) then
    return 0
  end
  local group = find_group(stream, name)
  redis.call('HDEL', meta, field)
  if group == nil then
    return 0
  end
  local used = field_of(group, 'consumers') > 0 or field_of(group, 'pending') > 0
  if used and args[3] ~= '1' then
    return 0
  end
  return redis.call('XGROUP', 'DESTROY', stream, name)
end

redis.register_function('korvet_project', project_commit)
redis.register_function({ function_name = 'korvet_drop_group', callback = drop_group, flags = { 'allow-oom' } })
