-- Compaction.  What survives of a log is copied slice by slice into a shadow beside it, a stream with an index and a
-- meta hash of its own; then the shadow takes the log's place, in one step.  XDEL would not do: it leaves the memory
-- of a node in use while one of its entries lives.  Shadows are nobody else's, so that one which was left behind is
-- just deleted.

-- KEYS of all that have SHADOW_KEYS: stream, index, meta, shadow stream, shadow index, shadow meta, set of the
-- placeholders, and where the old stream goes when it is replaced.  ARGV begins with: bias, highest epoch of the
-- partition's leader ("" is one that nobody fences), token of the compaction.
local SHADOW_KEYS = 8

-- Bytes copied by one call, about: a few ms of Redis's time.
local COPIED_BYTES = 1048576
-- Fields that one XADD of a script can take, with room to spare: Lua has so many places on its stack.
local WIDEST = 7000
-- Pending entries looked at by one XPENDING, and claimed by one XCLAIM at most.
local CLAIMED = 1000
local ANY_NUMBER = 2147483647
-- Times of delivery are the same within this: before Redis 7.2 the clock goes on while a function runs.
local SAME_TIME_MS = 1000

local function pairs_of(reply)
  local found = {}
  for at = 1, #reply, 2 do
    found[reply[at]] = reply[at + 1]
  end
  return found
end

