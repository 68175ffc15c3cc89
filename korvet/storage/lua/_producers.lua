-- What a partition remembers of its producers: sequences of idempotent producers (KIP-98) and open transactions.
--
-- The meta field `p:<producer id>` is big-endian doubles: producer epoch, time of the last append or marker (ms), then
-- for each of the newest batches, REMEMBERED_BATCHES at most, first sequence, last sequence and base offset.  One more
-- item with the base offset EXPECTED is no batch: it ends before the sequence that is expected next (see refuse_gap).
-- The meta field `c:<producer id>` is the epoch (text) of the coordinator that wrote the producer's last marker.
-- The meta field `d:<producer id>` is the time (ms, text) at which a coordinator decided the last transaction.
-- The meta field `open` is the open transactions, the oldest first: for each, as big-endian doubles, the producer id
-- and the offset at which the transaction begins.  That is the log end before its first record: on clock topics there
-- is a gap between the two, and a reader of committed records stops before the gap, so it needs no record for the gap.

local PRODUCER_FORMAT, PRODUCER_BYTES = '>dd', 16
local BATCH_FORMAT, BATCH_BYTES = '>ddd', 24
local OPEN_FORMAT, OPEN_BYTES = '>dd', 16
local REMEMBERED_BATCHES = 5
local EXPECTED = -1
local SEQUENCE_NUMBERS = 2147483648
-- How long a request to a partition's former leader may last: clients give up after 30 s (Java) or 60 s (librdkafka).
-- A producer that the log does not know may be one whose state has expired, so the wait for its batches is shorter.
local LONGEST_REQUEST_MS, LONGEST_FIRST_REQUEST_MS = 60000, 10000
-- How long a transaction that lost batches may continue.  Producers' states expire after this time, too, by default.
local LONGEST_TRANSACTION_MS = 86400000

-- The producers of the batches of one append, in the order of the batches.  For each producer
--   "<producer id> <producer epoch> <first sequence> <records>;"
-- with "t" after the records if the batches are in a transaction.  Batches of one producer that follow each other, by
-- sequence too, share an item; it ends with " <records>,<records>" of the newest of them, as many as are remembered.
-- Batches without a producer have the producer id -1.  "" if no batch has a producer.
local PRODUCERS_PATTERN = '(%-?%d+) (%-?%d+) (%-?%d+) (%d+)(t?)([ %d,]*);'

-- The outcomes of a check.  Each comes with a second value:
local ACCEPTED = 'accepted' -- what the partition remembers of the batches,
local DUPLICATE = 'duplicate' -- the base offset at which the batch was appended before, or
local REFUSED = 'refused' -- an error reply.
-- The outcome of a check of sequences only: the batch does not follow the remembered ones.
local GAP = 'gap'

-- Returns the index in `open` of a producer's transaction, and the offset at which the transaction begins; nil if the
-- producer has none.
local function find_open(open, producer)
  for at = 1, #open, OPEN_BYTES do
    local id, first = struct.unpack(OPEN_FORMAT, open, at)
    if id == producer then
      return at, first
    end
  end
end

-- Returns the last stable offset: where the oldest open transaction begins, else the log end.
local function last_stable_offset(open, log_end)
  if open == '' then
    return log_end
  end
  local _, first = struct.unpack(OPEN_FORMAT, open)
  return first
end

local function older_producer(epoch, known_epoch)
  return redis.error_reply('INVALIDPRODUCEREPOCH epoch ' .. epoch .. ' is older than ' .. known_epoch)
end

local function out_of_order(why)
  return redis.error_reply('OUTOFORDERSEQUENCE ' .. why)
end

local function sequence_gap(first)
  return redis.error_reply('SEQUENCEGAP batches before sequence ' .. first .. ' may come later or be lost')
end

local function sequence_after(sequence, count)
  return (sequence + count) % SEQUENCE_NUMBERS
end

-- Returns the producer's state after a marker, or after a batch without a sequence (of a coordinator): the batches are
-- kept only if the producer epoch stays the same.
local function touch_producer(stored, epoch, now_ms)
  local same_epoch = stored and struct.unpack('>d', stored) == epoch
  return struct.pack(PRODUCER_FORMAT, epoch, now_ms) .. (same_epoch and string.sub(stored, PRODUCER_BYTES + 1) or '')
end

-- Whether a sequence comes before another one, both of them near each other.
local function comes_before(sequence, other)
  local distance = (other - sequence) % SEQUENCE_NUMBERS
  return distance > 0 and distance < SEQUENCE_NUMBERS / 2
end

