"""One record as the fields of a stream entry."""

from __future__ import annotations

from korvet.records.batch import BatchError, BatchHeader
from korvet.records.kernel.field_names import (
    HEADER_PREFIX_AT,
    HEADER_PREFIX_SIZE,
    KEY_BYTES,
    KEY_NAME_AT,
    KEY_NAME_SIZE,
    NULL_PREFIX_AT,
    NULL_PREFIX_SIZE,
    PRODUCER_EPOCH_NAME,
    PRODUCER_ID_NAME,
    TIMESTAMP_BYTES,
    TIMESTAMP_NAME_AT,
    TIMESTAMP_NAME_SIZE,
    VALUE_BYTES,
    VALUE_NAME_AT,
    VALUE_NAME_SIZE,
    bulk_string,
)
from korvet.records.kernel.integers import MAX_INT64, MIN_INT64, signed_size
from korvet.records.kernel.octets import BytesPointer, copy
from korvet.records.kernel.record import Record, RecordHeader, read_header
from korvet.records.kernel.resp import BULK_TYPE, COMMAND_ROOM, put_bulk, put_head, put_line_end, put_number

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

# Field arguments of one record. A script can unpack about 8,000 values; half of that leaves room for the
# values before them.
MAX_FIELD_ARGUMENTS = cython.declare(cython.Py_ssize_t, 3900)
# Bytes that the RESP form of a record needs beyond the record's own size: once, and for each header.
RECORD_ROOM = cython.declare(cython.Py_ssize_t, 160)
HEADER_ROOM = cython.declare(cython.Py_ssize_t, 48)

