-- Markers: korvet_mark ends a producer's transaction in a partition.

-- Returns the error reply for a marker that comes too late: a newer producer has written, or a newer coordinator has
-- written a marker.  Else nil.
local function outdated(stored, epoch, newest_coordinator, coordinator)
  if newest_coordinator and coordinator < tonumber(newest_coordinator) then
    return redis.error_reply('FENCEDCOORDINATOR epoch ' .. coordinator .. ' is older than ' .. newest_coordinator)
  end
  local known_epoch = stored and struct.unpack('>d', stored) or -1
  if epoch < known_epoch then
    return older_producer(epoch, known_epoch)
  end
end

-- Whether the transaction that a marker ends has its marker, or a later transaction has: the marker was delayed, for
-- example on a connection that was given up.  It must not end the transaction that has begun since.
local function is_repeated(stored_coordinator, coordinator, stored_decided_ms, decided_ms)
  return decided_ms >= 0 and tonumber(stored_coordinator) == coordinator
    and decided_ms <= (tonumber(stored_decided_ms) or -1)
end

-- The transaction whose records were noted has ended: if it commits, these records are the newest of their keys,
-- unless a newer one came in between.
local function end_pending(latest, pending, commits)
  if commits then
    local found = redis.call('HGETALL', pending)
    for at = 1, #found, 2 do
      local newest = redis.call('HGET', latest, found[at])
      if not newest or id_less(newest, found[at + 1]) then
        redis.call('HSET', latest, found[at], found[at + 1])
      end
    end
  end
  redis.call('DEL', pending)
end

-- Adds the marker at position `base`.  Returns nil, or the error reply of the XADD.
local function write_marker(log, base, args, complete)
  local id, fields = id_of(base), { 'ctl', args[6], 'pid', args[3], 'epoch', args[4] }
  if args[7] ~= '' then
    fields = { 'batch', struct.pack('>i8', base - log.bias) .. string.sub(args[7], 9) }
  end
  local added = redis.pcall('XADD', log.stream, id, unpack(fields))
  if added.err then
    return added
  end
  if complete then
    local _, _, time_ms = records_of(id, fields, log.bias)
    add_entry(log, base, 1, time_ms, payload_bytes(fields), log.now_ms)
  end
end

-- Removes the transaction at index `at` of log.open, which began at offset `first`; `offset` is that of its marker.  An
-- aborted transaction is remembered as long as its records are there (`aborted`: nil for a commit).  Returns the last
-- stable offset.
local function end_transaction(log, aborted, at, first, offset, args)
  log.open = string.sub(log.open, 1, at - 1) .. string.sub(log.open, at + OPEN_BYTES)
  redis.call('HSET', log.meta, 'open', log.open)
  note_mixed(log, offset + 1 + log.bias)
  local stable = last_stable_offset(log.open, offset + 1)
  if aborted then
    local member = table.concat({ args[3], integer(first), integer(stable) }, ' ')
    redis.call('ZADD', aborted, integer(offset), member)
  end
  return stable
end

-- Saves the state of a producer that has no open transaction here.  Returns the reply.
local function mark_without_transaction(log, fields)
  for field, value in pairs(fields) do
    redis.call('HSET', log.meta, field, value)
  end
  local log_end = log.previous_end
  return { -1, log_end, current_start(log, log_end), log.now_ms, last_stable_offset(log.open, log_end), -1, 0 }
end

-- KEYS: stream, index, meta; for an abort also aborted; on topics whose newest entry per key is noted also latest and
-- pending.
-- ARGV: bias, writer's epoch (or ""), producer id, producer epoch, coordinator epoch, "commit" or "abort", the marker
-- as a record batch, or "" if entries are records; when the coordinator decided the outcome (ms, increasing with each
-- transaction of the producer; -1 if that is not known).
-- Ends a producer's transaction (WriteTxnMarkers): adds the marker, and fences older epochs of the producer.  If the
-- producer has no open transaction, or one that began after the coordinator's decision, no marker is added: the call
-- can be repeated, and may be executed late.
-- Returns {offset of the marker or -1, previous log end, log start, append ms, last stable offset, offset at which the
-- transaction began or -1, index incomplete}.
-- Errors: FENCED, FENCEDCOORDINATOR, INVALIDPRODUCEREPOCH, EXHAUSTED, WRONGTYPE, OOM.
local function mark(keys, args)
  local bias, producer, epoch = tonumber(args[1]), tonumber(args[3]), tonumber(args[4])
  local coordinator, decided_ms = tonumber(args[5]), tonumber(args[8])
  local commits, aborts = args[6] == 'commit', args[6] == 'abort'
  local required = aborts and 4 or 3
  local sound = (#keys == required or #keys == required + 2) and #args == 8 and (commits or aborts)
  if not (sound and bias and producer and epoch and coordinator and decided_ms) then
    return redis.error_reply('ERR korvet_mark: malformed arguments')
  end
  local log, fault = open_log(keys[1], keys[2], keys[3], bias)
  if not log then
    return fault
  end
  redis.call('ZCARD', log.index)
  local aborted, latest, pending = aborts and keys[4] or nil, keys[required + 1], keys[required + 2]
  if aborted then
    redis.call('ZCARD', aborted)
  end
  if latest then
    redis.call('HLEN', latest)
    redis.call('HLEN', pending)
  end
  local producer_field, coordinator_field, decided_field = 'p:' .. args[3], 'c:' .. args[3], 'd:' .. args[3]
  local stored = redis.call('HMGET', log.meta, producer_field, coordinator_field, decided_field)
  fault = fence(log, args[2]) or outdated(stored[1], epoch, stored[2], coordinator)
  if fault then
    return fault
  end
  begin_append(log)
  if is_repeated(stored[2], coordinator, stored[3], decided_ms) then
    return mark_without_transaction(log, {})
  end
  local fields = {
    [producer_field] = touch_producer(stored[1], epoch, log.now_ms),
    [coordinator_field] = args[5],
    [decided_field] = decided_ms >= 0 and args[8] or stored[3] or nil,
  }
  local at, first = find_open(log.open, producer)
  if not at then
    return mark_without_transaction(log, fields)
  end
  local base = next_base(log, math.huge)
  fault = exhausted(log, base, 1)
  if fault then
    return fault
  end

  local complete = catch_up(log, FOLD_INLINE)
  fault = write_marker(log, base, args, complete)
  if fault then
    return fault
  end
  local stable = end_transaction(log, aborted, at, first, base - bias, args)
  if latest then
    end_pending(latest, pending, commits)
  end
  local start = conclude(log, base, 1, fields, complete)
  return { base - bias, log.previous_end, start, log.now_ms, stable, first, complete and 0 or 1 }
end

-- As korvet_mark, and also while Redis is at maxmemory, within the allowance.  Error NOALLOWANCE.
local function mark_within(keys, args)
  return beyond_allowance(1) or mark(keys, args)
end

redis.register_function('korvet_mark' .. RELEASE, mark)
redis.register_function({
  function_name = 'korvet_mark_within' .. RELEASE, callback = mark_within, flags = { 'allow-oom' },
})
