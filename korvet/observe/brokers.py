"""What a broker has counted of its own work: traffic, connections, lease, appends, caches, compaction."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from korvet.api.common.listener_counts import ListenerCounts
from korvet.log.counts import TopicCounts
from korvet.metrics.declared import declare
from korvet.metrics.family import NO_LABELS, MetricType, Samples, label_text
from korvet.observe.lifecycle import Phase
from korvet.redis.refusals import REFUSING, Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from korvet.api.common.services import Services
    from korvet.cluster.leadership import Leadership
    from korvet.embedded.disk_space import DiskSpace
    from korvet.log.broker_logs import Logs
    from korvet.log.counts import LogCounts
    from korvet.log.resources import LogResources
    from korvet.observe.led_partitions import LedPartitions
    from korvet.observe.lifecycle import Lifecycle
    from korvet.redis.refusals import Refusals
    from korvet.server.certificates import UsedCertificate
    from korvet.server.connections import Connections
    from korvet.server.listener import Listener

_SERVER: Final = "kafka_server_"
_BROKER_STATE: Final = declare(
    f"{_SERVER}kafkaserver_brokerstate",
    "1 starting, 2 loading, 3 serving, 6 draining, 7 stopping, as in Kafka.",
)
_IDLE: Final = declare(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    "Part of the time, 0 to 1, in which the event loop's thread used no processor since the scrape before.",
)
_HANDLER_IDLE: Final = declare(
    f"{_SERVER}kafkarequesthandlerpool_requesthandleravgidle_percent",
    "The same: one thread reads requests and handles them.",
)
_CERTIFICATE_EXPIRY: Final = declare(
    "korvet_certificate_expiry_timestamp_seconds",
    "Time when a certificate of a listener expires, in seconds since the epoch. If a file has several of a "
    "subject: of a keystore the first to expire, of a truststore the last.",
    "listener",
    "file",
    "subject",
)
_TOKEN_KEYS: Final = declare(
    "korvet_token_keys_fresh",
    "1 if the last fetch of the keys that sign clients' tokens succeeded, 0 if older keys or none are used.",
    "listener",
)
_PURGATORY: Final = declare(
    f"{_SERVER}delayedoperationpurgatory_purgatorysize",
    "Fetch requests that wait for records.",
    "delayedOperation",
)
_SESSIONS: Final = declare(
    f"{_SERVER}fetchsessioncache_numincrementalfetchsessions", "Fetch sessions (KIP-227)."
)
_VERSION: Final = declare(
    "korvet_assignment_version", "Version of the assignment, which is the newest leader epoch."
)
_REFUSED_NOW: Final = declare(
    "korvet_refused",
    "1 while the broker refuses something for this cause, and /status says what and why.",
    "cause",
)
_REFUSED_BATCHES: Final = declare(
    "korvet_refused_batches_total",
    "Batches of clients that were refused, by cause.",
    "cause",
    kind=MetricType.COUNTER,
)
_MEMORY_NEARLY_FULL: Final = declare(
    "korvet_memory_nearly_full", "1 while a Redis server uses at least 90 % of maxmemory."
)
_DISK_FREE: Final = declare("korvet_disk_free_bytes", "Free space on the disk of the embedded server.")
_DISK_RESERVE: Final = declare("korvet_disk_reserve_bytes", "Space that stays free: disk.reserve.bytes.")

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
    yield _BROKER_STATE.single(_STATES[lifecycle.phase])


def collect_traffic(counts: LogCounts, led: LedPartitions) -> Iterator[Samples]:
    """See Collector. The traffic of topics, first that of all topics together."""
    topics = [(label_text([("topic", name)]), each) for name, each in counts.shown(led.shown)]
    return TopicCounts.samples_of([(NO_LABELS, counts.all_topics()), *topics])


def collect_connections(connections: Connections) -> Iterator[Samples]:
    """See Collector. The connections of each listener."""
    listeners = sorted(connections.counts.items())
    return ListenerCounts.samples_of([(label_text([("listener", name)]), each) for name, each in listeners])


def collect_certificates(used: Callable[[], Iterable[UsedCertificate]]) -> Iterator[Samples]:
    """See Collector."""
    family = _CERTIFICATE_EXPIRY
    yield Samples(family, [(family.text(*each[:2], each[2].subject), each[2].ends_s) for each in used()])


def collect_tokens(listener: Listener) -> Iterator[Samples]:
    """See Collector. The keys of each listener that has some."""
    family = _TOKEN_KEYS
    known = [(each.listener, each.keys) for each in listener.tokens if each.keys is not None]
    yield Samples(family, [(family.text(listener), int(not keys.problem)) for listener, keys in known])


def collect_fetches(services: Services) -> Iterator[Samples]:
    """See Collector. Fetches that wait, fetch sessions and memory; records of share groups."""
    yield Samples(_PURGATORY, [(_PURGATORY.text("Fetch"), len(services.deadlines))])
    yield _SESSIONS.single(len(services.fetch_sessions))
    yield from services.fetch_sessions.samples()
    yield from services.fetch_memory.samples()
    yield from services.sharing.samples()
    yield from services.sharing.counts.samples()


def collect_lease(leadership: Leadership, logs: Logs) -> Iterator[Samples]:
    """See Collector. The lease, and changes of leaders."""
    yield from leadership.counts.samples()
    yield from logs.counts.samples()
    yield _VERSION.single(leadership.assignment.version)


def collect_caches(resources: LogResources) -> Iterator[Samples]:
    """See Collector. The tail cache and the records read ahead."""
    yield from resources.tails.samples()
    yield from resources.readaheads.samples()


def collect_refusals(refusals: Refusals) -> Iterator[Samples]:
    """See Collector. What is refused now, and what was."""
    yield _REFUSED_NOW.by_label({cause.value: int(refusals.has(cause)) for cause in REFUSING})
    yield _REFUSED_BATCHES.by_label({cause.value: refusals.batches[cause] for cause in REFUSING})
    yield _MEMORY_NEARLY_FULL.single(int(refusals.has(Cause.NEARLY_FULL)))


def collect_disk(disk: DiskSpace | None) -> Iterator[Samples]:
    """See Collector. Without an embedded server the families have no samples."""
    families = _DISK_FREE, _DISK_RESERVE
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
        yield _IDLE.single(self._idle)
        yield _HANDLER_IDLE.single(self._idle)
