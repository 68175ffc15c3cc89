-- Finds Redis consumer groups that Redis applications have moved since the groups were last in step with the commits of
-- the Kafka groups of the same names.

-- Cost of the groups that one call examines, a few ms of Redis's time.  A group with pending entries costs several
-- times as much as another.
local BUDGET = 1000
local PENDING_COST = 3
-- Calls of one round over a stream's groups, at most.  Each call lists all groups of the stream, and on a stream with
-- thousands of groups examines at least one in CALLS of them.  So the cost of a round is proportional to their number.
local CALLS = 4
-- Fields of a meta hash that are read by one HMGET: far below the number of arguments that Lua can pass.
local READ_AT_ONCE = 1000

-- Returns the index of the last group to examine if `budget` is spent on the groups after `from`.
local function end_of_budget(groups, from, budget)
  local last = from
  while last < #groups and budget > 0 do
    last = last + 1
    budget = budget - (field_of(groups[last], 'pending') > 0 and PENDING_COST or 1)
  end
  return last
end

-- Returns the projections of groups `from` + 1 to `last`.
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

-- KEYS: stream, meta.  ARGV: bias, how many groups to leave out, as an earlier call has examined them.
-- A group whose commit was read from it counts as moved, too, if the log now starts after the commit.
-- Returns nothing if no group has moved; else how many groups to leave out next (0: all were examined), the log start,
-- and for each group that has moved three elements: its name, its offset, and its projection ("" if it has none).
local function moved_groups(keys, args)
  local stream, meta, bias, from = keys[1], keys[2], tonumber(args[1]), tonumber(args[2])
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err or #groups <= from then
    return {}
  end
  local log, fault = open_log(stream, nil, meta, bias)
  if not log then
    return fault
  end
  local log_start = current_start(log, current_end(log))
  local last = end_of_budget(groups, from, math.max(BUDGET, #groups / CALLS))
  local stored = projections_of(meta, groups, from, last)
  local moved = { last < #groups and last or 0, log_start }
  for at = from + 1, last do
    local group, field = groups[at], stored[at - from]
    local name, pending = field_of(group, 'name'), field_of(group, 'pending')
    local committed, known, origin
    if field then
      local _
      _, committed, known, origin = decode_projection(field)
    end
    local delivered = field_of(group, 'last-delivered-id')
    local offset, whole = native_offset(stream, name, pending, delivered, bias, committed)
    local is_behind = origin == 'n' and (tonumber(committed) or log_start) < log_start
    if is_behind or (offset ~= known and whole ~= known) then
      moved[#moved + 1] = name
      moved[#moved + 1] = offset
      moved[#moved + 1] = field or ''
    end
  end
  return #moved == 2 and moved[1] == 0 and {} or moved
end

redis.register_function({ function_name = 'korvet_moved' .. RELEASE, callback = moved_groups, flags = { 'no-writes' } })
