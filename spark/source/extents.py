"""The extent of each partition's stream (XINFO STREAM), and ranges of it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from korvet.offsets.packing import MAX_OFFSET, AddressError, offset_after, offset_of
from korvet.spark.records.batches import batch_records
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from korvet.spark.records.columns import Origin
    from korvet.spark.records.page import Entry
    from korvet.spark.source.address import Address
    from korvet.spark.source.connection import Arguments, SourceConnection
    from korvet.spark.source.topics import TopicInfo

# A partition's meta hash has its numbers in the field `log`, as big-endian doubles; the third is the log
# start. The field `gap_end` is the position of the first entry that compaction kept. The field `open` has the
# producer ID and the start of each open transaction.
_LOG_NUMBERS = struct.Struct(">14d")
_LOG_START = 2
_OPEN_TRANSACTION = struct.Struct(">2d")
TopicPartition = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of one partition at one moment (XINFO STREAM).

    log_start: 0 until a record is deleted, then the offset of the first remaining record. log_end: the offset
    after the last record ever added. first_offset: the first record's offset; log_end without records.
    entries: entries that remain. added: entries ever added. batch: number of records in the last entry.
    has_batches: whether an entry may be several records. open_note: the meta field `open`.
    """

    stream: str
    origin: Origin
    log_start: int = 0
    log_end: int = 0
    first_offset: int = 0
    entries: int = 0
    added: int = 0
    batch: int = 1
    has_batches: bool = False
    open_note: bytes = b""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return self.origin.topic, self.origin.partition

    @property
    def index(self) -> str:
        """The key of the sparse index."""
        return f"{{{self.stream}}}:index"

    @property
    def records(self) -> int:
        """Approximate number of records, as if all entries had as many as the last one."""
        return self.entries * self.batch

    def opened(self) -> dict[int, int]:
        """Return the open transactions, by producer ID: offsets at or before their first records.

        Raises SourceError if the note of them is damaged.
        """
        try:
            noted = _OPEN_TRANSACTION.iter_unpack(self.open_note)
            return {int(producer): int(first) for producer, first in noted}
        except (struct.error, OverflowError, ValueError) as error:
            raise SourceError(
                f"the open transactions of {self.origin.topic}-{self.origin.partition} can't be read: "
                f"the field 'open' of {{{self.stream}}}:meta is damaged ({error}). See korvet doctor"
            ) from error

    def opened_before(self, offset: int) -> dict[int, int]:
        """Return the open transactions that began before an offset. Raises SourceError as `opened` does."""
        return {producer: first for producer, first in self.opened().items() if first < offset}


@dataclass(frozen=True, slots=True)
class StreamRange:
    """A part of one partition: the offsets start_offset .. end_offset - 1, with about `records` records.

    first_id: ID of the first entry at the time of planning; if that entry is gone, records are lost.
    opened: transactions that are open, so that their records don't count. transactions: if given, the range
    has only records of these. Each transaction is its producer ID and first offset. topic_id: if given, the
    topic must still have this ID at the end of the read.
    """

    stream: str
    origin: Origin
    start_offset: int
    end_offset: int
    records: int
    first_id: bytes | None = None
    opened: tuple[tuple[int, int], ...] = ()
    transactions: tuple[tuple[int, int], ...] = ()
    topic_id: str = ""


def extents(
    connection: SourceConnection,
    address: Address,
    topics: Sequence[TopicInfo],
    wanted: Collection[TopicPartition] | None = None,
) -> list[Extent]:
    """Return the extents of the topics' partitions in order; with `wanted`, of these partitions only."""
    topic_partitions = [
        (topic, partition)
        for topic in topics
        for partition in range(topic.partitions)
        if wanted is None or (topic.name, partition) in wanted
    ]
    commands: list[Arguments] = []
    for topic, partition in topic_partitions:
        stream = address.stream(topic.name, partition)
        commands += [("XINFO", "STREAM", stream), ("HMGET", f"{{{stream}}}:meta", "log", "gap_end", "open")]
    replies = connection.replies(commands)
    found = []
    for (topic, partition), reply, meta in zip(topic_partitions, replies[::2], replies[1::2], strict=True):
        stream = address.stream(topic.name, partition)
        extent = Extent(stream, topic.origin(partition), has_batches=topic.has_batches)
        if isinstance(reply, ResponseError):
            if "no such key" not in str(reply):
                raise reply
        else:
            extent = _extent(extent, dict(zip(reply[::2], reply[1::2], strict=True)), meta)
        found.append(extent)
    return found


def _extent(empty: Extent, info: Mapping[bytes, Any], meta: Any) -> Extent:
    bias = empty.origin.bias
    entries, added = info[b"length"], info[b"entries-added"]
    end = _end_offset(info[b"last-generated-id"], bias)
    first, last = info[b"first-entry"], info[b"last-entry"]
    first_offset = start_offset(first, bias) if first else end
    log, gap_end, opened = meta if isinstance(meta, list) else (None, None, None)
    start = 0
    if log is not None and len(log) == _LOG_NUMBERS.size:
        start = min(end, int(_LOG_NUMBERS.unpack(log)[_LOG_START]))
    # Entries that compaction deleted before `gap_end` don't move the log start.
    if (start or added > entries) and first_offset + bias > int(gap_end or -1):
        start = max(start, first_offset)
    batch = batch_records(last[1], end - 1) or 1 if last else 1
    return replace(
        empty,
        log_start=start,
        log_end=end,
        first_offset=first_offset,
        entries=entries,
        added=added,
        batch=batch,
        has_batches=empty.has_batches or batch != 1,
        open_note=opened or b"",
    )


def start_offset(entry: Entry, bias: int) -> int:
    """Return the offset of an entry's first record; if the entry has no offset, the next possible offset."""
    end = _end_offset(entry[0], bias)
    try:
        last = offset_of(entry[0], bias)
    except AddressError:
        return end
    return end - (batch_records(entry[1], last) or 1)


def _end_offset(last_id: bytes, bias: int) -> int:
    return min(offset_after(last_id, bias), MAX_OFFSET)
