"""The logs of a Kafka cluster in runs, from a few lookups: by timestamp, by offset, and of configurations.

A lookup costs a part of a request, and a record that is looked up by its offset the batch that it is in. All
raise SourceError if the cluster does not answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from korvet.spark.session.failures import root_kind
from korvet.spark.session.kafka_cluster import API_TIMEOUT_MS
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.runs import ALWAYS, Found, Logs, Observed, runs_of
from korvet.spark.tables.views import FIRST_CLOCK_OFFSET

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from korvet.spark.session.kafka_cluster import Cluster
    from korvet.spark.tables.needs import Asked, Needs, TopicPartition

POLICY: Final = "cleanup.policy"
ASSIGNMENT: Final = "offset.assignment"
"""korvet's configuration of how offsets are assigned. Kafka has none."""
TRANSACTIONS_TOPIC: Final = "__transaction_state"
# Requests for offsets by timestamp that are under way at once.
_IN_FLIGHT: Final = 8
_POLL_MS: Final = 1000
_LARGEST_MS: Final = 2**63 - 1
# Moments before the first one at which a lag is asked: a minute before it, two, and so on up to 45 days.
_FIRST_STEP_MS: Final = 60_000
_EARLIER: Final = 17
# Records of partitions with gaps that are read, of all partitions together.
_READ: Final = 50_000
# The clock of a producer may be that far ahead.
_MOST_AHEAD_MS: Final = 600_000
# The consumer gets one record batch of one partition per request, the smallest answer that there is.
_SETTINGS: Final = {
    "client.id": "korvet-report",
    "enable.auto.commit": "false",
    "isolation.level": "read_committed",
    "allow.auto.create.topics": "false",
    # Records may be deleted meanwhile: then the first one that remains counts.
    "auto.offset.reset": "earliest",
    "max.poll.records": "1",
    "max.partition.fetch.bytes": "1",
    "fetch.max.wait.ms": "1",
}

Configs = Mapping[str, Mapping[str, str]]
"""Configurations of topics, by their names."""


