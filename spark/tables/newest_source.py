"""Reads only the records of `__consumer_offsets` in Redis that the current state of groups depends on.

Each task reduces what it reads before Spark has it, so that most commits never leave the task's process:
moving a record to Spark and back costs more than reading it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceReader

from korvet.spark.source.reader import KorvetReader
from korvet.spark.source.settings import SourceOptions
from korvet.spark.tables.commits import Newest, records_on_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

FORMAT = "korvet_newest_commits"
SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
# Options beside those of the source `korvet`.
_COUNT, _UNTIL_MS = "count", "untilms"
# Records that are reduced at once. Pages are smaller.
_ROWS_AT_ONCE = 50_000


def load_newest(spark: SparkSession, options: Mapping[str, str], count: int, until_ms: int) -> DataFrame:
    """Return the records on groups, and the `count` newest commits and tombstones by task and key.

    options: of the source `korvet`. until_ms: records with a later timestamp don't count.
    """
    spark.dataSource.register(NewestCommits)
    more = {_COUNT: str(count), _UNTIL_MS: str(until_ms)}
    return spark.read.format(FORMAT).options(**options, **more).load()


class NewestCommits(DataSource):
    """The format of load_newest."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns that decoding needs."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader. Raises SourceError for invalid options."""
        given = {name.lower(): value for name, value in self.options.items()}
        count, until_ms = int(given.pop(_COUNT)), int(given.pop(_UNTIL_MS))
        return _Reader(KorvetReader(SourceOptions.parse(given), schema), count, until_ms)


class _Reader(DataSourceReader):
    """Reads as another reader does, and keeps the newest commits."""

    def __init__(self, inner: KorvetReader, count: int, until_ms: int) -> None:
        self._inner = inner
        self._count = count
        self._until_ms = until_ms

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Raises as the other reader does."""
        return self._inner.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what counts of a task's records. Raises as the other reader does."""
        newest = Newest(self._count)
        for batch in _gathered(self._inner.read(partition)):
            counted = self._until(batch)
            if not counted.num_rows:
                continue
            yield from newest.take(counted)
            on_groups = records_on_groups(counted)
            if on_groups.num_rows:
                yield on_groups
        yield from newest.rest()

    def _until(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records up to the time; a record without a timestamp counts."""
        times = batch.column("timestamp")
        limit = pa.scalar(self._until_ms * 1000, pa.int64()).cast(times.type)
        return batch.filter(pc.fill_null(pc.less_equal(times, limit), True))


def _gathered(pages: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in larger batches."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for page in pages:
        waiting.append(page)
        rows += page.num_rows
        if rows >= _ROWS_AT_ONCE:
            yield pa.concat_batches(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
