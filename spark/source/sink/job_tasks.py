"""The tasks of a job: one that is repeated must have as many as before.

A task doesn't know how many there are. The driver learns it when they have ended, and notes it then. So a
repeated task also has to know whether an earlier attempt has finished it, and with how many rows.

In Redis, the hash {KEYSPACE}:tasks:JOB (:TOPIC, if it is that of all rows) has for each task the number of
the batch, and that of its rows once it has finished, `-` before; the field `all` has the number of tasks.
Through Kafka, the note of a task says whether it has finished, and the job has a group of its own for the
number of tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.spark.source.errors import SourceError
from korvet.spark.source.sink.progress import replaced

if TYPE_CHECKING:
    from korvet.spark.source.connection import Arguments
    from korvet.spark.source.sink.kafka_client import KafkaTopics
    from korvet.spark.source.sink.link import Link
    from korvet.spark.source.sink.options import RedisOptions
    from korvet.spark.source.sink.progress import Job

_ALL = "all"
_UNFINISHED = "-"
_SAME_TASKS = "A repeated job must have the same tasks: write the frame in as many partitions as before"


def check_task(job: Job, tasks: int | None) -> None:
    """Raises SourceError if the job had too few tasks for this one. `tasks`: their number, if it is known."""
    if tasks is not None and job.task >= tasks:
        raise SourceError(f"{job}: the number of tasks was {tasks} before, and is larger now. {_SAME_TASKS}")


class RedisJob:
    """What Redis knows of a job's tasks. All methods raise SourceError if Redis is away or refuses."""

    def __init__(self, link: Link, options: RedisOptions, job_id: str) -> None:
        self._link = link
        self._job_id = job_id
        self._key = options.address.tasks_key(job_id, options.topic)
        self._kept_ms = options.progress_ms

    def begin(self, job: Job) -> int | None:
        """Note that a task has begun; return its rows if an earlier attempt has finished it.

        Raises SourceError if a later batch has begun.
        """
        noted = self._link.call("HGET", self._key, job.task)
        if noted is not None and (newest := int(noted.partition(b" ")[0])) > job.batch:
            raise SourceError(replaced(job, newest))
        rows = _of_batch(noted, job.batch)
        if rows is not None and rows != _UNFINISHED:
            return int(rows)
        self._note(job.batch, str(job.task), _UNFINISHED)
        return None

    def finish(self, job: Job, rows: int) -> None:
        """Note that a task has written all its rows."""
        self._note(job.batch, str(job.task), str(rows))

    def tasks(self) -> int | None:
        """Return the number of tasks when the job ended; None if it didn't."""
        known = _of_batch(self._link.call("HGET", self._key, _ALL), 0)
        return None if known is None else int(known)

    def end(self, tasks: int) -> None:
        """Note how many tasks the job has, finished or not. Raises SourceError if it had another number."""
        reply = self._link.call("HGETALL", self._key)
        noted = {field.decode(): _of_batch(text, 0) for field, text in zip(*[iter(reply)] * 2, strict=True)}
        known = noted.pop(_ALL, None)
        seen = 1 + max((int(task) for task, text in noted.items() if text is not None), default=-1)
        _check_same(self._job_id, tasks, max(tasks, seen) if known is None else int(known))
        self._note(0, _ALL, str(tasks))

    def _note(self, batch: int, field: str, text: str) -> None:
        commands: list[Arguments] = [
            ("HSET", self._key, field, f"{batch} {text}"),
            ("PEXPIRE", self._key, self._kept_ms),
        ]
        self._link.replies(commands)


class KafkaJob:
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
        known = self.tasks()
        _check_same(self._job_id, tasks, tasks if known is None else known)
        self._topics.note(self._progress_topic, str(tasks))


def _check_same(job_id: str, tasks: int, before: int) -> None:
    if tasks != before:
        raise SourceError(
            f"the number of tasks of job {job_id} is {tasks}, and was {before} before: some rows may be in "
            f"the topics twice. {_SAME_TASKS}"
        )


def _of_batch(noted: bytes | None, batch: int) -> str | None:
    """What is noted of a batch; None of another one."""
    number, _, text = (noted or b"").decode().partition(" ")
    return text if number == str(batch) else None
