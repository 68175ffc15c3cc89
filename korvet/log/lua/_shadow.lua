-- The shadow of a log during a compaction: a stream beside it, with an index and a meta hash of its own, into which
-- what survives is copied slice by slice; then the shadow takes the log's place in one step.  XDEL would not do: a
-- node of a stream stays in memory while one of its entries lives.  No other function uses shadows, so a shadow that an
-- interrupted compaction left is just deleted.

-- KEYS of all functions with SHADOW_KEYS: stream, index, meta, shadow stream, shadow index, shadow meta, set of the
-- placeholders, and the key for the old stream when it is replaced.  ARGV begins with: bias, highest epoch of the
-- partition's leader ("": a writer that is never fenced), token of the compaction.
local SHADOW_KEYS = 8

local function stale()
  return redis.error_reply('STALE another compaction has begun, or the log was changed')
end

-- Returns the shadow, a log whose `indexed_id` is the entry up to which the original was copied, with
--   seen         entries of the original up to there
--   deleted_id   the last of these that is not in the shadow as it was
--   more         entries more than in the original, by the splitting of batches
--   began_ms     when the compaction began
--   pending_ms   when the copying of pending entries began
-- nil if another compaction, or none, uses the shadow.
local function load_shadow(keys, bias, token)
  local found = redis.call('HMGET', keys[6], 'token', 'seen', 'more', 'deleted', 'began', 'pending')
  if found[1] ~= token then
    return nil
  end
  local shadow = load_log(keys[4], keys[5], keys[6], bias)
  shadow.seen, shadow.more, shadow.deleted_id = tonumber(found[2]), tonumber(found[3]), found[4]
  shadow.began_ms = tonumber(found[5])
  shadow.pending_ms = tonumber(found[6]) or shadow.began_ms
  return shadow
end

local function save_shadow(shadow)
  save_log(shadow)
  redis.call(
    'HSET', shadow.meta,
    'seen', integer(shadow.seen), 'more', integer(shadow.more), 'deleted', shadow.deleted_id
  )
end

-- Returns the log (without info) and its shadow; nil, nil and an error reply if this is not the next call of the
-- partition's leader.
local function continue_compaction(keys, args, bias)
  local log = load_log(keys[1], keys[2], keys[3], bias)
  local fault = fence_leader(log.epoch, args[2])
  if fault then
    return nil, nil, fault
  end
  local shadow = load_shadow(keys, bias, args[3])
  if not shadow or shadow.indexed_id ~= args[4] then
    return nil, nil, stale()
  end
  return log, shadow
end
