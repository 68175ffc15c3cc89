"""Record batch to the arguments of the append function."""

from __future__ import annotations

from collections.abc import Sequence

from korvet.records.batch import AppendArguments, BatchHeader, BytesLike
from korvet.records.kernel.field_names import FIELD_TEXTS, KEY_NAME, TIMESTAMP_NAME, VALUE_NAME, bulk_string
from korvet.records.kernel.integers import put_int
from korvet.records.kernel.octets import BytesPointer, OutputBuffer, buffer_pointer, bytes_pointer
from korvet.records.kernel.record import Record, read_record
from korvet.records.kernel.record_fields import (
    HEADER_ROOM,
    MAX_FIELD_ARGUMENTS,
    RECORD_ROOM,
    Encoded,
    buffer_size,
    field_arguments,
    nothing_encoded,
    producer_fields,
    producer_fields_of,
    put_record_fields,
    too_many_headers,
)
from korvet.records.kernel.records import record_fault, records_section, trailing_bytes
from korvet.records.kernel.resp import BULK_TYPE, put_head, put_line_end

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

# Bytes of a record's head: half the number of its field arguments, and half the place of the timestamp. The
# buffer has room for all heads before it grows, because no record is smaller than its head.
HEAD_BYTES = cython.declare(cython.Py_ssize_t, 3)


def encode_append(
    data: BytesLike, start: int, header: BatchHeader, records: bytes | None, with_timestamps: bool
) -> AppendArguments:
    """The records of the batch at data[start:] as arguments of the append function.

    `header` is what `parse_batch` returned for the batch, `records` its decompressed records if it has a
    codec. `with_timestamps` adds each record's absolute timestamp (ms) as field `ts`, and its position among
    the arguments, so that the script can make it relative to the entry's ms. Without it, only a record that
    has no field at all gets one: "0", which is relative already. Raises BatchError("invalid_record").
    """
    data, first, end = records_section(data, start, header, records)
    arguments: AppendArguments = _encode_arguments(data, first, end, header, with_timestamps)
    return arguments


@cython.cfunc
def _encode_arguments(
    data: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    header: object,
    with_timestamps: cython.bint,
):
    count: cython.longlong = header.record_count
    base: cython.longlong = header.base_timestamp_ms
    view: cython.const[cython.uchar][::1] = data
    p: BytesPointer = buffer_pointer(view)
    texts: BytesPointer = bytes_pointer(FIELD_TEXTS)
    producer_text: bytes = producer_fields_of(header)
    producer: BytesPointer = bytes_pointer(producer_text)
    producer_size: cython.Py_ssize_t = len(producer_text)
    record_room: cython.Py_ssize_t = HEAD_BYTES + RECORD_ROOM + producer_size
    at: cython.Py_ssize_t = start
    argc: cython.longlong = 1
    index: cython.longlong
    arguments: cython.longlong
    room: cython.Py_ssize_t
    record: Record
    encoded: Encoded = nothing_encoded()
    capacity: cython.Py_ssize_t = buffer_size(end - start, count, record_room)
    buffer: OutputBuffer = OutputBuffer(capacity)
    w: cython.p_uchar = buffer.start()
    head_at: cython.Py_ssize_t = put_head(w, 0, BULK_TYPE, count * HEAD_BYTES)
    encoded.at = put_line_end(w, head_at + count * HEAD_BYTES)
    for index in range(count):
        record = read_record(p, at, end, index, base)
        if record.end < 0:
            raise record_fault(record.end, index, at - start)
        arguments = max(field_arguments(record, with_timestamps, producer_size > 0), 2)
        if arguments > MAX_FIELD_ARGUMENTS:
            raise too_many_headers(index, record.header_count)
        room = encoded.at + record_room + (record.end - at) + record.header_count * HEADER_ROOM
        if capacity < room:
            w = buffer.grow(room)
            capacity = buffer.size
        put_int(w, head_at, arguments // 2, 2)
        w[head_at + 2] = _timestamp_place(record) if with_timestamps else 0
        head_at += HEAD_BYTES
        encoded = put_record_fields(w, encoded, p, record, texts, with_timestamps, producer, producer_size)
        if encoded.at < 0:
            raise record_fault(encoded.at, index, at - start)
        argc += arguments
        at = record.end
    if at != end:
        raise trailing_bytes(end - at, count)
    return AppendArguments(
        buffer.take(encoded.at),
        argc,
        count,
        encoded.newest,
        encoded.oldest,
        encoded.payload_bytes,
        encoded.keyless,
        encoded.largest_bytes,
        count,
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _timestamp_place(record: Record) -> cython.longlong:
    """Half the 1-based position of the timestamp's value among an entry's names and values."""
    return (record.key_size >= 0) + (record.value_size >= 0) + 1


def encode_append_records(
    records: Sequence[tuple[bytes | None, bytes | None, int]], producer: tuple[int, int] | None = None
) -> AppendArguments:
    """Records of the broker's own as arguments of the append function: (key, value, timestamp in ms), without
    headers.

    `producer` is ID and epoch if the records are in a transaction. Raises ValueError if there is no record.
    """
    if not records:
        raise ValueError("an append needs at least one record")
    parts: list[bytes] = []
    heads = b""
    argc = 1
    payload = largest = 0
    keyless = 0
    transaction = b"" if producer is None else producer_fields(*producer)
    for key, value, timestamp_ms in records:
        place = 2
        fields = b""
        if key is None:
            keyless += 1
        else:
            place += 2
            payload += len(key)
            fields = b"%b$%d\r\n%b\r\n" % (KEY_NAME, len(key), key)
        if value is not None:
            place += 2
            payload += len(value)
            fields += b"%b$%d\r\n%b\r\n" % (VALUE_NAME, len(value), value)
        arguments = place + (4 if transaction else 0)
        argc += arguments
        heads += (arguments // 2).to_bytes(2, "big") + bytes((place // 2,))
        largest = max(largest, len(fields))
        timestamp = b"%d" % timestamp_ms
        parts.append(
            b"%b%b$%d\r\n%b\r\n%b" % (fields, TIMESTAMP_NAME, len(timestamp), timestamp, transaction)
        )
    timestamps = [timestamp_ms for _, _, timestamp_ms in records]
    count = len(records)
    return AppendArguments(
        bulk_string(heads) + b"".join(parts),
        argc,
        count,
        max(timestamps),
        min(timestamps),
        payload,
        keyless,
        largest,
        count,
    )
