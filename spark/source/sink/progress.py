"""What Redis remembers of a job: how much of a task's rows each partition has.

The hash {STREAM}:written:JOB:TOPIC_ID has a field for each task, written in the same step as the records.
"""

from __future__ import annotations

from dataclasses import dataclass


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

    def __str__(self) -> str:
        return f"task {self.task} of job {self.job_id}, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Progress:
    """The first `records` records of a task in `batch` are in the partition; `digest` is over these.

    partitions: of the topic, when the task chose partitions.
    """

    batch: int
    records: int
    partitions: int
    digest: str

    @classmethod
    def parse(cls, text: str) -> Progress:
        """Return the progress in a field of the hash. Raises ValueError."""
        batch, records, partitions, digest = text.split(" ")
        return cls(int(batch), int(records), int(partitions), digest)

    def __str__(self) -> str:
        return f"{self.batch} {self.records} {self.partitions} {self.digest}"
