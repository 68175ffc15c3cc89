"""The batch reader with newestCommits: of `__consumer_offsets`, only what the state of groups depends on.

Each task reduces what it reads before Spark has it, so that most commits never leave the task's process:
moving a record to Spark and back costs more than reading it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from korvet.spark.records.commits import Newest, records_on_groups
from korvet.spark.source.errors import SourceError
from korvet.spark.source.reader import KorvetReader
from korvet.spark.source.topics import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from korvet.spark.source.settings import SourceOptions

NEEDED = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
"""The columns by which a reader finds the newest commits."""
# Records that are reduced at once. Pages are smaller.
_ROWS_AT_ONCE = 50_000


class NewestReader(KorvetReader):
    """Returns the records on groups, and the newest commits and tombstones by task and key."""

    def __init__(self, options: SourceOptions, schema: StructType, count: int) -> None:
        """`count`: commits of each key. Raises SourceError for another topic, and without a needed column."""
        if options.topics.names != (OFFSETS_TOPIC,):
            raise SourceError(f"newestCommits is for the topic {OFFSETS_TOPIC}")
        needed = [column.split(" ")[0] for column in NEEDED.split(", ")]
        if not {*needed} <= {*schema.names}:
            raise SourceError(f"newestCommits needs the columns {', '.join(needed)}")
        super().__init__(options, schema)
        self._count = count

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield what counts of a task's records. Raises SourceError, DataLoss."""
        newest = Newest(self._count)
        for batch in _gathered(super().read(partition)):
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
        until_ms = self._options.newest_until_ms
        if until_ms is None:
            return batch
        times = batch.column("timestamp")
        limit = pa.scalar(until_ms * 1000, pa.int64()).cast(times.type)
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
