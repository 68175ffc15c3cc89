"""One record of a batch: read and checked."""

from __future__ import annotations

from korvet.records.kernel.field_names import HEADER_PREFIX_SIZE, NULL_PREFIX_SIZE
from korvet.records.kernel.integers import MAX_INT64, MIN_INT64, varint, varlong
from korvet.records.kernel.octets import BytesPointer

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

RECORD_FAULTS: dict[int, str] = {
    -1: "its length is cut off, malformed or beyond the batch",
    -2: "its timestamp delta is cut off or malformed",
    -3: "its offset delta is cut off, malformed or out of sequence",
    -4: "its key length is malformed or beyond the record",
    -5: "its value length is malformed or beyond the record",
    -6: "its header count is negative, malformed or beyond the record",
    -7: "it has a header without a name, or the name's length is malformed or beyond the record",
    -8: "it has a header value whose length is malformed or beyond the record",
    -9: "bytes follow its last header",
    -10: "its timestamp is no int64",
}

# A record up to its headers. Sizes are -1 for null.
Record = cython.struct(
    end=cython.Py_ssize_t,
    timestamp=cython.longlong,
    key_at=cython.Py_ssize_t,
    key_size=cython.longlong,
    value_at=cython.Py_ssize_t,
    value_size=cython.longlong,
    headers_at=cython.Py_ssize_t,
    header_count=cython.longlong,
)

# A header of a record, or of an entry that is a record. The value's size is -1 for null.
RecordHeader = cython.struct(
    end=cython.Py_ssize_t,
    name_at=cython.Py_ssize_t,
    name_size=cython.longlong,
    value_at=cython.Py_ssize_t,
    value_size=cython.longlong,
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def faulty(record: Record, fault: cython.Py_ssize_t) -> Record:
    """A record that cannot be read: its end is a key of RECORD_FAULTS."""
    record.end = fault
    return record


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def read_record(
    p: BytesPointer,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    index: cython.longlong,
    base_timestamp: cython.longlong,
) -> Record:
    """Read one record up to its headers. Its end is a key of RECORD_FAULTS if it is malformed."""
    record = cython.declare(Record)
    size: cython.longlong
    delta: cython.longlong
    size, at = varint(p, at, end)
    if at < 0 or size < 1 or size > end - at:
        return faulty(record, -1)
    end = at + size
    record.end = end
    delta, at = varlong(p, at + 1, end)  # one byte of attributes, unused by Kafka, comes first
    if at < 0:
        return faulty(record, -2)
    if _leaves_int64(base_timestamp, delta):
        return faulty(record, -10)
    record.timestamp = base_timestamp + delta
    delta, at = varint(p, at, end)
    if at < 0 or delta != index:
        return faulty(record, -3)
    size, at = varint(p, at, end)
    if at < 0 or size < -1 or size > end - at:
        return faulty(record, -4)
    record.key_at = at
    record.key_size = size
    if size > 0:
        at += size
    size, at = varint(p, at, end)
    if at < 0 or size < -1 or size > end - at:
        return faulty(record, -5)
    record.value_at = at
    record.value_size = size
    if size > 0:
        at += size
    size, at = varint(p, at, end)
    if at < 0 or size < 0 or size > (end - at) // 2:
        return faulty(record, -6)
    record.headers_at = at
    record.header_count = size
    return record


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _leaves_int64(base: cython.longlong, delta: cython.longlong) -> cython.bint:
    """Whether the sum of a batch's base timestamp and a record's delta is no int64."""
    if delta > 0:
        return base > MAX_INT64 - delta
    return delta < 0 and base < MIN_INT64 - delta


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def read_header(p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> RecordHeader:
    """Read one header of a record. Its end is a key of RECORD_FAULTS if it is malformed."""
    header = cython.declare(RecordHeader)
    size: cython.longlong
    size, at = varint(p, at, end)
    header.end = -7
    if at < 0 or size < 0 or size > end - at:
        return header
    header.name_at = at
    header.name_size = size
    size, at = varint(p, at + size, end)
    header.end = -8
    if at < 0 or size < -1 or size > end - at:
        return header
    header.value_at = at
    header.value_size = size
    header.end = at + max(size, 0)
    return header


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def measure_headers(
    p: BytesPointer, record: Record
) -> tuple[cython.Py_ssize_t, cython.Py_ssize_t, cython.Py_ssize_t]:
    """Check a record's headers: (position after them, bytes of names and values, bytes of the prefixes that
    the names get as fields).

    The position is a key of RECORD_FAULTS if they are malformed.
    """
    at: cython.Py_ssize_t = record.headers_at
    end: cython.Py_ssize_t = record.end
    i: cython.longlong
    payload: cython.Py_ssize_t = 0
    prefixes: cython.Py_ssize_t = 0
    header: RecordHeader
    for i in range(record.header_count):
        header = read_header(p, at, end)
        if header.end < 0:
            return header.end, 0, 0
        prefixes += NULL_PREFIX_SIZE if header.value_size < 0 else HEADER_PREFIX_SIZE
        payload += header.name_size + max(header.value_size, 0)
        at = header.end
    if at != end:
        return -9, 0, 0
    return at, payload, prefixes
