-- Users, ACLs, client quotas, configs of groups and brokers, and levels of features.

-- KEYS: one of their hashes, hash of the cluster.
-- ARGV: cluster id, number of fields to set, each with its value, then fields to delete.
-- Changes the hash, and counts the change so that brokers notice it.  Returns the number of changes so far; error
-- KEYSPACELOST.
local function change(keys, args)
  local lost = lost_keyspace(keys[2], nil, args[1])
  if lost then
    return lost
  end
  local last_set = 2 * tonumber(args[2]) + 1
  for at = 3, last_set, 2 do
    redis.call('HSET', keys[1], args[at], args[at + 1])
  end
  for at = last_set + 2, #args do
    redis.call('HDEL', keys[1], args[at])
  end
  return count_up(keys[2], 'security')
end

-- As korvet_change_security, and also while Redis is at maxmemory, within the allowance.  Error NOALLOWANCE.
local function change_within(keys, args)
  return beyond_allowance(1) or change(keys, args)
end

redis.register_function('korvet_change_security' .. RELEASE, change)
-- For quotas and configs of groups: there may be one for each name that a client can think of.
redis.register_function({
  function_name = 'korvet_change_within' .. RELEASE, callback = change_within, flags = { 'allow-oom' },
})
-- For configs of brokers, which are few, and deletions.
redis.register_function({
  function_name = 'korvet_change_configs' .. RELEASE, callback = change, flags = { 'allow-oom' },
})
