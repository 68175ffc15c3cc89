-- Projects commits of Kafka groups onto the Redis consumer groups of the same names, in the slot of one stream.

-- POSITION_LIMIT as text.
local LIMIT = '9007199254740992'
-- Arguments per commit of korvet_project, and those before them.
local COMMIT_ARGUMENTS, FIXED_ARGUMENTS = 6, 2

-- Moves a group to `last_id`, and creates it (and an empty stream) if it does not exist.
local function move_group(view, name, group, last_id)
  -- -1: Redis reports no lag, or finds it.
  local read = entries_read(view, group, last_id)
  if group then
    redis.call('XGROUP', 'SETID', view.stream, name, last_id, 'ENTRIESREAD', read or -1)
  else
    redis.call('XGROUP', 'CREATE', view.stream, name, last_id, 'MKSTREAM', 'ENTRIESREAD', read or -1)
    view.exists = true
    group = { pending = 0 }
    view.groups[name] = group
  end
  group.delivered, group.read = last_id, read
end

-- Acknowledges up to `limit` pending entries in [first, last]; returns how many.
local function acknowledge(stream, name, first, last, limit)
  local pending = redis.call('XPENDING', stream, name, first, last, limit)
  if #pending == 0 then
    return 0
  end
  local ids = {}
  for at, entry in ipairs(pending) do
    ids[at] = entry[1]
  end
  redis.call('XACK', stream, name, unpack(ids))
  return #pending
end

-- Lets one group follow a commit; returns false if pending entries are left, else true.
local function follow(view, name, last_id, rewinds, limit)
  local group = group_of(view, name)
  if not group then
    move_group(view, name, nil, last_id)
    return true
  end
  if group.pending > 0 then
    local acknowledged = acknowledge(view.stream, name, '-', rewinds and '+' or last_id, limit)
    group.pending = group.pending - acknowledged
    if acknowledged == limit then
      return false
    end
  end
  if rewinds or id_less(group.delivered, last_id) then
    move_group(view, name, group, last_id)
  elseif not group.read or misses_trimmed(view, group) then
    move_group(view, name, group, group.delivered)
  end
  return true
end

-- Returns the entry ID to which a group was set, by its projection; nil if the projection has none.
local function hint_of(projected, bias)
  local _, _, native = decode_projection(projected)
  if not decimal_less(native, LIMIT) then
    return nil
  end
  local position = tonumber(native) + bias
  return position > 0 and id_of(position - 1) or '0-0'
end

-- Returns the offset of a group after a commit.  No search is needed if the group was just set to `last_id`, the entry
-- before the offset `committed`.
local function offset_after_commit(view, name, bias, committed, last_id)
  local group = group_of(view, name)
  if group.pending == 0 and group.delivered == last_id and last_id ~= '0-0' and decimal_less(committed, LIMIT) then
    return committed
  end
  return native_offset(view.stream, name, group.pending, group.delivered, bias, committed)
end

-- Returns whether native consumers have moved a group since it was brought in step with `projected`; false if there is
-- no group or no projection.
local function has_moved(view, name, bias, projected)
  local group = projected and group_of(view, name)
  if not group then
    return false
  end
  local _, committed, native = decode_projection(projected)
  local offset, whole = native_offset(view.stream, name, group.pending, group.delivered, bias, committed)
  return offset ~= native and whole ~= native
end

-- Results of one commit.
local OUTDATED, DONE, PENDING_LEFT = 0, 1, 2

-- Projects one commit: `name` to `native` are its arguments, see project_commits, and `projected` is the projection of
-- its group, or nil.  Returns a result, and the new projection if it is DONE.
local function project(view, bias, limit, projected, name, position, offset, earliest, last_id, native)
  local rewinds = earliest == ''
  view.hints = { last_id }
  if projected then
    local known_position, known_offset = string.match(projected, '^(%d+) (%S+)')
    if not decimal_less(known_position, position) then
      return OUTDATED
    end
    rewinds = rewinds or (known_offset ~= '-' and decimal_less(earliest, known_offset))
    view.hints = { hint_of(projected, bias) or last_id, last_id }
  end
  if native ~= '' and native ~= '?' then
    return DONE, encode_projection(position, offset, native, 'n')
  end
  local moved = native == '?' and has_moved(view, name, bias, projected)
  if not follow(view, name, last_id, rewinds, limit) then
    return PENDING_LEFT
  end
  local group_offset = moved and offset or offset_after_commit(view, name, bias, offset, last_id)
  return DONE, encode_projection(position, offset, group_offset, '')
