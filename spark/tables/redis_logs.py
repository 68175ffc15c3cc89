"""The logs of partitions in Redis in runs: counted by the index, with the records at committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.offsets.packing import SEQUENCE_BITS
from korvet.spark.source.extents import extents
from korvet.spark.source.ordinals import first_records, ordinals
from korvet.spark.source.topics import load_topics
from korvet.spark.tables.runs import ALWAYS, Found, Logs, Observed, runs_of
from korvet.spark.tables.views import FIRST_CLOCK_OFFSET

if TYPE_CHECKING:
    from korvet.spark.source.address import Address
    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import Extent
    from korvet.spark.tables.needs import Asked, Needs, TopicPartition
    from korvet.spark.tables.runs import Run

# All records are read if all partitions together have no more: Spark takes longer to find out what to look
# up.
_READ: Final = 50_000
# A partition is read if it has fewer records for each lookup: a lookup takes 0.1 to 0.4 ms of the processors'
# time, as 15 to 65 records do.
_LOOKUP_RECORDS: Final = 40


def logs_by_index(connection: SourceConnection, address: Address, needs: Needs, now_ms: int) -> Logs:
    """Return the logs of every partition with a lag in `needs`, without missing topics.

    To be read are the records of partitions whose entries alone tell how many records count (ordinals), or
    when they were appended, which offsets without times don't; and those that the index doesn't have yet.
    """
    known = load_topics(connection, address)
    topics = [known[name] for name in sorted(needs.starts) if name in known]
    wanted = {(topic, part) for topic, parts in needs.starts.items() for part in parts}
    found = {extent.topic_partition: extent for extent in extents(connection, address, topics, wanted)}
    runs: dict[TopicPartition, list[Run]] = {}
    read = {place: needs.starts[place[0]][place[1]] for place in found}
    if sum(extent.records for extent in found.values()) <= _READ:
        return Logs(runs, read)
    asked = needs.with_all_waits().asked({place: extent.log_end for place, extent in found.items()})
    for place, extent in found.items():
        observed = _observed(connection, extent, asked[place], now_ms)
        if observed is None:
            continue
        runs[place] = runs_of(observed)
        del read[place]
        if observed.end < _end(extent, now_ms):
            read[place] = observed.end
    return Logs(runs, read)


def _observed(connection: SourceConnection, extent: Extent, asked: Asked, now_ms: int) -> Observed | None:
    """Return what the index and a few records tell; None if all records are to be read."""
    start, end = max(asked.start, extent.log_start), _end(extent, now_ms)
    if extent.first_offset < FIRST_CLOCK_OFFSET or start >= end:
        return None
    ends = {moment: _after(moment) for moment in {now_ms, *asked.lags} if 0 <= moment <= now_ms}
    cuts = sorted({start, *(cut for cut in {*asked.waits, *ends.values()} if start < cut < end)})
    whole = ordinals(connection, extent, [start, end])
    if whole is None or whole.before[end] - whole.before[start] < _LOOKUP_RECORDS * len(cuts):
        return None
    end = min(end, whole.end)
    cuts = [cut for cut in cuts if cut < end]
    counted = ordinals(connection, extent, [*cuts, end])
    waits = [cut for cut in cuts if cut in asked.waits or cut == start]
    firsts = first_records(connection, extent, waits, end)
    if not cuts or counted is None or firsts is None:
        return None
    found = {offset: None if first is None else Found(*first) for offset, first in firsts.items()}
    counts = {first.offset: counted.before[offset] for offset, first in found.items() if first is not None}
    later = {moment: Found(cut, moment + 1) if cut < end else None for moment, cut in ends.items()}
    return Observed(start, end, later, found, gapless_ms=ALWAYS, before={**counted.before, **counts})


def _end(extent: Extent, now_ms: int) -> int:
    """The end of what is unread now: the log end, or where the first open transaction begins."""
    return min(extent.log_end, _after(now_ms), *extent.opened().values())


def _after(moment: int) -> int:
    """The first offset of a record that is appended after a moment in ms."""
    return (moment + 1) << SEQUENCE_BITS
