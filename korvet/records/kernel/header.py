"""The header of a record batch: checked and read, or written."""

from __future__ import annotations

from korvet.records.batch import BatchError, BatchHeader, BytesLike
from korvet.records.kernel.header_fields import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    LEADER_EPOCH_AT,
    LENGTH_AT,
    LENGTH_EXCLUDES,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP_AT,
    NEWEST_CODEC,
    NO_SEQUENCE,
    PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT,
    RECORD_COUNT_AT,
    SMALLEST_RECORD_SIZE,
    TRANSACTIONAL,
)
from korvet.records.kernel.integers import int16, int32, int64, put_int, uint32
from korvet.records.kernel.octets import BytesPointer, OutputBuffer, buffer_pointer, checksum, copy

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

# The fields of a header that is written; its batch is at `at`.
OpenBatch = cython.struct(
    at=cython.Py_ssize_t,
    count=cython.longlong,
    base_offset=cython.longlong,
    last_offset=cython.longlong,
    base_timestamp=cython.longlong,
    max_timestamp=cython.longlong,
    attributes=cython.longlong,
    producer=cython.longlong,
    epoch=cython.longlong,
    base_sequence=cython.longlong,
    leader_epoch=cython.longlong,
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def put_header_start(
    w: cython.p_uchar,
    at: cython.Py_ssize_t,
    base_offset: cython.longlong,
    size: cython.Py_ssize_t,
    leader_epoch: cython.longlong,
) -> cython.Py_ssize_t:
    """Write base offset, length and leader epoch of a batch of `size` bytes.

    Returns the position after them.
    """
    put_int(w, at, base_offset, 8)
    put_int(w, at + LENGTH_AT, size - LENGTH_EXCLUDES, 4)
    return put_int(w, at + LEADER_EPOCH_AT, leader_epoch, 4)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def close_batch(w: cython.p_uchar, end: cython.Py_ssize_t, batch: OpenBatch) -> cython.Py_ssize_t:
    """Write the header of the batch that ends at `end`; its records are written already. Returns `end`."""
    at: cython.Py_ssize_t = batch.at
    put_header_start(w, at, batch.base_offset, end - at, batch.leader_epoch)
    w[at + MAGIC_AT] = MAGIC
    put_int(w, at + ATTRIBUTES_AT, batch.attributes, 2)
    put_int(w, at + LAST_OFFSET_DELTA_AT, batch.last_offset - batch.base_offset, 4)
    put_int(w, at + BASE_TIMESTAMP_AT, batch.base_timestamp, 8)
    put_int(w, at + MAX_TIMESTAMP_AT, batch.max_timestamp, 8)
    put_int(w, at + PRODUCER_ID_AT, batch.producer, 8)
    put_int(w, at + PRODUCER_EPOCH_AT, batch.epoch, 2)
    put_int(w, at + BASE_SEQUENCE_AT, NO_SEQUENCE if batch.attributes & CONTROL else batch.base_sequence, 4)
    put_int(w, at + RECORD_COUNT_AT, batch.count, 4)
    put_int(w, at + CRC_AT, checksum(w, at + ATTRIBUTES_AT, end - at - ATTRIBUTES_AT), 4)
    return end


def place_batch(batch: BytesLike, base_offset: int, leader_epoch: int) -> bytes:
    """A copy of the record batch with base offset and leader epoch set, which the CRC does not cover.

    Raises BatchError("corrupt") if there is no whole header.
    """
    view: cython.const[cython.uchar][::1] = batch
    size: cython.Py_ssize_t = len(view)
    if size < HEADER_SIZE:
        raise BatchError("corrupt", f"{size} bytes are no whole batch header")
    p: BytesPointer = buffer_pointer(view)
    buffer: OutputBuffer = OutputBuffer(size)
    w: cython.p_uchar = buffer.start()
    put_header_start(w, 0, base_offset, size, leader_epoch)
    copy(w, MAGIC_AT, p, MAGIC_AT, size - MAGIC_AT)
    return buffer.take(size)


def parse_batch(data: BytesLike, start: int) -> BatchHeader:
    """Check the record batch at data[start:] and read its header; the next batch starts at start + size.

    Length, magic 2, CRC32C, codec, counts and producer fields are checked; `encode_append` checks the
    records. Raises BatchError (corrupt, unsupported_magic, unsupported_codec, invalid_record).
    """
    view: cython.const[cython.uchar][::1] = data
    at: cython.Py_ssize_t = start
    left: cython.Py_ssize_t = len(view) - at
    if at < 0 or left < HEADER_SIZE:
        raise _magic_or_short(view, at, left)
    p: BytesPointer = buffer_pointer(view)
    length: cython.longlong = int32(p, at + LENGTH_AT)
    if p[at + MAGIC_AT] != MAGIC:
        raise _old_magic(p[at + MAGIC_AT], start)
    if length < HEADER_SIZE - LENGTH_EXCLUDES:
        raise BatchError("corrupt", f"batch at byte {start}: its length {length} is shorter than its header")
    if length > left - LENGTH_EXCLUDES:
        missing = length - (left - LENGTH_EXCLUDES)
        raise BatchError(
            "corrupt", f"batch at byte {start}: cut off, {missing} of {length} bytes are missing"
        )
    stored: cython.uint = uint32(p, at + CRC_AT)
    computed: cython.uint = checksum(p, at + ATTRIBUTES_AT, length + LENGTH_EXCLUDES - ATTRIBUTES_AT)
    if stored != computed:
        raise BatchError(
            "corrupt", f"batch at byte {start}: its CRC is {stored:08x}, its bytes give {computed:08x}"
        )
    attributes: cython.int = (p[at + ATTRIBUTES_AT] << 8) | p[at + ATTRIBUTES_AT + 1]
    header = BatchHeader(
        length + LENGTH_EXCLUDES,
        int64(p, at),
        int32(p, at + LEADER_EPOCH_AT),
        attributes,
        attributes & CODEC_MASK,
        (attributes & TRANSACTIONAL) != 0,
        (attributes & CONTROL) != 0,
        (attributes & LOG_APPEND_TIME) != 0,
        int32(p, at + LAST_OFFSET_DELTA_AT),
        int64(p, at + BASE_TIMESTAMP_AT),
        int64(p, at + MAX_TIMESTAMP_AT),
        int64(p, at + PRODUCER_ID_AT),
        int16(p, at + PRODUCER_EPOCH_AT),
        int32(p, at + BASE_SEQUENCE_AT),
        int32(p, at + RECORD_COUNT_AT),
    )
    _check_header(header, start)
    return header


def _magic_or_short(data: BytesLike, start: int, left: int) -> BatchError:
    """The error for fewer bytes than a header. A batch of magic 0 or 1 is shorter and has its own error."""
    if start >= 0 and left > MAGIC_AT:
        magic = bytes(data[start + MAGIC_AT : start + MAGIC_AT + 1])[0]
        if magic < MAGIC:
            return _old_magic(magic, start)
    return BatchError("corrupt", f"batch at byte {start}: {max(left, 0)} bytes are no whole batch header")


def _old_magic(magic: int, start: int) -> BatchError:
    return BatchError("unsupported_magic", f"batch at byte {start}: magic {magic}, only 2 is accepted")


def _check_header(header: BatchHeader, start: int) -> None:
    """What Kafka's broker checks of a batch before it reads the records."""
    if header.codec > NEWEST_CODEC:
        raise BatchError(
            "unsupported_codec", f"batch at byte {start}: unknown compression codec {header.codec}"
        )
    count = header.record_count
    if count <= 0:
        raise BatchError("invalid_record", f"batch at byte {start}: record count {count}")
    if header.last_offset_delta != count - 1:
        raise BatchError(
            "invalid_record",
            f"batch at byte {start}: last offset delta {header.last_offset_delta} with {count} records",
        )
    if header.codec == 0 and count > (header.size - HEADER_SIZE) // SMALLEST_RECORD_SIZE:
        raise BatchError(
            "invalid_record",
            f"batch at byte {start}: {header.size - HEADER_SIZE} bytes can't hold {count} records",
        )
    if (
        header.producer_id >= 0
        and not header.control
        and (header.base_sequence < 0 or header.producer_epoch < 0)
    ):
        raise BatchError(
            "invalid_record",
            f"batch at byte {start}: producer {header.producer_id} with epoch {header.producer_epoch}, "
            f"sequence {header.base_sequence}",
        )
