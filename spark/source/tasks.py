"""A Spark task: it reads its ranges into Arrow batches. Runs in the executors."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import InputPartition

from korvet.offsets.packing import entry_id
from korvet.spark.records.arrow import record_batch
from korvet.spark.records.compiled import warn_if_missing
from korvet.spark.records.entries import columns_of
from korvet.spark.source.connection import connected
from korvet.spark.source.errors import DataLoss
from korvet.spark.source.pages import pages
from korvet.spark.source.topics import has_id
from korvet.spark.source.transactions import Uncounted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from korvet.spark.records.columns import Columns
    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import StreamRange
    from korvet.spark.source.settings import SourceOptions


# Tasks of ranges whose numbers of records aren't known, and of many records: more than the cores of most
# sessions.
EVEN_TASKS = 32
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Task(InputPartition):
    """The ranges that one Spark task reads, of one or more streams."""

    ranges: tuple[StreamRange, ...]


def plan(ranges: Sequence[StreamRange], task_records: int) -> list[InputPartition]:
    """Return the ranges as tasks, in order. Short ranges share a task of at most `task_records` records.

    Returns at least one task, because Spark would add a task of its own type otherwise.
    """
    tasks: list[InputPartition] = []
    shared: list[StreamRange] = []
    records = 0
    for part in ranges:
        if shared and records + part.records > task_records:
            tasks.append(Task(tuple(shared)))
            shared, records = [], 0
        shared.append(part)
        records += part.records
    if shared or not tasks:
        tasks.append(Task(tuple(shared)))
    return tasks


def plan_evenly(ranges: Sequence[StreamRange]) -> list[InputPartition]:
    """Return the ranges as tasks, in order, about as many ranges in each. At least one task, as in `plan`."""
    size = -(-len(ranges) // EVEN_TASKS)
    found: list[InputPartition] = [
        Task(tuple(ranges[at : at + size])) for at in range(0, len(ranges), size or 1)
    ]
    return found or plan(ranges, 0)


def read_task(
    options: SourceOptions, partition: InputPartition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read a task's ranges, with Python's cyclic garbage collector disabled.

    Pages are hundreds of thousands of short-lived tuples without cycles; visiting them takes half of the
    time. Other tasks run later in the same worker process, so the collector's state is always restored.
    Logs a warning if there is no compiled kernel. Raises SourceError, DataLoss.
    """
    if not isinstance(partition, Task):
        raise TypeError(f"not a task of this source: {partition!r}")
    warn_if_missing()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with connected(options.address) as connection:
            for part in partition.ranges:
                yield from _read_range(options, connection, part, schema)
    finally:
        if collecting:
            gc.enable()


def _read_range(
    options: SourceOptions, connection: SourceConnection, part: StreamRange, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    uncounted = Uncounted(connection, part) if options.read_committed else None
    for page in pages(connection, part):
        columns = columns_of(
            page, part.origin, part.start_offset, part.end_offset, headers="headers" in schema.names
        )
        batch = record_batch(columns, part.origin, schema)
        if columns.damaged:
            _report_damage(options, part, columns.damaged[0])
        if part.transactions or (uncounted and columns.producers is not None):
            batch = batch.filter(pa.array(_counted(columns, part, uncounted)))
        if batch.num_rows:
            yield batch
    if part.topic_id and not has_id(connection, options.address, part.origin.topic, part.topic_id):
        raise DataLoss(
            f"topic {part.origin.topic} was deleted, or deleted and created again, during the read"
        )


def _report_damage(options: SourceOptions, part: StreamRange, offset: int) -> None:
    """Raises DataLoss, or logs a warning with failOnDataLoss=false."""
    entry = entry_id(offset, part.origin.bias)
    text = f"{part.stream}: entry {entry} is a damaged record batch (wrong CRC, length or offset)"
    if options.fail_on_data_loss:
        raise DataLoss(text)
    log.warning("%s: it is left out", text)


def _counted(
    columns: Columns, part: StreamRange, uncounted: Uncounted | None
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows count, and are in the range's transactions. Without `uncounted`, all count."""
    offsets = columns.offsets.tolist()
    producers = [-1] * len(offsets) if columns.producers is None else columns.producers
    first_offsets = dict(part.transactions)

    def counts(producer: int, offset: int) -> bool:
        if first_offsets and (producer not in first_offsets or offset < first_offsets[producer]):
            return False
        return uncounted is None or not uncounted.has(producer, offset)

    return np.array(list(map(counts, producers, offsets)), dtype=bool)
