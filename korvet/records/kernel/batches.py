"""XRANGE reply to record batches."""

from __future__ import annotations

from collections.abc import Callable

from korvet.offsets import record_batch
from korvet.records.batch import BatchError, BytesLike, Entries
from korvet.records.kernel.entry_ids import (
    MAX_ADDRESSABLE_MS,
    MAX_SEQUENCE,
    EntryStart,
    entry_start,
    is_addressable,
    packed,
)
from korvet.records.kernel.fields import (
    Fields,
    as_value,
    field_list,
    is_marker,
    put_header_fields,
    read_fields,
)
from korvet.records.kernel.header import OpenBatch, close_batch
from korvet.records.kernel.header_fields import CONTROL, HEADER_SIZE, LOG_APPEND_TIME, TRANSACTIONAL
from korvet.records.kernel.integers import MAX_INT32, MAX_INT64, put_int, put_varint, varint_size
from korvet.records.kernel.octets import (
    SHORT,
    BytesPointer,
    OutputBuffer,
    buffer_pointer,
    bytes_pointer,
    copy,
    copy_short,
)
from korvet.records.kernel.resp import ARRAY_TYPE, bulk, length_line
from korvet.records.kernel.whole_batches import DAMAGED, WholeBatch, whole_batch

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

# Bytes from the end of a reply in which `predict_end_offset` looks for the last entry.
PREDICTION_BYTES = cython.declare(cython.Py_ssize_t, 2048)
CONTROL_KEY_SIZE = cython.declare(cython.longlong, record_batch.CONTROL_KEY.size)
CONTROL_VALUE_SIZE = cython.declare(cython.longlong, record_batch.CONTROL_VALUE.size)


def entries_to_batches(
    reply: BytesLike,
    start: int,
    end: int,
    *,
    bias: int,
    max_bytes: int,
    leader_epoch: int,
    log_append_time: bool,
    native: Callable[[list[bytes]], bytes],
    base_sequence: int = -1,
    skip_markers: bool = False,
) -> Entries:
    """One raw XRANGE reply (RESP2), reply[start:end], as record batches.

    An entry at ms-seq gets the offset pack(ms, seq) - bias. An entry that is a whole record batch, which
    ends at that offset, is returned unchanged; all others become records of uncompressed batches. An
    entry whose fields are not such as `encode_append` writes becomes a record with a null key and the
    value `native(fields)`. The first damaged record batch ends the result (Entries.damaged_offset). A new
    batch begins if an offset delta would leave int32 or a timestamp delta int64, if the transaction
    changes, after a gap within a transaction, and with log_append_time if the ms changes, since consumers
    then take a batch's maximum for every record (KIP-32). `max_bytes` bounds the size of the result, but
    it has at least one record if there is one. `base_sequence` is the base sequence of the batches made
    here, as entries have none. `skip_markers` leaves out transaction markers. Raises
    BatchError("corrupt") if the bytes are no XRANGE reply; no entry of a reply raises.
    """
    if not 0 <= start <= end <= len(reply):
        raise BatchError("corrupt", f"bytes {start} to {end} are not inside a reply of {len(reply)}")
    if start == end:
        raise _no_reply(start)
    entries: Entries = _convert(
        reply, start, end, bias, max_bytes, leader_epoch, log_append_time, native, base_sequence, skip_markers
    )
    return entries


