"""The Spark data source `korvet`: topics in Redis Streams, in the columns of Spark's Kafka source and sink.

    spark.dataSource.register(KorvetDataSource)
    spark.read.format("korvet").option("redis", "redis://host:6379").option("topic", "orders").load()

The driver reads the end of every partition during planning, so a task that runs twice reads the same records.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema

from korvet.offsets.packing import SEQUENCE_BITS
from korvet.spark.source.connection import connected
from korvet.spark.source.errors import SourceError
from korvet.spark.source.planning import (
    begin,
    check_loss,
    check_named,
    finish,
    only_open,
    select,
    since,
    stable_end,
    tasks,
    whole,
)
from korvet.spark.source.settings import SourceOptions
from korvet.spark.source.sink.writer import batch_writer, stream_writer
from korvet.spark.source.stream import KorvetStreamReader
from korvet.spark.source.tasks import read_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

    from korvet.spark.source.connection import Connection
    from korvet.spark.source.extents import StreamRange
    from korvet.spark.source.planning import Selection

FORMAT = "korvet"
COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
NEVER_NULL = frozenset({"topic", "partition", "offset", "timestampType"})
EPOCH = datetime(1970, 1, 1)
MILLISECOND = timedelta(milliseconds=1)
_COMPARISONS = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


class KorvetReader(DataSourceReader):
    """Reads the records that exist at the time of planning."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of this read. Raises SourceError for a missing topic, DataLoss."""
        options = self._options
        with connected(options.address) as connection:
            selection = select(connection, options)
            return tasks(connection, options, selection, self._ranges(connection, selection))

    def _ranges(self, connection: Connection, selection: Selection) -> list[StreamRange]:
        options = self._options
        check_named(options.starting, selection)
        check_named(options.ending, selection)
        ranges = []
        for extent in selection.extents.values():
            start = begin(connection, options.starting, extent)
            if options.fail_on_data_loss:
                check_loss(extent, start)
            # The first entry may be a batch that contains deleted records before the log start.
            start = max(start, extent.log_start)
            end = finish(connection, options.ending, extent)
            if start < end:
                part = whole(connection, extent, start, end)
                if options.only_open:
                    part = only_open(connection, selection, part)
                else:
                    part = replace(part, end_offset=stable_end(connection, options, selection, part))
                ranges.append(part)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the task's records as Arrow batches, one per page. Raises SourceError, DataLoss."""
        schema = to_arrow_schema(self._schema, timezone="UTC")
        yield from read_task(self._options, partition, schema)


class KorvetPushdownReader(KorvetReader):
    """Also applies filters on topic, partition, offset and timestamp, with the option pushdown=true.

    It is a separate class because Spark fails every read of a reader with the method pushFilters if
    spark.sql.python.filterPushdown.enabled is false, the default.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pushed: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Keep the filters that limit the read; return those that the reader doesn't apply exactly."""
        for pushed in filters:
            exact = _is_exact(pushed)
            if exact or _is_limit(pushed):
                self._pushed.append(pushed)
            if not exact:
                yield pushed

    def _ranges(self, connection: Connection, selection: Selection) -> list[StreamRange]:
        kept = []
        for part in super()._ranges(connection, selection):
            narrowed = part
            for pushed in self._pushed:
                narrowed = self._narrowed(connection, selection, narrowed, pushed)
            if narrowed.start_offset < narrowed.end_offset:
                kept.append(narrowed)
        return kept

    def _narrowed(
        self, connection: Connection, selection: Selection, part: StreamRange, pushed: Filter
    ) -> StreamRange:
        """The part of a range that can contain rows of a pushed filter."""
        if isinstance(pushed, IsNotNull) or part.start_offset >= part.end_offset:
            return part
        name = pushed.attribute[0]  # type: ignore[attr-defined]
        if name == "timestamp":
            least_ms, end_ms = _time_limits(pushed)
            start, end = part.start_offset, part.end_offset
            if least_ms is not None:
                extent = selection.extents[part.origin.topic, part.origin.partition]
                start = since(connection, extent, start, least_ms)
            if end_ms is not None and part.origin.append_times:
                end = min(end, end_ms << SEQUENCE_BITS)
            return replace(part, start_offset=start, end_offset=end)
        values = tuple(pushed.value) if isinstance(pushed, In) else (pushed.value,)  # type: ignore[attr-defined]
        if name != "offset":
            value = part.origin.topic if name == "topic" else part.origin.partition
            return part if value in values else replace(part, end_offset=part.start_offset)
        first, last = _offset_limits(pushed, values)
        start = part.start_offset if first is None else max(part.start_offset, first)
        end = part.end_offset if last is None else min(part.end_offset, last + 1)
        return replace(part, start_offset=start, end_offset=end)


