"""The writers that Spark calls: of a batch, and of a stream's micro-batches."""

from __future__ import annotations

import logging
import uuid
from contextlib import closing, contextmanager
from itertools import chain
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from korvet.spark.source.errors import SourceError
from korvet.spark.source.sink.columns import check_columns, rows_of
from korvet.spark.source.sink.job_tasks import NotedJob, check_task
from korvet.spark.source.sink.kafka_client import KafkaTopics
from korvet.spark.source.sink.options import parse_sink_options
from korvet.spark.source.sink.progress import Job, job_group
from korvet.spark.source.sink.task import Written, write_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

    from korvet.spark.source.sink.options import SinkOptions

Messages = list[WriterCommitMessage | None]
# The names of local properties by which Spark tells tasks their micro-batch.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# How long the driver waits for a cluster to describe a topic.
_ANSWER_S = 20.0
# A consumer needs the name of a group, which doesn't come into being.
_ASKING = "korvet-sink"
log = logging.getLogger(__name__)


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> KorvetWriter:
    """Return the writer of a batch.

    Raises SourceError for invalid options and columns, and for a missing topic.
    """
    given = _checked(parse_sink_options(options), schema, overwrite=overwrite)
    _check_server(given)
    if given.job_id is None:
        return KorvetWriter(given, str(uuid.uuid4()))
    with _noted_job(given, given.job_id) as noted:
        return KorvetWriter(given, given.job_id, noted.tasks())


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> KorvetStreamWriter:
    """Return the writer of a micro-batch. Raises as `batch_writer` does."""
    given = _checked(parse_sink_options(options, streaming=True), schema, overwrite=overwrite)
    _check_server(given)
    return KorvetStreamWriter(given)


def _checked(options: SinkOptions, schema: StructType, *, overwrite: bool) -> SinkOptions:
    if overwrite:
        raise SourceError("a topic can't be overwritten: use mode append (output mode append or update)")
    check_columns(schema, options.topic)
    return options


def _check_server(options: SinkOptions) -> None:
    """Create the topic for the progress. Raises SourceError if the topic of all rows doesn't exist."""
    timeout_s = min(options.delivery_ms / 1000, _ANSWER_S)
    with closing(KafkaTopics(options.cluster, _ASKING, timeout_s)) as topics:
        if options.topic is not None:
            topics.partitions(options.topic)
        topics.create_if_missing(options.progress_topic)


@contextmanager
def _noted_job(options: SinkOptions, job_id: str) -> Iterator[NotedJob]:
    """What the brokers know of the job."""
    with closing(KafkaTopics(options.cluster, job_group(job_id), options.delivery_ms / 1000)) as topics:
        yield NotedJob(topics, options.progress_topic, job_id)


class KorvetWriter(DataSourceArrowWriter):
    """Writes a batch. The job's ID is chosen on the driver, so all attempts of a task have the same.

    tasks_before: the number of tasks of the job, if it has ended before.
    """

    def __init__(self, options: SinkOptions, job_id: str, tasks_before: int | None = None) -> None:
        self._options = options
        self._job_id = job_id
        self._tasks_before = tasks_before

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of one task. Raises SourceError."""
        job = Job(self._job_id, 0, _context().partitionId())
        check_task(job, self._tasks_before)
        return write_task(self._options, job, chain.from_iterable(map(rows_of, iterator)))

    def commit(self, messages: Messages) -> None:
        """Log what was written: the records are in the topics already.

        Raises SourceError if the job had another number of tasks before.
        """
        log.info("job %s: %s", self._job_id, _total(messages))
        self._end(len(messages))

    def abort(self, messages: Messages) -> None:
        """Log what finished tasks have written, which stays in the topics, and how to go on after it."""
        log.warning(
            "job %s failed; finished tasks: %s, and failed tasks may have written more. To write the rest, "
            "write the same frame with the option jobId=%s",
            *(self._job_id, _total(messages), self._job_id),
        )
        try:
            self._end(len(messages))
        except SourceError as error:
            log.warning("job %s: %s", self._job_id, error)

    def _end(self, tasks: int) -> None:
        """Note the number of tasks. Raises SourceError if the job had another one before."""
        with _noted_job(self._options, self._job_id) as noted:
            noted.end(tasks)


class KorvetStreamWriter(DataSourceStreamWriter, DataSourceArrowWriter):
    """Writes the micro-batches of a query; the ID of the query, which is in its checkpoint, names the job.

    Every Spark 4 passes Arrow batches to a DataSourceArrowWriter, in a stream, too. The class for that,
    DataSourceStreamArrowWriter, exists from Spark 4.1 on only.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of one task of a micro-batch. Raises SourceError."""
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise SourceError(
                "the task doesn't know its query and micro-batch; Spark sets them as local properties"
            )
        job = Job(query, int(batch), context.partitionId())
        return write_task(self._options, job, chain.from_iterable(map(rows_of, iterator)))

    def commit(  # type: ignore[override]
        self,
        messages: Messages,
        batchId: int,  # noqa: N803 (Spark's name)
    ) -> None:
        """Log what was written: the records are in the topics already."""
        log.info("batch %d: %s", batchId, _total(messages))

    def abort(  # type: ignore[override]
        self,
        messages: Messages,
        batchId: int,  # noqa: N803 (Spark's name)
    ) -> None:
        """Log what finished tasks have written, which stays in the topics; the query repeats the batch."""
        log.warning("batch %d failed; finished tasks: %s", batchId, _total(messages))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise SourceError("the korvet sink writes only in tasks of Spark")
    return context


def _total(messages: Messages) -> str:
    done = [message for message in messages if isinstance(message, Written)]
    written, found = sum(one.records for one in done), sum(one.found for one in done)
    return f"{written} records written, {found} were there from earlier attempts"
