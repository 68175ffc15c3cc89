"""Jobs that are written again with another number of tasks: refused, without rows that are there twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as sf

from korvet.spark.source.errors import SourceError
from korvet.spark.source.sink.job_tasks import check_task
from korvet.spark.source.sink.progress import Job
from korvet.spark.source.sink.task import Written
from korvet.spark.source.sink.writer import KorvetWriter, batch_writer
from tests.spark.direct import schema_of
from tests.spark.sinking import load_functions, row, sink_options, values, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.sink.columns import SinkRow
    from tests.spark.keyspace import Keyspace

ROWS = [row(b"%d" % number, partition=0) for number in range(1200)]


class Killed(Exception):
    """The attempt ends here."""


@pytest.fixture(autouse=True)
def topic(keyspace: Keyspace) -> None:
    load_functions(keyspace.client)
    keyspace.topic("t", 2)


def cut(rows: list[SinkRow], at: int) -> Iterator[SinkRow]:
    yield from rows[:at]
    raise Killed


def written(keyspace: Keyspace) -> list[int]:
    return [len(partition) for partition in values(keyspace, 2)]


def end(keyspace: Keyspace, tasks: int) -> None:
    """The job has ended, as Spark tells the driver."""
    KorvetWriter(sink_options(keyspace.url), "j").commit([Written(0, 0)] * tasks)


def test_a_finished_task_gets_no_more_rows(keyspace: Keyspace) -> None:
    """Two tasks become one: the second one's rows are there already."""
    write(keyspace, ROWS[:600])
    write(keyspace, ROWS[600:], task=1)
    with pytest.raises(
        SourceError, match=r"row 601 of task 0 .*had 600 rows, .* this attempt has more\. .* as many tasks"
    ):
        write(keyspace, ROWS)
    assert written(keyspace) == [1200, 0]
    # Rows of another partition, too, and fewer rows; the next micro-batch is another matter.
    for rows in ([*ROWS[:600], row(b"v", partition=1)], ROWS[:599]):
        with pytest.raises(SourceError, match="earlier attempt"):
            write(keyspace, rows)
    assert write(keyspace, ROWS[:600]) == Written(0, 600)
    assert write(keyspace, ROWS, batch=1) == Written(1200, 0)


def test_rows_of_a_topic_that_is_not_named_again(keyspace: Keyspace) -> None:
    keyspace.topic("other")
    rows = [row(b"1", topic="t"), row(b"2", topic="other")]
    write(keyspace, rows, topic=None)
    with pytest.raises(SourceError, match="had 2 rows, but this attempt has 1"):
        write(keyspace, rows[:1], topic=None)


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_job_that_had_more_tasks(keyspace: Keyspace, was_killed: bool) -> None:
    """An unfinished task may get the rows of another one; then at least the job fails."""
    with pytest.raises(Killed):
        write(keyspace, cut(ROWS, 500))
    write(keyspace, ROWS[600:], task=1)
    if not was_killed:
        KorvetWriter(sink_options(keyspace.url), "j").abort([None, Written(600, 0)])
    write(keyspace, ROWS)
    with pytest.raises(SourceError, match=r"tasks of job j is 1, and was 2 before: some rows may"):
        end(keyspace, 1)
    KorvetWriter(sink_options(keyspace.url), "j").abort([Written(1200, 0)])
    end(keyspace, 2)


def test_a_job_gets_no_more_tasks(keyspace: Keyspace) -> None:
    end(keyspace, 2)
    options = {"redis": keyspace.url, "topic": "t", "jobId": "j"}
    writer = batch_writer(options, schema_of("value"), overwrite=False)
    assert writer._tasks_before == 2
    check_task(Job("j", 0, 1), 2)
    with pytest.raises(SourceError, match="task 2 of job j, batch 0: the number of tasks was 2 before"):
        check_task(Job("j", 0, 2), 2)


def test_a_task_of_a_batch_that_was_replaced(keyspace: Keyspace) -> None:
    write(keyspace, [], batch=7)
    with pytest.raises(SourceError, match="batch 6 was replaced: batch 7 has begun"):
        write(keyspace, ROWS[:1], batch=6)


def test_a_job_id_for_two_topics(keyspace: Keyspace) -> None:
    keyspace.topic("other")
    write(keyspace, ROWS[:100])
    end(keyspace, 1)
    assert write(keyspace, ROWS[:300], topic="other") == Written(300, 0)


def test_what_is_noted_expires(keyspace: Keyspace) -> None:
    write(keyspace, [], progressRetention="1h")
    assert 3_000_000 < keyspace.client.pttl("{korvet}:tasks:j:t") <= 3_600_000


@pytest.mark.spark
def test_a_frame_in_other_partitions(spark: SparkSession, keyspace: Keyspace) -> None:
    frame = spark.range(0, 40, 1, 4).select(sf.col("id").cast("string").alias("value"))

    def save(rows: DataFrame, job_id: str = "again") -> None:
        options = {"redis": keyspace.url, "topic": "t", "jobId": job_id}
        rows.write.format("korvet").mode("append").options(**options).save()

    save(frame)
    more = spark.range(0, 40, 1, 8).select(sf.col("id").cast("string").alias("value"))
    for others in (frame.coalesce(2), more):
        with pytest.raises(PythonException, match=r"as many (tasks|partitions) as before"):
            save(others)
    save(frame)
    assert sum(written(keyspace)) == 40
    # Also of a job that failed, the number of tasks is known.
    with pytest.raises(PythonException, match="has no partition 9"):
        save(frame.withColumn("partition", sf.lit(9)), "failing")
    assert keyspace.client.hget("{korvet}:tasks:failing:t", "all") == b"0 4"
