-- Users, ACLs, client quotas and configs of groups.

-- Set and delete fields of a hash, and count the change where brokers look for it.
--   keys: hash, cluster;  args: number of fields to set, each with its value, then fields to delete
-- Returns the number of changes so far.
local function change(keys, args)
    local sets = 2 * tonumber(args[1])
    for at = 2, sets, 2 do
        redis.call('HSET', keys[1], args[at], args[at + 1])
    end
    for at = sets + 2, #args do
        redis.call('HDEL', keys[1], args[at])
    end
    return redis.call('HINCRBY', keys[2], 'security', 1)
end

redis.register_function('korvet_change_security', change)
