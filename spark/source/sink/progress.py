"""What the server remembers of a job: how many of a task's rows are written.

In Redis, the hash {STREAM}:written:JOB:TOPIC_ID of each partition has a field for each task, written in the
same step as the records. Through Kafka, each task has a group, which commits in the records' transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

from korvet.spark.source.errors import SourceError

NOT_REPEATABLE = (
    "A task that is repeated must have the same rows in the same order, and a jobId stands for one frame in "
    "as many tasks as before. After a shuffle, write with sortRows=true, or store the frame first"
)
_FINISHED = " finished"
# Begins the names of transactional IDs and groups in Kafka.
_PREFIX = "korvet-sink"


@dataclass(frozen=True, slots=True)
class Job:
    """One task of a job. `batch`: the number of the micro-batch; 0 of a job that is no stream."""

    job_id: str
    batch: int
    task: int

    def progress_key(self, stream: str, topic_id: str) -> str:
        """Return the key of the job's progress on a partition, in the slot of its stream.

        A topic that is created again has none of the records.
        """
        return f"{{{stream}}}:written:{self.job_id}:{topic_id}"

    @property
    def identity(self) -> str:
        """The transactional ID and the group of the task in Kafka."""
        return f"{_PREFIX}-{self.job_id}-{self.task}"

    def __str__(self) -> str:
        return f"task {self.task} of job {self.job_id}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The first `records` records of a task in `batch` are written; `digest` is over these.

    partitions: of the topic, when the task chose partitions; 0 through Kafka. finished: whether they are all
    records of the task, only known through Kafka.
    """

    batch: int
    records: int
    partitions: int
    digest: str
    finished: bool = False

    @classmethod
    def parse(cls, text: str) -> Progress:
        """Return the progress in a text of the server. Raises ValueError."""
        plain = text.removesuffix(_FINISHED)
        batch, records, partitions, digest = plain.split(" ")
        return cls(int(batch), int(records), int(partitions), digest, plain != text)

    def __str__(self) -> str:
        plain = f"{self.batch} {self.records} {self.partitions} {self.digest}"
        return plain + _FINISHED if self.finished else plain


def noted_progress(job: Job, noted: str) -> Progress | None:
    """Return the progress of the job's batch; None if nothing of it was written.

    Raises SourceError if a later batch was written: this attempt belongs to a driver that was replaced.
    """
    if not noted:
        return None
    try:
        found = Progress.parse(noted)
    except ValueError:
        raise SourceError(f"the noted progress of {job} is damaged: {noted!r}") from None
    if found.batch > job.batch:
        raise SourceError(replaced(job, found.batch))
    return found if found.batch == job.batch else None


def job_group(job_id: str) -> str:
    """Return the group of a job in Kafka. Its ending is no number: it is no task of another job."""
    return f"{_PREFIX}-{job_id}-tasks"


def more_rows(before: int) -> str:
    """Return the message for an attempt with more rows than one that has finished."""
    return f"an earlier attempt had {before} rows, but this attempt has more. {NOT_REPEATABLE}"


def replaced(job: Job, newest: int) -> str:
    """Return the message for an attempt of a batch before the newest one."""
    return f"{job} was replaced: batch {newest} has begun since"
