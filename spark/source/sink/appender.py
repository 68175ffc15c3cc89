"""The records of one task for one partition, appended in chunks; not those that an earlier attempt wrote."""

from __future__ import annotations

from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING

from korvet.spark.source.errors import SourceError
from korvet.spark.source.sink.progress import NOT_REPEATABLE, Progress, noted_progress

if TYPE_CHECKING:
    from korvet.spark.source.sink.entries import Entry
    from korvet.spark.source.sink.link import Link
    from korvet.spark.source.sink.options import RedisOptions
    from korvet.spark.source.sink.pace import Pace
    from korvet.spark.source.sink.progress import Job
    from korvet.spark.source.topics import TopicInfo

CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 16


class PartitionAppender:
    """Appends a task's records to a partition.

    An attempt of a task begins with the rows of the previous attempt. It counts and digests all its records,
    and sends those after the ones that Redis has noted (Progress). If the digest over these differs from the
    noted one, the rows differ, and the attempt fails.
    """

    def __init__(
        self,
        link: Link,
        options: RedisOptions,
        pace: Pace,
        job: Job,
        topic: TopicInfo,
        partition: int,
        noted: str,
    ) -> None:
        """`noted`: the task's field in the hash of the progress; empty if there is none."""
        self._link = link
        self._options = options
        self._pace = pace
        self._job = job
        self._topic = topic
        self._stream = options.address.stream(topic.name, partition)
        self._noted = noted
        self._known = noted_progress(job, noted)
        self.name = f"{topic.name}-{partition}"
        """Topic and partition, for messages."""
        self.written = 0
        """Records that this attempt has appended."""
        self.buffered_bytes = 0
        """Size of the records that are waiting for their chunk."""
        self._buffer: list[Entry] = []
        self._records = 0
        self._hasher = blake2b(digest_size=_DIGEST_BYTES)
        # The same for the records before those in the buffer.
        self._sent = (0, self._hasher.copy())

    @property
    def progress_key(self) -> str:
        """The key of the job's progress on the partition."""
        return self._job.progress_key(self._stream, self._topic.topic_id)

    @property
    def present(self) -> int:
        """The task's records that the partition has for certain."""
        return max(self._sent[0], 0 if self._known is None else self._known.records)

    def add(self, entry: Entry) -> None:
        """Add the next record. Raises SourceError."""
        self._take(entry)
        if len(self._buffer) >= self._options.chunk_records or self.buffered_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the buffered records. Raises SourceError."""
        while self._buffer:
            self._pace.wait_for(len(self._buffer))
            self._send()

    def check_complete(self) -> None:
        """Raises SourceError if an earlier attempt wrote more records than this one has."""
        if self._known is not None and self._known.records > self._records:
            raise SourceError(
                f"{self.name} has {self._known.records} records of an earlier attempt, but this attempt has "
                f"{self._records}. {NOT_REPEATABLE}"
            )

    def _take(self, entry: Entry) -> None:
        self._hasher.update(entry.content)
        self._records += 1
        if self._known is None or self._records > self._known.records:
            self._buffer.append(entry)
            self.buffered_bytes += entry.size
            return
        if self._records == self._known.records and self._hasher.hexdigest() != self._known.digest:
            raise SourceError(
                f"the first {self._records} records for {self.name} are not those of an earlier attempt. "
                f"{NOT_REPEATABLE}"
            )
        self._sent = (
            (self._records, self._hasher.copy()) if self._records == self._known.records else self._sent
        )

    def _send(self) -> None:
        progress = str(
            Progress(self._job.batch, self._records, self._topic.partitions, self._hasher.hexdigest())
        )
        topic, stream = self._topic, self._stream
        reply = self._link.call(
            "FCALL",
            "korvet_xadd_once",
            4,
            stream,
            f"{{{stream}}}:index",
            f"{{{stream}}}:meta",
            self.progress_key,
            self._job.task,
            self._noted,
            progress,
            int(topic.log_append_time and topic.dense),
            topic.topic_id,
            len(self._buffer),
            self._options.progress_ms,
            *chain.from_iterable(entry.arguments for entry in self._buffer),
        )
        noted = reply[0].decode()
        if noted != progress:
            self._follow(noted)
            return
        self.written += len(self._buffer)
        self._noted = noted
        self._sent = (self._records, self._hasher.copy())
        self._buffer, self.buffered_bytes = [], 0

    def _follow(self, noted: str) -> None:
        """Go on after records that another attempt has appended meanwhile."""
        known = noted_progress(self._job, noted)
        records, hasher = self._sent
        if known is None or known.records < records:
            raise SourceError(
                f"{self.name} has lost records that this attempt wrote before (a failover, or the hash "
                f"{self.progress_key} was deleted)"
            )
        waiting = self._buffer
        self._buffer, self.buffered_bytes = [], 0
        self._noted, self._known = noted, known
        self._records, self._hasher = records, hasher.copy()
        for entry in waiting:
            self._take(entry)
