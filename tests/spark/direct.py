"""Calls the source's readers as Spark calls them, without a Spark session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from korvet.spark.source.source import KorvetDataSource
from korvet.spark.source.stream import KorvetStreamReader, UnlimitedStreamReader
from korvet.spark.source.tasks import Task
from korvet.spark.versions import features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit

    from tests.spark.keyspace import Keyspace

Rows = list[dict[str, Any]]
HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(HEADER),
}


def schema_of(*names: str) -> StructType:
    """Returns the source's schema, or some of its columns."""
    return StructType([StructField(name, COLUMNS[name]) for name in names or COLUMNS])


def source(keyspace: Keyspace, **options: str) -> KorvetDataSource:
    """The data source with these options; an underscore in a name is a dot."""
    given = {name.replace("redis_", "redis."): value for name, value in options.items()}
    return KorvetDataSource({"redis": keyspace.url, **given})


def tasks(keyspace: Keyspace, pushed: Sequence[Filter] = (), **options: str) -> list[Task]:
    """The tasks of a batch read."""
    return [task for task in _batch(keyspace, pushed, **options)[1] if isinstance(task, Task)]


def batch(keyspace: Keyspace, pushed: Sequence[Filter] = (), **options: str) -> Rows:
    """All rows of a batch read, in the order of tasks."""
    reader, planned = _batch(keyspace, pushed, **options)
    return rows_of(reader, planned)


def rows_of(reader: Any, planned: Sequence[InputPartition]) -> Rows:
    """Returns the rows of tasks, in order."""
    return [row for task in planned for page in reader.read(task) for row in page.to_pylist()]


def _batch(
    keyspace: Keyspace, pushed: Sequence[Filter], **options: str
) -> tuple[DataSourceReader, Sequence[InputPartition]]:
    if pushed:
        options["pushdown"] = "true"
    reader = source(keyspace, **options).reader(schema_of())
    if pushed:
        list(reader.pushFilters(list(pushed)))
    return reader, reader.partitions()


class Stream:
    """A streaming query whose position passes through JSON as in a checkpoint. `restart`: a new driver."""

    def __init__(self, keyspace: Keyspace, **options: str) -> None:
        self._keyspace = keyspace
        self._options = options
        self.reader = self._opened()
        self.at = self._through_json(self.reader.initialOffset())

    def _opened(self) -> Any:
        reader = source(self._keyspace, **self._options).streamReader(schema_of())
        assert isinstance(reader, KorvetStreamReader)
        return reader

    def latest(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        """The end of the next micro-batch."""
        return self._through_json(self._latest(limit))

    def _latest(self, limit: ReadLimit | None) -> dict[str, Any]:
        if isinstance(self.reader, UnlimitedStreamReader):
            assert limit is None
            return self.reader.latestOffset()
        found: dict[str, Any] = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        return found

    def _through_json(self, position: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(position))
        return found

    def restart(self, **options: str) -> None:
        """Continue from the position with a new reader, and with other options if given."""
        self._options.update(options)
        self.reader = self._opened()

    def trigger(self, limit: ReadLimit | None = None) -> Rows | None:
        """One micro-batch; None without new records."""
        end = self.latest(limit)
        if json.dumps(end) == json.dumps(self.at):
            return None
        rows = rows_of(self.reader, self.reader.partitions(self.at, end))
        self.at = end
        self.reader.commit(end)
        return rows

    def drain(self) -> Rows:
        """All existing records in one batch."""
        if isinstance(self.reader, UnlimitedStreamReader):
            return self.trigger() or []
        from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415 (needs Spark 4.2)

        return self.trigger(ReadAllAvailable()) or []


def source_error(error: Exception) -> str:
    """Returns the source's message in an error of Spark, which has the traceback of a worker."""
    (line,) = {line for line in str(error).splitlines() if "SourceError: " in line}
    return line.rpartition("SourceError: ")[2].strip()


def limit(records: int) -> dict[str, str]:
    """The option that limits a batch of a stream, if this Spark has limits."""
    return {"maxRecordsPerTrigger": str(records)} if features().read_limits else {}


def values(rows: Rows | None) -> list[bytes]:
    """Returns the values of rows, in order."""
    return [row["value"] for row in rows or []]
