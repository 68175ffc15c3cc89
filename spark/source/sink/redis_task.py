"""A task that writes to Redis: each partition has its appender, and its progress."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from korvet.spark.source.errors import SourceError
from korvet.spark.source.sink.appender import PartitionAppender
from korvet.spark.source.sink.entries import entry_of
from korvet.spark.source.sink.job_tasks import RedisJob
from korvet.spark.source.sink.link import Link
from korvet.spark.source.sink.pace import SharedPace, Unlimited
from korvet.spark.source.sink.partitioner import Partitioner
from korvet.spark.source.sink.progress import NOT_REPEATABLE, more_rows, noted_progress
from korvet.spark.source.topics import topic_of

if TYPE_CHECKING:
    from korvet.spark.source.sink.columns import SinkRow
    from korvet.spark.source.sink.options import RedisOptions
    from korvet.spark.source.sink.pace import Pace
    from korvet.spark.source.sink.progress import Job
    from korvet.spark.source.topics import TopicInfo

# Records that wait for their chunks, of all partitions, in bytes.
_MOST_BUFFERED_BYTES = 32 << 20


class RedisTask:
    """One attempt of a task."""

    def __init__(self, options: RedisOptions, job: Job) -> None:
        self._link = Link(options.address, options.delivery_ms)
        self._options, self._job = options, job
        self._topics: dict[str, _Topic] = {}
        self._buffered_bytes = 0
        self._pace: Pace = Unlimited()
        if options.job_rate is not None:
            self._pace = SharedPace(self._link, options.address.pace_key(job.job_id), options.job_rate)
        self._noted_job = RedisJob(self._link, options, job.job_id)
        self._has_begun = False
        # The rows of an attempt that has finished.
        self._finished_rows: int | None = None
        self.rows = 0

    @property
    def written(self) -> int:
        """Records that this attempt has written."""
        return sum(appender.written for appender in self._appenders)

    def close(self) -> None:
        """Close the connection."""
        self._link.close()

    def add(self, row: SinkRow) -> None:
        """Add the next row. Raises SourceError."""
        self._begin()
        if self.rows == self._finished_rows:
            raise SourceError(more_rows(self._finished_rows))
        topic = self._topic(row.topic_name(self._options.topic))
        entry = entry_of(row, topic.info)
        self.rows += 1
        appender = topic.appender(row)
        before = appender.buffered_bytes
        appender.add(entry)
        self._buffered_bytes += appender.buffered_bytes - before
        if self._buffered_bytes > _MOST_BUFFERED_BYTES:
            self._flush()

    def finish(self) -> None:
        """Send what is left. Raises SourceError, also if an earlier attempt had more rows."""
        self._begin()
        if self._options.topic is not None:
            # Without a row, too.
            self._topic(self._options.topic)
        for topic in self._topics.values():
            topic.check_complete()
        if self._finished_rows is not None and self.rows < self._finished_rows:
            raise SourceError(
                f"an earlier attempt had {self._finished_rows} rows, but this attempt has {self.rows}. "
                f"{NOT_REPEATABLE}"
            )
        self._flush()
        for topic in self._topics.values():
            topic.check_exists()
        if self._options.replicas:
            self._wait_for_replicas(self._options.replicas)
        self._noted_job.finish(self._job, self.rows)

    def _begin(self) -> None:
        if not self._has_begun:
            self._finished_rows = self._noted_job.begin(self._job)
            self._has_begun = True

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            info = topic_of(self._link.call, self._options.address, name)
            topic = _Topic(self._link, self._options, self._pace, self._job, info)
            self._topics[name] = topic
        return topic

    def _flush(self) -> None:
        for appender in self._appenders:
            appender.flush()
        self._buffered_bytes = 0

    @property
    def _appenders(self) -> list[PartitionAppender]:
        return [appender for topic in self._topics.values() for appender in topic.appenders.values()]

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


class _Topic:
    """A topic and its partitions' appenders."""

    def __init__(self, link: Link, options: RedisOptions, pace: Pace, job: Job, info: TopicInfo) -> None:
        self._link, self._options, self._pace, self._job = link, options, pace, job
        streams = [options.address.stream(info.name, number) for number in range(info.partitions)]
        noted = link.replies(
            [("HGET", job.progress_key(stream, info.topic_id), job.task) for stream in streams]
        )
        self._noted = [(text or b"").decode() for text in noted]
        earlier = [found for text in self._noted if (found := noted_progress(job, text)) is not None]
        # An earlier attempt chose among the partitions of its time.
        self.info = replace(info, partitions=earlier[0].partitions) if earlier else info
        self.appenders: dict[int, PartitionAppender] = {}
        self._partitioner = Partitioner(info.name, self.info.partitions, job.task)

    def appender(self, row: SinkRow) -> PartitionAppender:
        """The appender of the row's partition. Raises SourceError for one that the topic doesn't have."""
        partition = self._partitioner.partition(row)
        found = self.appenders.get(partition)
        if found is None:
            found = PartitionAppender(
                self._link,
                self._options,
                self._pace,
                self._job,
                self.info,
                partition,
                self._noted[partition],
            )
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

    def check_exists(self) -> None:
        """Raises SourceError if the topic was deleted while this task wrote to it."""
        now = topic_of(self._link.call, self._options.address, self.info.name)
        if now.topic_id != self.info.topic_id:
            raise SourceError(
                f"topic {self.info.name} was deleted and created again while its records were written"
            )
