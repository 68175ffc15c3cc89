"""What a broker has counted of its own work: traffic, connections, lease, appends, caches, compaction."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from korvet.metrics.families import brokers
from korvet.metrics.family import NO_LABELS, Samples
from korvet.observe.lifecycle import Phase
from korvet.storage.refusals import REFUSING, Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from korvet.api.common.services import Services
    from korvet.embedded.disk_space import DiskSpace
    from korvet.observe.led_partitions import LedPartitions
    from korvet.observe.lifecycle import Lifecycle
    from korvet.server.backpressure import Backpressure
    from korvet.server.certificates import UsedCertificate
    from korvet.server.connections import Connections
    from korvet.storage.brokers.membership import Membership
    from korvet.storage.log.counts import LogCounts
    from korvet.storage.log.resources import LogResources
    from korvet.storage.refusals import Refusals
    from korvet.topics.compaction import CompactionCounts

# The states that Kafka's brokers report (BrokerState).
_STATES: Final = {
    Phase.STARTING: 1,
    Phase.LOADING: 2,
    Phase.SERVING: 3,
    Phase.DRAINING: 6,
    Phase.STOPPING: 7,
}
# Shortest time over which the idle part is measured: scrapes may follow each other closely.
_LEAST_S: Final = 1.0


def collect_state(lifecycle: Lifecycle) -> Iterator[Samples]:
    """See Collector."""
    yield brokers.BROKER_STATE.single(_STATES[lifecycle.phase])


def collect_traffic(counts: LogCounts, led: LedPartitions) -> Iterator[Samples]:
    """See Collector. The traffic of topics, first that of all topics together."""
    topics = counts.shown(led.shown)
    texts = [NO_LABELS, *(brokers.MESSAGES_IN.text(name) for name, _ in topics)]
    rows = [counts.all_topics(), *(each for _, each in topics)]
    for family, name in (
        (brokers.MESSAGES_IN, "records_in"),
        (brokers.BYTES_IN, "bytes_in"),
        (brokers.BYTES_OUT, "bytes_out"),
        (brokers.PRODUCES, "produces"),
        (brokers.FAILED_PRODUCES, "failed_produces"),
        (brokers.FETCHES, "fetches"),
        (brokers.FAILED_FETCHES, "failed_fetches"),
    ):
        yield Samples(family, [(text, getattr(each, name)) for text, each in zip(texts, rows, strict=True)])


def collect_connections(connections: Connections) -> Iterator[Samples]:
    """See Collector. The connections of each listener."""
    counts = sorted(connections.counts.items())
    texts = [(brokers.CONNECTIONS.text(name), name, each) for name, each in counts]
    yield Samples(brokers.CONNECTIONS, [(text, connections.open_on(name)) for text, name, _ in texts])
    for family, attribute in (
        (brokers.CREATED, "accepted"),
        (brokers.CLOSED, "closed"),
        (brokers.AUTHENTICATED, "authenticated"),
        (brokers.REAUTHENTICATED, "reauthenticated"),
        (brokers.FAILED_AUTHENTICATIONS, "failed_authentications"),
        (brokers.EXPIRED, "expired"),
        (brokers.IDLE_CLOSED, "idle"),
        (brokers.REFUSED, "refused"),
    ):
        yield Samples(family, [(text, getattr(each, attribute)) for text, _, each in texts])


def collect_certificates(used: Callable[[], Iterable[UsedCertificate]]) -> Iterator[Samples]:
    """See Collector."""
    family = brokers.CERTIFICATE_EXPIRY
    yield Samples(family, [(family.text(*each[:2], each[2].subject), each[2].ends_s) for each in used()])


def collect_fetches(services: Services) -> Iterator[Samples]:
    """See Collector. Fetches that wait, fetch sessions, and memory."""
    yield Samples(brokers.PURGATORY, [(brokers.PURGATORY.text("Fetch"), len(services.deadlines))])
    sessions = services.fetch_sessions
    yield brokers.SESSIONS.single(len(sessions))
    yield brokers.SESSION_PARTITIONS.single(sessions.partitions)
    yield brokers.SESSION_EVICTIONS.single(sessions.evicted)
    yield brokers.FETCH_MEMORY_BYTES.single(services.fetch_memory.held_bytes)


def collect_backpressure(backpressure: Backpressure) -> Iterator[Samples]:
    """See Collector."""
    yield brokers.BACKPRESSURE_SECONDS.single(backpressure.total_blocked_s)
    yield brokers.BACKPRESSURE_HOLDS.single(backpressure.holds)
    yield brokers.BACKPRESSURE_WAITING.single(backpressure.waiting)
    yield brokers.IN_FLIGHT_BYTES.single(backpressure.in_flight_bytes)


def collect_lease(member: Membership, logs: LogCounts) -> Iterator[Samples]:
    """See Collector. The lease, and changes of leaders."""
    counts = member.counts
    yield brokers.LEASE_RENEWALS.single(counts.renewals)
    yield brokers.LEASE_FAILURES.single(counts.failed)
    yield brokers.LEASE_EXPIRIES.single(counts.expired)
    yield brokers.VERSION_CHANGES.single(counts.versions)
    yield brokers.VERSION.single(member.assignment.version)
    yield brokers.FENCED.single(logs.fenced)
    yield brokers.UNCLEAN_ELECTIONS.single(counts.rejoins)
    yield brokers.SHORTENED.single(logs.shortened)


def collect_appends(counts: LogCounts) -> Iterator[Samples]:
    """See Collector. Appends by route, and why the guard refused some."""
    routes = {
        "guard": counts.guarded,
        "script": counts.scripts,
        "own": counts.own,
        "marker": counts.markers,
    }
    yield brokers.APPENDED.by_label(routes)
    yield brokers.REFUSALS.by_label(dict(sorted(counts.refusals.items())))
    yield brokers.READ_BACK.single(counts.read_back)
    yield brokers.BATCHES.single(counts.batches)
    yield brokers.RECORDS.single(counts.client_records)


def collect_caches(resources: LogResources) -> Iterator[Samples]:
    """See Collector. The tail cache and the records read ahead."""
    tails = resources.tails
    yield brokers.TAIL_HITS.single(tails.hits)
    yield brokers.TAIL_MISSES.single(tails.misses)
    yield brokers.TAIL_HIT_BYTES.single(tails.hit_bytes)
    yield brokers.TAIL_DROPPED.single(tails.dropped)
    yield brokers.TAIL_BYTES.single(tails.held_bytes)
    yield brokers.TAIL_LIMIT.single(tails.limit_bytes)
    yield brokers.READAHEAD_BYTES.single(resources.readaheads.held_bytes)


def collect_compaction(counts: CompactionCounts) -> Iterator[Samples]:
    """See Collector."""
    yield brokers.COMPACTIONS.single(counts.runs)
    yield brokers.COMPACTED.single(counts.removed)
    yield brokers.COMPACTION_SECONDS.single(counts.seconds)
    yield brokers.COMPACTION_FAILURES.single(counts.failed)
    yield brokers.COMPACTION_PASSES.single(counts.passes)
    yield brokers.COMPACTION_LEFT.single(counts.left)


def collect_refusals(refusals: Refusals) -> Iterator[Samples]:
    """See Collector. What is refused now, and what was."""
    yield brokers.REFUSED_NOW.by_label({cause.value: int(refusals.has(cause)) for cause in REFUSING})
    yield brokers.REFUSED_BATCHES.by_label({cause.value: refusals.batches[cause] for cause in REFUSING})
    yield brokers.MEMORY_NEARLY_FULL.single(int(refusals.has(Cause.NEARLY_FULL)))


def collect_disk(disk: DiskSpace | None) -> Iterator[Samples]:
    """See Collector. Without an embedded server the families have no samples."""
    families = brokers.DISK_FREE, brokers.DISK_RESERVE
    if disk is None:
        yield from (Samples(family, ()) for family in families)
    else:
        values = disk.free_bytes, disk.reserve_bytes
        yield from (family.single(value) for family, value in zip(families, values, strict=True))


class IdleTime:
    """The part of the time in which the event loop's thread used no processor. Use from that thread."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        """`clock` and `used`, the processor time of the thread, in seconds."""
        self._clock = clock
        self._used = used
        self._since_s, self._used_s = clock(), used()
        self._idle = 1.0

    def collect(self) -> Iterator[Samples]:
        """See Collector. The part since the last scrape, if that was at least a second ago."""
        now_s, used_s = self._clock(), self._used()
        if now_s - self._since_s >= _LEAST_S:
            busy = (used_s - self._used_s) / (now_s - self._since_s)
            self._idle = min(max(1.0 - busy, 0.0), 1.0)
            self._since_s, self._used_s = now_s, used_s
        yield brokers.IDLE.single(self._idle)
        yield brokers.HANDLER_IDLE.single(self._idle)
