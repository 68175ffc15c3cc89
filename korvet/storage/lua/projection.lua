-- Commits of Kafka groups projected onto the Redis consumer group of the same name, in the slot of one stream.

-- POSITION_LIMIT as text.
local LIMIT = '9007199254740992'

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

-- XINFO GROUPS takes 1.3 us for each group of a stream, and a probe 10 us for one group: with up to so many groups for
-- each commit of a call, all groups are listed once for all commits.
local LISTED_PER_COMMIT = 8
-- The consumer that exists while a group is probed.
local PROBE = 'korvet:probe'

-- What the calls below know of one stream, for `commits` commits.  `hints`: entry IDs that are likely to be the current
-- group's position.
local function view_of(stream, index, commits)
  local exists = redis.call('EXISTS', stream) == 1
  return { stream = stream, index = index, commits = commits, exists = exists, reads = {}, hints = {} }
end

local function info_of(view)
  if not view.info then
    local found = redis.call('XINFO', 'STREAM', view.stream)
    local first = field_of(found, 'first-entry')
    view.info = {
      added = field_of(found, 'entries-added'),
      length = field_of(found, 'length'),
      last = field_of(found, 'last-generated-id'),
      deleted = field_of(found, 'max-deleted-entry-id'),
      groups = field_of(found, 'groups'),
      first = first and first[1],
    }
  end
  return view.info
end

-- Whether there is no entry after entry ID `from` and before `to` (false: up to the end).
local function is_gap(stream, from, to)
  if to and not id_less(from, to) then
    return false
  end
  return not redis.call('XRANGE', stream, '(' .. from, to and '(' .. to or '+', 'COUNT', 1)[1]
end

-- The position of one group, at a cost that does not depend on the number of groups.  No command reports the position,
-- so a temporary consumer reads the next entry, and the group is set to an ID before that entry, or after the last one.
-- Readers cannot distinguish two IDs between the same two entries.  A hint is preferred, since the group was set to it,
-- or is about to be set to it.
local function probe(view, name)
  local pending = redis.pcall('XPENDING', view.stream, name)
  if pending.err then
    return nil
  end
  local reply = redis.call('XREADGROUP', 'GROUP', name, PROBE, 'COUNT', 1, 'NOACK', 'STREAMS', view.stream, '>')
  redis.call('XGROUP', 'DELCONSUMER', view.stream, name, PROBE)
  local following = reply and reply[1][2][1][1]
  local delivered
  for _, hint in ipairs(view.hints) do
    if not delivered and is_gap(view.stream, hint, following) then
      delivered = hint
    end
  end
  if not following then
    local read = info_of(view).added
    delivered = delivered or info_of(view).last
    redis.call('XGROUP', 'SETID', view.stream, name, delivered, 'ENTRIESREAD', read)
    return { pending = pending[1], delivered = delivered, read = read }
  end
  if not delivered then
    local before = redis.call('XREVRANGE', view.stream, '(' .. following, '-', 'COUNT', 1)[1]
    delivered = before and before[1] or '0-0'
  end
  redis.call('XGROUP', 'SETID', view.stream, name, delivered)
  return { pending = pending[1], delivered = delivered }
end

local function listed_groups(view)
  local groups = {}
  for _, found in ipairs(redis.call('XINFO', 'GROUPS', view.stream)) do
    groups[field_of(found, 'name')] = found
  end
  return groups
end

-- A group's number of pending entries, last delivered ID and entries read (nil: not known); nil if there is no such
-- group.
local function group_of(view, name)
  if not view.groups then
    view.listed = not view.exists or info_of(view).groups <= LISTED_PER_COMMIT * view.commits
    view.groups = view.exists and view.listed and listed_groups(view) or {}
  end
  local group = view.groups[name]
  if group and group[1] then
    group = {
      pending = field_of(group, 'pending'),
      delivered = field_of(group, 'last-delivered-id'),
      read = field_of(group, 'entries-read'),
    }
  elseif not group and not view.listed then
    group = probe(view, name)
  end
  view.groups[name] = group
  return group
end