-- Whether batches that a producer appended after its remembered ones may be lost: the log was cut since (see note_cut
-- in registry.lua).  If none is remembered, they are more likely to have expired since a cut of long ago.  The second
-- value is whether the producer got a marker after the cut: then they are in an earlier transaction.
local function may_be_lost(log, stored)
  local found = redis.call('HMGET', log.meta, 'leaders', 'cut')
  local cut_end = string.match(found[1] or '', ':(%d+)$')
  if not cut_end then
    return false, false
  end
  -- A broker of an earlier release notes a cut without its time.
  local cut_ms, noted_end = string.match(found[2] or '', '^(%d+):(%d+)$')
  cut_ms = noted_end == cut_end and tonumber(cut_ms) or nil
  if stored and #stored > PRODUCER_BYTES then
    local _, _, base_offset = struct.unpack(BATCH_FORMAT, stored, #stored - BATCH_BYTES + 1)
    if base_offset >= tonumber(cut_end) then
      return false, false
    end
  elseif cut_ms and log.now_ms - cut_ms >= LONGEST_TRANSACTION_MS then
    return false, false
  end
  if not (stored and cut_ms) then
    return true, false
  end
  local _, touched_ms = struct.unpack(PRODUCER_FORMAT, stored)
  return true, touched_ms > cut_ms
end

-- Whether batches before a gap may be on their way to the partition's former leader, which refuses them: then their
-- producer sends them to this one.
local function may_be_under_way(log, stored)
  local taken_over_ms = tonumber(redis.call('HGET', log.meta, 'taken_over') or '')
  if not taken_over_ms then
    return false
  end
  local age_ms = log.now_ms - taken_over_ms
  return age_ms >= 0 and age_ms < (stored and LONGEST_REQUEST_MS or LONGEST_FIRST_REQUEST_MS)
end

-- Refuses a batch that does not follow the remembered ones, although batches between them may be lost.  If they are in
-- the same transaction (`in_transaction`), it lacks records, and has to be aborted.  Otherwise the producer sends all
-- its batches in flight again, in order: the first of them that comes again is expected then, and accepted.  `alone`:
-- whether no other batch comes with it.
local function refuse_gap(log, producer, stored, epoch, first, in_transaction, alone)
  if in_transaction then
    return redis.error_reply('UNKNOWNPRODUCER earlier batches of the producer may be lost')
  end
  local batches, expected = '', nil
  if stored and struct.unpack('>d', stored) == epoch and #stored > PRODUCER_BYTES then
    batches = string.sub(stored, PRODUCER_BYTES + 1)
    local _, newest, base_offset = struct.unpack(BATCH_FORMAT, stored, #stored - BATCH_BYTES + 1)
    if base_offset == EXPECTED then
      expected = sequence_after(newest, 1)
      batches = string.sub(batches, 1, -BATCH_BYTES - 1)
    end
  end
  if alone and (expected == nil or comes_before(first, expected)) then
    local before = sequence_after(first, SEQUENCE_NUMBERS - 1)
    batches = batches .. struct.pack(BATCH_FORMAT, before, before, EXPECTED)
    redis.call('HSET', log.meta, 'p:' .. producer, struct.pack(PRODUCER_FORMAT, epoch, log.now_ms) .. batches)
  end
  return sequence_gap(first)
end

-- Whether a batch begins before the end of the newest remembered one.
local function is_behind(stored, first)
  for at = #stored - BATCH_BYTES + 1, PRODUCER_BYTES + 1, -BATCH_BYTES do
    local _, newest, base_offset = struct.unpack(BATCH_FORMAT, stored, at)
    if base_offset ~= EXPECTED then
      return not comes_before(newest, first)
    end
  end
  return false
end

-- Checks a producer's next sequences, `first` to `last`.  Returns ACCEPTED and the batches that are remembered so far,
-- DUPLICATE, REFUSED, or GAP and the error reply if no batches between may come later or be lost.
local function check_sequences(stored, epoch, first, last)
  if not stored then
    return first == 0 and ACCEPTED or GAP, ''
  end
  local known_epoch = struct.unpack('>d', stored)
  if epoch < known_epoch then
    return REFUSED, older_producer(epoch, known_epoch)
  end
  -- An epoch without batches came with a marker.
  if epoch > known_epoch or #stored == PRODUCER_BYTES then
    if first ~= 0 then
      return GAP, out_of_order('a new epoch begins with sequence 0, not ' .. first)
    end
    return ACCEPTED, ''
  end
  local _, newest, newest_offset = struct.unpack(BATCH_FORMAT, stored, #stored - BATCH_BYTES + 1)
  if first == sequence_after(newest, 1) then
    return ACCEPTED, string.sub(stored, PRODUCER_BYTES + 1, newest_offset == EXPECTED and -BATCH_BYTES - 1 or -1)
  end
  for at = PRODUCER_BYTES + 1, #stored, BATCH_BYTES do
    local known_first, known_last, base_offset = struct.unpack(BATCH_FORMAT, stored, at)
    if known_first == first and known_last == last and base_offset ~= EXPECTED then
      return DUPLICATE, base_offset
    end
  end
  return is_behind(stored, first) and REFUSED or GAP, out_of_order(first .. ' follows ' .. newest)
end

-- Appends a producer's next batches to the remembered ones, and keeps the newest.  The next batches have `total`
-- records from sequence `first` and `base_offset` on; `counts` is the number of records of each of the newest of them,
-- "" if there is only one.
local function remember_batches(batches, first, total, counts, base_offset)
  if counts == '' then
    batches = batches .. struct.pack(BATCH_FORMAT, first, sequence_after(first, total - 1), base_offset)
  else
    local newest, counted = { batches }, 0
    for count in string.gmatch(counts, '%d+') do
      counted = counted + tonumber(count)
    end
    local before = total - counted
    for text in string.gmatch(counts, '%d+') do
      local count = tonumber(text)
      local begin = sequence_after(first, before)
      newest[#newest + 1] = struct.pack(BATCH_FORMAT, begin, sequence_after(begin, count - 1), base_offset + before)
      before = before + count
    end
    batches = table.concat(newest)
  end
  return string.sub(batches, -REMEMBERED_BATCHES * BATCH_BYTES)
end

-- Returns ACCEPTED and the state of a producer (its id as text) after its next batches, DUPLICATE or REFUSED.  `stored`
-- is the state before, nil or false if the producer is new; for `first` to `base_offset` see remember_batches, for
-- `transactional` and `alone` refuse_gap.
local function next_state(log, producer, stored, epoch, first, total, counts, base_offset, transactional, alone)
  local now_ms = log.now_ms
  if first == -1 then
    local known_epoch = stored and struct.unpack('>d', stored)
    if known_epoch and epoch < known_epoch then
      return REFUSED, older_producer(epoch, known_epoch)
    end
    return ACCEPTED, touch_producer(stored, epoch, now_ms)
  end
  local verdict, result = check_sequences(stored, epoch, first, sequence_after(first, total - 1))
  if verdict == GAP then
    -- A producer that the log does not know is new more often than it has lost its state.
    local is_lost, is_marked_since = may_be_lost(log, stored)
    if not (stored and is_lost) and may_be_under_way(log, stored) then
      return REFUSED, sequence_gap(first)
    end
    if is_lost then
      local in_transaction = transactional and (not is_marked_since or find_open(log.open, tonumber(producer)))
      return REFUSED, refuse_gap(log, producer, stored, epoch, first, in_transaction, alone)
    end
    verdict = stored and REFUSED or ACCEPTED
  end
  if verdict ~= ACCEPTED then
    return verdict, result
  end
  local batches = remember_batches(result, first, total, counts, base_offset)
  return ACCEPTED, struct.pack(PRODUCER_FORMAT, epoch, now_ms) .. batches
end

-- Returns the open transactions after a batch of a producer that is appended at the log end `previous_end`; nil and an
-- error reply if the producer has a transaction open that the batch is not in.
local function next_open(open, producer, transactional, previous_end)
  if find_open(open, producer) then
    if not transactional then
      return nil, redis.error_reply('INVALIDTXNSTATE the producer has a transaction open that the batch is not in')
    end
  elseif transactional then
    return open .. struct.pack(OPEN_FORMAT, producer, previous_end)
  end
  return open
end

-- Returns the meta field of the first producer, for load_log; nothing if the first batch has no producer.
local function first_producer(producers)
  local id = string.match(producers, '^%d+')
  if id then
    return 'p:' .. id
  end
end

-- Checks the producers (see PRODUCERS_PATTERN) of batches that follow each other from `base_offset` on and have `total`
-- records.  `first_stored` is the meta field that first_producer named.  Returns ACCEPTED and the meta fields to save,
-- DUPLICATE or REFUSED.  Several batches are refused together, so that each gets its own answer when the broker sends
-- them again one by one.
local function check_producers(log, producers, first_stored, total, base_offset)
  if producers == '' then
    return ACCEPTED, {}
  end
  local fields, open, batch_end = {}, log.open, log.previous_end
  local offset = base_offset
  local alone = not string.find(producers, '[,;].')
  for id, epoch, first, count, transactional, counts in string.gmatch(producers, PRODUCERS_PATTERN) do
    count = tonumber(count)
    if id ~= '-1' then
      local field = 'p:' .. id
      local stored = fields[field] or first_stored
      first_stored = nil
      if stored == nil then
        stored = redis.call('HGET', log.meta, field)
      end
      local verdict, result = next_state(
        log, id, stored, tonumber(epoch), tonumber(first), count, counts, offset, transactional == 't', alone
      )
      if verdict == ACCEPTED then
        fields[field] = result
        open, result = next_open(open, tonumber(id), transactional == 't', batch_end)
        verdict = open and ACCEPTED or REFUSED
      end
      if verdict ~= ACCEPTED then
        if not alone then
          return REFUSED, redis.error_reply('REFUSED one of several batches does not follow the last of its producer')
        end
        return verdict, result
      end
    end
    offset = offset + count
    batch_end = offset
  end
  if offset ~= base_offset + total then
    return REFUSED, redis.error_reply('ERR malformed producers')
  end
  if open ~= log.open then
    fields.open = open
  end
  return ACCEPTED, fields
end
