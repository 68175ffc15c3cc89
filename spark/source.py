"""The Spark data source `korvet`: topics straight from Redis Streams, in the columns of Spark's Kafka source.

    spark.dataSource.register(KorvetDataSource)
    spark.read.format("korvet").option("redis", "redis://host:6379").option("topic", "orders").load()

The driver takes the end of every partition when it plans, so a task that runs twice reads the same records.
"""

from __future__ import annotations

import gc
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
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

from korvet.spark.entries import columns_of, record_batch
from korvet.spark.store import (
    DEFAULT_KEYSPACE,
    DEFAULT_URL,
    Address,
    Connection,
    SourceError,
    StreamRange,
    bounds,
    connected,
    load_topics,
    log_ends,
    pages,
    select_topics,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

FORMAT = "korvet"
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key: string, value: binary>>"
)
NEVER_NULL = frozenset({"topic", "partition", "offset", "timestampType"})
OPTIONS = (
    "redis",
    "redis.password",
    "keyspace",
    "topic",
    "topics",
    "startingOffsets",
    "endingOffsets",
    "pushdown",
)

EARLIEST = -2
LATEST = -1
# Streams of fewer records share a task, since a task costs more than reading them; a longer one has its own.
TASK_RECORDS = 100_000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read, checked."""

    address: Address
    topics: tuple[str, ...]
    starting: Mapping[str, Mapping[int, int]]
    ending: Mapping[str, Mapping[int, int]]
    pushdown: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """From Spark's option map (names in any case).

        Raises SourceError for what is unknown, missing or malformed.
        """
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower() for name in OPTIONS}
        unknown = sorted(set(given) - known)
        if unknown:
            raise SourceError(
                f"unknown option {', '.join(unknown)}; the korvet source has {', '.join(OPTIONS)}"
            )
        address = Address(
            url=given.get("redis", DEFAULT_URL),
            password=given.get("redis.password"),
            keyspace=given.get("keyspace", DEFAULT_KEYSPACE),
        )
        return cls(
            address=address,
            topics=_topic_names(given),
            starting=_offsets_option("startingOffsets", given.get("startingoffsets"), "earliest"),
            ending=_offsets_option("endingOffsets", given.get("endingoffsets"), "latest"),
            pushdown=_boolean("pushdown", given.get("pushdown", "false")),
        )


def _topic_names(given: Mapping[str, str]) -> tuple[str, ...]:
    if ("topic" in given) == ("topics" in given):
        raise SourceError("give the option topic (one name) or topics (a comma list)")
    names = [given["topic"]] if "topic" in given else given["topics"].split(",")
    names = list(dict.fromkeys(name.strip() for name in names))
    if not all(names):
        raise SourceError("the option topic or topics holds an empty name")
    return tuple(names)


def _offsets_option(name: str, text: str | None, default: str) -> dict[str, dict[int, int]]:
    """Offsets by topic and partition; empty for the default of that end (earliest, latest).

    In the JSON {"topic": {"0": offset}} the offsets -2 and -1 stand for the two ends.
    """
    if text is None or text.strip().lower() == default:
        return {}
    try:
        document = json.loads(text)
        return {
            topic: {int(partition): int(offset) for partition, offset in parts.items()}
            for topic, parts in document.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise SourceError(f'{name} is "{default}" or JSON like {{"orders": {{"0": 1234}}}}') from error


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise SourceError(f"{name} is true or false")
    return text.lower() == "true"


@dataclass(frozen=True, slots=True)
class Task(InputPartition):
    """What one Spark task reads: parts of one or more streams, one after the other."""

    ranges: tuple[StreamRange, ...]


class KorvetReader(DataSourceReader):
    """Reads topics as they are at planning."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of this read. Raises SourceError for a topic that does not exist."""
        with connected(self._options.address) as connection:
            return plan(self._ranges(connection))

    def _ranges(self, connection: Connection) -> list[StreamRange]:
        address = self._options.address
        topics = select_topics(load_topics(connection, address), self._options.topics, address)
        return [
            limited
            for part in bounds(connection, address, topics)
            if (limited := self._limited(part)).start_offset < limited.end_offset
        ]

    def _limited(self, part: StreamRange) -> StreamRange:
        topic, partition = part.origin.topic, part.origin.partition
        first = self._options.starting.get(topic, {}).get(partition, EARLIEST)
        last = self._options.ending.get(topic, {}).get(partition, LATEST)
        start = {EARLIEST: 0, LATEST: part.end_offset}.get(first, first)
        end = {EARLIEST: 0, LATEST: part.end_offset}.get(last, last)
        return replace(part, start_offset=max(0, start), end_offset=min(end, part.end_offset))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The task's records as Arrow batches, one per page."""
        if not isinstance(partition, Task):
            raise TypeError(f"not a task of this source: {partition!r}")
        yield from read_task(self._options.address, partition, self._schema)


class KorvetPushdownReader(KorvetReader):
    """Also takes filters on topic, partition and offset; only with the option pushdown=true.

    Spark fails every read of a reader that has pushFilters while spark.sql.python.filterPushdown.enabled is
    false, which is its default: hence two classes.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pushed: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Keep the filters that this reader applies exactly; give back the others."""
        for pushed in filters:
            if _is_pushable(pushed):
                self._pushed.append(pushed)
            else:
                yield pushed

    def _ranges(self, connection: Connection) -> list[StreamRange]:
        kept = []
        for part in super()._ranges(connection):
            narrowed: StreamRange | None = part
            for pushed in self._pushed:
                narrowed = None if narrowed is None else _narrow(narrowed, pushed)
            if narrowed is not None and narrowed.start_offset < narrowed.end_offset:
                kept.append(narrowed)
        return kept


