"""A task of a write, in transactions of records and a note about them. Runs in the executors.

The note is the metadata of a commit of the task's group. A transaction is open only while its records are
sent, not while the task waits for rows.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from korvet.spark.source.errors import SourceError
from korvet.spark.source.sink.kafka_client import KafkaRecord, KafkaTopics, Note, Transactions
from korvet.spark.source.sink.pace import Pace
from korvet.spark.source.sink.partitioner import Partitioner
from korvet.spark.source.sink.progress import NOT_REPEATABLE, Progress, noted_progress
from korvet.spark.source.sink.sorting import sorted_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.spark.source.sink.columns import SinkRow
    from korvet.spark.source.sink.options import SinkOptions
    from korvet.spark.source.sink.progress import Job

_CHUNK_BYTES = 8 << 20
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The number of records that this attempt of a task wrote, and of those that it found written."""

    records: int
    found: int


def write_task(options: SinkOptions, job: Job, rows: Iterable[SinkRow]) -> Written:
    """Append a task's rows. Raises SourceError, which names the row, and what the task had written."""
    with closing(_Task(options, job)) as task:
        number = 0
        try:
            for number, row in enumerate(sorted_rows(rows) if options.sort_rows else rows, 1):  # noqa: B007 (named in messages)
                task.add(row)
            number = 0
            task.finish()
        except SourceError as error:
            at = f"row {number} of {job}" if number else str(job)
            raise SourceError(f"{at}: {error}. {task.summary()}") from error
        return Written(task.written, task.rows - task.written)


class _Task:
    """One attempt of a task. `rows`: those that were added. `written`: records of this attempt."""

    def __init__(self, options: SinkOptions, job: Job) -> None:
        self._options, self._job = options, job
        timeout_s = options.delivery_ms / 1000
        self._topics = KafkaTopics(options.cluster, job.identity, timeout_s)
        self._transactions: Transactions | None = None
        self._partitioners: dict[str, Partitioner] = {}
        self._known: Progress | None = None
        self._hasher = blake2b(digest_size=_DIGEST_BYTES)
        self._chunk: list[KafkaRecord] = []
        self._chunk_bytes = 0
        rate = options.task_rate
        self._pace = None if rate is None else Pace(rate)
        self.rows = 0
        self.written = 0

    def close(self) -> None:
        """Close the connections."""
        if self._transactions is not None:
            self._transactions.close()
        self._topics.close()

    def add(self, row: SinkRow) -> None:
        """Add the next row. Raises SourceError."""
        name = row.topic_name(self._options.topic)
        if self._transactions is None:
            self._take_over()
        record = KafkaRecord(
            self.rows + 1,
            name,
            self._partitioner(name).partition(row),
            row.key,
            row.value,
            _checked_headers(row),
            _checked_timestamp(row),
        )
        self.rows += 1
        self._hasher.update(_content(record, row.partition))
        if self._known is not None and self.rows <= self._known.records:
            self._check_same(self._known)
            return
        if self._known is not None and self._known.finished:
            raise SourceError(
                f"an earlier attempt had {self._known.records} rows, but this attempt has more. "
                f"{NOT_REPEATABLE}"
            )
        self._chunk.append(record)
        self._chunk_bytes += len(row.key or b"") + len(row.value or b"")
        if len(self._chunk) >= self._options.chunk_records or self._chunk_bytes >= _CHUNK_BYTES:
            self._write()

    def finish(self) -> None:
        """Write what is left. Raises SourceError, also if an earlier attempt had more rows."""
        if self._transactions is None:
            self._known = self._noted()
        if self._known is not None and self._known.records > self.rows:
            raise SourceError(
                f"an earlier attempt wrote {self._known.records} records, but this attempt has {self.rows}. "
                f"{NOT_REPEATABLE}"
            )
        if self._known is None or not self._known.finished:
            self._write(finished=True)

    def summary(self) -> str:
        """What is in the topics of this task's rows, as far as it is known."""
        records = self.written + (0 if self._known is None else self._known.records)
        return f"It had written {records or 'no'} records"

    def _partitioner(self, name: str) -> Partitioner:
        found = self._partitioners.get(name)
        if found is None:
            found = Partitioner(name, self._topics.partitions(name), self._job.task)
            self._partitioners[name] = found
        return found

    def _take_over(self) -> None:
        """Fence the earlier attempt, whose note is final then."""
        self._transactions = Transactions(
            self._options.cluster, self._job.identity, self._options.delivery_ms
        )
        self._known = self._noted()

    def _noted(self) -> Progress | None:
        return noted_progress(self._job, self._topics.noted(self._options.progress_topic))

    def _check_same(self, known: Progress) -> None:
        if self.rows == known.records and self._hasher.hexdigest() != known.digest:
            raise SourceError(
                f"the first {self.rows} records are not those of an earlier attempt. {NOT_REPEATABLE}"
            )

    def _write(self, *, finished: bool = False) -> None:
        """Write the chunk and the note, also without records if the task has finished."""
        if self._transactions is None:
            return
        if self._chunk and self._pace is not None:
            self._pace.wait_for(len(self._chunk))
        progress = Progress(self._job.batch, self.rows, self._hasher.hexdigest(), finished)
        note = Note(self._topics.group, self._options.progress_topic, str(progress))
        self._transactions.write(self._chunk, note)
        self.written += len(self._chunk)
        self._chunk, self._chunk_bytes = [], 0


def _checked_headers(row: SinkRow) -> tuple[tuple[str, bytes | None], ...]:
    found: list[tuple[str, bytes | None]] = []
    for name, value in row.headers:
        if name is None:
            raise SourceError("a header has no key")
        if "\0" in name:
            raise SourceError(f"the key {name!r} of a header contains a NUL: librdkafka would cut it")
        found.append((name, value))
    return tuple(found)


def _checked_timestamp(row: SinkRow) -> int | None:
    if row.timestamp_ms is not None and row.timestamp_ms < 1:
        raise SourceError(
            f"the timestamp {row.timestamp_ms} ms can't be written: it must be after 1970 began"
        )
    return row.timestamp_ms


def _content(record: KafkaRecord, partition: int | None) -> bytes:
    """What the row consists of, as bytes that differ for different rows."""
    numbers = b"%a %a %d;" % (partition, record.timestamp_ms, len(record.headers))
    parts: list[bytes | None] = [record.topic.encode(), record.key, record.value]
    for name, value in record.headers:
        parts += (name.encode(), value)
    return numbers + b"".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts)
