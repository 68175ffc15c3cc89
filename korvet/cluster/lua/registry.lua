-- What brokers share: the topic catalogue, producer ids, and who may write to a partition.

-- KEYS: hash of topics, hash of the cluster.
-- ARGV: cluster id, topic, expected value ("": the topic is absent), new value ("": delete the topic).
-- Compare and set.  Returns the catalogue's new version; error CONFLICT if the value is another one, KEYSPACELOST.
local function swap(keys, args)
  if #keys ~= 2 or #args ~= 4 then
    return redis.error_reply('ERR korvet_swap: malformed arguments')
  end
  local lost = lost_keyspace(keys[2], keys[1], args[1])
  if lost then
    return lost
  end
  if (redis.call('HGET', keys[1], args[2]) or '') ~= args[3] then
    return redis.error_reply('CONFLICT another client changed ' .. args[2])
  end
  if args[4] == '' then
    redis.call('HDEL', keys[1], args[2])
  else
    redis.call('HSET', keys[1], args[2], args[4])
  end
  redis.call('HSET', keys[2], 'topics', redis.call('HLEN', keys[1]))
  return count_up(keys[2], 'catalogue')
end

-- A block of producer ids begins at one ms out of so many of the clock.  Which one depends on the history of the
-- server's data: the sides of a split brain use others.
local BLOCK_MS = 16

-- KEYS: hash of the cluster.  ARGV: cluster id, number of ids (1024 at most), end of the last block that the caller
-- got, id of the history of the server's data.
-- Takes a block of producer ids that nobody had before.  The block begins at Redis's clock, ms * 1024, or after the
-- previous block, so the ids are new even if Redis has lost the newest blocks.  Returns the first id; error
-- KEYSPACELOST.
local function take_producer_ids(keys, args)
  local count, seen = tonumber(args[2]), tonumber(args[3])
  if #keys ~= 1 or #args ~= 4 or not (count and seen) then
    return redis.error_reply('ERR korvet_take_producer_ids: malformed arguments')
  end
  local lost = lost_keyspace(keys[1], nil, args[1])
  if lost then
    return lost
  end
  local least = math.max(counter(keys[1], 'next_producer_id') or 0, clock_ms() * SEQUENCES, seen)
  local ms, own = math.ceil(least / SEQUENCES), tonumber(string.sub(args[4], 1, 8), 16) or 0
  local first = (ms + (own - ms) % BLOCK_MS) * SEQUENCES
  redis.call('HSET', keys[1], 'next_producer_id', integer(first + count))
  return first
end

-- Cuts of the log that are kept in the meta field `leaders`, each "<lowest writers' epoch of the leader after it>:<log
-- end then>".  A cut is where writes may have been lost: the log got a leader in another history of the server's data.
-- The meta field `cut` is "<time (ms)>:<log end then>" of the last one; the time is after all appends before it.
-- A leader that follows another one in the same history continues the log without a cut.  The meta field `taken_over`
-- is the time (ms) of the last claim by such a leader; a cut removes the field.
local LEADERS_KEPT = 64

-- Notes a cut.  Returns nil, or an error reply.
local function note_cut(meta, stream, leaders, lowest, bias)
  local log, fault = open_log(stream, nil, meta, bias)
  if not log then
    return fault
  end
  local kept = {}
  for one in string.gmatch(leaders or '', '%S+') do
    kept[#kept + 1] = one
  end
  kept[#kept + 1] = integer(lowest) .. ':' .. integer(current_end(log))
  local newest = table.concat(kept, ' ', math.max(1, #kept - LEADERS_KEPT + 1))
  -- The clock of the former server may have been ahead.
  local cut_ms = math.max(clock_ms(), log.appended_ms)
  redis.call('HSET', meta, 'leaders', newest, 'cut', integer(cut_ms) .. ':' .. integer(current_end(log)))
  redis.call('HDEL', meta, 'taken_over')
end

-- KEYS: meta, stream.
-- ARGV: lowest writers' epoch of the partition's leader, highest one, id of the topic, "1" to take the next epoch, else
-- the lowest, bias, id of the history of the server's data ('' if it is unknown).
-- Fences, from now on, all writers with an older epoch.  Returns the epoch; error FENCED if a later leader has one.
local function claim(keys, args)
  local lowest, highest, bias = tonumber(args[1]), tonumber(args[2]), tonumber(args[5])
  if #keys ~= 2 or #args ~= 6 or not (lowest and highest and bias) then
    return redis.error_reply('ERR korvet_claim: malformed arguments')
  end
  local found = redis.call('HMGET', keys[1], 'epoch', 'topic', 'leaders', 'history', 'bias')
  local epoch = tonumber(found[1] or '0')
  if epoch > highest then
    return fenced(args[1], found[1])
  end
  local taken = args[4] == '1' and math.max(epoch + 1, lowest) or lowest
  local history = args[6]
  if epoch < lowest then
    if found[4] ~= history or history == '' then
      local fault = note_cut(keys[1], keys[2], found[3], lowest, bias)
      if fault then
        return fault
      end
    elseif found[2] == args[3] then
      redis.call('HSET', keys[1], 'taken_over', integer(clock_ms()))
    end
  end
  if found[4] ~= history and (epoch < lowest or not found[4]) then
    redis.call('HSET', keys[1], 'history', history)
  end
  if taken > epoch then
    redis.call('HSET', keys[1], 'epoch', integer(taken))
  end
  if found[2] ~= args[3] then
    redis.call('HSET', keys[1], 'topic', args[3])
  end
  if bias > 0 and found[5] ~= args[5] then
    -- Functions for native writers read the bias here.  The write by which CreateTopics notes it may be lost.
    redis.call('HSET', keys[1], 'bias', args[5])
  end
  return integer(taken)
end

-- KEYS: all keys of a partition, its meta hash first.  ARGV: id of the topic.
-- Deletes the partition unless it belongs to a topic of the same name that was created since.  Returns the number of
-- keys deleted.
local function drop(keys, args)
  if #keys < 1 or #args ~= 1 then
    return redis.error_reply('ERR korvet_drop: malformed arguments')
  end
  local topic = redis.call('HGET', keys[1], 'topic')
  if topic and topic ~= args[1] then
    return 0
  end
  return redis.call('UNLINK', unpack(keys))
end

redis.register_function('korvet_swap' .. RELEASE, swap)
-- For changes and deletions of topics, which are small, and are how memory is freed.
redis.register_function({ function_name = 'korvet_change' .. RELEASE, callback = swap, flags = { 'allow-oom' } })
redis.register_function('korvet_take_producer_ids' .. RELEASE, take_producer_ids)
redis.register_function({ function_name = 'korvet_claim' .. RELEASE, callback = claim, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_drop' .. RELEASE, callback = drop, flags = { 'allow-oom' } })
