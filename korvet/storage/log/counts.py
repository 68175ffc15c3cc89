"""What is counted of logs: appends by route, refusals of the guard, and the traffic of topics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from korvet.metrics.histogram import Histogram
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


class TopicCounts:
    """The traffic of one topic on this broker since the start."""

    __slots__ = (
        "batches",
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "records_in",
    )

    def __init__(self) -> None:
        self.records_in = 0
        """Records appended, with those of the broker's own and markers."""
        self.bytes_in = 0
        """Bytes of the appended batches as they were received."""
        self.bytes_out = 0
        """Bytes of the record batches in Fetch responses."""
        self.batches = 0
        """Batches of clients that are in the log now."""
        self.failed_produces = 0
        """Batches of clients that were refused."""
        self.fetches = 0
        """Reads of partitions for Fetch requests."""
        self.failed_fetches = 0

    @property
    def produces(self) -> int:
        """The batches that clients sent, once they are appended or refused."""
        return self.batches + self.failed_produces

    def add(self, other: TopicCounts) -> None:
        """Add the traffic of another topic."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class LogCounts:
    """The counts of all logs of a broker since the start."""

    __slots__ = (
        "_deleted",
        "batches",
        "client_records",
        "duplicates",
        "fenced",
        "guarded",
        "markers",
        "own",
        "read_back",
        "refusals",
        "scripts",
        "shortened",
        "topics",
    )

    def __init__(self) -> None:
        self.guarded = 0
        """Batches of clients that were appended by guard."""
        self.scripts = 0
        """Batches of clients that were appended by script."""
        self.own = 0
        """Appends of the broker's own records."""
        self.markers = 0
        self.duplicates = 0
        """Batches that were there already (KIP-98)."""
        self.read_back = 0
        """Guarded appends whose outcome had to be read back."""
        self.fenced = 0
        """Appends and claims refused because another broker leads the partition."""
        self.shortened = 0
        """Logs of which records that clients could read were lost with a server of Redis."""
        self.refusals: Counter[str] = Counter()
        """Groups of batches that the guard did not let in, by reason."""
        self.batches = Histogram(BATCHES)
        """Batches in one guarded append."""
        self.client_records = 0
        """Records in the batches of clients."""
        self.topics: dict[str, TopicCounts] = {}
        # The traffic of topics that are deleted.
        self._deleted = TopicCounts()

    def of_topic(self, name: str) -> TopicCounts:
        """The counts of a topic."""
        found = self.topics.get(name)
        if found is None:
            found = self.topics[name] = TopicCounts()
        return found

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
            topic.batches += 1
            return
        count = form.record_count
        topic.records_in += count
        if batch_bytes:
            topic.bytes_in += batch_bytes
            topic.batches += 1
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
