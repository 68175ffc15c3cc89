-- What may still be written while Redis is at maxmemory: functions with the flag allow-oom whose writes could go on for
-- ever ask here before their first write, the others write little or free memory.

-- The *allowance* beyond maxmemory: this part of maxmemory, and LEAST_ALLOWANCE bytes at least.
local ALLOWANCE_PART, LEAST_ALLOWANCE = 32, 1048576

-- Returns an error reply if more than `share` of the allowance is used, or that is unknown (INFO is forbidden), else
-- nil.
local function beyond_allowance(share)
  local info = redis.pcall('INFO', 'memory')
  local used = type(info) == 'string' and tonumber(string.match(info, '\nused_memory:(%d+)'))
  if not used then
    return redis.error_reply('NOALLOWANCE how much memory is used is unknown: the user may not run INFO')
  end
  local limit = tonumber(string.match(info, '\nmaxmemory:(%d+)') or '0')
  -- Buffers for replicas and the append-only file do not count for maxmemory.
  local counted = used - tonumber(string.match(info, '\nmem_not_counted_for_evict:(%d+)') or '0')
  local allowance = math.max(limit / ALLOWANCE_PART, LEAST_ALLOWANCE)
  if limit > 0 and counted > limit + share * allowance then
    return redis.error_reply(string.format(
      'NOALLOWANCE the memory is full: %.0f bytes are used, maxmemory is %.0f, and groups may write %.0f more',
      counted, limit, allowance
    ))
  end
end