def _column(pushed: Filter) -> str | None:
    attribute = getattr(pushed, "attribute", None)
    return attribute[0] if attribute is not None and len(attribute) == 1 else None


def _is_exact(pushed: Filter) -> bool:
    """Whether the offset ranges of a filter contain only rows that pass the filter."""
    name = _column(pushed)
    if isinstance(pushed, IsNotNull):
        return name in NEVER_NULL
    if isinstance(pushed, EqualTo | In):
        return name in {"topic", "partition"} or (name == "offset" and isinstance(pushed, EqualTo))
    return name == "offset" and isinstance(pushed, _COMPARISONS)


def _is_limit(pushed: Filter) -> bool:
    name = _column(pushed)
    if isinstance(pushed, In):
        return name == "offset" and bool(pushed.value)
    return name == "timestamp" and isinstance(pushed, _COMPARISONS)


def _time_limits(pushed: Filter) -> tuple[int | None, int | None]:
    """The lower limit (inclusive) and upper limit (exclusive), in ms, of the timestamps that pass a filter.

    None without a limit, or if it isn't known.
    """
    value = pushed.value  # type: ignore[attr-defined]
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None, None
    elapsed: timedelta = value.replace(tzinfo=None) - value.utcoffset() - EPOCH  # type: ignore[operator]
    floor, ceiling = elapsed // MILLISECOND, -(-elapsed // MILLISECOND)
    least = floor + 1 if isinstance(pushed, GreaterThan) else ceiling
    end = ceiling if isinstance(pushed, LessThan) else floor + 1
    return (
        None if isinstance(pushed, LessThan | LessThanOrEqual) else max(0, least),
        None if isinstance(pushed, GreaterThan | GreaterThanOrEqual) else max(0, end),
    )


def _offset_limits(pushed: Filter, values: tuple[int, ...]) -> tuple[int | None, int | None]:
    """First and last offset that pass a filter on the offset; None without a limit."""
    if isinstance(pushed, EqualTo | In):
        return min(values), max(values)
    (value,) = values
    if isinstance(pushed, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(pushed, GreaterThan), None
    return None, value - isinstance(pushed, LessThan)


class KorvetDataSource(DataSource):
    """`format("korvet")`. docs/spark.md describes its options, korvet.spark.source.settings parses them."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of Spark's Kafka source; without headers if includeHeaders=false."""
        given = {name.lower(): value for name, value in self.options.items()}
        left_out = given.get("includeheaders", "").lower() == "false"
        return SCHEMA.partition(", headers")[0] if left_out else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader. Raises SourceError for invalid options and columns."""
        options = SourceOptions.parse(self.options)
        check_schema(schema)
        return KorvetPushdownReader(options, schema) if options.pushdown else KorvetReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a micro-batch reader. Raises SourceError for invalid options and columns."""
        check_schema(schema)
        return KorvetStreamReader(SourceOptions.parse(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer. Raises SourceError for invalid options and columns, and a missing topic."""
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        """Return a micro-batch writer. Raises SourceError for invalid options and columns."""
        return stream_writer(self.options, schema, overwrite=overwrite)


def check_schema(schema: StructType) -> None:
    """Raises SourceError for a column in schema(...) that the source doesn't have."""
    for field in schema:
        kind = field.dataType.simpleString()
        if COLUMNS.get(field.name) != kind:
            raise SourceError(f"the korvet source has no column {field.name} of type {kind}; it has {SCHEMA}")