@cython.cfunc
def _convert(
    reply: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bias: cython.longlong,
    max_bytes: cython.longlong,
    leader_epoch: cython.longlong,
    log_append_time: cython.bint,
    native: object,
    base_sequence: cython.longlong,
    skip_markers: cython.bint,
):
    view: cython.const[cython.uchar][::1] = reply
    p: BytesPointer = buffer_pointer(view)
    # Records are smaller in a batch than in a reply.
    capacity: cython.Py_ssize_t = max(min(end - start, max_bytes), 0) + HEADER_SIZE + SHORT
    buffer: OutputBuffer = OutputBuffer(capacity)
    w: cython.p_uchar = buffer.start()
    o: cython.Py_ssize_t = 0
    batch: OpenBatch = _no_batch(leader_epoch, base_sequence)
    entry: EntryStart
    fields: Fields
    whole: WholeBatch
    native_value: bytes = b""
    value: BytesPointer
    at: cython.Py_ssize_t
    entries: cython.longlong
    offset: cython.longlong
    body: cython.longlong
    size: cython.longlong
    addressable: cython.bint
    starts_batch: cython.bint
    first: cython.longlong = -1
    last: cython.longlong = -1
    next_offset: cython.longlong = -1
    records: cython.longlong = 0
    consumed: cython.longlong = 0
    unaddressable: cython.longlong = 0
    damaged: cython.longlong = -1
    truncated: cython.bint = False
    entries, at = length_line(p, start, end, ARRAY_TYPE)
    if at < 0:
        raise _no_reply(start)
    while consumed < entries:
        entry = entry_start(p, at, end)
        if entry.fields_at < 0:
            raise _no_reply(at)
        addressable = is_addressable(entry)
        fields = read_fields(p, entry.fields_at, end, entry.strings, entry.ms if addressable else 0)
        if fields.end < 0:
            raise _no_reply(entry.fields_at)
        if not addressable:
            unaddressable += 1
            consumed += 1
            next_offset = MAX_INT64 if entry.ms >= MAX_ADDRESSABLE_MS else packed(entry.ms + 1, 0) - bias
            at = fields.end
            continue
        offset = packed(entry.ms, entry.sequence) - bias
        if offset <= last:
            raise BatchError("corrupt", f"reply byte {at}: entry {entry.ms}-{entry.sequence} is out of order")
        value = p
        if not fields.is_korvet_entry:
            whole = whole_batch(p, entry, end, offset)
            if whole.at == DAMAGED:
                damaged = offset
                break
            if whole.at >= 0 and offset - whole.records >= last:
                if records > 0 and o + whole.size > max_bytes:
                    truncated = True
                    break
                if whole.size > capacity - o:
                    w = buffer.grow(o + whole.size)
                    capacity = buffer.size
                if batch.count > 0:
                    close_batch(w, o, batch)
                    batch.count = 0
                o = copy(w, o, p, whole.at, whole.size)
                if records == 0:
                    first = offset - whole.records + 1
                records += whole.records
                consumed += 1
                last = offset
                next_offset = offset + 1 if offset < MAX_INT64 else MAX_INT64
                at = fields.end
                continue
            native_value = native(field_list(view, entry.fields_at, end, entry.strings))
            fields = as_value(fields, len(native_value))
            value = bytes_pointer(native_value)
        if not fields.is_korvet_entry or log_append_time:
            fields.timestamp = entry.ms
        if skip_markers and is_marker(fields):
            consumed += 1
            next_offset = offset + 1 if offset < MAX_INT64 else MAX_INT64
            at = fields.end
            continue
        starts_batch = batch.count == 0 or not _belongs(batch, fields, offset, log_append_time)
        body = _body_size(batch, fields, offset, starts_batch)
        size = body + varint_size(body) + (HEADER_SIZE if starts_batch else 0)
        if records > 0 and o + size > max_bytes:
            truncated = True
            break
        if size + SHORT > capacity - o:
            w = buffer.grow(o + size + SHORT)
            capacity = buffer.size
        if starts_batch:
            if batch.count > 0:
                close_batch(w, o, batch)
            batch = _open_batch(batch, o, fields, offset, log_append_time)
            o += HEADER_SIZE
        o = _put_record(w, put_varint(w, o, body), batch, p, fields, offset, value, end)
        batch.max_timestamp = max(batch.max_timestamp, fields.timestamp)
        batch.last_offset = offset
        batch.count += 1
        if records == 0:
            first = offset
        records += 1
        consumed += 1
        last = offset
        next_offset = offset + 1 if offset < MAX_INT64 else MAX_INT64
        at = fields.end
    if batch.count > 0:
        close_batch(w, o, batch)
    data: bytes = buffer.take(o)
    return Entries(data, records, first, last, consumed, unaddressable, bool(truncated), next_offset, damaged)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _no_batch(leader_epoch: cython.longlong, base_sequence: cython.longlong) -> OpenBatch:
    batch = cython.declare(OpenBatch)
    batch.at = 0
    batch.count = 0
    batch.base_offset = 0
    batch.last_offset = 0
    batch.base_timestamp = 0
    batch.max_timestamp = 0
    batch.attributes = 0
    batch.producer = -1
    batch.epoch = -1
    batch.base_sequence = base_sequence
    batch.leader_epoch = leader_epoch
    return batch


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _belongs(
    batch: OpenBatch, fields: Fields, offset: cython.longlong, log_append_time: cython.bint
) -> cython.bint:
    """Whether a record can be in the open batch."""
    return (
        fields.producer == batch.producer
        and fields.epoch == batch.epoch
        and fields.outcome < 0
        and batch.attributes < CONTROL
        and offset - batch.base_offset <= MAX_INT32
        # The marker between two transactions of a producer may be deleted.
        and (fields.producer < 0 or offset == batch.last_offset + 1)
        and (fields.timestamp < 0 or batch.base_timestamp >= fields.timestamp - MAX_INT64)
        and (fields.timestamp >= 0 or batch.base_timestamp <= MAX_INT64 + fields.timestamp)
        and (not log_append_time or fields.timestamp == batch.base_timestamp)
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _open_batch(
    batch: OpenBatch,
    at: cython.Py_ssize_t,
    fields: Fields,
    offset: cython.longlong,
    log_append_time: cython.bint,
) -> OpenBatch:
    """The batch that begins at a position with this record."""
    batch.at = at
    batch.count = 0
    batch.base_offset = offset
    batch.base_timestamp = fields.timestamp
    batch.max_timestamp = fields.timestamp
    batch.producer = fields.producer
    batch.epoch = fields.epoch
    batch.attributes = LOG_APPEND_TIME if log_append_time else 0
    if fields.producer >= 0:
        batch.attributes += TRANSACTIONAL
    if fields.outcome >= 0:
        batch.attributes += CONTROL
    return batch


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _body_size(
    batch: OpenBatch, fields: Fields, offset: cython.longlong, starts_batch: cython.bint
) -> cython.longlong:
    """A record's bytes after its length."""
    size: cython.longlong = 1 + varint_size(fields.header_count) + fields.headers_size
    if starts_batch:
        size += 2
    else:
        size += varint_size(fields.timestamp - batch.base_timestamp) + varint_size(offset - batch.base_offset)
    if fields.outcome >= 0:
        return size + 1 + CONTROL_KEY_SIZE + 1 + CONTROL_VALUE_SIZE
    size += varint_size(fields.key_size) + varint_size(fields.value_size)
    if fields.key_size > 0:
        size += fields.key_size
    if fields.value_size > 0:
        size += fields.value_size
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_record(
    w: cython.p_uchar,
    o: cython.Py_ssize_t,
    batch: OpenBatch,
    p: BytesPointer,
    fields: Fields,
    offset: cython.longlong,
    value: BytesPointer,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Write a record after its length; its value is in the bytes `value`. Returns the position after it."""
    w[o] = 0
    o = put_varint(w, o + 1, fields.timestamp - batch.base_timestamp)
    o = put_varint(w, o, offset - batch.base_offset)
    if fields.outcome >= 0:
        o = put_varint(w, o, CONTROL_KEY_SIZE)
        put_int(w, o, fields.outcome, CONTROL_KEY_SIZE)
        o = put_varint(w, o + CONTROL_KEY_SIZE, CONTROL_VALUE_SIZE)
        # The coordinator epoch is 0: an entry does not have it.
        o = put_int(w, o, 0, CONTROL_VALUE_SIZE)
    else:
        o = put_varint(w, o, fields.key_size)
        if fields.key_size > 0:
            o = copy_short(w, o, p, fields.key_at, fields.key_size, end)
        o = put_varint(w, o, fields.value_size)
        if fields.value_size > 0:
            o = copy(w, o, value, fields.value_at, fields.value_size)
    o = put_varint(w, o, fields.header_count)
    if fields.header_count > 0:
        o = put_header_fields(w, o, p, fields)
    return o


def predict_end_offset(reply: BytesLike, bias: int) -> int:
    """The offset after the last entry of one whole raw XRANGE reply (RESP2), or -1 if it is not found.

    A prediction of Entries.next_offset at a small part of its cost: the last entry is looked for from the
    end, so a value that contains RESP may be taken for it. An entry above PREDICTION_BYTES is not found.
    """
    view: cython.const[cython.uchar][::1] = reply
    end: cython.Py_ssize_t = len(view)
    if end == 0:
        return -1
    p: BytesPointer = buffer_pointer(view)
    least: cython.Py_ssize_t = max(0, end - PREDICTION_BYTES)
    at: cython.Py_ssize_t = end
    stop: cython.Py_ssize_t
    size: cython.longlong
    entry: EntryStart
    while at > least:
        at -= 1
        if p[at] != ARRAY_TYPE:
            continue
        entry = entry_start(p, at, end)
        stop = entry.fields_at
        while stop >= 0 and entry.strings > 0:
            size, stop = bulk(p, stop, end)
            if stop >= 0:
                stop += size + 2
            entry.strings -= 1
        if stop == end:
            if entry.ms >= MAX_ADDRESSABLE_MS or entry.sequence > MAX_SEQUENCE:
                return -1
            return packed(entry.ms, entry.sequence) + (1 - bias)
    return -1


def _no_reply(position: int) -> BatchError:
    return BatchError("corrupt", f"reply byte {position}: no whole XRANGE reply")