# The state after a record: the position of the next entry, totals over the records, the sizes of the last
# entry and of the largest one (field names and values, without those of the producer), and the timestamp of
# the last one, which most records repeat, with position and size.
Encoded = cython.struct(
    at=cython.Py_ssize_t,
    payload_bytes=cython.longlong,
    keyless=cython.longlong,
    newest=cython.longlong,
    oldest=cython.longlong,
    entry_bytes=cython.longlong,
    largest_bytes=cython.longlong,
    last_timestamp=cython.longlong,
    last_timestamp_at=cython.Py_ssize_t,
    last_timestamp_size=cython.Py_ssize_t,
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def nothing_encoded() -> Encoded:
    """The state before the first record."""
    encoded = cython.declare(Encoded)
    encoded.at = 0
    encoded.payload_bytes = 0
    encoded.keyless = 0
    encoded.newest = MIN_INT64
    encoded.oldest = MAX_INT64
    encoded.entry_bytes = 0
    encoded.largest_bytes = 0
    encoded.last_timestamp = 0
    encoded.last_timestamp_at = 0
    encoded.last_timestamp_size = 0
    return encoded


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def field_arguments(
    record: Record, with_timestamp: cython.bint, transactional: cython.bint
) -> cython.longlong:
    """Names and values of an entry's fields."""
    return 2 * (
        (record.key_size >= 0)
        + (record.value_size >= 0)
        + with_timestamp
        + record.header_count
        + 2 * transactional
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_record_fields(
    w: cython.p_uchar,
    encoded: Encoded,
    p: BytesPointer,
    record: Record,
    texts: BytesPointer,
    with_timestamp: cython.bint,
    producer: BytesPointer,
    producer_size: cython.Py_ssize_t,
) -> Encoded:
    """Write the fields of an entry that is one record, the producer's fields last.

    Without timestamps, a record that has no field at all gets one, which is 0. `encoded.at` becomes a key of
    RECORD_FAULTS if the record's headers are malformed.
    """
    payload: cython.Py_ssize_t
    prefixes: cython.Py_ssize_t
    encoded.entry_bytes = 0
    if record.key_size >= 0:
        encoded.at = copy(w, encoded.at, texts, KEY_NAME_AT, KEY_NAME_SIZE)
        encoded.at = put_bulk(w, encoded.at, p, record.key_at, record.key_size)
        encoded.payload_bytes += record.key_size
        encoded.entry_bytes += KEY_BYTES + record.key_size
    else:
        encoded.keyless += 1
    if record.value_size >= 0:
        encoded.at = copy(w, encoded.at, texts, VALUE_NAME_AT, VALUE_NAME_SIZE)
        encoded.at = put_bulk(w, encoded.at, p, record.value_at, record.value_size)
        encoded.payload_bytes += record.value_size
        encoded.entry_bytes += VALUE_BYTES + record.value_size
    if with_timestamp:
        encoded = _put_timestamp(w, encoded, texts, record.timestamp)
    elif field_arguments(record, False, producer_size > 0) == 0:
        encoded = _put_timestamp(w, encoded, texts, 0)
    if record.header_count > 0:
        encoded.at, payload, prefixes = _put_headers(w, encoded.at, p, record, texts)
        encoded.payload_bytes += payload
        encoded.entry_bytes += payload + prefixes
    elif record.headers_at != record.end:
        encoded.at = -9
    if encoded.at >= 0:
        encoded.at = copy(w, encoded.at, producer, 0, producer_size)
    encoded.largest_bytes = max(encoded.largest_bytes, encoded.entry_bytes)
    encoded.newest = max(encoded.newest, record.timestamp)
    encoded.oldest = min(encoded.oldest, record.timestamp)
    return encoded


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_timestamp(
    w: cython.p_uchar, encoded: Encoded, texts: BytesPointer, timestamp: cython.longlong
) -> Encoded:
    """Write a timestamp field, or copy the last one."""
    o: cython.Py_ssize_t = copy(w, encoded.at, texts, TIMESTAMP_NAME_AT, TIMESTAMP_NAME_SIZE)
    if encoded.last_timestamp_size == 0 or timestamp != encoded.last_timestamp:
        encoded.last_timestamp = timestamp
        encoded.last_timestamp_at = o
        o = put_number(w, o, timestamp)
        encoded.last_timestamp_size = o - encoded.last_timestamp_at
    else:
        o = copy(w, o, w, encoded.last_timestamp_at, encoded.last_timestamp_size)
    encoded.entry_bytes += TIMESTAMP_BYTES + signed_size(timestamp)
    encoded.at = o
    return encoded


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_headers(
    w: cython.p_uchar, o: cython.Py_ssize_t, p: BytesPointer, record: Record, texts: BytesPointer
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t]:
    """Write a record's headers: (position after them, bytes of names and values, bytes of prefixes).

    The position is a key of RECORD_FAULTS if they are malformed.
    """
    at: cython.Py_ssize_t = record.headers_at
    end: cython.Py_ssize_t = record.end
    i: cython.longlong
    size: cython.longlong
    payload: cython.Py_ssize_t = 0
    prefixes: cython.Py_ssize_t = 0
    header: RecordHeader
    for i in range(record.header_count):
        header = read_header(p, at, end)
        if header.end < 0:
            return header.end, 0, 0
        size = max(header.value_size, 0)
        if header.value_size < 0:
            o = put_head(w, o, BULK_TYPE, NULL_PREFIX_SIZE + header.name_size)
            o = copy(w, o, texts, NULL_PREFIX_AT, NULL_PREFIX_SIZE)
            prefixes += NULL_PREFIX_SIZE
        else:
            o = put_head(w, o, BULK_TYPE, HEADER_PREFIX_SIZE + header.name_size)
            o = copy(w, o, texts, HEADER_PREFIX_AT, HEADER_PREFIX_SIZE)
            prefixes += HEADER_PREFIX_SIZE
        o = put_line_end(w, copy(w, o, p, header.name_at, header.name_size))
        o = put_bulk(w, o, p, header.value_at, size)
        payload += header.name_size + size
        at = header.end
    if at != end:
        return -9, 0, 0
    return o, payload, prefixes


@cython.cfunc
@cython.inline
def buffer_size(size: cython.longlong, count: cython.longlong, room: cython.longlong) -> cython.Py_ssize_t:
    """The first size of the buffer, which is large enough unless the records are tiny.

    `size` is the size of all records, `room` the size that one needs in the buffer beyond its own.
    """
    return size + min(max(count, 0) * room, 3 * size + COMMAND_ROOM)


def too_many_headers(index: int, headers: int) -> BatchError:
    """The error for a record with more than MAX_FIELD_ARGUMENTS."""
    return BatchError("invalid_record", f"record {index}: {headers} headers are more than an entry can take")


def producer_fields_of(header: BatchHeader) -> bytes:
    """The fields that all records of a transactional batch end with."""
    return producer_fields(header.producer_id, header.producer_epoch) if header.transactional else b""


def producer_fields(producer_id: int, producer_epoch: int) -> bytes:
    """The fields that the records of a transaction end with."""
    return b"".join(
        (
            PRODUCER_ID_NAME,
            bulk_string(b"%d" % producer_id),
            PRODUCER_EPOCH_NAME,
            bulk_string(b"%d" % producer_epoch),
        )
    )
