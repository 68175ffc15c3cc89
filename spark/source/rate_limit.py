"""Rate limits in records: shares of partitions, and the offset that is a number of records further."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from korvet.offsets.packing import AddressError, offset_of
from korvet.spark.source.extents import start_offset
from korvet.spark.source.index import Index
from korvet.spark.source.pages import pages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.spark.records.page import Entry
    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import StreamRange, TopicPartition


def shares(available: Mapping[TopicPartition, int], records: int) -> dict[TopicPartition, int]:
    """Return the partitions' shares of `records`, in proportion to their available records.

    The remainder of rounding goes to the partitions with the most records.
    """
    total = max(1, sum(available.values()))
    found = {topic_partition: count * records // total for topic_partition, count in available.items()}
    left = records - sum(found.values())
    for topic_partition in sorted(
        available, key=lambda topic_partition: (-available[topic_partition], topic_partition)
    )[:left]:
        found[topic_partition] += 1
    return found


def advance(connection: SourceConnection, part: StreamRange, records: int) -> tuple[int, int]:
    """Return the offset that is `records` records after the start of the range, and the records before it.

    The offset is at most the end of the range. The records include deleted ones. Uses the index as far as it
    reaches, then reads entries.
    """
    reached, counted = _jump(connection, part, records)
    with closing(pages(connection, replace(part, start_offset=reached, first_id=None))) as found:
        for page in found:
            for entry in page:
                first, last = _extent(entry, part.origin.bias)
                first = max(first, reached)
                if counted + last - first + 1 > records:
                    return min(part.end_offset, first + records - counted), records
                counted += last - first + 1
                reached = last + 1
    return part.end_offset, counted


def _jump(connection: SourceConnection, part: StreamRange, records: int) -> tuple[int, int]:
    """Offset of the last index point within `records` records, and the number of records before it."""
    index = Index(connection, f"{{{part.stream}}}:index")
    floor = index.floor(part.start_offset)
    if floor is None:
        return part.start_offset, 0
    skipped = 0
    if floor.offset < part.start_offset:
        skipped = _count(connection, replace(part, start_offset=floor.offset, end_offset=part.start_offset))
    goal = floor.before + skipped + records
    found = index.last_where([lambda point: point.before <= goal and point.offset <= part.end_offset])[0]
    if found is None or found[1].offset <= part.start_offset:
        return part.start_offset, 0
    return found[1].offset, found[1].before - floor.before - skipped


def _count(connection: SourceConnection, part: StreamRange) -> int:
    records = 0
    with closing(pages(connection, replace(part, first_id=None))) as found:
        for page in found:
            for entry in page:
                first, last = _extent(entry, part.origin.bias)
                records += max(0, min(last + 1, part.end_offset) - max(first, part.start_offset))
    return records


def _extent(entry: Entry, bias: int) -> tuple[int, int]:
    """First and last offset of an entry's records; an empty extent for an entry without an offset."""
    first = start_offset(entry, bias)
    try:
        return first, offset_of(entry[0], bias)
    except AddressError:
        return first, first - 1
