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
-- its batches in flight again, in order: the first of them that comes again is expected then, and accepted.  Returns
-- the error reply, and the state of the producer if it changes.
local function refuse_gap(log, stored, epoch, first, in_transaction)
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
  if expected == nil or comes_before(first, expected) then
    local before = sequence_after(first, SEQUENCE_NUMBERS - 1)
    batches = batches .. struct.pack(BATCH_FORMAT, before, before, EXPECTED)
    return sequence_gap(first), struct.pack(PRODUCER_FORMAT, epoch, log.now_ms) .. batches
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

-- Returns ACCEPTED and the state of a producer (its id as text) after its next batch, DUPLICATE, or REFUSED; the third
-- value is the state of a producer whose batch is refused, if that changes the state.  `stored` is the state before,
-- nil or false if the producer is new; the batch has `count` records from sequence `first` and from `base_offset` on.
local function next_state(log, producer, stored, epoch, first, count, base_offset, transactional)
  local now_ms = log.now_ms
  if first == -1 then
    local known_epoch = stored and struct.unpack('>d', stored)
    if known_epoch and epoch < known_epoch then
      return REFUSED, older_producer(epoch, known_epoch)
    end
    return ACCEPTED, touch_producer(stored, epoch, now_ms)
  end
  local last = sequence_after(first, count - 1)
  local verdict, result = check_sequences(stored, epoch, first, last)
  if verdict == GAP then
    -- A producer that the log does not know is new more often than it has lost its state.
    local is_lost, is_marked_since = may_be_lost(log, stored)
    if not (stored and is_lost) and may_be_under_way(log, stored) then
      return REFUSED, sequence_gap(first)
    end
    if is_lost then
      local in_transaction = transactional and (not is_marked_since or find_open(log.open, tonumber(producer)))
      return REFUSED, refuse_gap(log, stored, epoch, first, in_transaction)
    end
    verdict = stored and REFUSED or ACCEPTED
  end
  if verdict ~= ACCEPTED then
    return verdict, result
  end
  local batches = result .. struct.pack(BATCH_FORMAT, first, last, base_offset)
  return ACCEPTED, struct.pack(PRODUCER_FORMAT, epoch, now_ms) .. string.sub(batches, -REMEMBERED_BATCHES * BATCH_BYTES)
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

local function damaged(field)
  return redis.error_reply('DAMAGED the field ' .. field .. ' of the meta hash cannot be read')
end

-- Returns the error reply for a log whose open transactions or newest calls cannot be read, else nil.
local function damage_of(log)
  if #log.open % OPEN_BYTES ~= 0 then
    return damaged('open')
  elseif #log.done < DONE_BYTES or (#log.done - DONE_BYTES) % CALL_BYTES ~= 0 then
    return damaged('done')
  end
end

-- Returns the meta field of a producer (its id as text).
local function producer_field(id)
  return 'p:' .. id
end

-- Checks a batch that would be appended at `base_offset`, where the log ends at `log_end`.  `states` are the meta
-- fields of producers as far as they are known.  Returns ACCEPTED, the state of the producer and the open transactions
-- with this batch; DUPLICATE and the offset at which the batch was appended before; or REFUSED and an error reply.
-- The fourth value is the state of a producer whose batch is refused, if that changes the state.
local function check_producer(log, states, batch, base_offset, log_end)
  local field = producer_field(batch.producer)
  local stored = states[field]
  if stored == nil then
    stored = redis.call('HGET', log.meta, field)
  end
  if stored and (#stored < PRODUCER_BYTES or (#stored - PRODUCER_BYTES) % BATCH_BYTES ~= 0) then
    return REFUSED, damaged(field), log.open
  end
  local verdict, result, refused_state = next_state(
    log, batch.producer, stored, batch.epoch, batch.first, batch.count, base_offset, batch.transactional
  )
  if verdict ~= ACCEPTED then
    return verdict, result, log.open, refused_state
  end
  local open, fault = next_open(log.open, tonumber(batch.producer), batch.transactional, log_end)
  if not open then
    return REFUSED, fault, log.open
  end
  return ACCEPTED, result, open
end
