-- Leases of brokers on their node ids, and the versions of the assignment, which count changes of who is live.
--
-- A field of the hash of brokers is a node id; its value is
--   "<end of the lease (ms)> <token> <joined> <acknowledged assignment> <acknowledged catalogue> <description>"
-- with -1 if nothing is acknowledged yet.
local ENTRY = '^(%d+) (%S+) (%d+) (%-?%d+) (%-?%d+) (.*)$'

local MAX_NODE_ID = 2147483647
-- The largest value of broker.session.timeout.ms: no broker writes a longer lease.
local MAX_LEASE_MS = 2147483647

local function is_node_id(field)
  local number = string.match(field, '^%d+$') and tonumber(field)
  return number and number <= MAX_NODE_ID and integer(number) == field
end

-- Returns the parts of an entry; nil if no broker can have written it while the assignment had versions up to
-- `version`.
local function read_entry(node_id, text, version, now_ms)
  local expiry_ms, token, joined, assignment, catalogue, description = string.match(text, ENTRY)
  if not (expiry_ms and is_node_id(node_id)) then
    return nil
  end
  if tonumber(joined) > version or tonumber(expiry_ms) > now_ms + MAX_LEASE_MS then
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

local function write_entry(brokers, node_id, entry)
  redis.call('HSET', brokers, node_id, table.concat({
    integer(entry.expiry_ms), entry.token, integer(entry.joined), integer(entry.assignment), integer(entry.catalogue),
    entry.description,
  }, ' '))
end

