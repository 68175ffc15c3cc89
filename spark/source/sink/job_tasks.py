"""The tasks of a job: one that is repeated must have as many as before.

A task doesn't know how many there are. The driver learns it when they have ended, and notes it then, in a
group of the job. The note of a task says whether an earlier attempt has finished it, and with how many rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from korvet.spark.source.sink.kafka_client import KafkaTopics
    from korvet.spark.source.sink.progress import Job

_SAME_TASKS = "A repeated job must have the same tasks: write the frame in as many partitions as before"


def check_task(job: Job, tasks: int | None) -> None:
    """Raises SourceError if the job had too few tasks for this one. `tasks`: their number, if it is known."""
    if tasks is not None and job.task >= tasks:
        raise SourceError(f"{job}: the number of tasks was {tasks} before, and is larger now. {_SAME_TASKS}")


class NotedJob:
    """What the group of a job knows of its tasks. All methods raise SourceError."""

    def __init__(self, topics: KafkaTopics, progress_topic: str, job_id: str) -> None:
        self._topics = topics
        self._progress_topic = progress_topic
        self._job_id = job_id

    def tasks(self) -> int | None:
        """Return the number of tasks when the job ended; None if it didn't."""
        noted = self._topics.noted(self._progress_topic)
        return int(noted) if noted else None

    def end(self, tasks: int) -> None:
        """Note how many tasks the job has, finished or not. Raises SourceError if it had another number."""
        before = self.tasks()
        if before not in {None, tasks}:
            raise SourceError(
                f"the number of tasks of job {self._job_id} is {tasks}, and was {before} before: some rows "
                f"may be in the topics twice. {_SAME_TASKS}"
            )
        self._topics.note(self._progress_topic, str(tasks))
