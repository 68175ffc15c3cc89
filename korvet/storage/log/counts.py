"""What is counted of logs: appends by route, refusals of the guard, and the traffic of topics."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from korvet.metrics.counted import Counted, counter, counters, histogram, part, shown
from korvet.metrics.declared import declare
from korvet.metrics.family import Kind
from korvet.storage.errors import LinkLost, RedisFault

if TYPE_CHECKING:
    from collections.abc import Container

    from korvet.storage.errors import StorageError
    from korvet.storage.log.values import Form

BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Bounds for the batches of one transaction."""
_REASONS: Final = {
    "REFUSED another append came in between": "other_append",
    "REFUSED the gate cannot be opened": "gate",
    "REFUSED the gate was closed": "gate",
    "REFUSED the gate was opened by another call": "gate",
    "REFUSED an entry lies in the way": "entry_in_the_way",
    "REFUSED one of several batches does not follow the last of its producer": "producer_sequence",
    "REFUSED not all entries were added": "entries_missing",
    "REFUSED the transaction was discarded": "discarded",
}


_TRAFFIC: Final = "kafka_server_brokertopicmetrics_"
_APPENDS: Final = declare(
    "korvet_appends_total",
    "Appends by route: guard (the broker assigns the offsets), script, own (records of the broker, by "
    "script), and marker.",
    "route",
    kind=Kind.COUNTER,
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

    guarded = part(_APPENDS, "guard")
    """Batches of clients that were appended by guard."""
    scripts = part(_APPENDS, "script")
    """Batches of clients that were appended by script."""
    own = part(_APPENDS, "own")
    markers = part(_APPENDS, "marker")
    refusals = counters(
        "korvet_guard_refusals_total",
        "Guarded appends that Redis refused, by reason. They are appended by script then.",
        "reason",
    )
    """Groups of batches."""
    read_back = counter(
        "korvet_appends_read_back_total",
        "Guarded appends whose outcome was read back after a connection broke.",
    )
    batches = histogram(
        "korvet_guarded_append_batches", "Batches that one guarded append carried.", bounds=BATCHES
    )
    client_records = counter(
        "korvet_appended_records_total",
        "Records in appended batches of clients. Divided by the appends of the routes guard and script: "
        "records per batch.",
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
        "korvet_transaction_markers_total", "Markers that the broker wrote into its logs.", kind=Kind.COUNTER
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

    def by_guard(self, batches: int) -> None:
        """Count a guarded append of that many batches."""
        self.guarded += batches
        self.batches.observe(batches)

    def by_script(self, *, own: bool) -> None:
        """Count an append by script, of the broker's own records or of a batch."""
        if own:
            self.own += 1
        else:
            self.scripts += 1

    def appended(self, topic: TopicCounts, form: Form, batch_bytes: int, *, duplicate: bool) -> None:
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

    def refused(self, fault: StorageError) -> None:
        """Count a guarded append that did not take effect, or whose outcome is unknown."""
        self.refusals[_reason(fault)] += 1


def _reason(fault: StorageError) -> str:
    if isinstance(fault, LinkLost):
        return "connection_lost"
    if isinstance(fault, RedisFault):
        return _REASONS.get(fault.message) or fault.code.lower()
    return "other"
