"""Share consumers that accept all they take, beside ordinary consumers of the same topic; and what Redis does
for them while native workers have few or many entries of the queue.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Final

from benchmarks.cases.clients import JAVA_TIMEOUT_S, java, java_consume, librdkafka, librdkafka_consume
from benchmarks.cases.fetch import filled_topic
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import Row, Sample, main_thread_seconds
from benchmarks.rig.programs import Outcome
from benchmarks.rig.records import Shape
from benchmarks.rig.servers import rest
from korvet.cli.client import Cluster as Client
from korvet.cli.config_requests import ResourceType, alter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rig.kafka import Kafka
    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster, Store

SHAPE: Final = Shape(100, 64 << 10)
RECORDS: Final = 300_000
CONSUMED: Final = "records consumed per second"
SHARED: Final = "records taken and accepted per second"
SHARE: Final = "taken and accepted / consumed"
UNITS: Final = {CONSUMED: "1/s", SHARED: "1/s", SHARE: "x"}
# Pending entries of native workers, by the name of a side, and how many records a share consumer takes then.
PENDING: Final = {"korvet": 1_000, "1,000,000 pending": 1_000_000}
TAKEN: Final = 50_000
REDIS_TIME: Final = "CPU time of Redis per record"
_READ_AT_ONCE: Final = 10_000
_serial = itertools.count(1)


def benchmark_name(client: str) -> str:
    """Returns the name of a benchmark."""
    return f"share consumer, {client}, {SHAPE}"


GOALS = tuple(Goal(benchmark_name(client), SHARE, "kafka", 0.5) for client in ("librdkafka", "Java"))


def measure(rig: Rig) -> Iterator[Row]:
    """Measure both rates for each client, then the time of Redis."""
    count = rig.scaled(RECORDS)
    clients: dict[str, tuple[Callable[..., Outcome], Callable[..., Outcome]]] = {
        "librdkafka": (librdkafka_consume, librdkafka_share)
    }
    if rig.kafka is not None:
        clients["Java"] = tuple(functools.partial(way, rig.kafka) for way in (java_consume, java_share))
    topics = {side: filled_topic(cluster, SHAPE, count)[0] for side, cluster in rig.clusters().items()}
    for client, ways in clients.items():
        sides = {
            side: functools.partial(taken, cluster, topics[side], count, *ways)
            for side, cluster in rig.clusters().items()
        }
        yield from rig.rows(benchmark_name(client), sides, UNITS)
    for side, cluster in rig.clusters().items():
        cluster.drop_topic(topics[side])
    sides = {
        side: functools.partial(taken_beside, rig, rig.scaled(pending)) for side, pending in PENDING.items()
    }
    yield from rig.rows("share consumer beside native workers", sides, {REDIS_TIME: "µs"})


def new_group(cluster: Cluster) -> str:
    """A share group that begins with the first records."""
    name = f"bench-shares-{next(_serial)}"
    with Client(cluster.bootstrap) as client:
        alter(client, ResourceType.GROUP, name, {"share.auto.offset.reset": "earliest"})
    return name


def taken(
    cluster: Cluster,
    topic: str,
    count: int,
    consume: Callable[..., Outcome],
    share: Callable[..., Outcome],
) -> Sample:
    """Read a topic once with each kind of consumer."""
    rest()
    consumed = consume(cluster, topic, count, SHAPE.value_bytes)
    rest()
    with cluster.meter() as meter:
        shared = share(cluster, topic, count, new_group(cluster))
    values = {CONSUMED: consumed.rate, SHARED: shared.rate, SHARE: shared.rate / consumed.rate}
    return Sample(values, meter.per_million(shared.records))


def taken_beside(rig: Rig, pending: int) -> Sample:
    """Take records of a queue while a native worker has this number of entries."""
    cluster, store, count = rig.korvet, rig.store, rig.scaled(TAKEN)
    topic, _ = filled_topic(cluster, SHAPE, pending + count + 1_000)
    group = new_group(cluster)
    # Makes the group.
    librdkafka_share(cluster, topic, 1, group)
    read_natively(store, cluster.stream(topic), group, pending)
    rest()
    before_s = main_thread_seconds(store.client)
    librdkafka_share(cluster, topic, count, group)
    used_s = main_thread_seconds(store.client) - before_s
    cluster.drop_topic(topic)
    return Sample({REDIS_TIME: used_s * 1e6 / count})


def read_natively(store: Store, stream: str, group: str, count: int) -> None:
    """Let a native worker have the first entries."""
    for left in range(count, 0, -_READ_AT_ONCE):
        store.client.xreadgroup(group, "native", {stream: ">"}, min(left, _READ_AT_ONCE))


def librdkafka_share(cluster: Cluster, topic: str, count: int, group: str) -> Outcome:
    """Run the confluent-kafka share consumer in its own process."""
    return librdkafka("share", cluster, topic, count, group)


def java_share(kafka: Kafka, cluster: Cluster, topic: str, count: int, group: str) -> Outcome:
    """Run `kafka-share-consumer-perf-test`."""
    out = java(
        kafka,
        "org.apache.kafka.tools.ShareConsumerPerformance",
        *("--topic", topic, "--num-records", count, "--bootstrap-server", cluster.bootstrap),
        *("--group", group, "--timeout", JAVA_TIMEOUT_S * 1_000),
    )
    figures = out.strip().splitlines()[-1].split(",")
    return Outcome({"records": float(figures[5]), "seconds": float(figures[6]) / 1_000})
