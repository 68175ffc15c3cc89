"""A row as a stream entry: the fields that a broker writes, and what it refuses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from korvet.offsets.entry_fields import HEADER_PREFIX, KEY, NULL_HEADER_PREFIX, TIMESTAMP, VALUE
from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from korvet.spark.source.sink.columns import SinkRow
    from korvet.spark.source.topics import TopicInfo

# A script takes about 8,000 arguments; the limit of brokers.
_MOST_FIELD_STRINGS = 3900
# The size of a record as Kafka's producer estimates it, in bytes: header of its batch, and of the record.
_BATCH_OVERHEAD = 61
_RECORD_OVERHEAD = 21
_LENGTH_OVERHEAD = 5


class Entry(NamedTuple):
    """A record for korvet_xadd_once.

    arguments: number of the strings of its fields, place of the timestamp among them (0: none), the strings.
    content: what the record consists of, as bytes that differ for different records. size: its bytes.
    """

    arguments: tuple[bytes, ...]
    content: bytes
    size: int


def entry_of(row: SinkRow, topic: TopicInfo) -> Entry:
    """Return the row's entry in a topic. Raises SourceError if a broker would refuse the record."""
    if row.key is None and topic.compacted:
        raise SourceError("a compacted topic takes no records without a key")
    fields: list[bytes] = []
    if row.key is not None:
        fields += (KEY, row.key)
    if row.value is not None:
        fields += (VALUE, row.value)
    place = len(fields) + 2
    headers = _header_fields(row)
    content = _content(row, fields, headers)
    size = sum(map(len, fields)) + sum(map(len, headers))
    _check_size(row, size, topic)
    timestamp = _timestamp(row, topic)
    if timestamp is not None:
        fields += (TIMESTAMP, timestamp)
    elif not fields and not headers:
        # An entry needs a field; as brokers write it.
        fields += (TIMESTAMP, b"0")
    strings = (*fields, *headers)
    if len(strings) > _MOST_FIELD_STRINGS:
        raise SourceError(f"{len(row.headers)} headers are too many for one entry")
    numbers = (b"%d" % len(strings), b"%d" % (place if timestamp is not None else 0))
    return Entry((*numbers, *strings), content, size)


def _header_fields(row: SinkRow) -> list[bytes]:
    fields: list[bytes] = []
    for name, value in row.headers:
        if name is None:
            raise SourceError("a header has no key")
        prefix = NULL_HEADER_PREFIX if value is None else HEADER_PREFIX
        fields += (prefix + name.encode(), value or b"")
    return fields


def _content(row: SinkRow, fields: list[bytes], headers: list[bytes]) -> bytes:
    timestamp = b"" if row.timestamp_ms is None else b"%d" % row.timestamp_ms
    parts = (timestamp, *fields, *headers)
    return b"%d;" % len(parts) + b"".join(b"%d:%b" % (len(part), part) for part in parts)


def _check_size(row: SinkRow, size: int, topic: TopicInfo) -> None:
    lengths = _LENGTH_OVERHEAD * (2 + 2 * len(row.headers))
    size += _BATCH_OVERHEAD + _RECORD_OVERHEAD + lengths
    if size > topic.max_message_bytes:
        raise SourceError(
            f"the record of about {size} bytes exceeds max.message.bytes {topic.max_message_bytes}"
        )


def _timestamp(row: SinkRow, topic: TopicInfo) -> bytes | None:
    """The text of the absolute timestamp; None if the time of the entry ID is the timestamp.

    On dense topics the ID is no time: a record without a timestamp gets this machine's time, as from Kafka's
    producers. With LogAppendTime, Redis overwrites it.
    """
    if topic.dense:
        if row.timestamp_ms is None or topic.log_append_time:
            return b"%d" % (time.time_ns() // 1_000_000)
    elif row.timestamp_ms is None or topic.log_append_time:
        return None
    now_ms = time.time_ns() // 1_000_000
    if row.timestamp_ms < now_ms - topic.timestamp_before_max_ms:
        raise SourceError(
            f"the timestamp {row.timestamp_ms} ms is further in the past than the topic's "
            f"message.timestamp.before.max.ms {topic.timestamp_before_max_ms} allows"
        )
    if row.timestamp_ms > now_ms + topic.timestamp_after_max_ms:
        raise SourceError(
            f"the timestamp {row.timestamp_ms} ms is further in the future than the topic's "
            f"message.timestamp.after.max.ms {topic.timestamp_after_max_ms} allows"
        )
    return b"%d" % row.timestamp_ms
