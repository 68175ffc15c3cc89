-- Copies the entries of a log into its shadow.

-- Bytes copied by one call, about: a few ms of Redis's time.
local COPIED_BYTES = 1048576
-- Fields that one XADD of a script can take, with room to spare: the Lua stack is limited.
local MAX_FIELDS = 7000

-- Returns a function that returns whether the entry with an ID in [first, last] is pending in any of the groups.
local function pending_in(stream, groups, first, last)
  local pending, crowded = {}, {}
  for _, group in ipairs(groups) do
    if group.pending > 0 then
      local found = redis.call('XPENDING', stream, group.name, first, last, PAGE)
      for _, entry in ipairs(found) do
        pending[entry[1]] = true
      end
      if #found == PAGE then
        -- There may be more than entries on a page: entries that are gone stay pending.
        crowded[#crowded + 1] = group.name
      end
    end
  end
  return function(id)
    if pending[id] then
      return true
    end
    for _, name in ipairs(crowded) do
      if redis.call('XPENDING', stream, name, id, id, 1)[1] then
        return true
      end
    end
    return false
  end
end

-- Adds an entry to the shadow's index.
local function account(shadow, id, fields, append_ms)
  local position, records, time_ms = records_of(id, fields, shadow.bias)
  if not position then
    append_ms = parts_of(id)
  elseif records > 1 then
    -- A batch of a native client may have offsets of entries before it.
    position = math.max(position, position_after(shadow.indexed_id))
  end
  add_entry(shadow, position, records, time_ms, payload_bytes(fields), append_ms)
end

-- Adds what replaces an entry: batches, each with an ID, or nothing.  If the entry is pending in a group, a placeholder
-- takes its ID until the group is copied, since XCLAIM makes pending entries only of entries that exist.
local function replace(shadow, placeholders, id, others, append_ms, is_pending)
  local id_is_taken = false
  for _, other in ipairs(others) do
    local fields = { 'batch', other[2] }
    redis.call('XADD', shadow.stream, other[1], unpack(fields))
    account(shadow, other[1], fields, append_ms)
    id_is_taken = id_is_taken or other[1] == id
  end
  if is_pending and not id_is_taken then
    redis.call('XADD', shadow.stream, id, 'x', '')
    redis.call('SADD', placeholders, id)
  end
  shadow.more = shadow.more + math.max(0, #others - 1)
  shadow.deleted_id = id
end

-- Returns when the entries from `id` on were appended.  On dense topics, whose IDs are not times, the index knows.
local function append_time(log, id)
  local ms = parts_of(id)
  if log.bias == 0 then
    return ms
  end
  local point = floor_point(log, position_at(id) or position_after(id))
  return point and point.append_ms or ms
end

-- Copies a page of entries.  `pending` returns whether an entry of the page is pending in a group.  Returns the bytes
-- of the entries, and true if the next entry has more fields than a script can handle.
local function copy_page(log, shadow, placeholders, page, changes, added, pending)
  local bytes, page_ms = 0, append_time(log, page[1][1])
  for _, entry in ipairs(page) do
    local id, fields = entry[1], entry[2]
    local append_ms, change = log.bias == 0 and parts_of(id) or page_ms, changes[id]
    local is_pending = change and pending(id)
    if change and not (change[1] and is_pending) then
      replace(shadow, placeholders, id, change, append_ms, is_pending)
    else
      if #fields > MAX_FIELDS and id ~= added then
        return bytes, true
      end
      if id ~= added then
        redis.call('XADD', shadow.stream, id, unpack(fields))
      end
      account(shadow, id, fields, append_ms)
    end
    bytes = bytes + payload_bytes(fields)
    shadow.seen = shadow.seen + 1
    shadow.indexed_id = id
  end
  return bytes, false
end

-- Copies the entries after shadow.indexed_id up to `to`, at most `budget` of them.  `changes` holds for some IDs what
-- replaces the entry (a batch that is pending in a group stays whole); the shadow has the entry `added` already.
-- Returns "done", "more", or "wide" (the next entry has more fields than a script can handle), and the bytes copied.
local function copy_entries(log, shadow, placeholders, to, budget, changes, added)
  local bytes, groups = 0, nil
  if added ~= '' and not redis.call('XRANGE', log.stream, added, added)[1] then
    -- It was deleted just after it had been read.
    redis.call('XDEL', shadow.stream, added)
  end
  while budget > 0 and bytes < COPIED_BYTES do
    local asked = math.min(PAGE, budget)
    local page, pending = redis.call('XRANGE', log.stream, '(' .. shadow.indexed_id, to, 'COUNT', asked), nil
    if page[1] then
      local copied, is_wide = copy_page(log, shadow, placeholders, page, changes, added, function(id)
        groups = groups or groups_of(log.stream)
        pending = pending or pending_in(log.stream, groups, page[1][1], page[#page][1])
        return pending(id)
      end)
      bytes = bytes + copied
      if is_wide then
        return 'wide', bytes
      end
    end
    if #page < asked then
      return 'done', bytes
    end
    budget = budget - #page
  end
  return 'more', bytes
end
