-- Appends by native clients, for which korvet assigns the entry IDs.

-- KEYS: stream, index, meta.  ARGV: field value [field value ...].
-- XADD with the entry IDs of brokers' appends, so every entry has an offset at any rate.  Returns the entry's ID.
local function xadd(keys, args)
  if #keys ~= 3 or #args < 2 or #args % 2 ~= 0 then
    return redis.error_reply('ERR korvet_xadd: 3 keys (stream, index, meta), then field value [field value ...]')
  end
  local log, base, fault = open_for_native(keys, 1)
  if not log then
    return fault
  end
  local complete, id = catch_up(log, FOLD_INLINE), id_of(base)
  local added = redis.pcall('XADD', log.stream, id, unpack(args))
  if added.err then
    return added
  end
  if complete then
    add_entry(log, base, 1, entry_time(id, args), payload_bytes(args), log.now_ms)
  end
  conclude_native(log, base, 1, complete)
  return id
end

redis.register_function('korvet_xadd', xadd)
