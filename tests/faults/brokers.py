"""Several brokers on one Valkey, and the load of clients on them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from korvet.cli.client import ClientError, Cluster
from korvet.cli.group_requests import committed_offsets
from korvet.offsets.partition import partition_for
from tests.api.batches import batch
from tests.support.admin import create_topic
from tests.support.confluent import read_all
from tests.support.load import LoadConsumer, LoadProducer
from tests.support.polling import until
from tests.support.records import NOW_MS, Record
from tests.support.redis_server import Server, server_programs
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.api.asking import Client


Connect: TypeAlias = "Callable[[KorvetServer], Client]"


LEASE_MS = 1500
# Longer than any test waits: nothing can have waited for the end of this lease.
LONG_LEASE_MS = 30_000
NOT_LEADER, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, FENCED_EPOCH = 6, 15, 16, 74
OFFSETS = "__consumer_offsets"
PARTITIONS = 8


class Brokers:
    """Brokers with the node ids 1, 2 and so on, on a Valkey of their own."""

    def __init__(self, folder: Path, count: int, *options: str) -> None:
        """`options`: of each broker."""
        self._options = options
        self.store = Server(server_programs()[0], folder)
        self.all = [self.make(node_id) for node_id in range(1, count + 1)]
        for each in self.all:
            each.spawn()
        for each in self.all:
            each.wait_ready()
        self.wait_for(*range(1, count + 1))

    def make(self, node_id: int, lease_ms: int = LEASE_MS) -> KorvetServer:
        timeout = f"broker.session.timeout.ms={lease_ms}"
        return KorvetServer(
            "--node-id", str(node_id), "-s", timeout, *self._options, redis_url=self.store.url
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(each.bootstrap for each in self.all)

    def node(self, node_id: int) -> KorvetServer:
        return self.all[node_id - 1]

    def wait_for(self, *node_ids: int, timeout_s: float = 15) -> None:
        """Wait until each of these brokers reports exactly these brokers."""

        def agreed() -> bool:
            return all(live(self.node(node_id)) == set(node_ids) for node_id in node_ids)

        until(agreed, timeout_s, f"brokers {node_ids} are there, and nobody else")

    def leaders(self, topic: str, node_id: int = 1) -> dict[int, int]:
        """Partition -> node id, as a broker reports it."""
        with Cluster(self.node(node_id).bootstrap) as cluster:
            return {int(p.partition_index): int(p.leader_id) for p in cluster.topic(topic).partitions}

    def led_by(self, topic: str, node_id: int) -> int:
        """A partition that this broker leads."""
        return next(p for p, leader in self.leaders(topic).items() if leader == node_id)

    def group_at(self, node_id: int) -> str:
        """A group that this broker coordinates."""
        led = self.leaders(OFFSETS)
        return next(
            name for n in range(1000) if led[partition_for(name := f"group-{n}", len(led))] == node_id
        )

    def discard(self) -> None:
        for each in self.all:
            each.discard()
        self.store.stop()


def live(server: KorvetServer) -> set[int]:
    try:
        with Cluster(server.bootstrap, timeout_s=5) as cluster:
            return {int(broker.node_id) for broker in cluster.metadata([]).brokers}
    except ClientError:
        return set()


def records(partition: int, count: int = 200) -> list[Record]:
    return [Record(b"k", b"%d-%d" % (partition, number), (), NOW_MS) for number in range(count)]


def ask_produce(client: Client, topic: str, partition: int, value: bytes = b"v") -> Any:
    data = [{"index": partition, "records": batch([(b"k", value)])}]
    answer = client("Produce", 9, acks=-1, timeout=1000, topic_data=[{"name": topic, "partition_data": data}])
    return answer.responses[0].partition_responses[0]


def ask_fetch(client: Client, topic: str, partition: int, offset: int = 0, **fields: Any) -> Any:
    asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **fields}
    if "current_leader_epoch" not in asked:
        asked["current_leader_epoch"] = -1
    client.send(
        "Fetch",
        12,
        max_wait=60_000,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [asked]}],
    )


@contextmanager
def load(brokers: Brokers, topic: str) -> Iterator[tuple[list[LoadProducer], list[LoadConsumer]]]:
    """Idempotent producers to one partition of each broker, and a group with a coordinator of each."""
    create_topic(brokers.bootstrap, topic, PARTITIONS)
    nodes = range(1, len(brokers.all) + 1)
    # A broker that hangs answers nothing and closes nothing.
    patience = {"socket_timeout_ms": 4000}
    senders = [
        LoadProducer(
            brokers.bootstrap,
            topic,
            f"to{n}",
            idempotent=True,
            partition=brokers.led_by(topic, n),
            **patience,
        )
        for n in nodes
    ]
    timing = patience | {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
    members = [LoadConsumer(brokers.bootstrap, topic, brokers.group_at(n), **timing) for n in nodes]
    yield senders, members
    for each in senders:
        each.finish()
        assert not each.failed
    for member in members:
        member.close()


def get_on(senders: list[LoadProducer], members: list[LoadConsumer], what: str, count: int = 1000) -> None:
    """Wait until every client has got `count` records further."""
    sent = [len(each.acknowledged) + count for each in senders]
    seen = [len(each.seen.values) + count for each in members]
    until(
        lambda: (
            all(len(each.acknowledged) >= goal for each, goal in zip(senders, sent, strict=True))
            and all(len(each.seen.values) >= goal for each, goal in zip(members, seen, strict=True))
        ),
        60,
        what,
    )


def all_is_there(
    brokers: Brokers, topic: str, senders: list[LoadProducer], members: list[LoadConsumer]
) -> None:
    """Every acknowledged record is in the log once, at its acknowledged offset; commits are kept."""
    for each in senders:
        stored = read_all(brokers.bootstrap, topic, each.partition)
        assert [read.record.value for read in stored] == [
            each.value(n) for n in range(len(each.acknowledged))
        ]
        assert [read.offset for read in stored] == [each.acknowledged[n] for n in range(len(stored))]
    for node_id, member in enumerate(members, 1):
        with Cluster(brokers.node(node_id).bootstrap) as cluster:
            kept = committed_offsets(cluster, member.group)
        commits = {partition: offset for partition, offset in member.seen.committed.items() if offset >= 0}
        assert commits
        for partition, offset in commits.items():
            assert kept[topic, partition].committed_offset >= offset
