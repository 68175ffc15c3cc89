-- What brokers share: the topic catalogue, who is there, and who may write to a partition.

-- KEYS: hash of topics, hash of the cluster.  ARGV: cluster id, topic, expected value ("" where it is to be absent),
-- new value ("" to delete it).
-- Compare and set.  Returns the catalogue's new version; error CONFLICT where the value is another one, KEYSPACELOST.
local function swap(keys, args)
  if #keys ~= 2 or #args ~= 4 then
    return redis.error_reply('ERR korvet_swap: malformed arguments')
  end
  local lost = lost_keyspace(keys[2], keys[1], args[1])
  if lost then
    return lost
  end
  if (redis.call('HGET', keys[1], args[2]) or '') ~= args[3] then
    return redis.error_reply('CONFLICT ' .. args[2] .. ' was changed by somebody else')
  end
  if args[4] == '' then
    redis.call('HDEL', keys[1], args[2])
  else
    redis.call('HSET', keys[1], args[2], args[4])
  end
  redis.call('HSET', keys[2], 'topics', redis.call('HLEN', keys[1]))
  return count_up(keys[2], 'catalogue')
end

-- A live broker's entry: "<lease's end (ms)> <token> <joined> <settled assignment> <settled catalogue> <description>";
-- -1 is nothing settled yet.
local ENTRY = '^(%d+) (%S+) (%d+) (%-?%d+) (%-?%d+) (.*)$'

local HIGHEST_NODE_ID = 2147483647

local function is_node_id(field)
  local number = string.match(field, '^%d+$') and tonumber(field)
  return number and number <= HIGHEST_NODE_ID and integer(number) == field
end

-- Longer leases than broker.session.timeout.ms can ask for: no broker of ours has written them.
local LONGEST_LEASE_MS = 2147483647

-- An entry's parts; nil if no broker can have written it while the assignment had versions up to `version`.
local function read_entry(node_id, held, version, now_ms)
  local expiry_ms, token, joined, assignment, catalogue, description = string.match(held, ENTRY)
  if not (expiry_ms and is_node_id(node_id)) then
    return nil
  end
  if tonumber(joined) > version or tonumber(expiry_ms) > now_ms + LONGEST_LEASE_MS then
    return nil
  end
  return {
    expiry_ms = tonumber(expiry_ms),
    token = token,
    joined = tonumber(joined),
    assignment = tonumber(assignment),
    catalogue = tonumber(catalogue),
    description = description,
  }
end

