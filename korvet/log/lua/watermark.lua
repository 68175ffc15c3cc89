-- KEYS: meta, stream.
-- ARGV: a high watermark, id of the topic, highest writers' epoch of the leader that it comes from ("": it has none),
-- bias.
-- Notes the offset up to which readers of the partition have seen it, for its next leader; at most the log end.  Not
-- if the topic is gone or is another one, or if a later leader has claimed the partition: the log may lack the records.
-- Returns 1, or 0 then.
local function note_watermark(keys, args)
  local watermark, bias = tonumber(args[1]), tonumber(args[4])
  if #keys ~= 2 or #args ~= 4 or not (watermark and bias) then
    return redis.error_reply('ERR korvet_note_watermark: malformed arguments')
  end
  local found = redis.call('HMGET', keys[1], 'topic', 'epoch')
  local other_topic, other_leader = found[1] and found[1] ~= args[2], fence_leader(found[2], args[3])
  if redis.call('EXISTS', keys[1]) == 0 or other_topic or other_leader then
    return 0
  end
  local log, fault = open_log(keys[2], nil, keys[1], bias)
  if not log then
    return fault
  end
  redis.call('HSET', keys[1], 'watermark', integer(math.min(watermark, current_end(log))))
  return 1
end

redis.register_function({
  function_name = 'korvet_note_watermark' .. RELEASE,
  callback = note_watermark,
  flags = { 'allow-oom' },
})

-- KEYS: a string.  ARGV: seconds until it expires.
-- A write for WAIT that a server also takes while its memory is full, unlike SET.  Returns OK.
local function write_for_wait(keys, args)
  if #keys ~= 1 or #args ~= 1 then
    return redis.error_reply('ERR korvet_write_for_wait: malformed arguments')
  end
  return redis.call('SET', keys[1], '', 'EX', args[1])
end

redis.register_function({
  function_name = 'korvet_write_for_wait' .. RELEASE,
  callback = write_for_wait,
  flags = { 'allow-oom' },
})