end

-- KEYS: stream, index, meta.
-- ARGV: bias, pending entries to acknowledge for one commit, at most; then for each commit: group, its log position,
-- its offset, the earliest offset that the commit replaces ("" if the offsets went back in between), the entry ID
-- before its offset, and the offset of the Redis group when the commit was read from that group ("" for other commits,
-- "?" if it may have been read from the group).
-- A commit that was read from the Redis group leaves the group as it is: its native consumers may have continued since.
-- A commit that may have been read from it moves the group; if native consumers have continued since the group was last
-- in step, korvet_moved still reports that.
-- Returns for each commit 0 if this one or a newer one was projected before, 1 when it is done, 2 if pending entries
-- are left: send the commit again.
local function project_commits(keys, args)
  local meta, bias, limit = keys[3], tonumber(args[1]), tonumber(args[2])
  local fields = {}
  for at = FIXED_ARGUMENTS + 1, #args, COMMIT_ARGUMENTS do
    fields[#fields + 1] = 'commit:' .. args[at]
  end
  local projections = {}
  for place, stored in ipairs(redis.call('HMGET', meta, unpack(fields))) do
    projections[fields[place]] = stored
  end
  local view, results, saved = view_of(keys[1], keys[2], #fields), {}, {}
  for place, field in ipairs(fields) do
    local at = FIXED_ARGUMENTS + COMMIT_ARGUMENTS * (place - 1) + 1
    local result, projected =
      project(view, bias, limit, projections[field], unpack(args, at, at + COMMIT_ARGUMENTS - 1))
    results[place] = result
    if projected then
      projections[field] = projected
      saved[#saved + 1] = field
      saved[#saved + 1] = projected
    end
  end
  if saved[1] then
    redis.call('HSET', meta, unpack(saved))
  end
  return results
end

-- Returns whether native consumers use a group, or it existed before any commit.
local function is_native(stream, name, origin)
  local pending = redis.pcall('XPENDING', stream, name)
  if pending.err then
    return false
  end
  return origin == 'n' or pending[1] > 0 or #redis.call('XINFO', 'CONSUMERS', stream, name) > 0
end

-- KEYS: stream, index, meta.
-- ARGV: bias, group, log position of the record that deletes the commits, "1" to destroy the Redis group even if
-- native consumers use it.
-- Forgets what was projected up to that position and destroys the Redis group.  A Redis group that native consumers
-- use, or that existed before any commit, stays with a projection that marks the deletion: the group is committed again
-- only if it moves.
-- Returns 1 when the group was destroyed, else 0: a newer commit was projected, there is no such group, or it stays.
local function drop_group(keys, args)
  local stream, meta, bias, name, position = keys[1], keys[3], tonumber(args[1]), args[2], args[3]
  local field = 'commit:' .. name
  local projected, origin = redis.call('HGET', meta, field), nil
  if projected then
    local known_position, _, _, known_origin = decode_projection(projected)
    origin = known_origin
    if decimal_less(position, known_position) then
      return 0
    end
  end
  local view = view_of(stream, keys[2], 1)
  if args[4] ~= '1' and view.exists and is_native(stream, name, origin) then
    view.hints = { projected and hint_of(projected, bias) or nil }
    local group = group_of(view, name)
    if not group.read then
      move_group(view, name, group, group.delivered)
    end
    local offset = native_offset(stream, name, group.pending, group.delivered, bias, nil)
    redis.call('HSET', meta, field, encode_projection(position, '-', offset, ''))
    return 0
  end
  local destroyed = view.exists and redis.call('XGROUP', 'DESTROY', stream, name) or 0
  redis.call('HDEL', meta, field)
  return destroyed
end

-- A projection follows a commit, which is in the log: commits keep to the allowance.
redis.register_function({
  function_name = 'korvet_project' .. RELEASE, callback = project_commits, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'korvet_drop_group' .. RELEASE, callback = drop_group, flags = { 'allow-oom' },
})