def look_up(
    cluster: Cluster, needs: Needs, now_ms: int, refused: Collection[str], *, exact: bool = False
) -> Logs:
    """Return the logs of every partition with a lag in `needs` that is not 0, without missing topics.

    The last records of partitions whose offsets may have gaps are to be read, so that small lags are exact
    there, too, and all records of korvet's topics, because their offsets don't count records. exact: all
    records of all topics are to be read. refused: topics that the login may not read, so that their times
    are unknown.
    """
    existing = cluster.partitions(needs.starts)
    extents = cluster.extents([(topic, part) for topic in existing for part in existing[topic]])
    configs = topic_configs(cluster, existing)
    ends = {place: extent.end for place, extent in extents.items()}
    read = {
        place
        for place, end in ends.items()
        if exact or end >= FIRST_CLOCK_OFFSET or ASSIGNMENT in configs[place[0]]
    }
    read = {place for place in read if place[0] not in refused}
    asked = needs.asked({place: end for place, end in ends.items() if place not in read})
    starts = {place: max(some.start, extents[place].first) for place, some in asked.items()}
    starts = {place: start for place, start in starts.items() if start < ends[place]}
    gapless_ms = gapless_since(cluster, starts, configs, now_ms)
    unclear = [place for place in starts if gapless_ms[place] is None and place[0] not in refused]
    read_from = {place: max(starts[place], ends[place] - _READ // len(unclear)) for place in unclear}
    run_ends = {place: read_from.get(place, ends[place]) for place in starts}
    waits = {
        place: {start, *(offset for offset in asked[place].waits if start < offset < run_ends[place])}
        for place, start in starts.items()
        if start < run_ends[place]
    }
    later = first_later(
        cluster, {place: _moments(asked[place], gapless_ms[place], now_ms) for place in waits}
    )
    readable = {place: offsets for place, offsets in waits.items() if place[0] not in refused}
    firsts = first_records(cluster, readable, ends)
    runs = {}
    for place in waits:
        observed = Observed(
            starts[place],
            run_ends[place],
            later[place],
            firsts.get(place, {}),
            _proofs(asked[place], ends[place], now_ms, later[place]),
            gapless_ms[place],
        )
        found = runs_of(observed)
        runs[place] = found if place in firsts else [replace(run, first_ms=None) for run in found]
    wanted = {(topic, part): start for topic, parts in needs.starts.items() for part, start in parts.items()}
    read_from |= {place: wanted[place] for place in read if place in wanted}
    return Logs(runs, read_from)


def _moments(asked: Asked, gapless_ms: int | None, now_ms: int) -> set[int]:
    """The moments of lags, and moments before them, so that early waits are known within a factor of two."""
    moments = {now_ms, *(moment for moment in asked.lags if 0 <= moment <= now_ms)}
    earlier = {min(moments) - _FIRST_STEP_MS * 2**power for power in range(_EARLIER)}
    return {*moments, *earlier, now_ms + _MOST_AHEAD_MS, *([gapless_ms] if gapless_ms else [])}


def _proofs(asked: Asked, end: int, now_ms: int, later: Mapping[int, Found | None]) -> list[tuple[int, int]]:
    """Moments and offsets committed by then, if records with timestamps in the future hide those after them.

    Otherwise commits prove nothing: they may be of an earlier topic of this name.
    """
    if later[now_ms + _MOST_AHEAD_MS] is None:
        return []
    committed = ((moment, largest) for moment, (largest, _) in asked.lags.items())
    return [(moment, offset) for moment, offset in committed if 0 <= moment <= now_ms and offset <= end]


def first_later(
    cluster: Cluster, moments: Mapping[TopicPartition, Collection[int]]
) -> dict[TopicPartition, dict[int, Found | None]]:
    """Return, for each moment in ms, the first record with a later timestamp (ListOffsets); None without one.

    All partitions must exist.
    """
    spec = cluster.jvm.org.apache.kafka.clients.admin.OffsetSpec
    found: dict[TopicPartition, dict[int, Found | None]] = {place: {} for place in moments}
    under_way: deque[dict[TopicPartition, tuple[int, Any]]] = deque()

    def take() -> None:
        for place, (moment, answer) in under_way.popleft().items():
            info = answer.get()
            record = None if info.offset() < 0 else Found(info.offset(), info.timestamp())
            found[place][moment] = record

    with cluster.failures():
        keys = {place: cluster.jvm.org.apache.kafka.common.TopicPartition(*place) for place in moments}
        for asked in _turns(moments):
            request = cluster.jvm.java.util.HashMap()
            for place, moment in asked.items():
                request.put(keys[place], spec.forTimestamp(min(max(moment, -1), _LARGEST_MS - 1) + 1))
            answers = cluster.admin.listOffsets(request)
            under_way.append(
                {place: (moment, answers.partitionResult(keys[place])) for place, moment in asked.items()}
            )
            if len(under_way) == _IN_FLIGHT:
                take()
        while under_way:
            take()
    return found


def first_records(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, Collection[int]],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, dict[int, Found | None]]:
    """Return the first record at or after each offset that a consumer with read_committed gets.

    offsets: all must be in the log. ends: the offsets before which the records must be; None without one.
    """
    found: dict[TopicPartition, dict[int, Found | None]] = {place: {} for place in offsets}
    if not found:
        return found
    with cluster.failures(), _consumer(cluster) as consumer:
        for turn in _turns(offsets):
            for place, record in _read_turn(cluster, consumer, turn, ends):
                found[place][turn[place]] = record
    return found


def _turns(numbers: Mapping[TopicPartition, Collection[int]]) -> Iterator[dict[TopicPartition, int]]:
    """Yield the lowest number of each partition, then the second lowest of each, and so on.

    A request asks for one number of each partition, and a consumer has one position in each.
    """
    ordered = {place: sorted(some) for place, some in numbers.items()}
    for turn in range(max(map(len, ordered.values()), default=0)):
        yield {place: some[turn] for place, some in ordered.items() if turn < len(some)}


def _read_turn(
    cluster: Cluster, consumer: Any, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[tuple[TopicPartition, Found | None]]:
    """Yield the first record of each partition from an offset on."""
    key_of = cluster.jvm.org.apache.kafka.common.TopicPartition
    keys = {place: key_of(*place) for place in offsets}
    everything = cluster.listed(keys.values())
    consumer.assign(everything)
    consumer.resume(everything)
    for place, offset in offsets.items():
        consumer.seek(keys[place], offset)
    pause = cluster.jvm.java.time.Duration.ofMillis(_POLL_MS)
    reached = dict(offsets)
    deadline = monotonic() + API_TIMEOUT_MS / 1000
    while reached:
        records = consumer.poll(pause)
        before = dict(reached)
        if records.isEmpty():
            # There may be only markers and aborted records at these offsets.
            for place in before:
                reached[place] = consumer.position(keys[place])
            found: dict[TopicPartition, Found | None] = {
                place: None for place in before if reached[place] >= ends[place]
            }
        else:
            record = records.iterator().next()
            place = (record.topic(), record.partition())
            is_before = record.offset() < ends[place]
            found = {place: Found(record.offset(), record.timestamp()) if is_before else None}
        if found or reached != before:
            deadline = monotonic() + API_TIMEOUT_MS / 1000
        elif monotonic() > deadline:
            place = next(iter(reached))
            raise SourceError(f"Kafka has no answer on {place[0]}-{place[1]} from offset {reached[place]} on")
        if found:
            consumer.pause(cluster.listed([keys[place] for place in found]))
        for place in found:
            del reached[place]
        yield from found.items()


@contextmanager
def _consumer(cluster: Cluster) -> Iterator[Any]:
    """A consumer without a group."""
    settings = cluster.jvm.java.util.Properties()
    settings.putAll(cluster.settings)
    for name, value in _SETTINGS.items():
        settings.setProperty(name, value)
    raw = cluster.jvm.org.apache.kafka.common.serialization.ByteArrayDeserializer
    consumer = cluster.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings, raw(), raw())
    try:
        yield consumer
    finally:
        consumer.close()


def gapless_since(
    cluster: Cluster, topic_partitions: Collection[TopicPartition], configs: Configs, now_ms: int
) -> dict[TopicPartition, int | None]:
    """Return, for each partition, the time in ms since which every offset is a record; 0 for always.

    None if compaction or transactions took offsets, or if the cluster does not tell. A transaction's producer
    is forgotten `producer.id.expiration.ms` after its last record or marker (DescribeProducers, KIP-664).
    """
    found: dict[TopicPartition, int | None] = dict.fromkeys(topic_partitions)
    kept = [place for place in found if "compact" not in configs[place[0]].get(POLICY, "compact")]
    if not kept:
        return found
    with cluster.failures():
        if not _had_transactions(cluster):
            return {**found, **dict.fromkeys(kept, ALWAYS)}
        forgotten_ms = _producers_expire_ms(cluster)
        since_ms = None if forgotten_ms is None else now_ms - forgotten_ms
        return {**found, **dict.fromkeys(_without_transactions(cluster, kept), since_ms)}


def topic_configs(cluster: Cluster, topics: Collection[str]) -> Configs:
    """Return the configurations POLICY and ASSIGNMENT of topics, as far as the cluster tells them."""
    resource = cluster.jvm.org.apache.kafka.common.config.ConfigResource
    asked = {name: resource(resource.Type.TOPIC, name) for name in topics}
    found: dict[str, dict[str, str]] = {name: {} for name in topics}
    with cluster.failures():
        answers = cluster.admin.describeConfigs(cluster.listed(asked.values())).values()
        for name, key in asked.items():
            with suppress(_Refused), _refusals():
                configs = answers.get(key).get()
                for config in (POLICY, ASSIGNMENT):
                    if (entry := configs.get(config)) is not None:
                        found[name][config] = str(entry.value())
    return found


def _had_transactions(cluster: Cluster) -> bool:
    """Whether the cluster may have had a transaction: False only if it tells that it never had one."""
    with suppress(_Refused), _refusals():
        if not cluster.admin.listTransactions().all().get().isEmpty():
            return True
        try:
            with _refusals():
                cluster.admin.describeTopics(cluster.listed([TRANSACTIONS_TOPIC])).allTopicNames().get()
        except _Refused as refused:
            return not refused.is_missing
    return True


def _producers_expire_ms(cluster: Cluster) -> int | None:
    """How long a partition's leader remembers a producer; None if it can't be told."""
    resource = cluster.jvm.org.apache.kafka.common.config.ConfigResource
    with suppress(_Refused), _refusals():
        node = cluster.admin.describeCluster().nodes().get().iterator().next()
        broker = resource(resource.Type.BROKER, node.idString())
        configs = cluster.admin.describeConfigs(cluster.listed([broker])).all().get().get(broker)
        expiration = configs.get("producer.id.expiration.ms")
        return None if expiration is None else int(expiration.value())
    return None


def _without_transactions(cluster: Cluster, places: Collection[TopicPartition]) -> Iterator[TopicPartition]:
    """The partitions whose leaders tell that no producer of theirs uses transactions."""
    keys = {place: cluster.jvm.org.apache.kafka.common.TopicPartition(*place) for place in places}
    answers = cluster.admin.describeProducers(cluster.listed(keys.values()))
    for place, key in keys.items():
        with suppress(_Refused), _refusals():
            if not any(
                producer.coordinatorEpoch().isPresent()
                or producer.currentTransactionStartOffset().isPresent()
                for producer in answers.partitionResult(key).get().activeProducers()
            ):
                yield place


class _Refused(Exception):
    """The cluster does not tell, or not to this user."""

    def __init__(self, *, is_missing: bool) -> None:
        super().__init__()
        self.is_missing = is_missing


@contextmanager
def _refusals() -> Iterator[None]:
    """Raises _Refused if a request is not permitted or supported, or if what it names does not exist."""
    try:
        yield
    except Py4JJavaError as error:
        kind = root_kind(error.java_exception)
        if kind not in _REFUSALS:
            raise
        raise _Refused(is_missing=kind == _MISSING) from error


_MISSING: Final = "UnknownTopicOrPartitionException"
_REFUSALS: Final = frozenset(
    {
        _MISSING,
        "TopicAuthorizationException",
        "ClusterAuthorizationException",
        "UnsupportedVersionException",
        "InvalidRequestException",
    }
)
