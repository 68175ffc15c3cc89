"""The options of the sink, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from korvet.spark.source import options as known
from korvet.spark.source.errors import SourceError
from korvet.spark.source.options import Given, check_known, names_of
from korvet.spark.source.sink.kafka_cluster import KafkaCluster, parse_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

# Options that Spark itself hands to the writer.
_OF_SPARK = ("checkpointLocation", "queryName", "path")
_JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
# The shortest and the longest time for which librdkafka opens a transaction.
_LEAST_DELIVERY_MS, _MOST_DELIVERY_MS = 1000, (1 << 31) - 1
# A transaction costs four requests and its markers, about 20 ms.
_TRANSACTION_RECORDS = 20_000


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write, checked.

    job_id: names the job of a batch; None gives each job a new ID. sort_rows: whether tasks sort their rows.
    job_rate: records per second of all tasks. concurrent_tasks: those that share the rate. delivery_ms: how
    long brokers may take for a transaction. progress_topic: on which tasks commit what is written.
    """

    cluster: KafkaCluster
    topic: str | None
    job_id: str | None
    sort_rows: bool
    job_rate: int | None
    concurrent_tasks: int
    delivery_ms: int
    progress_topic: str

    @property
    def task_rate(self) -> float | None:
        """Records per second of one task."""
        return None if self.job_rate is None else self.job_rate / self.concurrent_tasks

    @property
    def chunk_records(self) -> int:
        """The most records of one transaction; with a limit on the rate, those of one second."""
        rate = self.task_rate
        return _TRANSACTION_RECORDS if rate is None else min(_TRANSACTION_RECORDS, max(1, int(rate)))


def parse_sink_options(options: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
    """Return the options of `option(...)`. Names in any case.

    A view that is read and written has the options of the source, too. Raises SourceError for an option that
    is unknown, malformed or invalid for this write.
    """
    given = Given(options)
    of_redis = given.named(known.CONNECTION)
    if of_redis and known.BOOTSTRAP not in given:
        raise SourceError(
            f"{', '.join(of_redis)}: the korvet sink writes to brokers, not to Redis; give {known.BOOTSTRAP}"
        )
    own = [name for name in given.texts if not name.startswith("kafka.")]
    check_known(own, names_of(known.SINK), (*names_of(known.SOURCE), *_OF_SPARK), "sink")
    job_id = given["jobId"]
    if job_id is not None and streaming:
        raise SourceError("jobId: not an option of a stream, whose ID is in its checkpoint")
    if job_id is not None and _JOB_ID.fullmatch(job_id) is None:
        raise SourceError(f"jobId must be 1 to 100 letters, digits and . _ -, not {job_id!r}")
    job_rate, tasks = given["maxRecordsPerSecond"], given["concurrentTasks"]
    if job_rate is not None and tasks is None:
        raise SourceError(
            "maxRecordsPerSecond needs concurrentTasks, the number of tasks that run at once: each gets its "
            "part of the rate"
        )
    delivery_ms = given["deliveryTimeout"]
    if not _LEAST_DELIVERY_MS <= delivery_ms <= _MOST_DELIVERY_MS:
        raise SourceError("deliveryTimeout must be 1s or longer, and at most 24d")
    return SinkOptions(
        cluster=parse_cluster(given),
        topic=given["topic"],
        job_id=job_id,
        sort_rows=given["sortRows"],
        job_rate=job_rate,
        concurrent_tasks=tasks or 1,
        delivery_ms=delivery_ms,
        progress_topic=given["progressTopic"],
    )
