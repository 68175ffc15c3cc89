"""What the record kernel takes and returns: plain data, shared by its compiled and uncompiled forms."""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec

FaultKind = Literal["corrupt", "unsupported_magic", "unsupported_codec", "invalid_record", "too_large"]
BytesLike = bytes | bytearray | memoryview
_LINE_END: Final = b"\r\n"


class BatchError(ValueError):
    """A record batch that cannot be accepted.

    `kind` maps to a Kafka error: corrupt (CORRUPT_MESSAGE), unsupported_magic
    (UNSUPPORTED_FOR_MESSAGE_FORMAT), unsupported_codec (UNSUPPORTED_COMPRESSION_TYPE), invalid_record
    (INVALID_RECORD), too_large (MESSAGE_TOO_LARGE). The message names the fault and its position.
    """

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a record batch (korvet.offsets.record_batch), before its records."""

    size: int
    """Size of the whole batch in bytes, base offset and length included."""
    base_offset: int
    leader_epoch: int
    attributes: int
    codec: int
    """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
    transactional: bool
    control: bool
    """A control batch: only brokers write these."""
    log_append_time: bool
    """Timestamp type LogAppendTime, else CreateTime (KIP-32)."""
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    """The largest timestamp according to the header; AppendArguments.max_timestamp_ms is computed from the
    records.
    """
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class RecordSummary(msgspec.Struct, frozen=True, gc=False):
    """Facts about the records of a sound batch that is sent unchanged."""

    max_timestamp_ms: int
    min_timestamp_ms: int
    keyless_count: int
    """Records without a key."""
    payload_bytes: int
    """Bytes of all keys, values, header names and header values."""
    largest_bytes: int
    """The same of the largest record."""


class AppendForm(enum.IntEnum):
    """How a batch arrives at korvet_append."""

    RECORDS = 1
    """As an XADD's arguments for each record."""
    WHOLE = 2
    """As it is stored in one entry."""
    PACKED = 3
    """As it was sent, decompressed, for the server module."""


class AppendArguments(msgspec.Struct, frozen=True, gc=False):
    """A batch as arguments of korvet_append."""

    resp: bytes
    """RESP bulk strings. Of the form RECORDS, the first one has three bytes for each record: half the number
    of its field arguments, big-endian, and half the 1-based position of the timestamp's value among them (0:
    none). Then these arguments follow: field, value, field, value. If `batch` is not empty, it ends the last
    of these strings, and `resp` ends before its bytes."""
    argc: int
    """Number of the bulk strings."""
    record_count: int
    max_timestamp_ms: int
    min_timestamp_ms: int
    payload_bytes: int
    """Bytes of all keys, values, header names and header values."""
    keyless_count: int
    """Records without a key, which a compacted topic refuses."""
    largest_bytes: int
    """Bytes of the largest entry, nearly."""
    entry_count: int
    """Stream entries that hold the records: one entry for each record, or one for all."""
    form: AppendForm = AppendForm.RECORDS
    batch: BytesLike = b""
    append_ms: int = -1
    """The append time that the batch contains; -1 if Redis's clock decides it."""

    @property
    def pieces(self) -> tuple[BytesLike, ...]:
        """All bulk strings, without copying `batch`."""
        return (self.resp, self.batch, _LINE_END) if self.batch else (self.resp,)

    @property
    def size_bytes(self) -> int:
        """Bytes of the bulk strings, nearly."""
        return len(self.resp) + len(self.batch)


class Entries(msgspec.Struct, frozen=True, gc=False):
    """Stream entries as Kafka record batches. Offsets are packed ones."""

    data: bytes
    """Record batches (magic 2) one after the other; empty without records. Batches that are whole entries are
    unchanged, all others are uncompressed."""
    record_count: int
    first_offset: int
    """The first record's offset, which may be before the requested one in a batch; -1 without records."""
    last_offset: int
    """The last record's offset; -1 without records."""
    consumed_entries: int
    """Entries that became records, plus the unaddressable ones among and directly after them."""
    unaddressable: int
    """Skipped entries, whose ID has no offset (sequence above 1023, or beyond int64)."""
    truncated: bool
    """Whether max_bytes ended the result before the last entry."""
    next_offset: int
    """Where to read next: the first offset after all consumed entries; -1 if none was consumed."""
    damaged_offset: int = -1
    """Offset of the first entry that was not consumed if it is a damaged record batch, else -1."""
