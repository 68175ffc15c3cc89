"""The options of the sink, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from korvet.spark.source.errors import SourceError
from korvet.spark.source.settings import (
    CONNECTION_OPTIONS,
    OPTIONS,
    SINK_OPTIONS,
    Reading,
    check_known,
    parse_address,
)
from korvet.spark.source.sink.kafka_cluster import BOOTSTRAP, KafkaCluster, parse_cluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.spark.source.address import Address

# Options that Spark itself hands to the writer.
_OF_SPARK = ("checkpointLocation", "queryName", "path")
_JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
# As delivery.timeout.ms of Kafka's producers.
_DELIVERY_MS = 120_000
# The shortest time for which librdkafka opens a transaction.
_LEAST_KAFKA_DELIVERY_MS = 1000
_PROGRESS_MS = 7 * 24 * 3_600_000
# Redis refuses an expiry whose end has more than 63 bits.
_MOST_PROGRESS_MS = 36_500 * 24 * 3_600_000
# Redis serves nobody else while it adds the records of a chunk, 2 to 4 us each.
_CHUNK_RECORDS = 500
# With a limit on the rate, chunks per second.
_CHUNKS_PER_SECOND = 10
# A transaction costs four requests and its markers, about 20 ms.
_TRANSACTION_RECORDS = 20_000
_OF_BOTH = ("topic", "jobId", "sortRows", "maxRecordsPerSecond", "deliveryTimeout")
_OF_KAFKA = ("concurrentTasks", "progressTopic")
_PROGRESS_TOPIC = "korvet-sink-progress"
_OF_REDIS = tuple(name for name in SINK_OPTIONS if name not in (*_OF_BOTH, *_OF_KAFKA))


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write, checked.

    job_id: names the job of a batch; None gives each job a new ID. sort_rows: whether tasks sort their rows.
    job_rate: records per second of all tasks. delivery_ms: how long a task tries again while the server is
    away.
    """

    topic: str | None
    job_id: str | None
    sort_rows: bool
    job_rate: int | None
    delivery_ms: int


@dataclass(frozen=True, slots=True)
class RedisOptions(SinkOptions):
    """A write to Redis.

    progress_ms: how long Redis remembers what a job has written, after its last write.
    """

    address: Address
    replicas: int
    progress_ms: int

    @property
    def chunk_records(self) -> int:
        """The most records that one call appends."""
        if self.job_rate is None:
            return _CHUNK_RECORDS
        return min(_CHUNK_RECORDS, max(1, self.job_rate // _CHUNKS_PER_SECOND))


@dataclass(frozen=True, slots=True)
class KafkaOptions(SinkOptions):
    """A write through Kafka's protocol.

    concurrent_tasks: those that share the rate. progress_topic: on which tasks commit what is written.
    """

    cluster: KafkaCluster
    concurrent_tasks: int
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


def parse_sink_options(options: Mapping[str, str], *, streaming: bool = False) -> RedisOptions | KafkaOptions:
    """Return the options of `option(...)`. Names in any case.

    Raises SourceError for an option that is unknown, malformed or invalid for this write.
    """
    given = {name.lower(): value for name, value in options.items()}
    if BOOTSTRAP in given:
        return _kafka_options(given, streaming=streaming)
    check_known(given, (*CONNECTION_OPTIONS, *_OF_BOTH, *_OF_REDIS), (*OPTIONS, *_OF_SPARK), "sink")
    read = Reading(given)
    progress_ms = read.duration_ms("progressRetention", _PROGRESS_MS)
    if not 0 < progress_ms <= _MOST_PROGRESS_MS:
        raise SourceError("progressRetention must be longer than 0, and at most 36500d")
    return RedisOptions(
        **_common(given, streaming=streaming),
        address=parse_address(given),
        replicas=read.count("minReplicas", least=0) or 0,
        progress_ms=progress_ms,
    )


def _kafka_options(given: Mapping[str, str], *, streaming: bool) -> KafkaOptions:
    of_redis = [name for name in (*CONNECTION_OPTIONS, *_OF_REDIS) if name.lower() in given]
    if of_redis:
        raise SourceError(
            f"{', '.join(of_redis)}: not an option of a write through Kafka; remove it, or {BOOTSTRAP}"
        )
    own = {name: value for name, value in given.items() if not name.startswith("kafka.")}
    check_known(own, (*_OF_BOTH, *_OF_KAFKA), (*OPTIONS, *_OF_SPARK), "sink through Kafka")
    tasks = Reading(given).count("concurrentTasks")
    if "maxrecordspersecond" in given and tasks is None:
        raise SourceError(
            "maxRecordsPerSecond through Kafka needs concurrentTasks, the number of tasks that run at once: "
            "each gets its part of the rate"
        )
    common = _common(given, streaming=streaming)
    if common["delivery_ms"] < _LEAST_KAFKA_DELIVERY_MS:
        raise SourceError("deliveryTimeout through Kafka must be 1s or longer")
    return KafkaOptions(
        **common,
        cluster=parse_cluster(given),
        concurrent_tasks=tasks or 1,
        progress_topic=given.get("progresstopic", _PROGRESS_TOPIC),
    )


def _common(given: Mapping[str, str], *, streaming: bool) -> dict[str, Any]:
    """The fields of SinkOptions."""
    read = Reading(given)
    job_id = given.get("jobid")
    if job_id is not None and streaming:
        raise SourceError("jobId: not an option of a stream, whose ID is in its checkpoint")
    if job_id is not None and _JOB_ID.fullmatch(job_id) is None:
        raise SourceError(f"jobId must be 1 to 100 letters, digits and . _ -, not {job_id!r}")
    return {
        "topic": given.get("topic"),
        "job_id": job_id,
        "sort_rows": read.boolean("sortRows", default=False),
        "job_rate": read.count("maxRecordsPerSecond"),
        "delivery_ms": read.duration_ms("deliveryTimeout", _DELIVERY_MS),
    }
