-- Compaction, call by call: begin, copy entries and groups into the shadow (see _shadow), swap.

-- Begins a compaction with an empty shadow.  Returns 1.
local function begin(keys, args)
  if #keys ~= SHADOW_KEYS or #args ~= 3 then
    return redis.error_reply('ERR korvet_shadow_begin: malformed arguments')
  end
  local fault = fence_leader(redis.call('HGET', keys[3], 'epoch'), args[2])
  if fault then
    return fault
  end
  if redis.call('EXISTS', keys[1]) == 0 then
    -- The topic was deleted, for example.
    return stale()
  end
  redis.call('UNLINK', unpack(keys, 4))
  -- An empty stream.
  redis.call('XGROUP', 'CREATE', keys[4], 'x', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', keys[4], 'x')
  local began = integer(clock_ms())
  redis.call('HSET', keys[6], 'token', args[3], 'seen', '0', 'more', '0', 'deleted', '0-0', 'began', began)
  return 1
end

-- Returns the changes in `args` from `at` on by ID: each an ID, the number of entries that replace it, and these (an ID
-- and a batch).
local function read_changes(args, at)
  local changes = {}
  while at <= #args do
    local others, count = {}, tonumber(args[at + 1])
    for number = 1, count do
      others[number] = { args[at + 2 * number], args[at + 2 * number + 1] }
    end
    changes[args[at]] = others
    at = at + 2 + 2 * count
  end
  return changes
end

-- Further ARGV: entry up to which the shadow has the log, the entry up to which to copy, entries at most, entry that
-- was added to the shadow because a script cannot add it ("" if none), then changes.
-- Returns {"done" | "more" | "wide", entry up to which the shadow has the log, bytes copied}.  Errors: STALE (begin
-- again), FENCED.
local function copy(keys, args)
  local bias, budget = tonumber(args[1]), tonumber(args[6])
  if #keys ~= SHADOW_KEYS or #args < 7 or not (bias and budget) then
    return redis.error_reply('ERR korvet_shadow_copy: malformed arguments')
  end
  local log, shadow, fault = continue_compaction(keys, args, bias)
  if fault then
    return fault
  end
  redis.call('ZCARD', log.index)
  local status, bytes = copy_entries(log, shadow, keys[7], args[5], budget, read_changes(args, 8), args[7])
  save_shadow(shadow)
  return { status, shadow.indexed_id, bytes }
end

-- Further ARGV: entry up to which the shadow has the log, a group, ID from which to copy its pending entries.
-- Copies a page of them.  Returns the ID from which to continue, or "".  Errors: as korvet_shadow_copy.
local function copy_pending_page(keys, args)
  local bias = tonumber(args[1])
  if #keys ~= SHADOW_KEYS or #args ~= 6 or not bias then
    return redis.error_reply('ERR korvet_shadow_pending: malformed arguments')
  end
  local _, shadow, fault = continue_compaction(keys, args, bias)
  if fault then
    return fault
  end
  redis.call('HSETNX', shadow.meta, 'pending', integer(clock_ms()))
  local existing = names_of(groups_of(shadow.stream))
  for _, group in ipairs(groups_of(keys[1])) do
    if group.name == args[5] then
      copy_group(keys[1], shadow.stream, group, existing[group.name], -1)
      return copy_pending(keys[1], shadow.stream, args[5], args[6]) or ''
    end
  end
  return ''
end

-- Further ARGV: entry up to which the shadow has the log.
-- Removes placeholders: all groups have the pending entries that needed them.  Returns how many are left.  Errors: as
-- korvet_shadow_copy.
local function remove_placeholders(keys, args)
  local bias = tonumber(args[1])
  if #keys ~= SHADOW_KEYS or #args ~= 4 or not bias then
    return redis.error_reply('ERR korvet_shadow_tidy: malformed arguments')
  end
  local _, shadow, fault = continue_compaction(keys, args, bias)
  if fault then
    return fault
  end
  local ids = redis.call('SPOP', keys[7], CLAIMED)
  if ids[1] then
    redis.call('XDEL', shadow.stream, unpack(ids))
  end
  return redis.call('SCARD', keys[7])
end

-- Saves the meta fields `compacted` and `emptied`, for the next compaction.
local function remember(meta, compacted, emptied)
  redis.call('HSET', meta, 'compacted', compacted)
  if emptied == '' then
    redis.call('HDEL', meta, 'emptied')
  else
    redis.call('HSET', meta, 'emptied', emptied)
  end
end

-- Gives the log, whose index is complete, the counts of its shadow, which has all entries up to the last one, and saves
-- the log.
local function take_over_counts(log, shadow)
  note_both_ends(log)
  shift_ordinals(log, log.records_before - shadow.records_before)
  for _, name in ipairs({
    'records_before', 'entries_before', 'live_entries', 'live_bytes', 'largest_entry_bytes', 'span_bytes',
    'point_records_before', 'point_append_ms', 'largest_in_span_ms', 'largest_before_ms',
  }) do
    log[name] = shadow[name]
  end
  local first = redis.call('XRANGE', shadow.stream, '-', '+', 'COUNT', 1)[1]
  -- If nothing is left, the next entry will be the first.
  local gap_end = first and start_of(first[1], first[2], log.bias) or POSITION_LIMIT
  save_log(log, 'gap_end', integer(gap_end))
  redis.call('HDEL', log.meta, 'recount')
end

-- Renames the shadow's stream and index to those of the log; `old_stream` is the key for the old stream in between.
local function rename_shadow(log, shadow, placeholders, old_stream)
  redis.call('UNLINK', shadow.meta, placeholders, log.index)
  if redis.call('EXISTS', shadow.index) == 1 then
    redis.call('RENAME', shadow.index, log.index)
  end
  redis.call('RENAME', log.stream, old_stream)
  redis.call('RENAME', shadow.stream, log.stream)
  redis.call('UNLINK', old_stream)
end

-- Further ARGV: entry up to which the shadow has the log, entries at most, the meta field `compacted`, entry that was
-- added to the shadow because a script cannot add it ("" if none), the meta field `emptied` ("" if no marker stays
-- without records).
-- Copies what was appended since, as it is, and makes the shadow the log: with the same last ID, counters and groups.
-- Returns {"ok", log start, log end}; {"more" | "wide", entry up to which the shadow has the log}; {"changed"}: entries
-- were deleted that the shadow has; or {"delivered"}: a group received a batch of which the shadow has parts.  Errors:
-- as korvet_shadow_copy.
local function swap_in(keys, args)
  local bias, budget = tonumber(args[1]), tonumber(args[5])
  if #keys ~= SHADOW_KEYS or #args ~= 8 or not (bias and budget) then
    return redis.error_reply('ERR korvet_shadow_swap: malformed arguments')
  end
  local log, shadow, fault = continue_compaction(keys, args, bias)
  fault = fault or look_closely(log)
  if fault then
    return fault
  end
  local info = log.info
  if not info.exists or id_less(info.last_id, shadow.indexed_id) then
    return stale()
  end
  if log.indexed_id ~= info.last_id then
    local complete = catch_up(log, budget)
    save_log(log)
    if not complete then
      return { 'more', shadow.indexed_id }
    end
  end
  settle_ordinals(log)
  local status = copy_entries(log, shadow, keys[7], '+', budget, {}, args[7])
  save_shadow(shadow)
  if status ~= 'done' then
    return { status, shadow.indexed_id }
  end
  if shadow.seen ~= info.length then
    return { 'changed' }
  end
  if has_received_parts(log, shadow) then
    return { 'delivered' }
  end

  local deleted_id = id_less(info.deleted_id, shadow.deleted_id) and shadow.deleted_id or info.deleted_id
  local added = info.added + shadow.more
  redis.call('XSETID', shadow.stream, info.last_id, 'ENTRIESADDED', added, 'MAXDELETEDID', deleted_id)
  copy_groups(log.stream, shadow.stream, shadow.more, time_since(shadow.pending_ms))
  take_over_counts(log, shadow)
  remember(log.meta, args[6], args[8])
  rename_shadow(log, shadow, keys[7], keys[8])
  return { 'ok', log.log_start, log.log_end }
end

-- KEYS: meta, then keys of a shadow.  ARGV: highest epoch of the partition's leader.
-- Deletes what an unfinished compaction left.  Returns the number of keys.
local function drop_shadow(keys, args)
  if #keys < 2 or #args ~= 1 then
    return redis.error_reply('ERR korvet_shadow_drop: malformed arguments')
  end
  local fault = fence_leader(redis.call('HGET', keys[1], 'epoch'), args[1])
  if fault then
    return fault
  end
  return redis.call('UNLINK', unpack(keys, 2))
end

-- KEYS: meta.  ARGV: highest epoch of the partition's leader, the meta fields `compacted` and `emptied` ("" if no
-- marker stays without records) after a compaction that had nothing to do.  Returns 1.
local function note(keys, args)
  if #keys ~= 1 or #args ~= 3 then
    return redis.error_reply('ERR korvet_compaction_note: malformed arguments')
  end
  local fault = fence_leader(redis.call('HGET', keys[1], 'epoch'), args[1])
  if fault then
    return fault
  end
  remember(keys[1], args[2], args[3])
  return 1
end

-- Registers a function that copies what stays, and the same for a Redis at maxmemory: within half of the allowance, as
-- groups need the other half.  Error NOALLOWANCE.
local function register_copying(name, callback)
  redis.register_function(name .. RELEASE, callback)
  redis.register_function({
    function_name = name .. '_within' .. RELEASE,
    callback = function(keys, args)
      return beyond_allowance(0.5) or callback(keys, args)
    end,
    flags = { 'allow-oom' },
  })
end

register_copying('korvet_shadow_begin', begin)
register_copying('korvet_shadow_copy', copy)
register_copying('korvet_shadow_pending', copy_pending_page)
redis.register_function({
  function_name = 'korvet_shadow_tidy' .. RELEASE, callback = remove_placeholders, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'korvet_shadow_swap' .. RELEASE, callback = swap_in, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'korvet_shadow_drop' .. RELEASE, callback = drop_shadow, flags = { 'allow-oom' },
})
redis.register_function({
  function_name = 'korvet_compaction_note' .. RELEASE, callback = note, flags = { 'allow-oom' },
})