-- Whether there are entries of many records: large, so that the index is asked rather than they.
local function has_batches(view)
  if view.batches == nil then
    local newest = redis.call('ZREVRANGE', view.index, 0, 0)[1]
    local point = newest and decode_point(newest)
    view.batches = point ~= nil and point.entries ~= point.before
  end
  return view.batches
end

-- Whether no entry behind `id` was ever deleted or trimmed.
local function intact_behind(info, id)
  if info.added == info.length then
    return true
  end
  return info.first and not id_less(id, info.deleted) and not id_less(id, info.first)
end

-- Entries that a group standing at `last_id` has behind it: with this as ENTRIESREAD the lag that Redis
-- reports is the number of entries that are still there to be read.  Counted from where `group` (or nil) stands
-- where that is near and known.
local function entries_read(view, group, last_id)
  if not view.exists then
    return 0
  end
  local info = info_of(view)
  if not id_less(last_id, info.last) then
    return info.added
  end
  local ahead = group and group.read and not id_less(last_id, group.delivered)
  if ahead and not has_batches(view) and intact_behind(info, group.delivered) then
    local passed = redis.call('XRANGE', view.stream, '(' .. group.delivered, last_id, 'COUNT', PAGE)
    if #passed < PAGE then
      return group.read + #passed
    end
  end
  local read = view.reads[last_id]
  if not read then
    read = math.max(0, info.added - count_after(view.stream, view.index, last_id))
    view.reads[last_id] = read
  end
  return read
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
local function move_group(view, name, group, last_id)
  local read = entries_read(view, group, last_id)
  if group then
    redis.call('XGROUP', 'SETID', view.stream, name, last_id, 'ENTRIESREAD', read)
  else
    redis.call('XGROUP', 'CREATE', view.stream, name, last_id, 'MKSTREAM', 'ENTRIESREAD', read)
    view.exists = true
    group = { pending = 0 }
    view.groups[name] = group
  end
  group.delivered, group.read = last_id, read
end

-- Lets one group follow; returns whether that is all, false where pending entries are left.
local function follow(view, name, last_id, rewind, limit)
  local group = group_of(view, name)
  if not group then
    move_group(view, name, nil, last_id)
    return true
  end
  if group.pending > 0 then
    local acknowledged = acknowledge(view.stream, name, '-', rewind and '+' or last_id, limit)
    group.pending = group.pending - acknowledged
    if acknowledged == limit then
      return false
    end
  end
  if rewind or id_less(group.delivered, last_id) then
    move_group(view, name, group, last_id)
  elseif not group.read then
    move_group(view, name, group, group.delivered)
  end
  return true
end

-- The entry ID at which a group was left, from its projection field in the meta hash; nil if that has none.
local function hint_of(field, bias)
  local _, _, stood = decode_projection(field)
  if not decimal_less(stood, LIMIT) then
    return nil
  end
  local position = tonumber(stood) + bias
  return position > 0 and id_of(position - 1) or '0-0'
end

-- Where a group of the view stands.  That needs no look where it has just been set behind `last_id`, which is before
-- the offset `committed`.
local function standing(view, name, bias, committed, last_id)
  local group = group_of(view, name)
  if group.pending == 0 and group.delivered == last_id and last_id ~= '0-0' and decimal_less(committed, LIMIT) then
    return committed
  end
  return native_offset(view.stream, name, group.pending, group.delivered, bias, committed)
end

-- Whether native consumers have moved a group since it was brought in step, as the field of the meta hash says; not
-- where there is none.
local function has_gone_on(view, name, bias, field)
  local group = field and group_of(view, name)
  if not group then
    return false
  end
  local _, committed, stood = decode_projection(field)
  return native_offset(view.stream, name, group.pending, group.delivered, bias, committed) ~= stood
end

