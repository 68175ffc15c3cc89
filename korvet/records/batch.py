"""What the record kernel takes and returns: plain data, shared by its compiled and uncompiled forms."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

FaultKind = Literal["corrupt", "unsupported_magic", "unsupported_codec", "invalid_record", "too_large"]
BytesLike = bytes | bytearray | memoryview
_LINE_END: Final = b"\r\n"


class BatchError(ValueError):
    """A record batch that cannot be accepted.

    `kind` says which Kafka error it maps to: corrupt (CORRUPT_MESSAGE), unsupported_magic
    (UNSUPPORTED_FOR_MESSAGE_FORMAT), unsupported_codec (UNSUPPORTED_COMPRESSION_TYPE), invalid_record
    (INVALID_RECORD), too_large (MESSAGE_TOO_LARGE). The message says what is wrong and where.
    """

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The fixed 61 bytes in front of a record batch's records (Kafka's RecordBatch, magic 2)."""

    size: int
    """Bytes of the whole batch, the 12 bytes of base offset and length included."""
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
    """As the writer says; `AppendArguments.max_timestamp_ms` is the one that the records have."""
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class RecordSummary(msgspec.Struct, frozen=True, gc=False):
    """What is to be known of a batch's records, which are sound, before the batch is kept as it is."""

    max_timestamp_ms: int
    min_timestamp_ms: int
    keyless_count: int
    """Records without a key."""


class AppendArguments(msgspec.Struct, frozen=True, gc=False):
    """The variable arguments of an append function, ready for the wire."""

    resp: bytes
    """RESP bulk strings. For korvet_append per record: the number m of field arguments, the 1-based position
    of the timestamp's value among them (0: none), then m strings: field, value, field, value. For
    korvet_append_batch: the largest timestamp, the batch."""
    argc: int
    """Number of bulk strings in `resp`."""
    record_count: int
    max_timestamp_ms: int
    min_timestamp_ms: int
    payload_bytes: int
    """Bytes of all keys, values, header names and header values."""
    keyless_count: int
    """Records without a key, which a compacted topic cannot take."""
    entry_count: int
    """Stream entries that hold the records: one for each, or one for all."""
    append_ms: int = -1
    """The append time that the batch itself says; -1 where Redis's clock says it."""


# Records between two points of a log's index.
SPAN_RECORDS: Final = 256


class Span(NamedTuple):
    """The entries between two points of a log's index."""

    records: int
    entries: int
    size_bytes: int
    """Of field names and values."""
    newest_ms: int
    """The largest timestamp."""


class AppendCommands(msgspec.Struct, frozen=True, gc=False):
    """A batch as XADD commands of given entry IDs, but for its first entry, of which there are the fields: a
    function may add it.
    """

    position: int
    """The first record's position, its offset as an entry ID: one number, ms << 10 | sequence."""
    first: bytes
    """The first entry's field arguments as RESP bulk strings; up to the bytes of the last one where that is
    `batch`."""
    first_argc: int
    """Number of these bulk strings."""
    rest: bytes
    """The commands that add the other entries, one after the other."""
    record_count: int
    max_timestamp_ms: int
    min_timestamp_ms: int
    payload_bytes: int
    """As in AppendArguments."""
    keyless_count: int
    largest_bytes: int
    """Of one entry: field names and values."""
    size_bytes: int
    """Of all bulk strings and commands, nearly."""
    spans: tuple[Span, ...]
    """Of 256 records each, and of what is left, or one for all that are one entry."""
    entry_count: int
    append_ms: int = -1
    batch: bytes = b""
    """All records as they are kept, where they are one entry."""

    @property
    def first_arguments(self) -> bytes:
        """The first entry's field arguments, whole."""
        return b"".join((self.first, self.batch, _LINE_END)) if self.batch else self.first

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The first entry's field arguments and the commands that add the others, without copying `batch`."""
        if self.batch:
            return self.first, self.batch, _LINE_END
        return (self.first, self.rest) if self.rest else (self.first,)

    @property
    def first_entry(self) -> int:
        """The position of the first entry: of its last record, where it holds all of them."""
        return self.position + self.record_count - self.entry_count


class Entries(msgspec.Struct, frozen=True, gc=False):
    """Stream entries as Kafka record batches. Offsets are packed ones."""

    data: bytes
    """Record batches (magic 2) one after the other, uncompressed but for those that are entries as they are;
    empty when there is no record."""
    record_count: int
    first_offset: int
    """Of the first record, which may lie before what was asked for, in a batch; -1 when there is none."""
    last_offset: int
    """Of the last record; -1 when there is none."""
    consumed_entries: int
    """Entries turned into records, plus the unaddressable ones among and directly behind them."""
    unaddressable: int
    """Entries whose ID no offset can name (sequence above 1023, or past int64): skipped."""
    truncated: bool
    """There were more entries than max_bytes had room for."""
    next_offset: int
    """Where to read on: the first offset behind all consumed entries; -1 when none was consumed."""
    damaged_offset: int = -1
    """Of the first entry that was not consumed, if that is a record batch which cannot be read; else -1."""
