-- Copies the consumer groups of a log into its shadow, with consumers and pending entries.

-- Pending entries looked at by one XPENDING, and claimed by one XCLAIM at most.
local CLAIMED = 1000
local ANY_NUMBER = 2147483647
-- Delivery times that differ by less are the same: before Redis 7.2 the clock advances while a function runs.
local SAME_TIME_MS = 1000

-- Returns a reply that lists names and values as a table.
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

-- Returns the names of groups, as keys of a table.
local function names_of(groups)
  local names = {}
  for _, group in ipairs(groups) do
    names[group.name] = true
  end
  return names
end

local function consumers_of(stream, group)
  local names = {}
  for _, reply in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    names[#names + 1] = pairs_of(reply).name
  end
  return names
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

-- Gives the shadow's group the position and the consumers of the log's group; creates it unless it `exists`.  `read`
-- entries count as read (-1: unknown), not more than the shadow counts as ever added: newer Redis lowers a higher
-- number, and loads no snapshot that has one.
local function copy_group(stream, shadow_stream, group, exists, read)
  local name, last_id = group.name, group['last-delivered-id']
  redis.call('XGROUP', exists and 'SETID' or 'CREATE', shadow_stream, name, last_id, 'ENTRIESREAD', read)
  local wanted, existing = consumers_of(stream, name), consumers_of(shadow_stream, name)
  if same_names(wanted, existing) then
    return
  end
  local gone = {}
  for _, consumer in ipairs(existing) do
    gone[consumer] = true
  end
  for _, consumer in ipairs(wanted) do
    redis.call('XGROUP', 'CREATECONSUMER', shadow_stream, name, consumer)
    gone[consumer] = nil
  end
  for consumer in pairs(gone) do
    redis.call('XGROUP', 'DELCONSUMER', shadow_stream, name, consumer)
  end
end

-- Claims entries in the shadow that one consumer received at one time, as `sample` (of XPENDING) describes.
local function claim(shadow_stream, group, sample, ids)
  local _, consumer, idle_ms, count = unpack(sample)
  for _, word in ipairs({ 'IDLE', idle_ms, 'RETRYCOUNT', count, 'FORCE', 'JUSTID' }) do
    ids[#ids + 1] = word
  end
  redis.call('XCLAIM', shadow_stream, group, consumer, 0, unpack(ids))
end

-- Gives the shadow's group the pending entries of the log's group from `from` on, one page of them.  Pending entries
-- whose entry is not in the shadow are left out.  Returns where the next page begins, or nil.
local function copy_pending(stream, shadow_stream, group, from)
  local page = redis.call('XPENDING', stream, group, from, '+', CLAIMED)
  local last = #page == CLAIMED and page[#page][1] or '+'
  local known = {}
  for _, entry in ipairs(redis.call('XPENDING', shadow_stream, group, from, last, ANY_NUMBER)) do
    known[entry[1]] = entry
  end
  local ids, sample = {}, nil
  for _, entry in ipairs(page) do
    local id, copy = entry[1], known[entry[1]]
    known[id] = nil
    local same = copy and copy[2] == entry[2] and copy[4] == entry[4]
      and math.abs(copy[3] - entry[3]) < SAME_TIME_MS
    if sample and not (sample[2] == entry[2] and sample[3] == entry[3] and sample[4] == entry[4]) then
      claim(shadow_stream, group, sample, ids)
      ids, sample = {}, nil
    end
    if not same then
      sample = entry
      ids[#ids + 1] = id
    end
  end
  if sample then
    claim(shadow_stream, group, sample, ids)
  end
  for id in pairs(known) do
    redis.call('XACK', shadow_stream, group, id)
  end
  return last ~= '+' and '(' .. last or nil
end

-- Returns a text that is equal for groups with the same pending entries: their number, the first, the last, and the
-- number for each consumer.
local function pending_summary(stream, group)
  local found = redis.call('XPENDING', stream, group)
  local words = { found[1], found[2] or '', found[3] or '' }
  for _, consumer in ipairs(found[4] or {}) do
    words[#words + 1] = #consumer[1] .. ':' .. consumer[1]
    words[#words + 1] = consumer[2]
  end
  return table.concat(words, ' ')
end

-- Returns the milliseconds since a time, and some more to be safe.
local function time_since(ms)
  return clock_ms() - ms + SAME_TIME_MS
end

-- Returns whether a consumer of a group may have received or claimed entries within the last `since_ms` that it still
-- has.  Redis reports when a consumer asked for entries; `inactive` leaves out entries that it received again.
local function has_received(stream, group, since_ms)
  for _, reply in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
    local found = pairs_of(reply)
    if found.pending > 0 and found.idle <= since_ms then
      return true
    end
  end
  return false
end

-- Returns whether the pending entries of a group may have changed since copy_pending gave them to the shadow, less than
-- `since_ms` ago.  If no consumer has received an entry since, a change has made some consumer's number smaller.
local function pending_differs(stream, shadow_stream, group, since_ms)
  if pending_summary(stream, group.name) ~= pending_summary(shadow_stream, group.name) then
    return true
  end
  return group.pending > 0 and has_received(stream, group.name, since_ms)
end

-- Gives the shadow, which has its final counters, all groups as they are now; copy_pending did most of the work before,
-- less than `since_ms` ago.  `more` entries than the log ever had count as read, so the lag of a group that has read
-- all is 0.
local function copy_groups(stream, shadow_stream, more, since_ms)
  local groups, copies = groups_of(stream), groups_of(shadow_stream)
  local wanted, existing = names_of(groups), names_of(copies)
  for _, group in ipairs(groups) do
    local name, read = group.name, group['entries-read']
    copy_group(stream, shadow_stream, group, existing[name], read and read + more or -1)
    if pending_differs(stream, shadow_stream, group, since_ms) then
      local from = '-'
      repeat
        from = copy_pending(stream, shadow_stream, name, from)
      until not from
    end
  end
  for _, group in ipairs(copies) do
    if not wanted[group.name] then
      redis.call('XGROUP', 'DESTROY', shadow_stream, group.name)
    end
  end
end

-- Returns whether a group received, since the compaction began, a batch of which the shadow has parts: its pending
-- entry would stand for the last part at most.
local function has_received_parts(log, shadow)
  if log.entries_before == log.records_before then
    return false
  end
  local since_ms = time_since(shadow.began_ms)
  for _, group in ipairs(groups_of(log.stream)) do
    local from = group.pending > 0 and '-' or nil
    while from do
      local page = redis.call('XPENDING', log.stream, group.name, from, shadow.deleted_id, CLAIMED)
      for _, entry in ipairs(page) do
        local id, idle_ms = entry[1], entry[3]
        local found = idle_ms <= since_ms and redis.call('XRANGE', log.stream, id, id)[1]
        local first = found and batch_of(id, found[2], log.bias)
        if first and redis.call('XRANGE', shadow.stream, id_of(first), '(' .. id, 'COUNT', 1)[1] then
          return true
        end
      end
      from = #page == CLAIMED and '(' .. page[#page][1] or nil
    end
  end
  return false
end
