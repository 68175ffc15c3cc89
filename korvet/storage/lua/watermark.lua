-- KEYS: meta.  ARGV: a high watermark.
-- Notes the offset up to which readers of the partition have seen it, for its next leader; not if the topic is gone.
-- Returns 1, or 0 then.
local function note_watermark(keys, args)
  local watermark = tonumber(args[1])
  if #keys ~= 1 or #args ~= 1 or not watermark then
    return redis.error_reply('ERR korvet_note_watermark: malformed arguments')
  end
  if redis.call('EXISTS', keys[1]) == 0 then
    return 0
  end
  redis.call('HSET', keys[1], 'watermark', integer(watermark))
  return 1
end

redis.register_function({
  function_name = 'korvet_note_watermark' .. RELEASE,
  callback = note_watermark,
  flags = { 'allow-oom' },
})
