"""What the brokers remember of a job: how many of a task's rows are written.

Each task has a group, which commits its progress in the transaction of the records.
"""

from __future__ import annotations

from dataclasses import dataclass

from korvet.spark.source.errors import SourceError

NOT_REPEATABLE = (
    "A task that is repeated must have the same rows in the same order, and a jobId stands for one frame in "
    "as many tasks as before. After a shuffle, write with sortRows=true, or store the frame first"
)
_FINISHED = " finished"
# Begins the names of transactional IDs and groups.
_PREFIX = "korvet-sink"


@dataclass(frozen=True, slots=True)
class Job:
    """One task of a job. `batch`: the number of the micro-batch; 0 of a job that is no stream."""

    job_id: str
    batch: int
    task: int

    @property
    def identity(self) -> str:
        """The transactional ID and the group of the task."""
        return f"{_PREFIX}-{self.job_id}-{self.task}"

    def __str__(self) -> str:
        return f"task {self.task} of job {self.job_id}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The first `records` records of a task in `batch` are written; `digest` is over these.

    finished: whether they are all records of the task.
    """

    batch: int
    records: int
    digest: str
    finished: bool = False

    @classmethod
    def parse(cls, text: str) -> Progress:
        """Return the progress in the text of a commit. Raises ValueError."""
        plain = text.removesuffix(_FINISHED)
        batch, records, _, digest = plain.split(" ")
        return cls(int(batch), int(records), digest, plain != text)

    def __str__(self) -> str:
        """The text: batch, records, a number without a meaning, digest, and whether the task has finished."""
        plain = f"{self.batch} {self.records} 0 {self.digest}"
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
        raise SourceError(f"{job} was replaced: batch {found.batch} has begun since")
    return found if found.batch == job.batch else None


def job_group(job_id: str) -> str:
    """Return the group of a job. Its ending is no number: it is no task of another job."""
    return f"{_PREFIX}-{job_id}-tasks"
