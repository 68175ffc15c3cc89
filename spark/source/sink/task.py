"""A task of a write: it appends its rows to their partitions. Runs in the executors."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from korvet.spark.source.errors import SourceError
from korvet.spark.source.rate_limit import Pace
from korvet.spark.source.sink.appender import NOT_REPEATABLE, PartitionAppender, noted_progress
from korvet.spark.source.sink.entries import entry_of
from korvet.spark.source.sink.link import Link
from korvet.spark.source.sink.partitioner import partition_of, sticky_partition
from korvet.spark.source.sink.sorting import sorted_rows
from korvet.spark.source.topics import topic_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.spark.source.sink.columns import SinkRow
    from korvet.spark.source.sink.options import SinkOptions
    from korvet.spark.source.sink.progress import Job
from korvet.spark.source.topics import TopicInfo

# Records that wait for their chunks, of all partitions, in bytes.
_MOST_BUFFERED_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The number of records that this attempt of a task wrote, and of those that it found written."""

    records: int
    found: int


def write_task(options: SinkOptions, job: Job, rows: Iterable[SinkRow]) -> Written:
    """Append a task's rows. Raises SourceError, which names the row, and what the task had written."""
    with closing(Link(options.address, options.delivery_ms)) as link:
        writer = _TaskWriter(link, options, job)
        number = 0
        try:
            for number, row in enumerate(sorted_rows(rows) if options.sort_rows else rows, 1):  # noqa: B007 (named in messages)
                writer.add(row)
            number = 0
            return writer.finish()
        except SourceError as error:
            at = f"row {number} of {job}" if number else str(job)
            raise type(error)(f"{at}: {error}. {writer.summary()}") from error


class _Topic:
    """A topic and its partitions' appenders."""

    def __init__(self, link: Link, options: SinkOptions, job: Job, info: TopicInfo) -> None:
        self._link, self._options, self._job = link, options, job
        streams = [options.address.stream(info.name, number) for number in range(info.partitions)]
        noted = link.replies(
            [("HGET", job.progress_key(stream, info.topic_id), job.task) for stream in streams]
        )
        self._noted = [(text or b"").decode() for text in noted]
        earlier = [found for text in self._noted if (found := noted_progress(job, text)) is not None]
        # An earlier attempt chose among the partitions of its time.
        self.info = replace(info, partitions=earlier[0].partitions) if earlier else info
        self.appenders: dict[int, PartitionAppender] = {}
        self._keyless = 0

    def partition(self, row: SinkRow) -> int:
        """The row's partition. Raises SourceError for one that the topic doesn't have."""
        count = self.info.partitions
        if row.partition is not None:
            if not 0 <= row.partition < count:
                raise SourceError(
                    f"topic {self.info.name} has no partition {row.partition}; it has 0 to {count - 1}"
                )
            return row.partition
        if row.key is not None:
            return partition_of(row.key, count)
        self._keyless += 1
        return sticky_partition(self._job.task, self._keyless - 1, count)

    def appender(self, partition: int) -> PartitionAppender:
        """The appender of a partition."""
        found = self.appenders.get(partition)
        if found is None:
            noted = self._noted[partition]
            found = PartitionAppender(self._link, self._options, self._job, self.info, partition, noted)
            self.appenders[partition] = found
        return found

    def check_complete(self) -> None:
        """Raises SourceError if an earlier attempt wrote rows that this one doesn't have."""
        for appender in self.appenders.values():
            appender.check_complete()
        for partition, noted in enumerate(self._noted):
            found = noted_progress(self._job, noted)
            if found is not None and partition not in self.appenders:
                raise SourceError(
                    f"{self.info.name}-{partition} has {found.records} records of an earlier attempt, but "
                    f"this attempt has none. {NOT_REPEATABLE}"
                )


class _TaskWriter:
    def __init__(self, link: Link, options: SinkOptions, job: Job) -> None:
        self._link, self._options, self._job = link, options, job
        self._topics: dict[str, _Topic] = {}
        self._buffered_bytes = 0
        self._pace = None if options.task_rate is None else Pace(options.task_rate)
        self._rows = 0

    def add(self, row: SinkRow) -> None:
        name = row.topic if self._options.topic is None else self._options.topic
        if name is None:
            raise SourceError("the column topic is null, and there is no option topic")
        topic = self._topics.get(name)
        if topic is None:
            info = topic_of(self._link.call, self._options.address, name)
            topic = self._topics[name] = _Topic(self._link, self._options, self._job, info)
        entry = entry_of(row, topic.info)
        self._rows += 1
        appender = topic.appender(topic.partition(row))
        before = appender.buffered_bytes
        self._kept_pace(appender.add(entry))
        self._buffered_bytes += appender.buffered_bytes - before
        if self._buffered_bytes > _MOST_BUFFERED_BYTES:
            self._flush()

    def _kept_pace(self, sent: int) -> None:
        if self._pace is not None:
            self._pace.wait_after(sent)

    def _flush(self) -> None:
        for appender in self._appenders:
            self._kept_pace(appender.flush())
        self._buffered_bytes = 0

    @property
    def _appenders(self) -> list[PartitionAppender]:
        return [appender for topic in self._topics.values() for appender in topic.appenders.values()]

    def finish(self) -> Written:
        for topic in self._topics.values():
            topic.check_complete()
        self._flush()
        if self._options.replicas:
            self._wait_for_replicas(self._options.replicas)
        written = sum(appender.written for appender in self._appenders)
        return Written(written, self._rows - written)

    def _wait_for_replicas(self, wanted: int) -> None:
        for appender in self._appenders:
            found = self._link.wait_for_replicas(appender.progress_key, self._options.progress_ms, wanted)
            if found < wanted:
                raise SourceError(
                    f"{found} replicas have the records of {appender.name} after {self._options.delivery_ms} "
                    f"ms, not {wanted} (minReplicas)"
                )

    def summary(self) -> str:
        """What is in the topics of this task's rows, as far as it is known."""
        present = {appender.name: appender.present for appender in self._appenders if appender.present}
        if not present:
            return "It had written no records"
        named = ", ".join(f"{name}: {records}" for name, records in sorted(present.items())[:20])
        return (
            f"It had written {sum(present.values())} records ({named}{', ...' if len(present) > 20 else ''})"
        )
