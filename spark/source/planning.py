"""From positions to ranges to tasks: where a read starts and ends, and its parts. Runs in the driver."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from korvet.offsets.packing import SEQUENCE_BITS, entry_id, offset_after
from korvet.spark.records.entries import columns_of
from korvet.spark.source.errors import DataLoss, SourceError
from korvet.spark.source.extents import Extent, StreamRange, extents, start_offset
from korvet.spark.source.index import Index, Point
from korvet.spark.source.pages import pages
from korvet.spark.source.settings import EARLIEST, LATEST
from korvet.spark.source.tasks import EVEN_TASKS, plan, plan_evenly
from korvet.spark.source.topics import load_topics, select_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.datasource import InputPartition

    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import TopicPartition
    from korvet.spark.source.settings import Positions, SourceOptions
    from korvet.spark.source.topics import TopicInfo

# Ranges of fewer records share a task, because starting a task takes longer than reading them.
TASK_RECORDS = 100_000
# Times in the index are doubles. Beyond the first number they may be rounded, by less than the second one.
_EXACT_MS = 1 << 52
_ROUNDING_MS = 2048


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics of a read, and the current extent of each of their partitions."""

    topics: Mapping[str, TopicInfo]
    extents: Mapping[TopicPartition, Extent]


def select(connection: SourceConnection, options: SourceOptions, *, missing: bool = False) -> Selection:
    """Return the topics to read that exist.

    missing: leave out a missing topic without an error. Raises SourceError for a missing topic or partition.
    """
    wanted = options.topics
    known = load_topics(connection, options.address, wanted.names)
    if wanted.pattern is not None:
        names = [name for name in sorted(known) if re.fullmatch(wanted.pattern, name)]
        topics = [known[name] for name in names if not known[name].internal]
    else:
        names = [name for name in wanted.names if name in known] if missing else list(wanted.names)
        topics = select_topics(known, names, options.address)
    for topic, partition in wanted.topic_partitions or ():
        if topic in known and partition >= known[topic].partitions:
            raise SourceError(
                f"assign names {topic}-{partition}; {topic} has {known[topic].partitions} partitions"
            )
    found = extents(connection, options.address, topics, wanted.topic_partitions)
    return Selection(
        {topic.name: topic for topic in topics},
        {extent.topic_partition: extent for extent in found},
    )


def check_named(positions: Positions, selection: Selection) -> None:
    """Raises SourceError for the position of a partition that is not read."""
    for topic, partition in positions.named:
        if (topic, partition) not in selection.extents:
            raise SourceError(
                f"{positions.option} names {topic}-{partition}, which does not exist or is not read"
            )


def begin(connection: SourceConnection, positions: Positions, extent: Extent) -> int:
    """Return the start offset. Raises SourceError if no record is that new, unless `no_match` is latest."""
    time_ms = positions.time_of(extent.topic_partition)
    if time_ms is None:
        wanted = positions.offset_of(extent.topic_partition)
        return {EARLIEST: extent.log_start, LATEST: extent.log_end}.get(wanted, wanted)
    found = first_since(connection, extent, time_ms)
    if found is None and positions.no_match == "error":
        raise SourceError(
            f"{positions.option}: {extent.origin.topic}-{extent.origin.partition} has no record with "
            f"timestamp {time_ms} or later; startingOffsetsByTimestampStrategy=latest starts at the end there"
        )
    return extent.log_end if found is None else found


def finish(connection: SourceConnection, positions: Positions, extent: Extent) -> int:
    """Return the end offset (exclusive), at most the log end."""
    time_ms = positions.time_of(extent.topic_partition)
    if time_ms is None:
        wanted = positions.offset_of(extent.topic_partition)
        return extent.log_end if wanted == LATEST else min(wanted, extent.log_end)
    found = first_since(connection, extent, time_ms)
    return extent.log_end if found is None else found


