-- What consumers of Redis groups have not acknowledged, for metrics.

-- What the names of consumers begin with that stand for nobody, see share.lua.
local NOBODY = 'korvet:'

-- KEYS: stream.  ARGV: how many groups to leave out, as an earlier call has looked at them.
-- Returns how many groups to leave out next (0: that was all), and for each group with consumers or pending entries
-- four elements: its name, the number of its consumers, the number of its pending entries, and how long ago the oldest
-- of these was delivered last (ms; -1 if there is none, or it is one that nobody has in a share group).
local function group_backlogs(keys, args)
  local stream, from = keys[1], tonumber(args[1])
  if #keys ~= 1 or not from then
    return redis.error_reply('ERR korvet_group_backlogs: malformed arguments')
  end
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err or #groups <= from then
    return { 0 }
  end
  local last = end_of_budget(groups, from, math.max(BUDGET, #groups / CALLS))
  local found = { last < #groups and last or 0 }
  for at = from + 1, last do
    local group = groups[at]
    local name, consumers, pending = field_of(group, 'name'), field_of(group, 'consumers'), field_of(group, 'pending')
    if consumers > 0 or pending > 0 then
      local oldest = pending > 0 and redis.call('XPENDING', stream, name, '-', '+', 1)[1]
      found[#found + 1] = name
      found[#found + 1] = consumers
      found[#found + 1] = pending
      found[#found + 1] = oldest and string.sub(oldest[2], 1, #NOBODY) ~= NOBODY and oldest[3] or -1
    end
  end
  return found
end

redis.register_function({
  function_name = 'korvet_group_backlogs' .. RELEASE,
  callback = group_backlogs,
  flags = { 'no-writes' },
})
