-- What brokers share: the topic catalogue and the lease on the keyspace.

-- KEYS: hash.  ARGV: field, expected value ("" where it is to be absent), new value ("" to delete the field).
-- Compare and set.  Returns 1; error CONFLICT where the value is another one.
local function swap(keys, args)
  if #keys ~= 1 or #args ~= 3 then
    return redis.error_reply('ERR korvet_swap: malformed arguments')
  end
  if (redis.call('HGET', keys[1], args[1]) or '') ~= args[2] then
    return redis.error_reply('CONFLICT ' .. args[1] .. ' was changed by somebody else')
  end
  if args[3] == '' then
    redis.call('HDEL', keys[1], args[1])
  else
    redis.call('HSET', keys[1], args[1], args[3])
  end
  return 1
end

-- KEYS: brokers.  ARGV: node id, token, lease (ms), description (JSON), token of a holder known to be dead (or "").
-- Takes or renews the one lease there is.  A value is "<expiry ms> <token> <description>".
-- Returns {"held"} or {"refused", node id, remaining ms, token, description} of the holder.
local function lease(keys, args)
  local duration_ms = tonumber(args[3])
  if #keys ~= 1 or #args ~= 5 or not duration_ms then
    return redis.error_reply('ERR korvet_lease: malformed arguments')
  end
  local now_ms = clock_ms()
  local held = redis.call('HGETALL', keys[1])
  for at = 1, #held, 2 do
    local expiry_ms, token, description = string.match(held[at + 1], '^(%d+) (%S+) (.*)$')
    local remaining_ms = tonumber(expiry_ms) - now_ms
    if token ~= args[2] and token ~= args[5] and remaining_ms > 0 then
      return { 'refused', held[at], remaining_ms, token, description }
    end
  end
  redis.call('DEL', keys[1])
  redis.call('HSET', keys[1], args[1], integer(now_ms + duration_ms) .. ' ' .. args[2] .. ' ' .. args[4])
  return { 'held' }
end

-- KEYS: brokers.  ARGV: node id, token.  Returns 1 where the lease was held by that token and is given up.
local function release(keys, args)
  local value = redis.call('HGET', keys[1], args[1])
  if value and string.match(value, '^%d+ (%S+)') == args[2] then
    return redis.call('HDEL', keys[1], args[1])
  end
  return 0
end

redis.register_function('korvet_swap', swap)
redis.register_function({ function_name = 'korvet_lease', callback = lease, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_release', callback = release, flags = { 'allow-oom' } })