def _is_pushable(pushed: Filter) -> bool:
    attribute = getattr(pushed, "attribute", None)
    if attribute is None or len(attribute) != 1:
        return False
    name = attribute[0]
    if isinstance(pushed, IsNotNull):
        return name in NEVER_NULL
    if isinstance(pushed, EqualTo | In):
        return name in {"topic", "partition"} or (name == "offset" and isinstance(pushed, EqualTo))
    return name == "offset" and isinstance(
        pushed, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
    )


def _narrow(part: StreamRange, pushed: Filter) -> StreamRange | None:
    """The part of a range that a pushed filter leaves; None for nothing."""
    if isinstance(pushed, IsNotNull):
        return part
    if isinstance(pushed, EqualTo | In) and pushed.attribute[0] != "offset":
        place = part.origin.topic if pushed.attribute[0] == "topic" else part.origin.partition
        wanted = tuple(pushed.value) if isinstance(pushed, In) else (pushed.value,)
        return part if place in wanted else None
    first, last = _offset_limits(pushed)
    start = part.start_offset if first is None else max(part.start_offset, first)
    end = part.end_offset if last is None else min(part.end_offset, last + 1)
    return replace(part, start_offset=start, end_offset=end)


def _offset_limits(pushed: Filter) -> tuple[int | None, int | None]:
    """First and last offset that a filter on the offset lets through."""
    if isinstance(pushed, EqualTo):
        return pushed.value, pushed.value
    if isinstance(pushed, GreaterThan):
        return pushed.value + 1, None
    if isinstance(pushed, GreaterThanOrEqual):
        return pushed.value, None
    if isinstance(pushed, LessThan):
        return None, pushed.value - 1
    if isinstance(pushed, LessThanOrEqual):
        return None, pushed.value
    raise TypeError(f"not a filter on the offset: {pushed!r}")


class KorvetStreamReader(DataSourceStreamReader):
    """Reads topics as they grow. An offset is {"topic": {"partition": next offset to read}}, all as text."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def initialOffset(self) -> dict[str, dict[str, str]]:  # noqa: N802 (Spark's name)
        """Where a query without a checkpoint begins."""
        ends = self._ends()
        return {
            topic: {
                partition: str(
                    end if (first := self._first(topic, int(partition))) == LATEST else max(0, first)
                )
                for partition, end in parts.items()
            }
            for topic, parts in ends.items()
        }

    def _first(self, topic: str, partition: int) -> int:
        return self._options.starting.get(topic, {}).get(partition, EARLIEST)

    def latestOffset(  # noqa: N802 (Spark's name)
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, dict[str, str]]:
        """The ends of all partitions now; never behind `start`, even when a stream's tail was deleted."""
        return {
            topic: {
                partition: str(max(end, int(start.get(topic, {}).get(partition, 0))))
                for partition, end in parts.items()
            }
            for topic, parts in self._ends().items()
        }

    def _ends(self) -> dict[str, dict[str, int]]:
        address = self._options.address
        with connected(address) as connection:
            topics = select_topics(load_topics(connection, address), self._options.topics, address)
            ends: dict[str, dict[str, int]] = {}
            for (topic, partition), end in log_ends(connection, address, topics).items():
                ends.setdefault(topic, {})[str(partition)] = end
            return ends

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks between two offsets;
        a partition that `start` does not know yet is read from its beginning.
        """
        address = self._options.address
        with connected(address) as connection:
            topics = select_topics(load_topics(connection, address), self._options.topics, address)
            return plan(
                [
                    replace(part, start_offset=first, end_offset=last)
                    for part in bounds(connection, address, topics)
                    if (first := _stream_offset(start, part)) < (last := _stream_offset(end, part))
                ]
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The task's records as Arrow batches, one per page."""
        if not isinstance(partition, Task):
            raise TypeError(f"not a task of this source: {partition!r}")
        yield from read_task(self._options.address, partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint holds the position, and reading leaves no trace in Redis."""


def _stream_offset(offsets: Mapping[str, Any], part: StreamRange) -> int:
    return int(offsets.get(part.origin.topic, {}).get(str(part.origin.partition), 0))


class KorvetDataSource(DataSource):
    """`format("korvet")`. Options: see OPTIONS and docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """The columns of Spark's Kafka source, headers included."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch reader. Raises SourceError for bad options."""
        options = SourceOptions.parse(self.options)
        return KorvetPushdownReader(options, schema) if options.pushdown else KorvetReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """A micro-batch reader. Raises SourceError for bad options."""
        return KorvetStreamReader(SourceOptions.parse(self.options), schema)


def plan(ranges: Sequence[StreamRange]) -> list[InputPartition]:
    """Ranges to tasks:
    short streams share one, in order. At least one task: Spark invents a foreign one otherwise.
    """
    tasks: list[InputPartition] = []
    shared: list[StreamRange] = []
    records = 0
    for part in ranges:
        if shared and records + part.records > TASK_RECORDS:
            tasks.append(Task(tuple(shared)))
            shared, records = [], 0
        shared.append(part)
        records += part.records
    if shared or not tasks:
        tasks.append(Task(tuple(shared)))
    return tasks


def read_task(address: Address, task: Task, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Read a task's ranges. The cyclic garbage collector rests meanwhile.

    Pages are hundreds of thousands of short-lived tuples without a cycle, and walking them costs half of
    the read. The worker process lives on for other tasks, so the collector's state is put back whatever
    happens.
    """
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    collecting = gc.isenabled()
    gc.disable()
    try:
        with connected(address) as connection:
            for part in task.ranges:
                for page in pages(connection, part):
                    columns = columns_of(page, part.origin, part.start_offset, part.end_offset)
                    batch = record_batch(columns, part.origin, arrow_schema)
                    if batch.num_rows:
                        yield batch
    finally:
        if collecting:
            gc.enable()
