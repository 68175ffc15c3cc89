-- Ordinals of a partition's ends and of committed offsets, for metrics.

-- Returns the timestamp of an entry's first record.
local function first_time(id, fields, bias)
  if not batch_of(id, fields, bias) then
    return entry_time(id, fields)
  end
  -- In the header of a RecordBatch: with LogAppendTime (bit 3 of the attributes) the largest timestamp is that of all
  -- records.
  local has_append_time = struct.unpack('>i2', fields[2], 22) % 16 >= 8
  return (struct.unpack('>i8', fields[2], has_append_time and 36 or 28))
end

-- KEYS: stream, index, meta.  ARGV: bias, edition of the known ordinals, then for each offset asked for: the offset, an
-- offset up to it and the ordinal of that one ("" "" if none is known).
-- Returns {"ok", edition, log start, log end, ordinal of the log start, ordinal of the log end}, and for each offset
-- its ordinal and the timestamp (ms) of the first record from it on, with storage.layout=batch that of the first record
-- in that batch ("" if there is no such record).  Or {"fold"} / {"recount"}: call that first.
local function ordinals(keys, args)
  local bias, known_edition = tonumber(args[1]), tonumber(args[2])
  if #keys ~= 3 or not (bias and known_edition) or #args % 3 ~= 2 then
    return redis.error_reply('ERR korvet_ordinals: malformed arguments')
  end
  local log, reply = open_indexed(keys[1], keys[2], keys[3], bias)
  if not log then
    return reply
  elseif redis.call('HEXISTS', log.meta, 'remade') == 1 then
    return { 'fold' }
  end
  local shift, edition = shift_of(log)
  local oldest = redis.call('ZRANGE', log.index, 0, 0)[1]
  local log_end = current_end(log)
  local log_start = current_start(log, log_end)
  local from = counted_from(log, log_start)
  local first = oldest and decode_point(oldest).records_before or log.records_before
  if from > 0 then
    first = records_before(log, from)
  end
  local found = { 'ok', edition, log_start, log_end, first + shift, log.records_before + shift }
  for at = 3, #args, 3 do
    local offset, near_offset, near_ordinal = tonumber(args[at]), tonumber(args[at + 1]), tonumber(args[at + 2])
    if offset >= log_end then
      found[#found + 1] = log.records_before + shift
      found[#found + 1] = ''
    else
      local near = near_offset
        and near_offset >= log_start
        and edition == known_edition
        and { position = near_offset + bias, records_before = near_ordinal - shift }
      local entry = redis.call('XRANGE', log.stream, id_of(offset + bias), '+', 'COUNT', 1)[1]
      found[#found + 1] = records_before(log, math.max(offset + bias, from), near) + shift
      found[#found + 1] = entry and integer(first_time(entry[1], entry[2], bias)) or ''
    end
  end
  return found
end

redis.register_function({ function_name = 'korvet_ordinals' .. RELEASE, callback = ordinals, flags = { 'no-writes' } })
