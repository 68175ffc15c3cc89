"""All collectors of a broker: one line for each concern."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from korvet.observe import (
    brokers,
    groups,
    led_partitions,
    partitions,
    process,
    redis,
    requests,
    transactions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.api.common.services import Services
    from korvet.observe.event_loop import EventLoopLag
    from korvet.observe.parts import Parts
    from korvet.observe.registry import Collector
    from korvet.server.dispatch import Dispatcher


def of_process(lag: EventLoopLag) -> Iterator[tuple[str, Collector]]:
    """The collectors of every process of korvet."""
    yield "process", process.collect
    yield "event loop", lag.samples


def of_broker(parts: Parts, dispatcher: Dispatcher) -> Iterator[tuple[str, Collector]]:
    """The collectors of a broker's parts, by name."""
    yield "lifecycle", partial(process.collect_phase, parts.lifecycle)
    yield "exceptions", dispatcher.samples
    yield "partitions", partial(partitions.collect, parts)
    yield "groups", groups.GroupCollector(parts).collect
    yield "queues", parts.lag.queues.collect
    yield "coordinators", partial(groups.collect_coordinators, parts)
    yield "broker", partial(brokers.collect_state, parts.lifecycle)
    yield "idle time", brokers.IdleTime().collect
    yield "connections", partial(brokers.collect_connections, parts.listener.connections)
    yield "keys for tokens", partial(brokers.collect_tokens, parts.listener)
    yield "backpressure", dispatcher.backpressure.samples
    yield from _of_requests(parts, dispatcher.services)
    yield from _of_redis(parts)
    yield from _of_partitions(parts)


def _of_requests(parts: Parts, services: Services) -> Iterator[tuple[str, Collector]]:
    counts = parts.store.resources.counts
    yield "requests", partial(requests.collect, services.requests, counts, parts.led)
    yield "traffic", partial(brokers.collect_traffic, counts, parts.led)
    yield "fetches", partial(brokers.collect_fetches, services)
    yield "appends", counts.samples
    yield "caches", partial(brokers.collect_caches, parts.store.resources)
    yield "compaction", parts.cleaner.counts.samples
    yield "transactions", partial(transactions.collect, parts.transactions, _now_ms)


def _of_redis(parts: Parts) -> Iterator[tuple[str, Collector]]:
    yield "links to Redis", redis.collect_links
    yield "Redis", partial(redis.collect_servers, parts.store.router)
    yield "state of Redis", partial(redis.collect_info, parts.servers)
    yield "refusals", partial(brokers.collect_refusals, parts.store.resources.refusals)
    yield "memory", partial(parts.memory.collect, lambda: parts.led.shown)
    yield "disk", partial(brokers.collect_disk, parts.disk)


def _of_partitions(parts: Parts) -> Iterator[tuple[str, Collector]]:
    yield "lease", partial(brokers.collect_lease, parts.member.leadership, parts.store.logs)
    yield "replicas", partial(led_partitions.collect_replicas, parts.led, parts.topics, parts.copies)
    yield (
        "controller",
        partial(led_partitions.collect_controller, parts.member.leadership, parts.store.catalogue, parts.led),
    )
    yield "log sizes", parts.log_sizes.collect


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
