"""Record batches with some of their records, as compaction keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.offsets.record_batch import CHECKED_HEADER, HEADER_BYTES, MAX_PRODUCER_SEQUENCE, read_varint
from korvet.records.assembly import assemble_batch
from korvet.records.batch import BatchError
from korvet.records.compression import compress, decompress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from korvet.records.batch import BatchHeader

# The records' size was bounded when they were produced.
_MAX_RECORDS_BYTES: Final = (1 << 31) - 1


class KeyedRecord(NamedTuple):
    """A record of a batch: the parts that decide whether it is kept, and its bytes."""

    key: bytes | None
    tombstone: bool
    timestamp_delta: int
    """ms after the batch's base timestamp."""
    before: bytes
    """The bytes before the offset delta: attributes and timestamp delta."""
    after: bytes
    """The bytes after the offset delta: key, value and headers."""

    @property
    def value(self) -> bytes | None:
        """The record's value; None for a tombstone."""
        key_length, value_at = read_varint(self.after, 0)
        length, start = read_varint(self.after, value_at + max(key_length, 0))
        return None if length < 0 else self.after[start : start + length]


def records_of(data: bytes, header: BatchHeader, plain: bytes | None = None) -> list[KeyedRecord]:
    """The records of a whole batch, which was checked when it was produced; `plain` are its decompressed
    records if the caller has them. Raises BatchError.
    """
    try:
        if plain is None:
            section = memoryview(data)[HEADER_BYTES : header.size]
            plain = decompress(header.codec, section, _MAX_RECORDS_BYTES) if header.codec else bytes(section)
        found = list(_records(plain))
    except IndexError:
        raise BatchError("corrupt", "a record extends beyond its batch") from None
    if len(found) != header.record_count:
        raise BatchError("corrupt", f"{len(found)} records, but the header counts {header.record_count}")
    return found


def runs_of(
    header: BatchHeader, records: list[KeyedRecord], kept: Iterable[int]
) -> Iterator[tuple[int, bytes]]:
    """The records at the ascending indexes `kept` as batches without holes: (last offset, batch).

    Offsets, timestamps, codec and producer do not change.
    """
    run: list[int] = []
    for place in kept:
        if run and place != run[-1] + 1:
            yield _run(header, records, run)
            run = []
        run.append(place)
    if run:
        yield _run(header, records, run)


def _records(plain: bytes) -> Iterator[KeyedRecord]:
    at = 0
    while at < len(plain):
        length, start = read_varint(plain, at)
        at = start + length
        if length < 0 or at > len(plain):
            raise IndexError
        timestamp_delta, place = read_varint(plain, start + 1)
        _, after = read_varint(plain, place)
        key_length, key_at = read_varint(plain, after)
        value_at = key_at + max(key_length, 0)
        key = None if key_length < 0 else plain[key_at:value_at]
        value_length, _ = read_varint(plain, value_at)
        yield KeyedRecord(key, value_length < 0, timestamp_delta, plain[start:place], plain[after:at])


def _run(header: BatchHeader, records: list[KeyedRecord], run: list[int]) -> tuple[int, bytes]:
    parts: list[bytes] = []
    for delta, place in enumerate(run):
        record = records[place]
        body = b"".join((record.before, _encode(delta), record.after))
        parts += (_encode(len(body)), body)
    newest_ms = header.max_timestamp_ms
    if not header.log_append_time:
        newest_ms = header.base_timestamp_ms + max(records[place].timestamp_delta for place in run)
    sequence = header.base_sequence
    checked_header = CHECKED_HEADER.pack(
        header.attributes,
        len(run) - 1,
        header.base_timestamp_ms,
        newest_ms,
        header.producer_id,
        header.producer_epoch,
        (sequence + run[0]) & MAX_PRODUCER_SEQUENCE if sequence >= 0 else sequence,
        len(run),
    )
    first = header.base_offset + run[0]
    records_section = compress(header.codec, b"".join(parts))
    batch = assemble_batch(first, header.leader_epoch, checked_header, records_section)
    return header.base_offset + run[-1], batch


def _encode(number: int) -> bytes:
    """A number, not negative, as a zigzag varint."""
    left = number << 1
    octets = bytearray()
    while left >= 0x80:
        octets.append(left & 0x7F | 0x80)
        left >>= 7
    octets.append(left)
    return bytes(octets)
