-- The state of a partition's log: what its meta hash holds, and the log start and the log end that follow from it.
--
-- `load_log` and `open_log` return a *log*, a table of
--   stream, index, meta, bias     the partition's keys and its bias
--   info                          what Redis reports about the stream (see `inspect`), once it was asked
--   epoch                         the newest epoch of a writer, as text; false if there is none
--   indexed_id                    the entry up to which the counts below and the index are complete
--   done                          the newest appends of brokers, see DONE_FORMAT
--   gap_end                       the position of the first entry after a compaction, retention or DeleteRecords, or
--                                 after the log was empty; POSITION_LIMIT while there is none, -1 if that is not known.
--                                 A gap before that entry does not move the log start.
--   unseen                        entries-added minus entries_before when the index was complete: entries that native
--                                 clients had added and deleted before the index covered them
--   gap_noted                     whether note_gap was called
--   open                          the open transactions, see _producers
-- and of the numbers below, which the meta field `log` holds as big-endian doubles (as text they would cost a script
-- more than all its commands).  A number that is not known is NaN there and nil here.
--   log_end, log_start            offsets
--   appended_ms                   time of the newest append
--   foreign_jump                  a position: up to it, foreign entries or a step of the clock caused the log's lead
--                                 over the clock, not appends of brokers
--   records_before                records up to indexed_id, those included that are gone
--   entries_before                entries up to indexed_id, those included that are gone
--   live_entries, live_bytes      number and bytes of the entries that are still there
--   largest_entry_bytes           size of the largest entry so far
--   span_bytes                    bytes of the entries from the newest index point on
--   point_records_before          records_before of the newest index point
--   point_append_ms               append time of the newest index point
--   largest_in_span_ms            largest timestamp from the newest index point on
--   largest_before_ms             largest timestamp before the newest index point
local LOG_FORMAT = '>dddddddddddddd'
local NAN = 0 / 0

local function known(number)
  if number == number then
    return number
  end
end

-- The meta field `done` says which appends of brokers have taken effect, as big-endian doubles.  It begins with the
-- *session* in which brokers may append, a number that grows, and that of the calls which follow.  For each of these,
-- the oldest first: its serial number in the session, the offset of its first record, and a bit for each batch,
-- from the lowest bit on: whether the batch was added.
local DONE_FORMAT, DONE_BYTES = '>dd', 16
local CALL_FORMAT, CALL_BYTES = '>ddd', 24

-- The field `log` of a partition that nothing was appended to.
local function empty_log()
  return struct.pack(LOG_FORMAT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NAN, NAN, NAN, NAN)
end

-- Returns the log as its meta hash describes it.  With the name of one more meta field, the second value is what that
-- field holds (false if it is missing).
local function load_log(stream, index, meta, bias, ...)
  local found = redis.call('HMGET', meta, 'log', 'indexed_id', 'done', 'epoch', 'gap_end', 'open', 'unseen', ...)
  local log_end, appended_ms, log_start, foreign_jump, records_before, entries_before, live_entries, live_bytes,
    largest_entry_bytes, span_bytes, point_records_before, point_append_ms, largest_in_span_ms, largest_before_ms =
    struct.unpack(LOG_FORMAT, found[1] or empty_log())
  -- All fields at once: a table that grows field by field is rehashed several times.
  return {
    stream = stream, index = index, meta = meta, bias = bias, info = nil,
    epoch = found[4],
    indexed_id = found[2] or '0-0',
    done = found[3] or struct.pack(DONE_FORMAT, 0, 0),
    gap_end = tonumber(found[5] or '-1'),
    open = found[6] or '',
    unseen = tonumber(found[7] or '0'),
    gap_noted = false,
    log_end = log_end, appended_ms = appended_ms, log_start = log_start, foreign_jump = foreign_jump,
    records_before = records_before, entries_before = entries_before,
    live_entries = live_entries, live_bytes = live_bytes,
    largest_entry_bytes = largest_entry_bytes, span_bytes = span_bytes,
    point_records_before = known(point_records_before), point_append_ms = known(point_append_ms),
    largest_in_span_ms = known(largest_in_span_ms), largest_before_ms = known(largest_before_ms),
  }, found[8]
end

-- The same, with `info`.  Returns nil and an error reply if the key is not a stream.
local function open_log(stream, index, meta, bias)
  local info, fault = inspect(stream)
  if not info then
    return nil, fault
  end
  local log = load_log(stream, index, meta, bias)
  log.info = info
  return log
end

