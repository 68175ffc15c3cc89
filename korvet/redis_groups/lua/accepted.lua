-- Finds how far all Redis consumer groups of a stream are done.

-- KEYS: stream, meta.  ARGV: bias, how many groups to leave out, as an earlier call has examined them.
-- Returns how many groups to leave out next (0: all were examined), and the lowest of the groups' offsets, as text: all
-- their records before it are acknowledged ("" without groups).
local function accepted(keys, args)
  local stream, meta, bias, from = keys[1], keys[2], tonumber(args[1]), tonumber(args[2])
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  if groups.err or #groups <= from then
    return { 0, '' }
  end
  local last, lowest = end_of_budget(groups, from, math.max(BUDGET, #groups / CALLS)), ''
  local stored = projections_of(meta, groups, from, last)
  for at = from + 1, last do
    local group, field = groups[at], stored[at - from]
    local committed
    if field then
      local _
      _, committed = decode_projection(field)
    end
    local name, pending = field_of(group, 'name'), field_of(group, 'pending')
    local offset = native_offset(stream, name, pending, field_of(group, 'last-delivered-id'), bias, committed)
    if lowest == '' or decimal_less(offset, lowest) then
      lowest = offset
    end
  end
  return { last < #groups and last or 0, lowest }
end

redis.register_function({
  function_name = 'korvet_accepted' .. RELEASE,
  callback = accepted,
  flags = { 'no-writes' },
})
