"""What the record kernel takes and returns: plain data, shared by its compiled and uncompiled forms."""

from __future__ import annotations

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
    """Facts about the records of a sound batch that is stored unchanged."""

    max_timestamp_ms: int
    min_timestamp_ms: int
    keyless_count: int
    """Records without a key."""


class AppendArguments(msgspec.Struct, frozen=True, gc=False):
    """The variable arguments of an append function, as they are sent."""

    resp: bytes
    """RESP bulk strings. For korvet_append, per record: the number m of field arguments, the 1-based position
    of the timestamp's value among them (0: none), then m strings: field, value, field, value. For
    korvet_append_batch: the largest timestamp, the offset after the last record that readers have seen, and
    the batch."""
    argc: int
    """Number of bulk strings in `resp`."""
    record_count: int
    max_timestamp_ms: int
    min_timestamp_ms: int
    payload_bytes: int
    """Bytes of all keys, values, header names and header values."""
    keyless_count: int
    """Records without a key, which a compacted topic refuses."""
    entry_count: int
    """Stream entries that hold the records: one entry for each record, or one for all."""
    append_ms: int = -1
    """The append time that the batch contains; -1 if Redis's clock decides it."""


# Records between two points of a log's index.
SPAN_RECORDS: Final = 256


class Span(msgspec.Struct, frozen=True, gc=False):
    """The entries between two points of a log's index."""

    records: int
    entries: int
    size_bytes: int
    """Bytes of field names and values."""
    newest_ms: int
    """The largest timestamp."""


class AppendCommands(msgspec.Struct, frozen=True, gc=False):
    """A batch as commands with assigned entry IDs: an XADD for each entry, or one KORVET.ADD. The first entry
    is given as bare fields, because the guard may add it itself, and because a lost reply is replaced by
    comparing these fields.
    """

    position: int
    """The first record's entry ID as one number, ms << 10 | sequence."""
    first: bytes
    """The first entry's field arguments as RESP bulk strings. If `batch` is not empty, it is the last of
    these strings, and `first` ends before its bytes."""
    first_argc: int
    """Number of the bulk strings in `first`, `batch` included."""
    rest: bytes
    """The XADDs of the other entries, one after the other; empty with `add`."""
    record_count: int
    max_timestamp_ms: int
    min_timestamp_ms: int
    payload_bytes: int
    """Bytes of all keys, values, header names and header values."""
    keyless_count: int
    largest_bytes: int
    """The largest entry's bytes of field names and values."""
    size_bytes: int
    """Bytes of all bulk strings and commands, nearly."""
    spans: tuple[Span, ...]
    """SPAN_RECORDS records each, the rest in the last one; a single span if all records are one entry."""
    entry_count: int
    append_ms: int = -1
    batch: bytes = b""
    """The record batch as it is stored if all records are one entry, else empty."""
    add: tuple[BytesLike, ...] = ()
    """The KORVET.ADD that adds all entries, in pieces, so that no record is copied; empty if XADDs add
    them."""

    @property
    def command_count(self) -> int:
        """The commands between guard and seal."""
        return 1 if self.add else self.entry_count

    @property
    def first_arguments(self) -> bytes:
        """All field arguments of the first entry."""
        return b"".join((self.first, self.batch, _LINE_END)) if self.batch else self.first

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The first entry's field arguments and the XADDs of the others, without copying `batch`."""
        if self.batch:
            return self.first, self.batch, _LINE_END
        return (self.first, self.rest) if self.rest else (self.first,)

    @property
    def first_entry(self) -> int:
        """The first entry's ID as one number. An entry with all records has the ID of the last one."""
        return self.position + self.record_count - self.entry_count


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
