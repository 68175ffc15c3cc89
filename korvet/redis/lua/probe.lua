-- Probes: whether the server takes writes now.  They write nothing.

-- Returns 1.  A server that refuses a function that may write answers with its error: OOM, MISCONF, NOREPLICAS,
-- READONLY.
local function probe()
  return 1
end

-- Returns 1; error NOALLOWANCE.
local function probe_allowance()
  return beyond_allowance(1) or 1
end

redis.register_function('korvet_probe' .. RELEASE, probe)
redis.register_function({
  function_name = 'korvet_probe_allowance' .. RELEASE, callback = probe_allowance, flags = { 'allow-oom' },
})