-- Returns all readable entries by node id, and the fields of the others: damaged entries and those of another release.
-- `unreadable` is the node ids whose descriptions a broker cannot read, between spaces.
local function read_entries(brokers, version, unreadable, now_ms)
  local found, entries, strange = redis.call('HGETALL', brokers), {}, {}
  for at = 1, #found, 2 do
    local entry = read_entry(found[at], found[at + 1], version, now_ms)
    if entry and not string.find(unreadable, ' ' .. found[at] .. ' ', 1, true) then
      entries[found[at]] = entry
    else
      strange[#strange + 1] = found[at]
    end
  end
  return entries, strange
end

-- Saves a new version of the assignment, with which the brokers in `gone` left.  A broker that left earlier is kept
-- only if one of `entries` was live then.
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

-- Deletes strange fields and the entries of other brokers whose lease is over, from `entries` too.  Returns the node
-- ids that are gone by that.
local function remove_dead(brokers, entries, strange, node_id, now_ms)
  local gone = {}
  for _, field in ipairs(strange) do
    redis.call('HDEL', brokers, field)
    if is_node_id(field) and field ~= node_id then
      gone[field] = true
    end
  end
  for other, entry in pairs(entries) do
    if other ~= node_id and entry.expiry_ms <= now_ms then
      gone[other] = true
      entries[other] = nil
      redis.call('HDEL', brokers, other)
    end
  end
  return gone
end

-- Extends the leases of the other brokers to `until_ms`, if they end earlier.
local function extend_others(brokers, entries, node_id, until_ms)
  for other, entry in pairs(entries) do
    if other ~= node_id and entry.expiry_ms < until_ms then
      entry.expiry_ms = until_ms
      write_entry(brokers, other, entry)
    end
  end
end

-- The range of the step to the first version after a replica took over.  In a split brain several servers continue one
-- history: each replica takes another step, and later versions of a history follow one by one.
local LEAST_STEP, STEPS = 64, 256

-- Returns a version that no broker has had before: later than the stored one and than `latest`; in a new history not
-- before the seconds since the keyspace was made.  `history` is the id of the history of the server's data, which
-- changes when the server restarts or a replica takes over; '' if it is unknown.  `continues`: whether the history
-- continues that of another server.
local function next_version(cluster, stored, latest, now_ms, history, continues)
  local version = math.max(stored, latest) + 1
  local known = redis.call('HGET', cluster, 'history')
  if known == history and history ~= '' then
    return version
  end
  redis.call('HSET', cluster, 'history', history)
  if not known then
    return version
  end
  local age_s = math.floor((now_ms - (counter(cluster, 'created_ms') or now_ms)) / 1000)
  local step = continues and LEAST_STEP + (tonumber(string.sub(history, 1, 8), 16) or 0) % STEPS or 0
  return math.max(version, age_s) + step
end

-- Returns the lowest versions of assignment and catalogue that a broker other than `node_id` has acknowledged; false
-- if there is no other.
local function lowest_acknowledged(entries, node_id)
  local assignment, catalogue = false, false
  for other, entry in pairs(entries) do
    if other ~= node_id then
      assignment = math.min(assignment or entry.assignment, entry.assignment)
      catalogue = math.min(catalogue or entry.catalogue, entry.catalogue)
    end
  end
  return assignment, catalogue
end

-- Returns the lowest and the highest version of a kind ("formats", "protocols") in a broker's description (JSON);
-- `first` both if the description has none.
local function published(description, kind, first)
  local lowest, highest = string.match(description, '"' .. kind .. '":%[(%d+),(%d+)%]')
  return tonumber(lowest) or first, tonumber(highest) or first
end

local FIRST_FORMAT, FIRST_PROTOCOL = 3, 1

-- Returns why a broker with this description cannot join: nil if it can; {"format", that of the keyspace}; or
-- {"protocol", node id, lowest, highest} of a live broker.
local function misfit(cluster, entries, node_id, description)
  local stored = counter(cluster, 'format') or FIRST_FORMAT
  local lowest, highest = published(description, 'formats', FIRST_FORMAT)
  if stored < lowest or stored > highest then
    return { 'format', integer(stored) }
  end
  lowest, highest = published(description, 'protocols', FIRST_PROTOCOL)
  for other, entry in pairs(entries) do
    local their_lowest, their_highest = published(entry.description, 'protocols', FIRST_PROTOCOL)
    if other ~= node_id and (their_highest < lowest or their_lowest > highest) then
      return { 'protocol', other, integer(their_lowest), integer(their_highest) }
    end
  end
end

-- The reply to a lease that is held; see `lease`.
local function held_reply(cluster, entries, node_id, version, known, strange)
  local assignment, catalogue = lowest_acknowledged(entries, node_id)
  local reply = { 'held', version, counter(cluster, 'catalogue') or 0, assignment, catalogue, strange }
  if version ~= known then
    reply[#reply + 1] = redis.call('HGET', cluster, 'left') or ''
    for other, entry in pairs(entries) do
      reply[#reply + 1] = other
      reply[#reply + 1] = entry.joined
      reply[#reply + 1] = entry.description
    end
  end
  return reply
end

-- KEYS: brokers, hash of the cluster, hash of topics.
-- ARGV: node id, token, lease (ms), description (JSON), token of a holder known to be dead (or ""), version of the
-- assignment that the caller has (-1: none), the latest that it has heard of, versions of assignment and catalogue
-- that it has acknowledged, cluster id, node ids whose descriptions it cannot read (between spaces), "1" to join again,
-- the server's history and "1" if it continues that of another server (see next_version).
-- Takes or renews the lease on a node id, and removes brokers whose lease is over.  Each change of who is live gives
-- the assignment a new version, and so does a broker that joins again.  If the caller has heard of a later version than
-- Redis has (Redis lost its newest writes), the new version is later still.  Damaged entries are deleted as if their
-- brokers had left; a live broker returns with its next renewal.
-- If the caller joins again, or still has its entry although its lease is over, no broker could renew for a while.
-- Then the other brokers get the length of a lease to renew.  Otherwise the first broker to return would lead all
-- partitions, and all groups would move to that broker and back.
-- Returns {"refused", remaining ms, token, description} of the holder; or {"held", version of the assignment, version
-- of the catalogue, the lowest version of each that another broker has acknowledged (nil without others), deleted
-- fields, and then, unless the caller has that version, who left, and node id, joined and description of each live
-- broker}.
-- Or {"unfit", ...}: the broker cannot join; see `misfit`.
-- Error KEYSPACELOST.
local function lease(keys, args)
  local node_id, token, duration_ms = args[1], args[2], tonumber(args[3])
  local known, latest = tonumber(args[6]), tonumber(args[7])
  local assignment, catalogue = tonumber(args[8]), tonumber(args[9])
  if #keys ~= 3 or #args ~= 14 or not (duration_ms and known and latest and assignment and catalogue) then
    return redis.error_reply('ERR korvet_lease: malformed arguments')
  end
  local brokers, cluster, topics = keys[1], keys[2], keys[3]
  local lost = lost_keyspace(cluster, topics, args[10])
  if lost then
    return lost
  end
  local now_ms, stored = clock_ms(), counter(cluster, 'assignment') or -1
  local entries, strange = read_entries(brokers, stored, args[11], now_ms)
  local holder = entries[node_id]
  if holder and holder.token ~= token and holder.token ~= args[5] and holder.expiry_ms > now_ms then
    return { 'refused', holder.expiry_ms - now_ms, holder.token, holder.description }
  end
  if args[12] == '1' or (holder and holder.token == token and holder.expiry_ms <= now_ms) then
    extend_others(brokers, entries, node_id, now_ms + duration_ms)
  end
  local gone = remove_dead(brokers, entries, strange, node_id, now_ms)
  if not counter(cluster, 'topics') then
    redis.call('HSET', cluster, 'topics', redis.call('HLEN', topics))
  end
  local joins = not holder or holder.token ~= token or stored < latest or args[12] == '1'
  local unfit = joins and misfit(cluster, entries, node_id, args[4])
  local version = stored
  if not unfit and joins or next(gone) then
    version = next_version(cluster, stored, latest, now_ms, args[13], args[14] == '1')
  end
  if unfit then
    if version ~= stored then
      save_version(cluster, version, entries, gone)
    end
    return { 'unfit', unpack(unfit) }
  end
  entries[node_id] = {
    expiry_ms = now_ms + duration_ms,
    token = token,
    joined = joins and version or holder.joined,
    assignment = assignment,
    catalogue = catalogue,
    description = args[4],
  }
  write_entry(brokers, node_id, entries[node_id])
  if version ~= stored then
    save_version(cluster, version, entries, gone)
  end
  return held_reply(cluster, entries, node_id, version, known, strange)
end

-- KEYS: brokers, hash of the cluster.  ARGV: node id, token, the server's history, "1" if it continues that of another
-- server (see next_version).
-- Gives up a lease.  Returns {"free"} if that token does not hold it; else the reply of `lease`, without this broker.
local function release(keys, args)
  if #keys ~= 2 or #args ~= 4 then
    return redis.error_reply('ERR korvet_release: malformed arguments')
  end
  local stored = counter(keys[2], 'assignment') or -1
  local entries = read_entries(keys[1], stored, '', clock_ms())
  local holder = entries[args[1]]
  if not holder or holder.token ~= args[2] then
    return { 'free' }
  end
  entries[args[1]] = nil
  local version = next_version(keys[2], stored, -1, clock_ms(), args[3], args[4] == '1')
  save_version(keys[2], version, entries, { [args[1]] = true })
  redis.call('HDEL', keys[1], args[1])
  return held_reply(keys[2], entries, args[1], version, -1, {})
end

-- KEYS: brokers, hash of the cluster.  ARGV: a format.
-- Raises the keyspace's format.  Returns {"done", the format before}, or {"unfit", node id, lowest, highest} of a live
-- broker that does not work with it.
local function finalise(keys, args)
  local format = tonumber(args[1])
  if #keys ~= 2 or not format then
    return redis.error_reply('ERR korvet_finalise: malformed arguments')
  end
  local now_ms = clock_ms()
  local entries = read_entries(keys[1], counter(keys[2], 'assignment') or -1, '', now_ms)
  for node_id, entry in pairs(entries) do
    local lowest, highest = published(entry.description, 'formats', FIRST_FORMAT)
    if entry.expiry_ms > now_ms and (format < lowest or format > highest) then
      return { 'unfit', node_id, integer(lowest), integer(highest) }
    end
  end
  local stored = counter(keys[2], 'format') or FIRST_FORMAT
  if format > stored then
    redis.call('HSET', keys[2], 'format', integer(format))
  end
  return { 'done', integer(stored) }
end

redis.register_function({ function_name = 'korvet_finalise' .. RELEASE, callback = finalise, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_lease' .. RELEASE, callback = lease, flags = { 'allow-oom' } })
redis.register_function({ function_name = 'korvet_release' .. RELEASE, callback = release, flags = { 'allow-oom' } })