-- All readable entries by node id.  The second value is the fields of damaged entries and of those that another release
-- left.  `unreadable`: node ids whose descriptions a broker could not read, between spaces.
local function read_entries(brokers, version, unreadable, now_ms)
  local held, entries, strange = redis.call('HGETALL', brokers), {}, {}
  for at = 1, #held, 2 do
    local entry = read_entry(held[at], held[at + 1], version, now_ms)
    if entry and not string.find(unreadable, ' ' .. held[at] .. ' ', 1, true) then
      entries[held[at]] = entry
    else
      strange[#strange + 1] = held[at]
    end
  end
  return entries, strange
end

-- Notes that the assignment is another one from now on: `gone` left with this version.  Of those that left earlier
-- only the ones are kept that one of `entries` has seen.
local function save_version(cluster, version, entries, gone)
  local left, first = {}, version
  for _, entry in pairs(entries) do
    first = math.min(first, entry.joined)
  end
  for node_id, since in string.gmatch(redis.call('HGET', cluster, 'left') or '', '(%d+):(%d+)') do
    since = tonumber(since)
    if not entries[node_id] and not gone[node_id] and since > first and since < version then
      left[#left + 1] = node_id .. ':' .. integer(since)
    end
  end
  for node_id in pairs(gone) do
    left[#left + 1] = node_id .. ':' .. integer(version)
  end
  table.sort(left)
  redis.call('HSET', cluster, 'assignment', integer(version), 'left', table.concat(left, ' '))
end

-- KEYS: brokers, hash of the cluster, hash of topics.
-- ARGV: node id, token, lease (ms), description (JSON), token of a holder known to be dead (or ""), version of the
-- assignment that the caller has (-1: none), the latest that it has heard of, versions of assignment and catalogue
-- that it has settled, cluster id, node ids whose descriptions it cannot read (between spaces).
-- Takes or renews the lease on a node id, and takes out brokers whose lease is over: with each change of who is there
-- the assignment has a new version.  A caller that has heard of a later version than Redis has (which lost its newest
-- writes) begins anew with one later still.
-- Damaged entries are deleted as if their brokers had left; a live broker returns with its next renewal.
-- Returns {"refused", remaining ms, token, description} of the holder, or {"held", version of the assignment, of the
-- catalogue, the lowest that another broker has settled of each (nil without others), deleted fields, and then, unless
-- the caller has that version, who left, and node id, joined and description of each live broker}; error KEYSPACELOST.
local function lease(keys, args)
  local node_id, token, duration_ms = args[1], args[2], tonumber(args[3])
  local known, latest = tonumber(args[6]), tonumber(args[7])
  local assignment, catalogue = tonumber(args[8]), tonumber(args[9])
  if #keys ~= 3 or #args ~= 11 or not (duration_ms and known and latest and assignment and catalogue) then
    return redis.error_reply('ERR korvet_lease: malformed arguments')
  end
  local lost = lost_keyspace(keys[2], keys[3], args[10])
  if lost then
    return lost
  end
  local now_ms = clock_ms()
  local stored = counter(keys[2], 'assignment') or -1
  local entries, strange = read_entries(keys[1], stored, args[11], now_ms)
  local own = entries[node_id]
  if own and own.token ~= token and own.token ~= args[5] and own.expiry_ms > now_ms then
    return { 'refused', own.expiry_ms - now_ms, own.token, own.description }
  end
  local version, gone = stored, {}
  for _, field in ipairs(strange) do
    redis.call('HDEL', keys[1], field)
    if is_node_id(field) and field ~= node_id then
      gone[field] = true
    end
  end
  if not counter(keys[2], 'topics') then
    redis.call('HSET', keys[2], 'topics', redis.call('HLEN', keys[3]))
  end
  for other, entry in pairs(entries) do
    if other ~= node_id and entry.expiry_ms <= now_ms then
      gone[other] = true
      entries[other] = nil
      redis.call('HDEL', keys[1], other)
    end
  end
  local joins = not own or own.token ~= token or stored < latest
  if joins or next(gone) then
    version = math.max(stored, latest) + 1
  end
  own = {
    expiry_ms = now_ms + duration_ms,
    token = token,
    joined = joins and version or own.joined,
    assignment = assignment,
    catalogue = catalogue,
    description = args[4],
  }
  entries[node_id] = own
  redis.call('HSET', keys[1], node_id, table.concat({
    integer(own.expiry_ms), token, integer(own.joined), integer(assignment), integer(catalogue), own.description,
  }, ' '))
  if version ~= stored then
    save_version(keys[2], version, entries, gone)
  end
  local lowest_assignment, lowest_catalogue = false, false
  for other, entry in pairs(entries) do
    if other ~= node_id then
      lowest_assignment = math.min(lowest_assignment or entry.assignment, entry.assignment)
      lowest_catalogue = math.min(lowest_catalogue or entry.catalogue, entry.catalogue)
    end
  end
  local reply = {
    'held',
    version,
    counter(keys[2], 'catalogue') or 0,
    lowest_assignment,
    lowest_catalogue,
    strange,
  }
  if version ~= known then
    reply[#reply + 1] = redis.call('HGET', keys[2], 'left') or ''
    for other, entry in pairs(entries) do
      reply[#reply + 1] = other
      reply[#reply + 1] = entry.joined
      reply[#reply + 1] = entry.description
    end
  end
  return reply
end

-- KEYS: brokers, hash of the cluster.  ARGV: node id, token.
-- Returns 1 where the lease was held by that token and is given up.
local function release(keys, args)
  if #keys ~= 2 or #args ~= 2 then
    return redis.error_reply('ERR korvet_release: malformed arguments')
  end
  local stored = counter(keys[2], 'assignment') or -1
  local entries = read_entries(keys[1], stored, '', clock_ms())
  local own = entries[args[1]]
  if not own or own.token ~= args[2] then
    return 0
  end
  entries[args[1]] = nil
  local version = stored + 1
  save_version(keys[2], version, entries, { [args[1]] = true })
  return redis.call('HDEL', keys[1], args[1])
end

-- KEYS: hash of the cluster.  ARGV: cluster id, number of ids, end of the last block that the caller got.
-- Takes a block of producer ids that were never given to anybody: it begins at Redis's clock, ms * 1024, or at the end
-- of the previous block.  So ids are new even if Redis has lost the newest blocks.  Returns the first id; error
-- KEYSPACELOST.
local function take_producer_ids(keys, args)
  local count, seen = tonumber(args[2]), tonumber(args[3])
  if #keys ~= 1 or #args ~= 3 or not (count and seen) then
    return redis.error_reply('ERR korvet_take_producer_ids: malformed arguments')
  end
  local lost = lost_keyspace(keys[1], nil, args[1])
  if lost then
    return lost
  end
  local first = math.max(counter(keys[1], 'next_producer_id') or 0, clock_ms() * SEQUENCES, seen)
  redis.call('HSET', keys[1], 'next_producer_id', integer(first + count))
  return first
end

-- Where leaders took over, of which so many are kept.
local LEADERS_KEPT = 64

-- Notes where a new leader takes over: the log's end then, by its lowest writers' epoch.
local function note_leader(meta, stream, leaders, lowest, bias)
  local found, fault = inspect(stream)
  if not found then
    return fault
  end
  local kept = {}
  for one in string.gmatch(leaders or '', '%S+') do
    kept[#kept + 1] = one
  end
  kept[#kept + 1] = integer(lowest) .. ':' .. integer(log_end(found, load_meta(meta), bias))
  redis.call('HSET', meta, 'leaders', table.concat(kept, ' ', math.max(1, #kept - LEADERS_KEPT + 1)))
end

-- KEYS: meta, stream.  ARGV: lowest writers' epoch of the partition's leader, highest one, id of the topic, "1" to
-- take the next one, else the lowest; bias.
-- Refuses, from now on, all that write with an older epoch.  Returns the epoch; error FENCED where a later leader has
-- one.
local function claim(keys, args)
  local lowest, highest, bias = tonumber(args[1]), tonumber(args[2]), tonumber(args[5])
  if #keys ~= 2 or #args ~= 5 or not (lowest and highest and bias) then
    return redis.error_reply('ERR korvet_claim: malformed arguments')
  end
  local found = redis.call('HMGET', keys[1], 'epoch', 'topic', 'leaders')
  local epoch = tonumber(found[1] or '0')
  if epoch > highest then
    return redis.error_reply('FENCED epoch ' .. args[1] .. ' is older than ' .. found[1])
  end
  local taken = args[4] == '1' and math.max(epoch + 1, lowest) or lowest
  if epoch < lowest then
    local fault = note_leader(keys[1], keys[2], found[3], lowest, bias)
    if fault then
      return fault
    end
  end
  if taken > epoch then
    redis.call('HSET', keys[1], 'epoch', integer(taken))
  end
  if found[2] ~= args[3] then
    redis.call('HSET', keys[1], 'topic', args[3])
  end
  return integer(taken)
end

-- KEYS: all that a partition has, its meta hash first.  ARGV: id of the topic.
-- Deletes it, unless it belongs to another topic of that name, made since.  Returns the number of keys deleted.
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

redis.register_function('korvet_swap', swap)
redis.register_function('korvet_take_producer_ids', take_producer_ids)
redis.register_function({ function_name = 'korvet_lease', callback = lease, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_release', callback = release, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_claim', callback = claim, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_drop', callback = drop, flags = { 'allow-oom' } })