-- Writes the log's state to its meta hash; further arguments are more fields of the hash and their values.
local function save_log(log, ...)
  local packed = struct.pack(
    LOG_FORMAT,
    log.log_end, log.appended_ms, log.log_start, log.foreign_jump,
    log.records_before, log.entries_before, log.live_entries, math.max(0, log.live_bytes),
    log.largest_entry_bytes, math.max(0, log.span_bytes),
    log.point_records_before or NAN, log.point_append_ms or NAN,
    log.largest_in_span_ms or NAN, log.largest_before_ms or NAN
  )
  redis.call('HSET', log.meta, 'indexed_id', log.indexed_id, 'log', packed, ...)
  if log.newer_epoch then
    redis.call('HSET', log.meta, 'epoch', log.newer_epoch)
  end
end

local function fenced(epoch, newest)
  return redis.error_reply('FENCED epoch ' .. epoch .. ' is older than ' .. newest)
end

-- Returns the error reply for a writer whose epoch is older than the newest one of the log, else nil; `save_log` saves
-- an epoch that is newer.  A writer with the epoch "" is never fenced.
local function fence(log, epoch)
  if epoch == '' or epoch == log.epoch then
    return nil
  end
  if log.epoch and tonumber(epoch) < tonumber(log.epoch) then
    return fenced(epoch, log.epoch)
  end
  log.newer_epoch = epoch
end

-- Returns the error reply for a caller that does not lead the partition any more, else nil.  `epoch` is the newest one
-- of the log, `highest` the highest one of the caller's leader epoch ("": it is never fenced).
local function fence_leader(epoch, highest)
  if highest ~= '' and epoch and tonumber(epoch) > tonumber(highest) then
    return fenced(highest, epoch)
  end
end

-- Returns the log end as an offset, entries of native clients included.  It never decreases, even if native clients
-- delete entries.
local function current_end(log)
  return math.max(log.log_end, position_after(log.info.last_id) - log.bias)
end

-- Returns whether entries at the log start may have been deleted since the log start was noted.
local function may_begin_later(log)
  local info = log.info
  return not info.unchanged and (log.log_start > 0 or info.added > info.length)
end

-- Returns the position of the first entry (POSITION_LIMIT if there is none) if native clients deleted everything before
-- the noted log end, or began the log, and readers there have missed nothing that XTRIM deleted: of what was added
-- after that end, nothing is gone, or XDEL deleted the newest of it.  Else returns nil.
local function gap_after_end(log)
  local info, ended = log.info, log.log_end + log.bias
  local may_be_gap = may_begin_later(log) or (log.log_end == 0 and not info.unchanged)
  if log.gap_noted or not may_be_gap or position_after(info.last_id) <= ended then
    return nil
  end
  local first = info.length == 0 and POSITION_LIMIT
    or batch_of(info.first_id, info.first_fields, log.bias)
    or position_at(info.first_id)
  local fresh = info.added - log.entries_before - log.unseen
  if fresh < 0 then
    -- The stream was deleted, and is a new one.
    fresh = info.added
  end
  if first and first > ended and (fresh <= info.length or position_after(info.deleted_id) > ended) then
    return first
  end
end

-- Returns the log start as an offset: 0 until the first entries are gone, then the offset of the first entry that is
-- still there, unless a gap ends with it (see gap_end and gap_after_end).
local function current_start(log, log_end)
  local info, start, first = log.info, log.log_start, nil
  if info.length == 0 then
    first = log_end
  elseif may_begin_later(log) then
    first = start_of(info.first_id, info.first_fields, log.bias) - log.bias
  end
  if first and first + log.bias > log.gap_end then
    start = math.max(start, gap_after_end(log) and log.log_end or first)
  end
  return math.min(start, log_end)
end

-- Notes the current log start and log end.  A log end beyond the noted one comes from a native client.
local function note_both_ends(log)
  local log_end = current_end(log)
  log.log_start = current_start(log, log_end)
  if log_end > log.log_end then
    log.foreign_jump = math.max(log.foreign_jump, log_end)
    log.log_end = log_end
  end
end

-- Lets the log start stay where it is although the first entry is at a later position: readers between the two have
-- missed nothing.
local function keep_start(log, position)
  log.gap_end = position
  redis.call('HSET', log.meta, 'gap_end', integer(position))
end

-- Notes a gap after the noted log end, before that end or the counts change.
local function note_gap(log)
  local gap_end = gap_after_end(log)
  log.gap_noted = true
  if gap_end and gap_end > log.gap_end then
    log.log_start = log.log_end
    keep_start(log, gap_end)
  end
end

-- Sets the end of the gap at the log start if no entry was left: it is the next entry, `base` (a position) if that
-- entry is about to be added.
local function end_gap(log, base)
  if log.gap_end < POSITION_LIMIT then
    return
  end
  local info = log.info
  local position = info.first_id and start_of(info.first_id, info.first_fields, log.bias) or base
  if position then
    keep_start(log, position)
  end
end

-- Notes that an entry is about to be added at position `base`.  In a log without entries it is the first one.
local function begin_at(log, base)
  if log.info.length == 0 and log.previous_end + log.bias > log.gap_end then
    keep_start(log, base)
  end
  end_gap(log, base)
end
