-- The hash of the cluster: its id, and the counters by which brokers notice changes.

-- Returns a counter of a hash; nil if the field is missing, is not a decimal number, or is not below POSITION_LIMIT.
local function counter(hash, field)
  local found = redis.call('HGET', hash, field)
  local number = found and string.match(found, '^%d+$') and tonumber(found)
  return number and number < POSITION_LIMIT and number or nil
end

-- Increments a counter and returns the new number.  A damaged counter continues from Redis's clock (ms), which is
-- higher than any number that the counter had before.
local function count_up(hash, field)
  local number = counter(hash, field) or redis.call('HEXISTS', hash, field) == 1 and clock_ms() or 0
  redis.call('HSET', hash, field, integer(number + 1))
  return number + 1
end

-- Returns an error reply if the keyspace is not the one that the caller opened (the keyspace was emptied or replaced,
-- or lost its catalogue), else nil.  `topics` is the key of the catalogue; nil to leave that check out.
local function lost_keyspace(cluster, topics, id)
  local found = redis.call('HGET', cluster, 'id')
  if not found then
    return redis.error_reply('KEYSPACELOST the cluster id is gone from ' .. cluster)
  elseif found ~= id then
    return redis.error_reply('KEYSPACELOST ' .. cluster .. ' has another cluster id, ' .. found .. ' and not ' .. id)
  end
  local expected = topics and counter(cluster, 'topics') or 0
  if expected > 0 and redis.call('HLEN', topics) == 0 then
    local what = topics .. ' of ' .. integer(expected) .. ' topics'
    return redis.error_reply('KEYSPACELOST the catalogue ' .. what .. ' is gone')
  end
end
