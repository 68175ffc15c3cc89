"""Two brokers on a cluster of two Redis primaries, compared with one broker on one Redis.

The load is the same: two partitions, each with its own client.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND, in_flight
from benchmarks.rig import programs
from benchmarks.rig.measuring import KORVET, Row, Sample
from benchmarks.rig.programs import outcome_of
from benchmarks.rig.records import Shape, payloads, produce_request, record_batch, write_requests
from benchmarks.rig.servers import Cluster, rest
from korvet.redis.slots import SLOTS, slot_of
from tests.support.cluster import RedisCluster
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig

SHAPES = (Shape(100, 64 << 10), Shape(1024, 64 << 10))
# Enough partitions that each broker leads one on each primary.
PARTITIONS = 32
ONE, TWO = "one broker, one Redis", "two brokers, two Redis primaries"


def measure(rig: Rig) -> Iterator[Row]:
    """Measure rates and CPU time of both setups, in the same rounds."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="korvet-bench-")))
        redis = RedisCluster(rig.store.program, folder, primaries=2)
        stack.callback(redis.stop)
        server = KorvetServer(
            "--log-level", "warning", "--processes", "2", redis_url=redis.nodes[0].url
        ).start()
        stack.callback(server.discard)
        stack.callback(server.stop)
        pids = {f"redis {number}": node.process.pid for number, node in enumerate(redis.nodes, 1)}
        two = Cluster(server.bootstrap, {"brokers": server.process.pid, **pids})
        for shape in SHAPES:
            sides = {
                ONE: functools.partial(produced, rig.korvet, shape, rig.seconds, brokers=1),
                TWO: functools.partial(produced, two, shape, rig.seconds, brokers=2),
            }
            for row in rig.rows(f"produce, {shape}", sides, {RATE: RECORDS_PER_SECOND}):
                for way, values in row.values.items():
                    cpu = {KORVET: row.cpu[way]}
                    yield Row(f"{row.benchmark}: {way}", row.figure, row.unit, {KORVET: values}, cpu)


def produced(cluster: Cluster, shape: Shape, seconds: float, *, brokers: int) -> Sample:
    """Produce into two partitions at the same time, on different brokers and primaries if there are two."""
    topic = cluster.new_topic(PARTITIONS)
    places = two_places(cluster, topic, brokers)
    depth = in_flight(shape)
    options = ("--seconds", seconds, "--in-flight", depth)
    files = []
    for _, partition in places:
        requests = [
            produce_request(topic, partition, record_batch(records), len(records))
            for records in payloads(shape, 2 * depth)
        ]
        files.append(write_requests(f"shard-{partition}", requests))
    rest()
    with cluster.meter() as meter:
        clients = [
            programs.start("requests", address, file, *options)
            for (address, _), file in zip(places, files, strict=True)
        ]
        outcomes = [outcome_of(client) for client in clients]
    for file in files:
        file.unlink()
    cluster.drop_topic(topic)
    records = sum(outcome.records for outcome in outcomes)
    used = meter.per_million(records, sum(outcome.cpu_s for outcome in outcomes))
    return Sample({RATE: sum(outcome.rate for outcome in outcomes)}, used)


def two_places(cluster: Cluster, topic: str, brokers: int) -> list[tuple[str, int]]:
    """Returns two partitions with the addresses of their leaders, on different primaries and brokers."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 4})

    def found() -> list[tuple[str, int]]:
        metadata = admin.list_topics(topic, timeout=10)
        leaders = {number: each.leader for number, each in metadata.topics[topic].partitions.items()}
        chosen: dict[bool, tuple[int, int]] = {}
        for number, leader in sorted(leaders.items()):
            half = slot_of(f"{cluster.keyspace}:{topic}:{number}".encode()) < SLOTS // 2
            taken = [other for other, _ in chosen.values()]
            if half not in chosen and leader >= 0 and (brokers == 1 or leader not in taken):
                chosen[half] = leader, number
        hosts = {broker.id: f"{broker.host}:{broker.port}" for broker in metadata.brokers.values()}
        return [(hosts[leader], number) for leader, number in chosen.values()]

    return until(lambda: places if len(places := found()) == 2 else None, 20, "two partitions are apart")
