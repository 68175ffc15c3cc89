-- What korvet_project knows of the Redis groups of one stream, asked for once and at little cost.

-- Groups per commit of a call up to which all groups are listed once for all commits: XINFO GROUPS takes 1.3 us for
-- each group of the stream, and a probe 10 us for one group.
local LISTED_PER_COMMIT = 8
-- Entries and bytes that one call counts beyond the index, at most: some 40 ms of Redis's time.
local UNINDEXED, UNINDEXED_BYTES = 20000, 33554432
-- The consumer that exists while a group is probed.
local PROBE = 'korvet:probe'

-- Returns a view of one stream for `commits` commits.  `hints`: entry IDs that are likely to be the current group's
-- last delivered ID.
local function view_of(stream, index, commits)
  local exists = redis.call('EXISTS', stream) == 1
  local budget = { entries = UNINDEXED, bytes = UNINDEXED_BYTES }
  return {
    stream = stream, index = index, commits = commits, exists = exists, reads = {}, hints = {}, budget = budget,
  }
end

local function info_of(view)
  if not view.info then
    local found = redis.call('XINFO', 'STREAM', view.stream)
    local first = field_of(found, 'first-entry')
    view.info = {
      added = field_of(found, 'entries-added'),
      length = field_of(found, 'length'),
      last_id = field_of(found, 'last-generated-id'),
      deleted_id = field_of(found, 'max-deleted-entry-id'),
      groups = field_of(found, 'groups'),
      first_id = first and first[1],
    }
  end
  return view.info
end

-- Returns whether there is no entry after entry ID `from` and before `to` (false: up to the end).
local function is_gap(stream, from, to)
  if to and not id_less(from, to) then
    return false
  end
  return not redis.call('XRANGE', stream, '(' .. from, to and '(' .. to or '+', 'COUNT', 1)[1]
end

-- Returns a group's state at a cost that does not depend on the number of groups; nil if there is no such group.  No
-- command reports the last delivered ID of one group, so a temporary consumer reads the next entry, and the group is
-- set to an ID before that entry, or after the last one.  Readers cannot distinguish two IDs between the same two
-- entries.  A hint is preferred, since the group was set to it, or is about to be set to it.
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
    delivered = delivered or info_of(view).last_id
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

-- Returns a group's state: {pending (number of entries), delivered (ID), read (entries; nil if Redis does not know)};
-- nil if there is no such group.
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

-- Returns whether there are entries of many records.  These are large, so counts come from the index then.
local function has_batches(view)
  if view.batches == nil then
    local newest = redis.call('ZREVRANGE', view.index, 0, 0)[1]
    local point = newest and decode_point(newest)
    view.batches = point ~= nil and point.entries_before ~= point.records_before
  end
  return view.batches
end

-- Returns whether no entry after `id` was ever deleted or trimmed.
local function is_intact_after(info, id)
  if info.added == info.length then
    return true
  end
  return info.first_id and not id_less(id, info.deleted_id) and not id_less(id, info.first_id)
end

-- Returns whether Redis counts fewer entries as read by a group than are gone.  Redis 7.0 does not notice that entries
-- were trimmed that the group had not read, and counts on without them.
local function misses_trimmed(view, group)
  local info = info_of(view)
  return group.read < info.added - info.length
end

-- Returns the number of entries up to `last_id`.  As ENTRIESREAD of a group it makes the lag that Redis reports the
-- number of entries that are still to be read.  It is counted from the last delivered entry of `group` (or nil) if that
-- entry is near and its count is known.  Returns nil if too many entries are not indexed yet.
local function entries_read(view, group, last_id)
  if not view.exists then
    return 0
  end
  local info = info_of(view)
  if not id_less(last_id, info.last_id) then
    return info.added
  elseif not info.first_id or id_less(last_id, info.first_id) then
    -- The index may still count entries that were trimmed.
    return math.max(0, info.added - info.length)
  end
  local ahead = group and group.read and not id_less(last_id, group.delivered) and not misses_trimmed(view, group)
  if ahead and not has_batches(view) and is_intact_after(info, group.delivered) then
    local passed = redis.call('XRANGE', view.stream, '(' .. group.delivered, last_id, 'COUNT', PAGE)
    if #passed < PAGE then
      return group.read + #passed
    end
  end
  local read = view.reads[last_id]
  if not read then
    local left = count_after(view.stream, view.index, last_id, view.budget)
    read = left and math.max(0, info.added - left)
    view.reads[last_id] = read
  end
  return read
end
