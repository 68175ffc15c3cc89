"""A task of a write: it appends its rows to their partitions. Runs in the executors."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import WriterCommitMessage

from korvet.spark.source.errors import SourceError
from korvet.spark.source.sink.options import KafkaOptions
from korvet.spark.source.sink.redis_task import RedisTask
from korvet.spark.source.sink.sorting import sorted_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.spark.source.sink.columns import SinkRow
    from korvet.spark.source.sink.options import RedisOptions
    from korvet.spark.source.sink.progress import Job


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The number of records that this attempt of a task wrote, and of those that it found written."""

    records: int
    found: int


class _Task(Protocol):
    """One attempt of a task. All but `summary` and `close` raise SourceError."""

    @property
    def rows(self) -> int:
        """Rows that were added."""

    @property
    def written(self) -> int:
        """Records that this attempt has written."""

    def add(self, row: SinkRow) -> None: ...

    def finish(self) -> None: ...

    def summary(self) -> str: ...

    def close(self) -> None: ...


def write_task(options: RedisOptions | KafkaOptions, job: Job, rows: Iterable[SinkRow]) -> Written:
    """Append a task's rows. Raises SourceError, which names the row, and what the task had written."""
    with closing(_task(options, job)) as task:
        number = 0
        try:
            for number, row in enumerate(sorted_rows(rows) if options.sort_rows else rows, 1):  # noqa: B007 (named in messages)
                task.add(row)
            number = 0
            task.finish()
        except SourceError as error:
            at = f"row {number} of {job}" if number else str(job)
            raise type(error)(f"{at}: {error}. {task.summary()}") from error
        return Written(task.written, task.rows - task.written)


def _task(options: RedisOptions | KafkaOptions, job: Job) -> _Task:
    if isinstance(options, KafkaOptions):
        from korvet.spark.source.sink.kafka_task import KafkaTask  # noqa: PLC0415 (loads librdkafka)

        return KafkaTask(options, job)
    return RedisTask(options, job)
