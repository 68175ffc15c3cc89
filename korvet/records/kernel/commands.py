"""Record batch to XADD commands with entry IDs."""

from __future__ import annotations

from korvet.records import batch
from korvet.records.batch import AppendCommands, BatchHeader, BytesLike, Span
from korvet.records.kernel.entry_ids import MAX_SEQUENCE, SEQUENCE_BITS, put_id_start
from korvet.records.kernel.field_names import FIELD_TEXTS, PRODUCER_BYTES
from korvet.records.kernel.integers import MIN_INT64, decimal_size, put_decimal, signed_size
from korvet.records.kernel.octets import (
    BytesPointer,
    OutputBuffer,
    buffer_pointer,
    bytes_at,
    bytes_pointer,
    copy,
)
from korvet.records.kernel.record import Record, read_record
from korvet.records.kernel.record_fields import (
    HEADER_ROOM,
    MAX_FIELD_ARGUMENTS,
    RECORD_ROOM,
    Encoded,
    buffer_size,
    field_arguments,
    nothing_encoded,
    producer_fields_of,
    put_record_fields,
    relative_timestamp,
    too_many_headers,
)
from korvet.records.kernel.records import record_fault, records_section, trailing_bytes
from korvet.records.kernel.resp import ARRAY_TYPE, put_head, put_line_end

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

# Records between two points of the log's index.
SPAN_RECORDS = cython.declare(cython.longlong, batch.SPAN_RECORDS)
# Strings of an XADD command before its entry ID: XADD, key, NOMKSTREAM.
COMMAND_STRINGS = cython.declare(cython.longlong, 3)

# The last command up to its entry ID's sequence, which most commands repeat: its position and size, and the
# values that it depends on. `end` is the position of the command's fields.
CommandStart = cython.struct(
    at=cython.Py_ssize_t,
    size=cython.Py_ssize_t,
    arguments=cython.longlong,
    ms=cython.longlong,
    sequence_size=cython.Py_ssize_t,
    end=cython.Py_ssize_t,
)


def encode_commands(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    with_timestamps: bool,
    position: int,
    command: bytes,
) -> AppendCommands:
    """The records of the batch at data[start:] as XADD commands with entry IDs.

    `data` to `with_timestamps` are as for `encode_append`. `position` is the first record's entry ID as one
    number (ms << 10 | sequence); the other records follow without a gap. `command` is the part of each
    command before its ID, as RESP bulk strings (COMMAND_STRINGS of them).
    """
    if position < 0:
        raise ValueError(f"{position} is no entry ID")
    data, first, end = records_section(data, start, header, records)
    commands: AppendCommands = _encode_commands(data, first, end, header, with_timestamps, position, command)
    return commands


@cython.cfunc
def _encode_commands(
    data: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    header: object,
    with_timestamps: cython.bint,
    position: cython.longlong,
    command_text: bytes,
):
    count: cython.longlong = header.record_count
    base: cython.longlong = header.base_timestamp_ms
    view: cython.const[cython.uchar][::1] = data
    p: BytesPointer = buffer_pointer(view)
    texts: BytesPointer = bytes_pointer(FIELD_TEXTS)
    producer_text: bytes = producer_fields_of(header)
    producer: BytesPointer = bytes_pointer(producer_text)
    producer_size: cython.Py_ssize_t = len(producer_text)
    producer_bytes: cython.longlong = 0
    command: BytesPointer = bytes_pointer(command_text)
    command_size: cython.Py_ssize_t = len(command_text)
    record_room: cython.Py_ssize_t = RECORD_ROOM + command_size + producer_size
    at: cython.Py_ssize_t = start
    index: cython.longlong
    ms: cython.longlong = 0
    timestamp: cython.longlong
    arguments: cython.longlong
    room: cython.Py_ssize_t
    record: Record
    encoded: Encoded = nothing_encoded()
    command_start: CommandStart = _no_command()
    capacity: cython.Py_ssize_t = buffer_size(end - start, count, record_room)
    buffer: OutputBuffer = OutputBuffer(capacity)
    w: cython.p_uchar = buffer.start()
    first: bytes = b""
    first_argc: cython.longlong = 0
    largest: cython.longlong = 0
    spans: list[Span] = []
    span_from: cython.longlong = 0
    span_bytes: cython.longlong = 0
    span_newest: cython.longlong = MIN_INT64
    if producer_size > 0:
        producer_bytes = PRODUCER_BYTES + signed_size(header.producer_id) + signed_size(header.producer_epoch)
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
        if index > 0:
            command_start = _put_command_start(
                w, command_start, encoded.at, command, command_size, position + index, arguments
            )
            encoded.at = command_start.end
        ms = (position + index) >> SEQUENCE_BITS
        timestamp = relative_timestamp(record.timestamp, ms)
        encoded = put_record_fields(
            w,
            encoded,
            p,
            record,
            texts,
            with_timestamps,
            timestamp,
            producer,
            producer_size,
            producer_bytes,
        )
        if encoded.at < 0:
            raise record_fault(encoded.at, index, at - start)
        at = record.end
        if index == 0:
            # The commands of the other records are a bytes object of their own.
            first = bytes_at(w, 0, encoded.at)
            first_argc = arguments
            encoded.at = 0
            encoded.last_timestamp_size = 0
        if index - span_from == SPAN_RECORDS:
            spans.append(Span(index - span_from, index - span_from, span_bytes, span_newest))
            span_from = index
            span_bytes = 0
            span_newest = MIN_INT64
        span_bytes += encoded.entry_bytes
        span_newest = max(span_newest, record.timestamp if with_timestamps else ms)
        largest = max(largest, encoded.entry_bytes)
    if at != end:
        raise trailing_bytes(end - at, count)
    spans.append(Span(count - span_from, count - span_from, span_bytes, span_newest))
    return AppendCommands(
        position,
        first,
        first_argc,
        buffer.take(encoded.at),
        count,
        encoded.newest,
        encoded.oldest,
        encoded.payload_bytes,
        encoded.keyless,
        largest,
        len(first) + encoded.at,
        tuple(spans),
        count,
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_command_start(
    w: cython.p_uchar,
    start: CommandStart,
    o: cython.Py_ssize_t,
    command: BytesPointer,
    command_size: cython.Py_ssize_t,
    position: cython.longlong,
    arguments: cython.longlong,
) -> CommandStart:
    """Write an XADD command up to its fields, or copy what the last one has in common with it.

    `position` is the entry ID as one number.
    """
    ms: cython.longlong = position >> SEQUENCE_BITS
    sequence: cython.longlong = position & MAX_SEQUENCE
    size: cython.Py_ssize_t = decimal_size(sequence)
    if arguments == start.arguments and ms == start.ms and size == start.sequence_size:
        o = copy(w, o, w, start.at, start.size)
    else:
        start.at = o
        start.arguments = arguments
        start.ms = ms
        start.sequence_size = size
        o = put_head(w, o, ARRAY_TYPE, COMMAND_STRINGS + 1 + arguments)
        o = copy(w, o, command, 0, command_size)
        o = put_id_start(w, o, ms, size)
        start.size = o - start.at
    start.end = put_line_end(w, put_decimal(w, o, sequence))
    return start


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _no_command() -> CommandStart:
    start = cython.declare(CommandStart)
    start.at = 0
    start.size = 0
    start.arguments = -1
    start.ms = 0
    start.sequence_size = 0
    start.end = 0
    return start
