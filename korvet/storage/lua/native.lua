-- Redis consumer groups that Redis applications move: which of them stand elsewhere than when they were last in step
-- with the commits of the Kafka group of their name.

-- What one call looks at: a few ms of Redis.  A group with pending entries costs it several times as much as another.
local BUDGET = 1000
local PENDING_COST = 3
-- Each call lists all groups of the stream.  On a stream with thousands of groups a call examines at least one in CALLS
-- of them, so that a round takes at most CALLS calls and its cost is proportional to the number of groups.
local CALLS = 4
-- Fields of a meta hash that are read at once: far below the arguments that Lua can pass.
local READ_AT_ONCE = 1000

-- The index of the last group to examine if `budget` is spent on the groups after `from`.
local function end_of_budget(groups, from, budget)
  local last = from
  while last < #groups and budget > 0 do
    last = last + 1
    budget = budget - (field_of(groups[last], 'pending') > 0 and PENDING_COST or 1)
  end
  return last
end

-- The projection fields of groups `from` + 1 to `last`.
local function projections_of(meta, groups, from, last)
  local stored = {}
  for first = from + 1, last, READ_AT_ONCE do
    local fields = {}
    for at = first, math.min(last, first + READ_AT_ONCE - 1) do
      fields[#fields + 1] = 'commit:' .. field_of(groups[at], 'name')
    end
    for _, field in ipairs(redis.call('HMGET', meta, unpack(fields))) do
      stored[#stored + 1] = field
    end
  end
  return stored
end

-- KEYS: stream, meta.  ARGV: bias, how many groups to leave out, as a call before has looked at them.
-- Returns nothing where no group has moved, else how many groups to leave out next (0: that is all), the log start, and
-- of each group that has moved three elements: its name, where it stands (an offset), and what it was last in step
-- with (see decode_projection; "" for nothing).
local function moved_groups(keys, args)
  local stream, meta, bias, from = keys[1], keys[2], tonumber(args[1]), tonumber(args[2])
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err or #groups <= from then
    return {}
  end
  local last = end_of_budget(groups, from, math.max(BUDGET, #groups / CALLS))
  local stored = projections_of(meta, groups, from, last)
  local moved = { last < #groups and last or 0, 0 }
  for at = from + 1, last do
    local group, field = groups[at], stored[at - from]
    local name, pending = field_of(group, 'name'), field_of(group, 'pending')
    local offset, stood
    if field then
      local _
      _, offset, stood = decode_projection(field)
    end
    local stands = native_offset(stream, name, pending, field_of(group, 'last-delivered-id'), bias, offset)
    if stands ~= stood then
      moved[#moved + 1] = name
      moved[#moved + 1] = stands
      moved[#moved + 1] = field or ''
    end
  end
  if #moved == 2 then
    return moved[1] == 0 and {} or moved
  end
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  local state = load_meta(meta)
  moved[2] = log_start(found, state, log_end(found, state, bias), bias)
  return moved
end

redis.register_function({ function_name = 'korvet_moved', callback = moved_groups, flags = { 'no-writes' } })
