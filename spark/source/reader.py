"""The batch reader of the source.

The driver reads the end of every partition during planning, so a task that runs twice reads the same records.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from korvet.spark.source.connection import connected
from korvet.spark.source.planning import (
    begin,
    check_loss,
    check_named,
    finish,
    only_open,
    select,
    stable_end,
    tasks,
    whole,
)
from korvet.spark.source.tasks import Task, read_task
from korvet.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa  # type: ignore[import-untyped]

    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import StreamRange
    from korvet.spark.source.planning import Selection
    from korvet.spark.source.settings import SourceOptions


def has_records(options: SourceOptions) -> bool:
    """Return whether a read would find records. Raises SourceError for a missing topic, DataLoss."""
    planned = KorvetReader(options, StructType()).partitions()
    return any(isinstance(task, Task) and task.ranges for task in planned)


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

    def _ranges(self, connection: SourceConnection, selection: Selection) -> list[StreamRange]:
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
                    part = replace(part, end_offset=stable_end(options, selection, part))
                if options.pass_open:
                    part = replace(part, opened=tuple(extent.opened().items()))
                ranges.append(part)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the task's records as Arrow batches, one per page. Raises SourceError, DataLoss."""
        schema = arrow_schema(self._schema)
        yield from read_task(self._options, partition, schema)
