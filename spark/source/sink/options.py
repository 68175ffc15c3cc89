"""The options of the sink, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from korvet.spark.source.errors import SourceError
from korvet.spark.source.settings import (
    CONNECTION_OPTIONS,
    OPTIONS,
    SINK_OPTIONS,
    Reading,
    check_known,
    parse_address,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.spark.source.address import Address

# Options that Spark itself hands to the writer.
_OF_SPARK = ("checkpointLocation", "queryName", "path")
_JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
# As delivery.timeout.ms of Kafka's producers.
_DELIVERY_MS = 120_000
_PROGRESS_MS = 7 * 24 * 3_600_000
# Redis serves nobody else while it adds the records of a chunk, 2 to 4 us each.
_CHUNK_RECORDS = 500
# With a limit on the rate, chunks per second.
_CHUNKS_PER_SECOND = 10


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write, checked.

    job_id: names the job of a batch; None gives each job a new ID. sort_rows: whether tasks sort their rows.
    task_rate: records per second of a task.
    delivery_ms: how long a task tries again while Redis is away. progress_ms: how long Redis remembers what a
    job has written, after its last write.
    """

    address: Address
    topic: str | None
    job_id: str | None
    sort_rows: bool
    task_rate: int | None
    replicas: int
    delivery_ms: int
    progress_ms: int

    @property
    def chunk_records(self) -> int:
        """The most records that one call appends."""
        if self.task_rate is None:
            return _CHUNK_RECORDS
        return min(_CHUNK_RECORDS, max(1, self.task_rate // _CHUNKS_PER_SECOND))

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = False) -> SinkOptions:
        """Return the options of `option(...)`. Names in any case.

        Raises SourceError for an option that is unknown, malformed or invalid for this write.
        """
        given = {name.lower(): value for name, value in options.items()}
        check_known(given, (*CONNECTION_OPTIONS, "topic", *SINK_OPTIONS), (*OPTIONS, *_OF_SPARK), "sink")
        read = Reading(given)
        job_id = given.get("jobid")
        if job_id is not None and streaming:
            raise SourceError("jobId: not an option of a stream, whose ID is in its checkpoint")
        if job_id is not None and _JOB_ID.fullmatch(job_id) is None:
            raise SourceError(f"jobId must be 1 to 100 letters, digits and . _ -, not {job_id!r}")
        progress_ms = read.duration_ms("progressRetention", _PROGRESS_MS)
        if progress_ms < 1:
            raise SourceError("progressRetention must be longer than 0")
        return cls(
            address=parse_address(given),
            topic=given.get("topic"),
            job_id=job_id,
            sort_rows=read.boolean("sortRows", default=False),
            task_rate=read.count("maxRecordsPerSecond"),
            replicas=read.count("minReplicas") or 0,
            delivery_ms=read.duration_ms("deliveryTimeout", _DELIVERY_MS),
            progress_ms=progress_ms,
        )