-- KEYS: stream, index, meta.
-- ARGV: bias, pending entries to acknowledge at most for one commit; then per commit: group, its log position, its
-- offset, the earliest offset that it stands for ("" where that went back on the way), the entry ID of the
-- offset before its own, and where the group stood when the commit was read off it ("" for others, "?" where it may
-- have been).
-- One that was read off the group leaves the group alone: its native consumers may have gone on since.  One that may
-- have been moves it, but where native consumers have gone on since it was last in step, that is still to be told.
-- Returns for each commit 0 when a newer one (or this one) was projected before, 1 when it is done, 2 when
-- pending entries are left: then it is to be sent again.
local function project_commits(keys, args)
  local stream, index, meta, bias, limit = keys[1], keys[2], keys[3], tonumber(args[1]), tonumber(args[2])
  local fields = {}
  for at = 3, #args, 6 do
    fields[#fields + 1] = 'commit:' .. args[at]
  end
  local projected = {}
  for place, stored in ipairs(redis.call('HMGET', meta, unpack(fields))) do
    projected[fields[place]] = stored
  end
  local view, results, news = view_of(stream, index, #fields), {}, {}
  for place, field in ipairs(fields) do
    local at = 6 * place - 3
    local name, position, offset, earliest, last_id, native = unpack(args, at, at + 5)
    local rewind, stale = earliest == '', false
    view.hints = { last_id }
    if projected[field] then
      local stored_position, stored_offset = string.match(projected[field], '^(%d+) (%S+)')
      stale = not decimal_less(stored_position, position)
      rewind = rewind or (stored_offset ~= '-' and decimal_less(earliest, stored_offset))
      view.hints = { hint_of(projected[field], bias) or last_id, last_id }
    end
    local gone_on = not stale and native == '?' and has_gone_on(view, name, bias, projected[field])
    if native == '?' then
      native = ''
    end
    if stale then
      results[place] = 0
    elseif native ~= '' or follow(view, name, last_id, rewind, limit) then
      local stands = gone_on and offset or native
      if stands == '' then
        stands = standing(view, name, bias, offset, last_id)
      end
      projected[field] = encode_projection(position, offset, stands, native ~= '' and 'n' or '')
      news[#news + 1] = field
      news[#news + 1] = projected[field]
      results[place] = 1
    else
      results[place] = 2
    end
  end
  if news[1] then
    redis.call('HSET', meta, unpack(news))
  end
  return results
end

-- Whether a group exists and native consumers use it, or it existed before any commit.
local function is_native(stream, name, origin)
  local pending = redis.pcall('XPENDING', stream, name)
  if pending.err then
    return false
  end
  return origin == 'n' or pending[1] > 0 or #redis.call('XINFO', 'CONSUMERS', stream, name) > 0
end

-- KEYS: stream, index, meta.
-- ARGV: bias, group, log position of what deletes the commits, "1" to destroy the group although native consumers
-- use it.
-- Forgets what was projected up to that position and destroys the Redis group.  One that native consumers use, or that
-- was there before any commit, stays, and is marked: it is not to bring back what was deleted unless it moves on.
-- Returns 1 when it was destroyed, else 0: a newer commit was projected, there is no such group, or it stays.
local function drop_group(keys, args)
  local stream, meta, bias, name, position = keys[1], keys[3], tonumber(args[1]), args[2], args[3]
  local field = 'commit:' .. name
  local stored = redis.call('HGET', meta, field)
  local origin
  if stored then
    local stored_position, _, _, stored_origin = decode_projection(stored)
    origin = stored_origin
    if decimal_less(position, stored_position) then
      return 0
    end
  end
  local view = view_of(stream, keys[2], 1)
  if args[4] ~= '1' and view.exists and is_native(stream, name, origin) then
    view.hints = { stored and hint_of(stored, bias) or nil }
    local group = group_of(view, name)
    if not group.read then
      move_group(view, name, group, group.delivered)
    end
    redis.call('HSET', meta, field, encode_projection(position, '-', standing(view, name, bias), ''))
    return 0
  end
  local destroyed = view.exists and redis.call('XGROUP', 'DESTROY', stream, name) or 0
  redis.call('HDEL', meta, field)
  return destroyed
end

redis.register_function('korvet_project', project_commits)
redis.register_function({ function_name = 'korvet_drop_group', callback = drop_group, flags = { 'allow-oom' } })