local function groups_of(stream)
  local groups = {}
  for _, reply in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    groups[#groups + 1] = pairs_of(reply)
  end
  return groups
end

-- The error reply for who does not lead the partition any more.
local function fence_leader(state, highest)
  if highest ~= '' and state.epoch and tonumber(state.epoch) > tonumber(highest) then
    return redis.error_reply('FENCED epoch ' .. highest .. ' is older than ' .. state.epoch)
  end
end

local function stale()
  return redis.error_reply('STALE another compaction has begun, or the log was changed')
end

-- What the shadow holds: `last` is the entry up to which the log was gone through, `seen` so many entries of it;
-- `deleted` is the last of them that is not there as it was, and so many `more` there are by the splitting of
-- batches.  nil where another compaction, or nobody, works on the shadow.
local function load_shadow(shadow_meta, token)
  local found = redis.call('HMGET', shadow_meta, 'token', 'seen', 'more', 'deleted')
  if found[1] ~= token then
    return nil
  end
  local shadow = load_meta(shadow_meta)
  shadow.seen, shadow.more, shadow.deleted = tonumber(found[2]), tonumber(found[3]), found[4]
  return shadow
end

local function save_shadow(shadow_meta, shadow)
  save_meta(shadow_meta, shadow)
  redis.call(
    'HSET', shadow_meta,
    'seen', integer(shadow.seen), 'more', integer(shadow.more), 'deleted', shadow.deleted
  )
end

-- What the meta hashes of log and shadow say, or nil, nil and an error reply where this is not the next call of the
-- partition's leader.
local function go_on(keys, args)
  local state = load_meta(keys[3])
  local fault = fence_leader(state, args[2])
  if fault then
    return nil, nil, fault
  end
  local shadow = load_shadow(keys[6], args[3])
  if not shadow or shadow.last ~= args[4] then
    return nil, nil, stale()
  end
  return state, shadow
end

-- The IDs in [first, last] that are pending in any of the groups.
local function pending_in(stream, groups, first, last)
  local pending = {}
  for _, group in ipairs(groups) do
    if group.pending > 0 then
      for _, entry in ipairs(redis.call('XPENDING', stream, group.name, first, last, PAGE)) do
        pending[entry[1]] = true
      end
    end
  end
  return pending
end

-- Adds an entry to the shadow's index.
local function account(keys, bias, shadow, id, fields, append_ms)
  local position, records, time_ms = batch_of(id, fields, bias)
  if not position then
    position, records, time_ms = position_at(id), 1, entry_time(id, fields)
  end
  if not position then
    append_ms = parts_of(id)
  end
  add_entry(keys[5], bias, shadow, position, records, time_ms, payload_bytes(fields), append_ms)
end

-- Adds what becomes of an entry that does not stay as it is: so many others (each an ID and a batch), or nothing.
-- Where the entry is pending in a group a placeholder takes its ID until the group is there, since a group remembers
-- only entries that it finds.
local function replace(keys, bias, shadow, id, others, append_ms, is_pending)
  local kept = false
  for _, other in ipairs(others) do
    local fields = { 'batch', other[2] }
    redis.call('XADD', keys[4], other[1], unpack(fields))
    account(keys, bias, shadow, other[1], fields, append_ms)
    kept = kept or other[1] == id
  end
  if is_pending and not kept then
    redis.call('XADD', keys[4], id, 'x', '')
    redis.call('SADD', keys[7], id)
  end
  shadow.more = shadow.more + math.max(0, #others - 1)
  shadow.deleted = id
end

-- When the entries from `id` on were appended: on dense topics, whose IDs are no times, the index knows it.
local function append_time(index, bias, id)
  local ms = parts_of(id)
  if bias == 0 then
    return ms
  end
  local point = floor_point(index, bias, position_at(id) or position_after(id))
  return point and point.append_ms or ms
end

-- Copies the entries behind shadow.last up to `to`, at most `budget` of them.  `changes` holds for some IDs what is to
-- be there instead (a batch that somebody has yet to acknowledge stays whole); the shadow has the entry `added`
-- already.  Returns "done", "more", or "wide": the next entry has more fields than a script can handle.
local function copy_entries(keys, bias, shadow, to, budget, changes, added)
  local bytes, groups = 0, nil
  while budget > 0 and bytes < COPIED_BYTES do
    local asked = math.min(PAGE, budget)
    local page = redis.call('XRANGE', keys[1], '(' .. shadow.last, to, 'COUNT', asked)
    local pending
    for _, entry in ipairs(page) do
      local id, fields = entry[1], entry[2]
      local append_ms = bias == 0 and parts_of(id) or append_time(keys[2], bias, page[1][1])
      local change = changes[id]
      if change then
        groups = groups or groups_of(keys[1])
        pending = pending or pending_in(keys[1], groups, page[1][1], page[#page][1])
      end
      if change and not (change[1] and pending[id]) then
        replace(keys, bias, shadow, id, change, append_ms, pending[id])
      else
        if #fields > WIDEST and id ~= added then
          return 'wide', bytes
        end
        if id ~= added then
          redis.call('XADD', keys[4], id, unpack(fields))
        end
        account(keys, bias, shadow, id, fields, append_ms)
      end
      bytes = bytes + payload_bytes(fields)
      shadow.seen = shadow.seen + 1
      shadow.last = id
    end
    if #page < asked then
      return 'done', bytes
    end
    budget = budget - #page
  end
  return 'more', bytes
end

-- Begins a compaction: there is nothing in the shadow.  Returns 1.
local function begin(keys, args)
  if #keys ~= SHADOW_KEYS or #args ~= 3 then
    return redis.error_reply('ERR korvet_shadow_begin: malformed arguments')
  end
  local fault = fence_leader(load_meta(keys[3]), args[2])
  if fault then
    return fault
  end
  if redis.call('EXISTS', keys[1]) == 0 then
    -- The topic was deleted, say.
    return stale()
  end
  redis.call('UNLINK', unpack(keys, 4))
  -- An empty stream.
  redis.call('XGROUP', 'CREATE', keys[4], 'x', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', keys[4], 'x')
  redis.call('HSET', keys[6], 'token', args[3], 'seen', '0', 'more', '0', 'deleted', '0-0')
  return 1
end

-- The changes in `args` from `at` on: each an ID, the number of entries that take its place, and these.
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

-- Further ARGV: entry up to which the shadow has the log, the one up to which it is to have it, entries at most, entry
-- that was added to the shadow because a script can't ("" is none), then changes.
-- Returns {"done" | "more" | "wide", entry up to which the shadow has the log, bytes gone through}.  Error STALE: begin
-- anew.
local function copy(keys, args)
  local bias, budget = tonumber(args[1]), tonumber(args[6])
  if #keys ~= SHADOW_KEYS or #args < 7 or not (bias and budget) then
    return redis.error_reply('ERR korvet_shadow_copy: malformed arguments')
  end
  local _, shadow, fault = go_on(keys, args)
  if fault then
    return fault
  end
  redis.call('ZCARD', keys[2])
  local status, bytes = copy_entries(keys, bias, shadow, args[5], budget, read_changes(args, 8), args[7])
  save_shadow(keys[6], shadow)
  return { status, shadow.last, bytes }
end

local function same_names(left, right)
  if #left ~= #right then
    return false
  end
  for at = 1, #left do
    if left[at] ~= right[at] then
      return false
    end
  end
  return true
end

local function consumers_of(stream, group)
  local names = {}
  for _, reply in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    names[#names + 1] = pairs_of(reply).name
  end
  return names
end

-- Lets the shadow's group have the position and the consumers of the log's.  `more` entries than the log has ever had
-- are counted as read, so that the lag of who has read all is 0.
local function copy_group(stream, shadow, group, known, more)
  local name, last = group.name, group['last-delivered-id']
  local read = group['entries-read'] and group['entries-read'] + more or -1
  if known then
    redis.call('XGROUP', 'SETID', shadow, name, last, 'ENTRIESREAD', read)
  else
    redis.call('XGROUP', 'CREATE', shadow, name, last, 'ENTRIESREAD', read)
  end
  local wanted, there = consumers_of(stream, name), consumers_of(shadow, name)
  if same_names(wanted, there) then
    return
  end
  local gone = {}
  for _, consumer in ipairs(there) do
    gone[consumer] = true
  end
  for _, consumer in ipairs(wanted) do
    redis.call('XGROUP', 'CREATECONSUMER', shadow, name, consumer)
    gone[consumer] = nil
  end
  for consumer in pairs(gone) do
    redis.call('XGROUP', 'DELCONSUMER', shadow, name, consumer)
  end
end

-- Claims entries in the shadow that one consumer was given at one time.
local function claim(shadow, group, sample, ids)
  local _, consumer, idle_ms, count = unpack(sample)
  ids[#ids + 1] = 'IDLE'
  ids[#ids + 1] = idle_ms
  ids[#ids + 1] = 'RETRYCOUNT'
  ids[#ids + 1] = count
  ids[#ids + 1] = 'FORCE'
  ids[#ids + 1] = 'JUSTID'
  redis.call('XCLAIM', shadow, group, consumer, 0, unpack(ids))
end

-- Lets the shadow's group have the pending entries of the log's from `from` on, one page of them; those whose entry
-- is not there are left out.  Returns where the next page begins, or nil.
local function copy_pending(stream, shadow, group, from)
  local page = redis.call('XPENDING', stream, group, from, '+', CLAIMED)
  local last = #page == CLAIMED and page[#page][1] or '+'
  local known = {}
  for _, entry in ipairs(redis.call('XPENDING', shadow, group, from, last, ANY_NUMBER)) do
    known[entry[1]] = entry
  end
  local ids, sample = {}, nil
  for _, entry in ipairs(page) do
    local id, there = entry[1], known[entry[1]]
    known[id] = nil
    local same = there and there[2] == entry[2] and there[4] == entry[4]
      and math.abs(there[3] - entry[3]) < SAME_TIME_MS
    if sample and not (sample[2] == entry[2] and sample[3] == entry[3] and sample[4] == entry[4]) then
      claim(shadow, group, sample, ids)
      ids, sample = {}, nil
    end
    if not same then
      sample = entry
      ids[#ids + 1] = id
    end
  end
  if sample then
    claim(shadow, group, sample, ids)
  end
  for id in pairs(known) do
    redis.call('XACK', shadow, group, id)
  end
  return last ~= '+' and '(' .. last or nil
end

-- What tells whether two groups have the same pending entries: how many, the first, the last, and how many for each
-- consumer.
local function pending_summary(stream, group)
  local found = redis.call('XPENDING', stream, group)
  local words = { found[1], found[2] or '', found[3] or '' }
  for _, consumer in ipairs(found[4] or {}) do
    words[#words + 1] = #consumer[1] .. ':' .. consumer[1]
    words[#words + 1] = consumer[2]
  end
  return table.concat(words, ' ')
end

local function names_of(groups)
  local names = {}
  for _, group in ipairs(groups) do
    names[group.name] = true
  end
  return names
end

-- Lets the shadow have all groups as they are now; `copy_pending` did most of it before.
local function copy_groups(stream, shadow, more)
  local groups, known = groups_of(stream), groups_of(shadow)
  local there = names_of(known)
  for _, group in ipairs(groups) do
    local name = group.name
    copy_group(stream, shadow, group, there[name], more)
    if pending_summary(stream, name) ~= pending_summary(shadow, name) then
      local from = '-'
      repeat
        from = copy_pending(stream, shadow, name, from)
      until not from
    end
  end
  local wanted = names_of(groups)
  for _, group in ipairs(known) do
    if not wanted[group.name] then
      redis.call('XGROUP', 'DESTROY', shadow, group.name)
    end
  end
end

-- Further ARGV: entry up to which the shadow has the log, a group, ID that its pending entries are copied from.
-- Copies a page of them.  Returns the ID to go on from, or "".  Errors: as korvet_shadow_copy.
local function copy_pending_page(keys, args)
  if #keys ~= SHADOW_KEYS or #args ~= 6 then
    return redis.error_reply('ERR korvet_shadow_pending: malformed arguments')
  end
  local _, shadow, fault = go_on(keys, args)
  if fault then
    return fault
  end
  local there = names_of(groups_of(keys[4]))
  for _, group in ipairs(groups_of(keys[1])) do
    if group.name == args[5] then
      copy_group(keys[1], keys[4], group, there[group.name], shadow.more)
      return copy_pending(keys[1], keys[4], args[5], args[6]) or ''
    end
  end
  return ''
end

-- Further ARGV: entry up to which the shadow has the log.
-- Removes placeholders: all groups have the pending entries that were in want of them.  Returns how many are left.
-- Errors: as korvet_shadow_copy.
local function remove_placeholders(keys, args)
  if #keys ~= SHADOW_KEYS or #args ~= 4 then
    return redis.error_reply('ERR korvet_shadow_tidy: malformed arguments')
  end
  local _, _, fault = go_on(keys, args)
  if fault then
    return fault
  end
  local ids = redis.call('SPOP', keys[7], CLAIMED)
  if ids[1] then
    redis.call('XDEL', keys[4], unpack(ids))
  end
  return redis.call('SCARD', keys[7])
end

-- The meta fields `compacted` and `emptied`, for the next compaction.
local function remember(meta, text, emptied)
  redis.call('HSET', meta, 'compacted', text)
  if emptied == '' then
    redis.call('HDEL', meta, 'emptied')
  else
    redis.call('HSET', meta, 'emptied', emptied)
  end
end

-- Further ARGV: entry up to which the shadow has the log, entries at most, what is to be remembered of the
-- compaction, entry that was added to the shadow because a script can't ("" is none), markers that stay without records
-- ("" is none).
-- Copies what was appended meanwhile, as it is, and lets the shadow be the log from now on: same last ID, counters and
-- groups.  Returns {"ok", log start, log end}; {"more" | "wide", entry up to which the shadow has the log}; or
-- {"changed"}: entries were deleted that the shadow has.  Errors: as korvet_shadow_copy.
local function swap_in(keys, args)
  local bias, budget = tonumber(args[1]), tonumber(args[5])
  if #keys ~= SHADOW_KEYS or #args ~= 8 or not (bias and budget) then
    return redis.error_reply('ERR korvet_shadow_swap: malformed arguments')
  end
  local stream, index, meta = keys[1], keys[2], keys[3]
  local state, shadow, fault = go_on(keys, args)
  if fault then
    return fault
  end
  local found
  found, fault = inspect(stream)
  if not found then
    return fault
  end
  if not found.exists or id_less(found.last, shadow.last) then
    return stale()
  end
  local status = copy_entries(keys, bias, shadow, '+', budget, {}, args[7])
  save_shadow(keys[6], shadow)
  if status ~= 'done' then
    return { status, shadow.last }
  end
  if shadow.seen ~= found.length then
    return { 'changed' }
  end

  copy_groups(stream, keys[4], shadow.more)
  local deleted = id_less(found.deleted, shadow.deleted) and shadow.deleted or found.deleted
  local added = found.added + shadow.more
  redis.call('XSETID', keys[4], found.last, 'ENTRIESADDED', added, 'MAXDELETEDID', deleted)
  local new_end = log_end(found, state, bias)
  state.log_start = log_start(found, state, new_end, bias)
  if new_end > state.log_end then
    state.jump = math.max(state.jump, new_end)
    state.log_end = new_end
  end
  state.last = found.last
  for _, name in ipairs({
    'before', 'entries', 'live', 'bytes', 'big', 'span_bytes', 'point_before', 'point_ms', 'span_max', 'run_max',
  }) do
    state[name] = shadow[name]
  end
  local first = redis.call('XRANGE', keys[4], '-', '+', 'COUNT', 1)[1]
  -- Where nothing is left the next entry will be the first.
  local gap = first and start_of(first[1], first[2], bias) or POSITION_LIMIT
  save_meta(meta, state)
  redis.call('HSET', meta, 'gap', integer(gap))
  remember(meta, args[6], args[8])
  redis.call('HDEL', meta, 'scan')
  redis.call('UNLINK', keys[6], keys[7], index)
  if redis.call('EXISTS', keys[5]) == 1 then
    redis.call('RENAME', keys[5], index)
  end
  redis.call('RENAME', stream, keys[8])
  redis.call('RENAME', keys[4], stream)
  redis.call('UNLINK', keys[8])
  return { 'ok', state.log_start, state.log_end }
end

-- KEYS: meta, then keys of a shadow.  ARGV: highest epoch of the partition's leader.
-- Deletes what a compaction that came to no end left.  Returns the number of keys.
local function drop_shadow(keys, args)
  if #keys < 2 or #args ~= 1 then
    return redis.error_reply('ERR korvet_shadow_drop: malformed arguments')
  end
  local fault = fence_leader(load_meta(keys[1]), args[1])
  if fault then
    return fault
  end
  return redis.call('UNLINK', unpack(keys, 2))
end

-- KEYS: meta.  ARGV: highest epoch of the partition's leader, what is to be remembered of a compaction that found
-- nothing to do, markers that stay without records.  Returns 1.
local function note(keys, args)
  if #keys ~= 1 or #args ~= 3 then
    return redis.error_reply('ERR korvet_compaction_note: malformed arguments')
  end
  local fault = fence_leader(load_meta(keys[1]), args[1])
  if fault then
    return fault
  end
  remember(keys[1], args[2], args[3])
  return 1
end

redis.register_function('korvet_shadow_begin', begin)
redis.register_function('korvet_shadow_copy', copy)
redis.register_function('korvet_shadow_pending', copy_pending_page)
redis.register_function({
  function_name = 'korvet_shadow_tidy',
  callback = remove_placeholders,
  flags = { 'allow-oom' },
})
redis.register_function({ function_name = 'korvet_shadow_swap', callback = swap_in, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_shadow_drop', callback = drop_shadow, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_compaction_note', callback = note, flags = { 'allow-oom' } })
