"""The partitions that the broker leads; brokers and topics, if it is the controller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from korvet.metrics.families import partitions as families
from korvet.metrics.family import NO_LABELS, Samples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.observe.parts import Parts
    from korvet.observe.positions import WatchedLog
    from korvet.storage.copies import Copies


def collect(parts: Parts) -> Iterator[Samples]:
    """See Collector."""
    yield from _cluster(parts)
    led = [
        watched
        for (topic, partition), watched in parts.lag.logs.items()
        if watched.is_led
        and watched.ends is not None
        and parts.member.leader_epoch_of(topic, partition) is not None
    ]
    yield from _ends(led)
    node_id = parts.member.node_id
    yield Samples(families.LEADER, ((each.text, node_id) for each in led))
    yield Samples(families.LEADER_IS_PREFERRED, ((each.text, 1) for each in led))
    yield from _copies(parts, led)
    yield from _looks(parts)


def _cluster(parts: Parts) -> Iterator[Samples]:
    member, lag = parts.member, parts.lag
    reports = member.is_controller
    brokers = member.assignment.brokers if reports else ()
    yield Samples(families.BROKERS, [(NO_LABELS, len(brokers))] if reports else [])
    info = families.BROKER_INFO
    yield Samples(info, [(info.text(each.node_id, f"{each.host}:{each.port}"), 1) for each in brokers])
    topics = lag.shown_topics if reports else []
    family = families.PARTITIONS
    yield Samples(family, ((family.text(topic.name), topic.partitions) for topic in topics))


def _ends(led: list[WatchedLog]) -> Iterator[Samples]:
    for family, field in (
        (families.CURRENT_OFFSET, "end_ordinal"),
        (families.OLDEST_OFFSET, "start_ordinal"),
        (families.RAW_CURRENT_OFFSET, "log_end"),
        (families.RAW_OLDEST_OFFSET, "log_start"),
    ):
        yield Samples(family, ((each.text, getattr(each.ends, field)) for each in led))
    for family, field in (
        (families.LATEST_OFFSET, "end_ordinal"),
        (families.EARLIEST_OFFSET, "start_ordinal"),
    ):
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
    yield Samples(families.REPLICAS, ((text, 1 + copies.expected) for text, copies in found))
    yield Samples(families.IN_SYNC_REPLICAS, ((text, 1 + copies.in_sync) for text, copies in found))
    under = families.UNDER_REPLICATED
    yield Samples(under, ((text, int(copies.in_sync < copies.expected)) for text, copies in found))


def _looks(parts: Parts) -> Iterator[Samples]:
    lag = parts.lag
    age_s = float("nan") if lag.looked_at_s is None else time.monotonic() - lag.looked_at_s
    yield families.COUNTS_AGE.single(age_s)
    yield families.COUNTS_ROUND.single(lag.look_seconds)
    yield families.COUNTS_READ.by_label(
        {"ends": lag.counting.read_ends, "positions": lag.counting.read_positions}
    )
    yield families.COUNTS_FAILURES.single(lag.counting.failures)
    yield families.TOPICS_LEFT_OUT.single(lag.topics_left_out)
