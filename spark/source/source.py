"""The Spark data source `korvet`: topics in Redis Streams, in the columns of Spark's Kafka source and sink.

spark.dataSource.register(KorvetDataSource)
spark.read.format("korvet").option("redis", "redis://host:6379").option("topic", "orders").load()

For each step of a read, Spark starts a process of Python: to look for sources, to ask for the schema, to plan
the tasks, and to run them. Only the last two need a reader, so it is imported with the first one: numpy,
pyarrow and redis-py take two thirds of the time that such a process needs to start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from korvet.spark.source.errors import SourceError
from korvet.spark.source.settings import SourceOptions
from korvet.spark.versions import Version, features, named, running

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

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

# Spark passes these beside the options when it creates a table, and no option when it reads the table.
_OF_CREATE_TABLE = {"provider", "owner"}
_NO_TABLES = (
    "Spark keeps the options of CREATE TABLE from data sources in Python. "
    "Use CREATE TEMPORARY VIEW name USING korvet OPTIONS (topic '...')"
)


class KorvetDataSource(DataSource):
    """`format("korvet")`: its options are those of docs/reference/spark-options.md."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of Spark's Kafka source; without headers if includeHeaders=false.

        Raises SourceError for CREATE TABLE.
        """
        given = {name.lower(): value for name, value in self.options.items()}
        if given.keys() >= _OF_CREATE_TABLE:
            raise SourceError(f"a table of the korvet source could not be read: {_NO_TABLES}")
        left_out = given.get("includeheaders", "").lower() == "false"
        return SCHEMA.partition(", headers")[0] if left_out else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader. Raises SourceError for invalid options and columns."""
        if not self.options:
            raise SourceError(f"the korvet source needs options, at least topic; {_NO_TABLES}")
        options = SourceOptions.parse(self.options)
        check_schema(schema)
        if options.newest_commits is not None:
            from korvet.spark.source.newest import NewestReader  # noqa: PLC0415 (see above)

            return NewestReader(options, schema, options.newest_commits)
        if not options.pushdown:
            from korvet.spark.source.reader import KorvetReader  # noqa: PLC0415 (see above)

            return KorvetReader(options, schema)
        _check_feature("pushdown", (4, 1), present=features().filter_pushdown)
        from korvet.spark.source.pushdown import KorvetPushdownReader  # noqa: PLC0415 (needs Spark 4.1)

        return KorvetPushdownReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        """Return a micro-batch reader. Raises SourceError for invalid options and columns."""
        options = SourceOptions.parse(self.options, streaming=True)
        check_schema(schema)
        if not features().read_limits:
            for name in options.stream_options:
                _check_feature(name, (4, 2), present=False)
            from korvet.spark.source.stream import UnlimitedStreamReader  # noqa: PLC0415 (see above)

            return UnlimitedStreamReader(options, schema)
        from korvet.spark.source.limited_stream import LimitedStreamReader  # noqa: PLC0415 (needs Spark 4.2)

        return LimitedStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer. Raises SourceError for invalid options and columns, and a missing topic."""
        from korvet.spark.source.sink.writer import batch_writer  # noqa: PLC0415 (loads librdkafka)

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        """Return a micro-batch writer. Raises SourceError for invalid options and columns."""
        from korvet.spark.source.sink.writer import stream_writer  # noqa: PLC0415 (loads librdkafka)

        return stream_writer(self.options, schema, overwrite=overwrite)


def check_schema(schema: StructType) -> None:
    """Raises SourceError for a column in schema(...) that the source doesn't have."""
    for field in schema:
        kind = field.dataType.simpleString()
        if COLUMNS.get(field.name) != kind:
            raise SourceError(f"the korvet source has no column {field.name} of type {kind}; it has {SCHEMA}")


def _check_feature(option: str, since: Version, *, present: bool) -> None:
    """Raises SourceError for an option that this Spark is too old for."""
    if not present:
        raise SourceError(f"{option} needs Spark {named(since)} or newer; this is Spark {named(running())}")
