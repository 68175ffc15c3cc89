"""Scrapes of a broker with ten thousand partitions and a thousand groups, and their effect on producers."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import urllib.error
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks.cases.latency import ACKNOWLEDGED_P99, RATE, WARM_UP_S, numbered_requests
from benchmarks.rig import programs
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import KORVET, Row, Sample
from benchmarks.rig.records import write_requests
from benchmarks.rig.servers import Korvet, rest
from tests.support.polling import until
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

PARTITIONS = 10_000
TOPICS = 10
GROUPS = 1_000
# Partitions that each group has committed.
COMMITTED = 10
KEYSPACE = "bench-scrape"
EVERY_S = 5.0
# Two scrapes at least.
LEAST_S = 12.0
COMPLETE_S = 120
# What Prometheus asks for.
OPEN_METRICS: Final = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"}
PLAIN: Final = {"Accept": "text/plain"}
UNSCRAPED, WITHOUT = "not scraped", "no admin endpoint"
COMPRESSED, UNCOMPRESSED = "OpenMetrics, gzip", "text"
SIZE_UNITS = {"time": "ms", "bytes": "B", "broker's CPU": "ms"}
NAME = f"scrape, every {EVERY_S:g} s, producer at {RATE:,} msg/s"
GOALS = tuple(Goal(NAME, ACKNOWLEDGED_P99, side, 1.2) for side in (UNSCRAPED, WITHOUT))


def measure(rig: Rig) -> Iterator[Row]:
    """Measure the scrape itself, then a producer with and without scrapes, in alternation."""
    partitions, groups = rig.scaled(PARTITIONS), rig.scaled(GROUPS)
    with observed(rig, None) as cluster:
        topics = [cluster.new_topic(partitions // TOPICS) for _ in range(TOPICS)]
        commit(cluster, topics, partitions // TOPICS, groups)

    def complete(address: str) -> bool:
        """Whether the page has every partition and every group."""
        try:
            found = page(address, PLAIN)
        except urllib.error.URLError:
            return False
        return (
            found.count(b"\nkafka_topic_partition_current_offset{") >= partitions
            and found.count(b"\nkafka_consumergroup_members{") >= groups
        )

    def with_endpoint(work: Callable[[Cluster, str], Sample]) -> Sample:
        address = f"127.0.0.1:{free_port()}"
        with observed(rig, address) as cluster:
            until(lambda: complete(address), COMPLETE_S, "a page with all partitions and groups")
            return work(cluster, address)

    def without_endpoint() -> Sample:
        with observed(rig, None) as cluster:
            return produced(cluster, lasting, None)

    lasting = WARM_UP_S + rig.lasting(LEAST_S)
    for form, headers in ((COMPRESSED, OPEN_METRICS), (UNCOMPRESSED, PLAIN)):
        sides = {KORVET: functools.partial(with_endpoint, functools.partial(scraped, headers))}
        name = f"scrape, {partitions:,} partitions, {groups:,} groups, {form}"
        yield from rig.rows(name, sides, SIZE_UNITS)
    both = {
        KORVET: functools.partial(with_endpoint, lambda cluster, at: produced(cluster, lasting, at)),
        UNSCRAPED: functools.partial(with_endpoint, lambda cluster, _: produced(cluster, lasting, None)),
        WITHOUT: without_endpoint,
    }
    yield from rig.rows(NAME, both, {ACKNOWLEDGED_P99: "ms"})


@contextlib.contextmanager
def observed(rig: Rig, address: str | None) -> Iterator[Cluster]:
    """Run a broker with this admin endpoint on the keyspace of this benchmark."""
    settings = {} if address is None else {"admin.listen": address}
    with contextlib.closing(Korvet(rig.store, KEYSPACE, settings=settings)) as korvet:
        yield korvet.cluster


def commit(cluster: Cluster, topics: list[str], partitions: int, groups: int) -> None:
    """Let each group commit some partitions of one topic."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 4})

    def commit_one(number: int) -> None:
        topic = topics[number % len(topics)]
        chosen = {(number * COMMITTED + each) % partitions for each in range(COMMITTED)}
        offsets = [TopicPartition(topic, partition, 0) for partition in chosen]
        request = ConsumerGroupTopicPartitions(f"bench-group-{number}", offsets)
        (future,) = admin.alter_consumer_group_offsets([request]).values()
        future.result(60)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(commit_one, range(groups)))


def page(address: str, headers: dict[str, str]) -> bytes:
    """Returns the metrics of a broker, as sent."""
    request = urllib.request.Request(f"http://{address}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        content: bytes = reply.read()
    return content


def scraped(headers: dict[str, str], cluster: Cluster, address: str) -> Sample:
    """Scrape once."""
    rest()
    with cluster.meter() as meter:
        began = time.perf_counter()
        content = page(address, headers)
        took_s = time.perf_counter() - began
    size = len(zlib.decompress(content, wbits=31) if "Accept-Encoding" in headers else content)
    values = (1000 * took_s, size, 1000 * meter.used["broker"])
    return Sample(dict(zip(SIZE_UNITS, values, strict=True)))


def produced(cluster: Cluster, seconds: float, address: str | None) -> Sample:
    """Send records at the rate, and measure their acknowledgements, with scrapes of this address."""
    topic = cluster.new_topic()
    requests = write_requests("scrape", numbered_requests(topic, int(seconds * RATE)))
    with contextlib.ExitStack() as stack:
        if address is not None:
            stack.enter_context(scraping(address))
        rest(1.0)
        with cluster.meter() as meter:
            outcome = programs.run("latency", cluster.bootstrap, requests, topic, "--rate", RATE)
    requests.unlink()
    cluster.drop_topic(topic)
    values = {ACKNOWLEDGED_P99: outcome.counts["ack_p99_ms"]}
    return Sample(values, meter.per_million(outcome.records, outcome.cpu_s))


@contextlib.contextmanager
def scraping(address: str) -> Iterator[None]:
    """Scrape again and again until the end of the block, as Prometheus does."""
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(EVERY_S):
            page(address, OPEN_METRICS)

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
