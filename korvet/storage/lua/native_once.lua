-- Appends by native writers that note their progress in the same step, so that a repeated append adds nothing.

-- KEYS: stream, index, meta, hash of the writer's progress.
-- ARGV: field of that hash, the field's expected value ("": there is none), its new value, "1" to stamp records with
-- the append time, the topic's id ("": any), number of records, ms until the hash expires; then the records as for
-- korvet_append.
-- Appends the records and sets the field, if the field has the expected value.  Returns {value of the field, offset of
-- the first record}; only the value if it was not the expected one: then nothing was done.
-- Errors: THROTTLED <ms>, TOPICCHANGED, TOPICGONE, EXHAUSTED, WRONGTYPE, OOM.
local function xadd_once(keys, args)
  local count, kept_ms = tonumber(args[6]), tonumber(args[7])
  local numbers_are_sound = count and kept_ms and count >= 1 and kept_ms >= 1
  if #keys ~= 4 or #args < RECORDS or not numbers_are_sound or not records_are_sound(args, count) then
    return redis.error_reply('ERR korvet_xadd_once: malformed arguments')
  end
  local progress, field, value = keys[4], args[1], args[3]
  local noted = redis.call('HGET', progress, field) or ''
  if noted ~= args[2] then
    return { noted }
  end
  local topic = redis.call('HGET', keys[3], 'topic')
  if topic and args[5] ~= '' and topic ~= args[5] then
    return redis.error_reply('TOPICCHANGED the topic has the ID ' .. topic)
  end
  -- Each append leaves a meta hash, and only the deletion of the topic removes it.
  if noted ~= '' and redis.call('EXISTS', keys[3]) == 0 then
    return redis.error_reply('TOPICGONE the topic was deleted since the earlier appends')
  end
  local log, base, fault = open_for_native(keys, count)
  if not log then
    return fault
  end
  local append_time = args[4] == '1' and integer(log.now_ms) or nil
  local complete = catch_up(log, FOLD_INLINE)
  fault = write_records(log, args, count, base, { append_time = append_time, complete = complete })
  if fault then
    return fault
  end
  conclude_native(log, base, count, complete)
  redis.call('HSET', progress, field, value)
  redis.call('PEXPIRE', progress, integer(kept_ms))
  return { value, base - log.bias }
end

redis.register_function('korvet_xadd_once', xadd_once)
