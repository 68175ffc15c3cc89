"""The records of a batch: read one after the other and checked."""

from __future__ import annotations

from korvet.records.batch import BatchError, BatchHeader, BytesLike, RecordSummary
from korvet.records.kernel.header_fields import HEADER_SIZE, SMALLEST_RECORD_SIZE
from korvet.records.kernel.integers import MAX_INT64, MIN_INT64
from korvet.records.kernel.octets import BytesPointer, buffer_pointer
from korvet.records.kernel.record import RECORD_FAULTS, Record, measure_headers, read_record
from korvet.records.kernel.record_fields import MAX_FIELD_ARGUMENTS, too_many_headers

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]


def record_fault(fault: int, index: int, position: int) -> BatchError:
    """The error for a record that is malformed."""
    return BatchError(
        "invalid_record", f"record {index} (byte {position} of the records): {RECORD_FAULTS[fault]}"
    )


def records_section(
    data: BytesLike, start: int, header: BatchHeader, records: bytes | None
) -> tuple[BytesLike, int, int]:
    """The records of the batch at data[start:], decompressed: (buffer, their begin, their end).

    Raises BatchError (corrupt, invalid_record).
    """
    if start < 0 or header.size > len(data) - start:
        raise BatchError("corrupt", f"batch at byte {start}: {header.size} bytes are not there")
    if header.codec == 0:
        first, end = start + HEADER_SIZE, start + header.size
    elif records is None:
        raise BatchError(
            "invalid_record", f"batch at byte {start}: its records are compressed (codec {header.codec})"
        )
    else:
        data, first, end = records, 0, len(records)
    if header.record_count > (end - first) // SMALLEST_RECORD_SIZE:
        raise BatchError(
            "invalid_record", f"{end - first} bytes of records can't hold {header.record_count} records"
        )
    return data, first, end


def trailing_bytes(size: int, count: int) -> BatchError:
    """The error for bytes after the last record."""
    return BatchError("invalid_record", f"{size} bytes follow the last of {count} records")


def check_records(data: BytesLike, start: int, header: BatchHeader, records: bytes | None) -> RecordSummary:
    """Check the records of the batch at data[start:] as `encode_append` does, for a batch that is stored
    unchanged.

    `header` and `records` are as for `encode_append`. Raises BatchError("invalid_record").
    """
    data, first, end = records_section(data, start, header, records)
    return _scan(data, first, end, header, False, 0, 0, -1)


def check_entries(
    data: BytesLike, start: int, header: BatchHeader, records: bytes | None, with_timestamps: bool
) -> RecordSummary:
    """As `check_records`, for a batch that the server module makes entries of. Refuses records whose fields
    are too many for an entry, too.
    """
    data, first, end = records_section(data, start, header, records)
    return _scan(data, first, end, header, False, 0, 0, 2 * with_timestamps + 4 * header.transactional)


def find_record(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    from_index: int,
    timestamp_ms: int,
) -> tuple[int, int] | None:
    """The first record of the batch at data[start:], from `from_index` on, whose timestamp is not before
    `timestamp_ms`: (index, timestamp in ms), or None.

    `header` and `records` are as for `encode_append`. Raises BatchError("invalid_record").
    """
    data, first, end = records_section(data, start, header, records)
    found: tuple[int, int] | None = _scan(data, first, end, header, True, from_index, timestamp_ms, -1)
    return found


@cython.cfunc
def _scan(
    data: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    header: object,
    finding: cython.bint,
    from_index: cython.longlong,
    wanted: cython.longlong,
    more_arguments: cython.longlong,
):
    """Check all records, or with `finding` those up to the first wanted one. `more_arguments`: the field
    arguments of each entry beside those of key, value and headers; -1 if records become no entries.
    """
    view: cython.const[cython.uchar][::1] = data
    p: BytesPointer = buffer_pointer(view)
    count: cython.longlong = header.record_count
    base: cython.longlong = header.base_timestamp_ms
    keyless: cython.longlong = 0
    newest: cython.longlong = MIN_INT64
    oldest: cython.longlong = MAX_INT64
    at: cython.Py_ssize_t = start
    index: cython.longlong
    fault: cython.Py_ssize_t
    size: cython.Py_ssize_t
    prefixes: cython.Py_ssize_t
    payload: cython.longlong = 0
    largest: cython.longlong = 0
    arguments: cython.longlong
    record: Record
    for index in range(count):
        record = read_record(p, at, end, index, base)
        if record.end < 0:
            raise record_fault(record.end, index, at - start)
        if more_arguments >= 0:
            arguments = 2 * ((record.key_size >= 0) + (record.value_size >= 0) + record.header_count)
            if arguments + more_arguments > MAX_FIELD_ARGUMENTS:
                raise too_many_headers(index, record.header_count)
        fault, size, prefixes = measure_headers(p, record)
        if fault < 0:
            raise record_fault(fault, index, at - start)
        size += max(record.key_size, 0) + max(record.value_size, 0)
        payload += size
        largest = max(largest, size + prefixes)
        if finding and index >= from_index and record.timestamp >= wanted:
            return index, record.timestamp
        newest = max(newest, record.timestamp)
        oldest = min(oldest, record.timestamp)
        if record.key_size < 0:
            keyless += 1
        at = record.end
    if at != end:
        raise trailing_bytes(end - at, count)
    return None if finding else RecordSummary(newest, oldest, keyless, payload, largest)


def find_invalid(
    data: BytesLike,
    start: int,
    header: BatchHeader,
    records: bytes | None,
    earliest_ms: int,
    latest_ms: int,
    keyed: bool,
    most: int,
) -> list[tuple[int, int, bool]]:
    """The first `most` records of the batch at data[start:] whose timestamp is out of range, or which have no
    key although `keyed`: (index, timestamp in ms, whether the key is missing). The timestamp -1 is valid.

    `header` and `records` are as for `encode_append`, which has checked the records before. Raises
    BatchError("invalid_record").
    """
    data, first, end = records_section(data, start, header, records)
    return _invalid(data, first, end, header, earliest_ms, latest_ms, keyed, most)


@cython.cfunc
def _invalid(
    data: object,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    header: object,
    earliest: cython.longlong,
    latest: cython.longlong,
    keyed: cython.bint,
    most: cython.Py_ssize_t,
):
    view: cython.const[cython.uchar][::1] = data
    p: BytesPointer = buffer_pointer(view)
    base: cython.longlong = header.base_timestamp_ms
    count: cython.longlong = header.record_count
    found: list = []
    index: cython.longlong
    record: Record
    for index in range(count):
        record = read_record(p, at, end, index, base)
        if record.end < 0:
            raise record_fault(record.end, index, 0)
        keyless: cython.bint = keyed and record.key_size < 0
        early: cython.bint = record.timestamp < earliest and record.timestamp != -1
        if keyless or early or record.timestamp > latest:
            found.append((index, record.timestamp, bool(keyless)))
            if len(found) >= most:
                break
        at = record.end
    return found