def check_loss(extent: Extent, start: int) -> None:
    """Raises DataLoss if records from `start` on may be gone."""
    topic, partition = extent.topic_partition
    if start < extent.log_start:
        raise DataLoss(
            f"{topic}-{partition} begins at offset {extent.log_start} now: the records from offset {start} "
            "to there are gone"
        )
    if start > extent.log_end:
        raise DataLoss(
            f"{topic}-{partition} ends at offset {extent.log_end}, before {start}: it was created again, "
            "or its newest records are lost"
        )


def whole(connection: SourceConnection, extent: Extent, start: int, end: int) -> StreamRange:
    """Return a part of a partition as a range; its records are estimated by the index, else by offsets."""
    first, last = max(start, extent.first_offset), min(end, extent.log_end)
    records = extent.records
    if first > extent.first_offset or last < extent.log_end:
        records = _estimate(connection, extent, first, last)
    return StreamRange(extent.stream, extent.origin, start, end, max(1, records))


def _estimate(connection: SourceConnection, extent: Extent, first: int, last: int) -> int:
    index = usable_index(connection, extent)
    known_from = index.floor(extent.first_offset) or next(index.after(0), None) if index is not None else None
    known_to = index.last() if index is not None else None
    if index is None or known_from is None or known_to is None:
        return extent.records * max(0, last - first) // max(1, extent.log_end - extent.first_offset)
    low, high = index.floor(first) or known_from, index.floor(last) or known_from
    behind = max(0, extent.records - (known_to.before - known_from.before))
    share = max(0, last - max(first, known_to.offset)) / max(1, extent.log_end - known_to.offset)
    return high.before - low.before + int(behind * share)


def indexed(connection: SourceConnection, part: StreamRange) -> StreamRange:
    """Return the range with the number of records that the index counts in it, which no later record changes.

    Without an index, it is returned as it is.
    """
    index = Index(connection, f"{{{part.stream}}}:index")
    counted = _counted(index, part)
    if counted is not None:
        return replace(part, records=max(1, counted[1].before - counted[0].before))
    return replace(part, records=1) if index.points else part


def usable_index(connection: SourceConnection, extent: Extent) -> Index | None:
    """Return the partition's index; None without one, or if it belongs to an earlier stream."""
    index = Index(connection, extent.index)
    last = index.last()
    return None if last is None or last.offset >= extent.log_end else index


def first_since(connection: SourceConnection, extent: Extent, time_ms: int) -> int | None:
    """Return the offset of the first record with a timestamp of at least `time_ms`; None without one.

    Reads the spans of the index that may contain the record, and all records after the index. If entry IDs
    are the timestamps, reads from the ID of that time on.
    """
    if extent.origin.append_times:
        start = min(extent.log_end, max(extent.log_start, time_ms << SEQUENCE_BITS))
        return _scan_since(connection, _part(extent, start, extent.log_end), time_ms)
    index = usable_index(connection, extent)
    start = extent.log_start
    indexed_ms = time_ms if time_ms <= _EXACT_MS else time_ms - _ROUNDING_MS
    for point in _points_since(index, indexed_ms) if index is not None else ():
        span_ms = point.largest_in_span_ms
        if point.offset > start and (span_ms is None or span_ms >= indexed_ms):
            found = _scan_since(connection, _part(extent, start, point.offset), time_ms)
            if found is not None:
                return found
        start = max(start, point.offset)
    return _scan_since(connection, _part(extent, start, extent.log_end), time_ms)


def _part(extent: Extent, start: int, end: int) -> StreamRange:
    return StreamRange(extent.stream, extent.origin, start, end, 0)


def _points_since(index: Index, time_ms: int) -> Iterator[Point]:
    """The points from the last one before which all records are older. Only later records can match."""
    found = index.older_than(time_ms)
    rank = found[0] if found else 0
    for at, point in enumerate(index.after(rank)):
        yield replace(point, largest_in_span_ms=time_ms - 1) if at == 0 and rank > 0 else point


