"""What is counted of logs: appends, and the traffic of topics."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from korvet.metrics.counted import Counted, counter, histogram, part, shown
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType

if TYPE_CHECKING:
    from collections.abc import Container

    from korvet.records.batch import AppendArguments

BATCHES: Final = (1, 2, 4, 8, 16, 32)
"""Bounds for the batches of one call."""


_TRAFFIC: Final = "kafka_server_brokertopicmetrics_"
_APPENDS: Final = declare(
    "korvet_appends_total",
    "Appends by what they add: client (batches of clients), own (records of the broker), and marker.",
    "kind",
    kind=MetricType.COUNTER,
)


class TopicCounts(Counted):
    """The traffic of one topic on this broker since the start."""

    records_in = counter(
        f"{_TRAFFIC}messagesin_total",
        "Records appended. The sample without a topic has all topics, with deleted ones, as in Kafka.",
        "topic",
    )
    """With those of the broker's own and markers."""
    bytes_in = counter(
        f"{_TRAFFIC}bytesin_total", "Bytes of the appended record batches as they were received.", "topic"
    )
    bytes_out = counter(
        f"{_TRAFFIC}bytesout_total", "Bytes of the record batches in Fetch responses.", "topic"
    )
    produces = counter(
        f"{_TRAFFIC}totalproducerequests_total",
        "Batches in Produce requests: one for each partition of a request, as in Kafka.",
        "topic",
    )
    """Once they are appended or refused."""
    failed_produces = counter(
        f"{_TRAFFIC}failedproducerequests_total", "Of these, batches that were refused.", "topic"
    )
    fetches = counter(
        f"{_TRAFFIC}totalfetchrequests_total",
        "Reads of partitions for Fetch requests. A partition without news is not read.",
        "topic",
    )
    failed_fetches = counter(
        f"{_TRAFFIC}failedfetchrequests_total", "Partitions in Fetch responses that have an error.", "topic"
    )

    def fetched(self) -> None:
        """Count a read of a partition for a Fetch request."""
        self.fetches += 1

    def fetch_failed(self) -> None:
        """Count a partition in a Fetch response that has an error."""
        self.failed_fetches += 1

    def returned(self, size_bytes: int) -> None:
        """Count the batches of a partition in a Fetch response."""
        self.bytes_out += size_bytes

    def refused(self) -> None:
        """Count a batch of a client that was refused."""
        self.produces += 1
        self.failed_produces += 1

    def add(self, other: TopicCounts) -> None:
        """Add the traffic of another topic."""
        for name in self._starts:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class LogCounts(Counted):
    """The counts of all logs of a broker since the start."""

    clients = part(_APPENDS, "client")
    own = part(_APPENDS, "own")
    markers = part(_APPENDS, "marker")
    resolved = counter(
        "korvet_appends_resolved_total",
        "Calls whose reply was lost with the connection, and whose outcome Redis was asked for.",
    )
    batches = histogram(
        "korvet_append_batches", "Batches of clients that one call of Redis appended.", bounds=BATCHES
    )
    client_records = counter(
        "korvet_appended_records_total",
        "Records in appended batches of clients. Divided by the appends of the kind client: records per "
        "batch.",
    )
    duplicates = counter(
        "korvet_duplicate_batches_total",
        "Batches of idempotent producers that were in the log already, and were not appended again.",
    )

    def __init__(self) -> None:
        super().__init__()
        self.topics = defaultdict[str, TopicCounts](TopicCounts)
        # The traffic of topics that are deleted.
        self._deleted = TopicCounts()

    @property
    @shown(
        "korvet_transaction_markers_total",
        "Markers that the broker wrote into its logs.",
        kind=MetricType.COUNTER,
    )
    def written_markers(self) -> int:
        """The same as `markers`."""
        return self.markers

    def forget(self, name: str) -> None:
        """The topic is deleted. `all_topics` keeps its traffic."""
        found = self.topics.pop(name, None)
        if found is not None:
            self._deleted.add(found)

    def shown(self, names: Container[str]) -> list[tuple[str, TopicCounts]]:
        """The topics of these names that have counts, by name."""
        return sorted((name, counts) for name, counts in self.topics.items() if name in names)

    def all_topics(self) -> TopicCounts:
        """The traffic of all topics together, with that of deleted ones."""
        total = TopicCounts()
        total.add(self._deleted)
        for each in self.topics.values():
            total.add(each)
        return total

    def sent(self, batches: int, *, own: bool) -> None:
        """Count a call that appended that many batches, of clients or of the broker's own records."""
        if own:
            self.own += batches
        elif batches:
            self.clients += batches
            self.batches.observe(batches)

    def appended(
        self, topic: TopicCounts, form: AppendArguments, batch_bytes: int, *, duplicate: bool
    ) -> None:
        """Count what an append added. `batch_bytes`: the size of the batch as it was received; 0 if the
        records are the broker's own.
        """
        if duplicate:
            self.duplicates += 1
            topic.produces += 1
            return
        count = form.record_count
        topic.records_in += count
        if batch_bytes:
            topic.bytes_in += batch_bytes
            topic.produces += 1
            self.client_records += count
        else:
            topic.bytes_in += form.payload_bytes
