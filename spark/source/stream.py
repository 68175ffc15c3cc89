"""The streaming reader of the source: positions in checkpoints, rate limits, data loss between batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from korvet.spark.source.connection import connected
from korvet.spark.source.errors import DataLoss, SourceError
from korvet.spark.source.extents import StreamRange
from korvet.spark.source.planning import (
    begin,
    check_loss,
    check_named,
    indexed,
    select,
    stable_end,
    tasks,
    whole,
)
from korvet.spark.source.rate_limit import advance, shares
from korvet.spark.source.tasks import read_task
from korvet.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import Extent, TopicPartition
    from korvet.spark.source.planning import Selection
    from korvet.spark.source.settings import SourceOptions


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The next offset to read, and the number of entries ever added before it, if known.

    Offsets have gaps. The number distinguishes a trim of entries that were already read from data loss.
    """

    offset: int
    added: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Positions of all partitions, with the topics' IDs. A checkpoint contains them as JSON:

    {"orders": {"id": "0b3c...", "offsets": {"0": 1234}, "added": {"0": 7}}}

    With openTransactions=pass, also the transactions that are open at a position, each as its producer ID and
    first offset: {"orders": {..., "open": {"0": {"17": 1200}}}}
    """

    ids: Mapping[str, str]
    positions: Mapping[TopicPartition, StreamPosition]
    opened: Mapping[TopicPartition, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def load(cls, document: Mapping[str, Any]) -> Progress:
        """Return the progress in a checkpoint's JSON."""
        ids = {topic: parts["id"] for topic, parts in document.items()}
        positions = {
            (topic, int(partition)): StreamPosition(int(offset), parts["added"].get(partition))
            for topic, parts in document.items()
            for partition, offset in parts["offsets"].items()
        }
        opened = {
            (topic, int(partition)): {int(producer): first for producer, first in firsts.items()}
            for topic, parts in document.items()
            for partition, firsts in parts.get("open", {}).items()
        }
        return cls(ids, positions, opened)

    def dump(self) -> dict[str, Any]:
        """Return the progress as JSON. Equal progress gives equal text, because Spark compares the text."""
        document: dict[str, Any] = {
            topic: {"id": self.ids[topic], "offsets": {}, "added": {}} for topic in sorted(self.ids)
        }
        for topic, partition in sorted(self.positions):
            position = self.positions[topic, partition]
            document[topic]["offsets"][str(partition)] = position.offset
            if position.added is not None:
                document[topic]["added"][str(partition)] = position.added
        for topic, partition in sorted(key for key, firsts in self.opened.items() if firsts):
            firsts = self.opened[topic, partition]
            found = {str(producer): firsts[producer] for producer in sorted(firsts)}
            document[topic].setdefault("open", {})[str(partition)] = found
        return document