def _scan_since(connection: SourceConnection, part: StreamRange, time_ms: int) -> int | None:
    with closing(pages(connection, part)) as found:
        for page in found:
            columns = columns_of(page, part.origin, part.start_offset, part.end_offset)
            rows = zip(columns.offsets.tolist(), columns.timestamps_ms, strict=True)
            hit: int | None = next((offset for offset, ms in rows if ms >= time_ms), None)
            if hit is not None:
                return hit
    return None


def since(connection: SourceConnection, extent: Extent, start: int, time_ms: int) -> int:
    """Return an offset of at least `start` before which no timestamp is `time_ms` or later.

    Uses the entry IDs if these are the timestamps, else only the index: producers' timestamps need not follow
    the times of entries.
    """
    if extent.origin.append_times:
        return max(start, time_ms << SEQUENCE_BITS)
    index = usable_index(connection, extent)
    found = index.older_than(time_ms) if index is not None else None
    return max(start, found[1].offset) if found and found[0] > 0 else start


def stable_end(options: SourceOptions, selection: Selection, part: StreamRange) -> int:
    """Return the end of a range of a read_committed query, before the first open transaction.

    With openTransactions=pass, it is the range's own end. Raises SourceError if the note of the open
    transactions is damaged.
    """
    if not options.read_committed or options.pass_open:
        return part.end_offset
    opened = selection.extents[part.origin.topic, part.origin.partition].opened()
    return max(part.start_offset, min([part.end_offset, *opened.values()]))


def only_open(connection: SourceConnection, selection: Selection, part: StreamRange) -> StreamRange:
    """Return the part of a range that contains the records of open transactions; empty without any.

    Raises SourceError as `stable_end` does.
    """
    extent = selection.extents[part.origin.topic, part.origin.partition]
    opened = extent.opened_before(part.end_offset)
    if not opened:
        return replace(part, start_offset=part.end_offset)
    found = whole(connection, extent, max(part.start_offset, min(opened.values())), part.end_offset)
    return replace(found, transactions=tuple(sorted(opened.items())))


