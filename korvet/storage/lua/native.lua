-- Redis consumer groups that Redis applications move: which of them stand elsewhere than when they were last in step
-- with the commits of the Kafka group of their name.

-- What one call looks at: a few ms of Redis.  A group with pending entries costs it several times as much as another.
local BUDGET = 1000
local PENDING_COST = 3

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
  local fields, last, budget = {}, from, BUDGET
  while last < #groups and budget > 0 do
    last = last + 1
    fields[#fields + 1] = 'commit:' .. field_of(groups[last], 'name')
    budget = budget - (field_of(groups[last], 'pending') > 0 and PENDING_COST or 1)
  end
  local stored = redis.call('HMGET', meta, unpack(fields))
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