class KorvetStreamReader(DataSourceStreamReader):
    """Reads records as they are added; new partitions, and new topics of a pattern, from their start.

    Its subclasses differ in how Spark asks for the end of a batch.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._goal: Progress | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the start of a query without a checkpoint. Raises SourceError, DataLoss.

        The latest position of a read_committed query is before the first open transaction, as in Kafka, so
        that no transaction is returned in part. With openTransactions=pass, it has the open transactions.
        """
        options = self._options
        with connected(options.address) as connection:
            selection = select(connection, options)
            check_named(options.starting, selection)
            positions, opened = {}, {}
            for topic_partition, extent in selection.extents.items():
                start = begin(connection, options.starting, extent)
                if options.fail_on_data_loss:
                    check_loss(extent, start)
                may_be_within = options.read_committed and start > extent.log_start
                if may_be_within and options.starting.is_latest(topic_partition):
                    found = extent.opened_before(start)
                    if options.pass_open:
                        opened[topic_partition] = found
                    else:
                        start = max(extent.log_start, min(found.values(), default=start))
                positions[topic_partition] = _position(extent, start)
            return Progress(_ids(selection), positions, opened).dump()

    def _ends(self) -> Progress:
        """The current ends of all partitions."""
        with connected(self._options.address) as connection:
            selection = select(connection, self._options, missing=True)
            ends = {
                topic_partition: StreamPosition(one.log_end, one.added)
                for topic_partition, one in selection.extents.items()
            }
            return Progress(_ids(selection), ends)

    def _next(self, begun: Progress, *, most: int | None = None, least: int = 0) -> Progress | None:
        """The end of the batch after `begun`; None if fewer than `least` records are there.

        most: the largest number of records. Raises SourceError, DataLoss.
        """
        with connected(self._options.address) as connection:
            selection = select(connection, self._options, missing=True)
            self._check_topics(begun, selection)
            fresh = self._fresh(connection, begun, selection)
            ends = {
                **begun.positions,
                **{topic_partition: end for topic_partition, (_, end) in fresh.items()},
            }
            unread = {
                topic_partition: part
                for topic_partition, (part, _) in fresh.items()
                if part.start_offset < part.end_offset
            }
            available = {topic_partition: max(1, part.records) for topic_partition, part in unread.items()}
            if sum(available.values()) < least:
                return None
            if most is not None:
                allowed = shares(available, most)
                for topic_partition, part in unread.items():
                    extent, end = selection.extents[topic_partition], ends[topic_partition]
                    before = begun.positions.get(topic_partition, StreamPosition(part.start_offset))
                    records = allowed[topic_partition]
                    ends[topic_partition] = _limited(connection, extent, part, before, end, records)
            opened = self._opened(begun, selection, fresh, ends)
            return Progress({**begun.ids, **_ids(selection)}, ends, opened)

    def _check_topics(self, begun: Progress, selection: Selection) -> None:
        """Raises DataLoss for a topic that was deleted, or deleted and created again."""
        if not self._options.fail_on_data_loss:
            return
        for topic, topic_id in begun.ids.items():
            if topic not in selection.topics:
                raise DataLoss(f"topic {topic} is gone: it was deleted while the query ran")
            if selection.topics[topic].topic_id != topic_id:
                raise DataLoss(f"topic {topic} was deleted and created again since the query last read it")

    def _fresh(
        self, connection: SourceConnection, begun: Progress, selection: Selection
    ) -> dict[TopicPartition, tuple[StreamRange, StreamPosition]]:
        """The ranges after the positions, and the end of each partition."""
        found = {}
        for topic_partition, extent in selection.extents.items():
            end = StreamPosition(extent.log_end, extent.added)
            if self._goal is not None:
                if topic_partition not in self._goal.positions:
                    continue
                end = min(end, self._goal.positions[topic_partition], key=lambda position: position.offset)
            at = _start(begun, selection, topic_partition)
            if at is not None and at.offset > extent.log_end:
                if self._options.fail_on_data_loss:
                    check_loss(extent, at.offset)
                at = None
            start = extent.log_start if at is None else at.offset
            part = _range(connection, extent, StreamPosition(start, None if at is None else at.added), end)
            stable = stable_end(self._options, selection, part)
            if stable < end.offset:
                end = StreamPosition(stable)
            if start < end.offset or at is None:
                found[topic_partition] = (replace(part, end_offset=end.offset), end)
        return found

    def _opened(
        self,
        begun: Progress,
        selection: Selection,
        fresh: Mapping[TopicPartition, tuple[StreamRange, StreamPosition]],
        ends: Mapping[TopicPartition, StreamPosition],
    ) -> dict[TopicPartition, Mapping[int, int]]:
        """The transactions that are open at the ends of a batch. Without openTransactions=pass, no record of
        them is before the end.
        """
        opened = {
            topic_partition: firsts
            for topic_partition, firsts in begun.opened.items()
            if ends[topic_partition].offset == begun.positions[topic_partition].offset
        }
        if not self._options.pass_open:
            return opened
        for topic_partition, (part, _) in fresh.items():
            end = ends[topic_partition].offset
            if part.start_offset < end:
                opened[topic_partition] = selection.extents[topic_partition].opened_before(end)
        return opened

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks between two positions. Raises SourceError, DataLoss."""
        begun, ended = Progress.load(start), Progress.load(end)
        with connected(self._options.address) as connection:
            selection = select(connection, self._options, missing=True)
            for progress in (begun, ended):
                self._check_topics(progress, selection)
            ranges, counted = [], True
            for topic_partition, last in ended.positions.items():
                extent = selection.extents.get(topic_partition)
                if (
                    extent is None
                    or ended.ids[topic_partition[0]] != selection.topics[topic_partition[0]].topic_id
                ):
                    continue
                at = _start(begun, selection, topic_partition)
                opened = tuple(ended.opened.get(topic_partition, {}).items())
                parts = (
                    self._late(connection, extent, at, _ended(begun, at, ended, topic_partition)),
                    self._between(connection, extent, at, last),
                )
                found = [
                    replace(part, opened=opened)
                    for part in parts
                    if part is not None and part.start_offset < part.end_offset
                ]
                known = at is not None and parts[0] is None and _counted(extent, at, last) is not None
                if not known:
                    found = [indexed(connection, part) for part in found]
                ranges += found
                counted = counted and (known or not found)
            # A batch that is planned again gets the same tasks, so that a sink can tell what it has of each.
            return tasks(connection, self._options, selection, ranges, counted=counted, spread=False)

    def _between(
        self, connection: SourceConnection, extent: Extent, first: StreamPosition | None, last: StreamPosition
    ) -> StreamRange:
        if first is not None and first.offset > last.offset and self._options.fail_on_data_loss:
            check_loss(extent, first.offset)
        if first is None or first.offset > last.offset:
            first = StreamPosition(extent.log_start)
        elif first.offset < last.offset and self._options.fail_on_data_loss:
            gone = extent.added - extent.entries
            if first.offset > extent.log_start or first.added is None or gone > first.added:
                check_loss(extent, first.offset)
            check_loss(replace(extent, log_start=0), last.offset)
        start = max(first.offset, min(extent.log_start, last.offset))
        return _range(connection, extent, StreamPosition(start, first.added), last)

    def _late(
        self,
        connection: SourceConnection,
        extent: Extent,
        at: StreamPosition | None,
        ended: Mapping[int, int],
    ) -> StreamRange | None:
        """The records before a position of transactions that ended after it; None without any."""
        if at is None or not ended:
            return None
        first = min(ended.values())
        if self._options.fail_on_data_loss:
            check_loss(extent, first)
        part = whole(connection, extent, max(first, min(extent.log_start, at.offset)), at.offset)
        return replace(part, transactions=tuple(sorted(ended.items())))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the task's records as Arrow batches, one per page. Raises SourceError, DataLoss."""
        schema = arrow_schema(self._schema)
        yield from read_task(self._options, partition, schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark's checkpoint contains the position, and Redis keeps no state of a read."""


class UnlimitedStreamReader(KorvetStreamReader):
    """The reader for Spark 4.0 and 4.1: each batch has all records that exist when Spark asks for its end.

    These versions pass neither the start of the batch nor a limit.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        # The last end. It is not known after a restart: the search for open transactions then begins at the
        # start of the log. `partitions` gets the start from Spark, and finds data loss since then.
        self._reached = Progress({}, {})

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the start of a query without a checkpoint. Raises SourceError, DataLoss."""
        start = super().initialOffset()
        self._reached = Progress.load(start)
        return start

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 (Spark's name)
        """Return the end of the next batch. Raises SourceError, DataLoss."""
        self._reached = self._next(self._reached) or self._reached
        return self._reached.dump()

    def _between(
        self, connection: SourceConnection, extent: Extent, first: StreamPosition | None, last: StreamPosition
    ) -> StreamRange:
        waits = self._options.read_committed and not self._options.pass_open
        if waits and first is not None and last.offset < first.offset <= extent.log_end:
            raise SourceError(
                f"{extent.origin.topic}-{extent.origin.partition} was read up to offset {first.offset}, past "
                f"a transaction at {last.offset} that is still open: set openTransactions=pass as before"
            )
        return super()._between(connection, extent, first, last)


def _ids(selection: Selection) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in selection.topics.items()}


def _position(extent: Extent, offset: int) -> StreamPosition:
    """The position of an offset. The number of entries before it is known at both ends of the log."""
    if offset == extent.log_end:
        return StreamPosition(offset, extent.added)
    if offset <= extent.first_offset:
        return StreamPosition(offset, extent.added - extent.entries)
    return StreamPosition(offset)


def _start(begun: Progress, selection: Selection, topic_partition: TopicPartition) -> StreamPosition | None:
    """The position where a partition continues; None for a new partition."""
    same = begun.ids.get(topic_partition[0]) == selection.topics[topic_partition[0]].topic_id
    return begun.positions.get(topic_partition) if same else None


def _opened_before(
    begun: Progress, at: StreamPosition | None, topic_partition: TopicPartition
) -> Mapping[int, int]:
    """The transactions that are open at the position where a partition continues."""
    return {} if at is None else begun.opened.get(topic_partition, {})


def _ended(
    begun: Progress, at: StreamPosition | None, ended: Progress, topic_partition: TopicPartition
) -> dict[int, int]:
    """The transactions that are open at the first position, but not at the second one."""
    still_open = ended.opened.get(topic_partition, {})
    return {
        producer: first
        for producer, first in _opened_before(begun, at, topic_partition).items()
        if producer not in still_open or still_open[producer] > first
    }


def _counted(extent: Extent, first: StreamPosition, last: StreamPosition) -> int | None:
    """The entries added between two positions, if these are known and each entry is one record; else None."""
    if first.added is None or last.added is None or extent.has_batches:
        return None
    return max(0, last.added - first.added)


def _range(
    connection: SourceConnection, extent: Extent, first: StreamPosition, last: StreamPosition
) -> StreamRange:
    """A range, with its number of records."""
    records = _counted(extent, first, last)
    if records is not None:
        return StreamRange(extent.stream, extent.origin, first.offset, last.offset, records)
    if first.offset >= last.offset:
        return StreamRange(extent.stream, extent.origin, first.offset, last.offset, 0)
    return whole(connection, extent, first.offset, last.offset)


def _limited(
    connection: SourceConnection,
    extent: Extent,
    part: StreamRange,
    before: StreamPosition,
    end: StreamPosition,
    records: int,
) -> StreamPosition:
    """The end of a partition's share in a limited batch. before, end: without the limit."""
    if not records:
        return before
    offset, counted = advance(connection, part, records)
    if offset >= end.offset:
        return end
    known = before.added is not None and part.records == _counted(extent, before, end)
    return StreamPosition(offset, before.added + counted if known and before.added is not None else None)