def records_per_task(options: SourceOptions, ranges: Sequence[StreamRange], *, spread: bool) -> int:
    """Return the approximate number of records per task that gives at least minPartitions tasks.

    spread: give many records to EVEN_TASKS tasks at least, so that one long partition is not the work of one
    task while the others are done.
    """
    total = sum(part.records for part in ranges)
    most = min(options.partition_records, -(-total // options.min_partitions))
    if spread:
        most = min(most, max(TASK_RECORDS, -(-total // EVEN_TASKS)))
    return max(1, most)


def divide(connection: SourceConnection, ranges: Sequence[StreamRange], records: int) -> list[StreamRange]:
    """Return the ranges in pieces of about `records` records each.

    Divides by the index as far as it reaches. Halves the rest repeatedly, by entry ID between its first and
    last entry, because gaps contain no records.
    """
    divided: list[StreamRange] = []
    for part in ranges:
        divided += [part] if part.records <= records else _pieces(connection, part, records)
    return divided


def _pieces(connection: SourceConnection, part: StreamRange, target: int) -> list[StreamRange]:
    index = Index(connection, f"{{{part.stream}}}:index")
    counted = _counted(index, part)
    if counted is None:
        return _halved(connection, part, -(-part.records // target))
    first, last = counted
    goals = range(first.before + target, last.before, target)
    found = index.last_where([_before_at_most(goal) for goal in goals])
    cuts = sorted({point.offset for _, point in filter(None, found)})
    cuts = [cut for cut in cuts if part.start_offset < cut < last.offset]
    pieces = _cut(replace(part, end_offset=last.offset), cuts, target)
    tail = max(0, part.records - (last.before - first.before))
    rest = replace(part, start_offset=last.offset, records=tail)
    return pieces + (_halved(connection, rest, -(-tail // target)) if tail > target else [rest])


def _counted(index: Index, part: StreamRange) -> tuple[Point, Point] | None:
    """The first and the last index point in a range; None if they don't divide it."""
    first, last = index.floor(part.start_offset), index.floor(part.end_offset - 1)
    if first is None and index.points:
        first = next(index.after(0), None)
    if first is None or last is None or last.offset <= max(part.start_offset, first.offset):
        return None
    return first, last


def _before_at_most(goal: int) -> Callable[[Point], bool]:
    return lambda point: point.before <= goal


def _cut(part: StreamRange, cuts: Sequence[int], records: int) -> list[StreamRange]:
    edges = [part.start_offset, *cuts, part.end_offset]
    return [
        replace(part, start_offset=start, end_offset=end, records=records)
        for start, end in pairwise(edges)
        if start < end
    ]


def _halved(connection: SourceConnection, part: StreamRange, pieces: int) -> list[StreamRange]:
    found = _tight(connection, part.stream, part.origin.bias, part.start_offset, part.end_offset)
    spans = [] if found is None else [found]
    while len(spans) < pieces:
        widest = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
        low, high = widest
        if high - low < 2:
            break
        middle = (low + high) // 2
        halves = [
            _tight(connection, part.stream, part.origin.bias, *edges)
            for edges in ((low, middle), (middle, high))
        ]
        spans.remove(widest)
        spans += [half for half in halves if half is not None]
    starts = sorted(start for start, _ in spans)
    cuts = [start for start in starts[1:] if start > part.start_offset]
    return _cut(part, cuts, part.records // max(1, len(spans)))


def _tight(
    connection: SourceConnection, stream: str, bias: int, start: int, end: int
) -> tuple[int, int] | None:
    """The offsets from the first entry in a range to after its last one; None without entries."""
    low, high = entry_id(start, bias), "(" + entry_id(end, bias)
    first, last = connection.pipeline(
        [("XRANGE", stream, low, high, "COUNT", 1), ("XREVRANGE", stream, high, low, "COUNT", 1)]
    )
    if not first or not last:
        return None
    return max(start, start_offset(first[0], bias)), min(end, offset_after(last[0][0], bias))


def tighten(
    connection: SourceConnection, ranges: Sequence[StreamRange], selection: Selection, *, guard: bool
) -> list[StreamRange]:
    """Return the ranges that contain records.

    guard: record the first entry of each range, except on compacted topics, where compaction may delete any
    entry. If offsets are dense, a topic that is created again has entries of the same IDs, so also record the
    topic's ID.
    """
    commands = [
        ("XRANGE", part.stream, entry_id(part.start_offset, part.origin.bias), "+", "COUNT", 1)
        for part in ranges
    ]
    kept = []
    for part, reply in zip(ranges, connection.pipeline(commands), strict=True):
        # A batch that starts in a range and ends after it belongs to the range.
        if reply and start_offset(reply[0], part.origin.bias) < part.end_offset:
            first = reply[0][0]
            inside = offset_after(first, part.origin.bias) <= part.end_offset
            topic = selection.topics[part.origin.topic]
            guarded = guard and inside and not topic.compacted
            topic_id = topic.topic_id if guard and topic.dense else ""
            kept.append(replace(part, first_id=first if guarded else None, topic_id=topic_id))
    return kept


def tasks(
    connection: SourceConnection,
    options: SourceOptions,
    selection: Selection,
    ranges: Sequence[StreamRange],
    *,
    counted: bool = True,
    spread: bool = True,
) -> Sequence[InputPartition]:
    """Return the tasks that read the ranges.

    spread: False for a batch of a stream: the tasks of one that is planned again by a later release must be
    the same.
    counted: False if the numbers of records are estimates that may be others when the ranges are planned
    again; then they don't decide which ranges share a task.
    """
    records = records_per_task(options, ranges, spread=spread)
    pieces = divide(connection, ranges, records)
    pieces = tighten(connection, pieces, selection, guard=options.fail_on_data_loss)
    return plan(pieces, min(TASK_RECORDS, records)) if counted else plan_evenly(pieces)
