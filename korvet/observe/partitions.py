"""The partitions that the broker leads; brokers and topics, if it is the controller."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from korvet.metrics.declared import declare
from korvet.metrics.family import NO_LABELS, MetricType, Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.observe.parts import Parts
    from korvet.observe.positions import WatchedLog
    from korvet.outlook.copies import Copies

# Exactly one broker of the cluster reports each series of these.
_declare: Final = partial(declare, by_one_broker=True)
_PLACE: Final = ("topic", "partition")
_CLUSTER_PLACE: Final = ("cluster_name", "topic", "partition")
_BROKERS: Final = _declare("kafka_brokers", "Live brokers. Reported by the controller.")
_BROKER_INFO: Final = _declare(
    "kafka_broker_info",
    "1 for each live broker, with its address for clients. Reported by the controller.",
    "id",
    "address",
    kind=MetricType.INFO,
)
_PARTITIONS: Final = _declare(
    "kafka_topic_partitions", "Partitions of a topic. Reported by the controller.", "topic"
)
_ENDS: Final = {
    "end_ordinal": _declare(
        "kafka_topic_partition_current_offset",
        "Records ever appended to a partition, those included that are deleted.",
        *_PLACE,
    ),
    "start_ordinal": _declare(
        "kafka_topic_partition_oldest_offset", "Records of a partition that are deleted.", *_PLACE
    ),
    "log_end": _declare(
        "korvet_topic_partition_raw_current_offset",
        "Log end offset of a partition, as Kafka clients see it.",
        *_PLACE,
    ),
    "log_start": _declare(
        "korvet_topic_partition_raw_oldest_offset",
        "Log start offset of a partition, as Kafka clients see it.",
        *_PLACE,
    ),
}
"""By field of Ends."""
_CLUSTER_ENDS: Final = {
    "end_ordinal": _declare(
        "kafka_partition_latest_offset",
        "Records ever appended to a partition (name of kafka-lag-exporter).",
        *_CLUSTER_PLACE,
    ),
    "start_ordinal": _declare(
        "kafka_partition_earliest_offset",
        "Records of a partition that are deleted (name of kafka-lag-exporter).",
        *_CLUSTER_PLACE,
    ),
}
_LEADER: Final = _declare(
    "kafka_topic_partition_leader", "Node ID of a partition's leader, this broker.", *_PLACE
)
_LEADER_IS_PREFERRED: Final = _declare(
    "kafka_topic_partition_leader_is_preferred",
    "Whether the leader of a partition is the preferred one: always 1.",
    *_PLACE,
)
_REPLICAS: Final = _declare(
    "kafka_topic_partition_replicas", "Copies that a partition should have, with the primary's.", *_PLACE
)
_IN_SYNC_REPLICAS: Final = _declare(
    "kafka_topic_partition_in_sync_replica",
    "Copies of a partition that are in sync, with the primary's.",
    *_PLACE,
)
_UNDER_REPLICATED: Final = _declare(
    "kafka_topic_partition_under_replicated_partition",
    "Whether a partition has fewer copies in sync than it should have (1) or not (0).",
    *_PLACE,
)
_COUNTS_AGE: Final = declare(
    "korvet_record_counts_age_seconds",
    "Time since the last complete look at the ends of partitions and the positions of groups, in seconds.",
)
_TOPICS_LEFT_OUT: Final = declare(
    "korvet_metrics_topics_left_out",
    "Topics with partitions that the broker leads and does not show, because of metrics.topics or "
    "metrics.max.rows.",
)


def collect(parts: Parts) -> Iterator[Samples]:
    """See Collector."""
    yield from _cluster(parts)
    led = [
        watched
        for (topic, partition), watched in parts.lag.logs.items()
        if watched.is_led
        and watched.ends is not None
        and parts.member.leadership.leader_epoch_of(topic, partition) is not None
    ]
    yield from _ends(led)
    node_id = parts.member.leadership.node_id
    yield Samples(_LEADER, ((each.text, node_id) for each in led))
    yield Samples(_LEADER_IS_PREFERRED, ((each.text, 1) for each in led))
    yield from _copies(parts, led)
    yield from _looks(parts)


def _cluster(parts: Parts) -> Iterator[Samples]:
    leadership, lag = parts.member.leadership, parts.lag
    reports = leadership.is_controller
    brokers = leadership.assignment.brokers if reports else ()
    yield Samples(_BROKERS, [(NO_LABELS, len(brokers))] if reports else [])
    info = _BROKER_INFO
    yield Samples(info, [(info.text(each.node_id, f"{each.host}:{each.port}"), 1) for each in brokers])
    topics = lag.shown_topics if reports else []
    family = _PARTITIONS
    yield Samples(family, ((family.text(topic.name), topic.partitions) for topic in topics))


def _ends(led: list[WatchedLog]) -> Iterator[Samples]:
    for field, family in _ENDS.items():
        yield Samples(family, ((each.text, getattr(each.ends, field)) for each in led))
    for field, family in _CLUSTER_ENDS.items():
        yield Samples(family, ((each.cluster_text, getattr(each.ends, field)) for each in led))


def _copies(parts: Parts, led: list[WatchedLog]) -> Iterator[Samples]:
    by_topic: dict[str, Copies | list[Copies]] = {}

    def copies_of(watched: WatchedLog) -> Copies:
        topic, partition = watched.ordinals.topic, watched.ordinals.partition
        found = by_topic.get(topic.name)
        if found is None:
            wanted = parts.topics.level(topic).replicas
            found = by_topic[topic.name] = parts.copies.of_topic(topic.name, topic.partitions, wanted)
        return found[partition] if isinstance(found, list) else found

    # From one look at the replicas.
    found = [(each.text, copies_of(each)) for each in led]
    yield Samples(_REPLICAS, ((text, 1 + copies.expected) for text, copies in found))
    yield Samples(_IN_SYNC_REPLICAS, ((text, 1 + copies.in_sync) for text, copies in found))
    under = _UNDER_REPLICATED
    yield Samples(under, ((text, int(copies.in_sync < copies.expected)) for text, copies in found))


def _looks(parts: Parts) -> Iterator[Samples]:
    lag = parts.lag
    age_s = float("nan") if lag.looked_at_s is None else time.monotonic() - lag.looked_at_s
    yield _COUNTS_AGE.single(age_s)
    yield from lag.counting.samples()
    yield _TOPICS_LEFT_OUT.single(lag.topics_left_out)
