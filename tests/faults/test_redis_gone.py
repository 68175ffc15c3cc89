"""Redis out of a broker's reach, or another server at its address: the errors that clients get, and for
how long.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from korvet.cli.client import Cluster
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.load import LoadProducer
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.records import NOW_MS, Record
from tests.support.redis_server import Server, server_programs
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.api.asking import Client
    from tests.support.proxy import CuttingProxy

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "gone"
TIMEOUT_MS = 2_000
LEASE_MS = 2_000
# Half-open connections are replaced within this time.
NOTICED_S = TIMEOUT_MS / 1000 * 1.25 + 1
PARTITIONS = 8
# LEADER_NOT_AVAILABLE, and no leader.
NOBODY = 5, -1
NOT_LEADER = 6


class Store(Server):
    """A server on a TCP port, which proxies can reach."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        super().__init__(
            server_programs()[0], folder, "--port", str(self.port), "--repl-diskless-sync-delay", "0"
        )


@pytest.fixture
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Store]]:
    running: list[Store] = []

    def start() -> Store:
        running.append(Store(tmp_path_factory.mktemp("redis")))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def start(proxy: CuttingProxy) -> Iterator[Callable[..., KorvetServer]]:
    """Starts brokers that reach their Redis through the proxy, or directly if a test asks for it."""
    made: list[KorvetServer] = []

    def start_one(store: Store, node_id: int = 1, *, directly: bool = False) -> KorvetServer:
        proxy.target_port = proxy.target_port or store.port
        url = f"redis://127.0.0.1:{store.port}" if directly else f"redis://{proxy.address}"
        timeout, lease = f"redis.socket.timeout.ms={TIMEOUT_MS}", f"broker.session.timeout.ms={LEASE_MS}"
        options = "--node-id", str(node_id), "-s", timeout, "-s", lease
        made.append(KorvetServer(*options, redis_url=url))
        return made[-1].start()

    yield start_one
    for one in made:
        one.discard()


def acknowledged_soon(load: LoadProducer, within_s: float) -> None:
    """Wait until another record is acknowledged."""
    before = len(load.acknowledged)
    until(lambda: len(load.acknowledged) > before, within_s, "the producer gets on")


def check(load: LoadProducer) -> None:
    """Nothing acknowledged is missing, nothing is in the log twice."""
    log = read_all(load.bootstrap, TOPIC)
    at = {read.offset: read.record.value for read in log}
    assert all(at.get(offset) == load.value(number) for number, offset in load.acknowledged.items())
    numbers = [int((read.record.value or b"").rpartition(b"-")[2]) for read in log]
    assert numbers == list(range(load.sent))
    assert load.failed == {}


def test_half_open_connections_are_noticed(new_store, start, proxy: CuttingProxy) -> None:
    """The network swallows everything to Redis silently; new connections get through."""
    server = start(new_store())
    create_topic(server.bootstrap, TOPIC, 1)
    load = LoadProducer(server.bootstrap, TOPIC, "half", idempotent=True)
    acknowledged_soon(load, 10)
    for _ in range(2):
        proxy.freeze()
        acknowledged_soon(load, NOTICED_S)
    load.finish()
    check(load)
    assert "sent no reply for 2000 ms" in server.tail(20_000)


def test_a_demoted_primary_is_left(new_store, start, proxy: CuttingProxy) -> None:
    """A failover behind a proxy or a DNS name: old connections still lead to the old primary."""
    old, new = new_store(), new_store()
    new.follow(old.port)
    server = start(old)
    create_topic(server.bootstrap, TOPIC, 1)
    load = LoadProducer(server.bootstrap, TOPIC, "moved", idempotent=True)
    acknowledged_soon(load, 10)
    # As a failover that loses nothing: writes wait until the replica has all of them.
    old.client.client_pause(20_000, all=False)
    position = old.client.info("replication")["master_repl_offset"]
    until(
        lambda: new.client.info("replication")["slave_repl_offset"] >= position, 10, "the replica has it all"
    )
    new.client.replicaof("NO", "ONE")
    proxy.target_port = new.port
    old.client.replicaof("127.0.0.1", new.port)
    old.client.client_unpause()
    acknowledged_soon(load, 10)
    load.finish()
    check(load)
    assert new.client.xlen(f"korvet:{TOPIC}:0") == load.sent


def test_a_broker_without_its_lease_serves_nothing(new_store, start, connected, proxy: CuttingProxy) -> None:
    """A broker that is cut off from Redis could return stale records, and name itself leader, while
    another leads.
    """
    store = new_store()
    cut_off, other = start(store), start(store, 2, directly=True)
    create_topic(other.bootstrap, TOPIC, PARTITIONS)
    number = until(lambda: led_by_both(cut_off, other), 20, "both know who leads") - 1
    send(producer(cut_off.bootstrap), TOPIC, number, [Record(None, b"before", (), NOW_MS)])
    asked = connected(cut_off)
    assert fetched(asked, number) == 0
    proxy.refuse(refusing=True)
    proxy.freeze()
    frozen_s = time.monotonic()
    until(lambda: told_by(other, number) == (0, 2), 15, "the other one leads")
    # A client that turned to the first broker would not learn who leads.
    with Cluster(other.bootstrap, timeout_s=5) as asking:
        assert [each.node_id for each in asking.metadata([TOPIC]).brokers] == [2]
    # At once: a request to the first broker must not be served from now on, not even from its cache.
    assert fetched(asked, number) == NOT_LEADER
    assert told_by(cut_off, number) == NOBODY
    assert time.monotonic() - frozen_s > LEASE_MS / 1000 / 2
    send(producer(other.bootstrap), TOPIC, number, [Record(None, b"after", (), NOW_MS)])
    proxy.refuse(refusing=False)
    until(lambda: told_by(cut_off, number) == (0, 1), NOTICED_S, "the first one leads again")
    found = read_all(cut_off.bootstrap, TOPIC, number)
    assert [read.record.value for read in found] == [b"before", b"after"]


def test_a_lone_broker_serves_again_when_redis_is_back(new_store, start, proxy: CuttingProxy) -> None:
    """It cannot know whether it is alone while it is cut off. Its groups continue afterwards."""
    server = start(new_store())
    create_topic(server.bootstrap, TOPIC, 1)
    send(producer(server.bootstrap), TOPIC, 0, [Record(None, b"one", (), NOW_MS)])
    member = consumer(server.bootstrap, "group", auto_offset_reset="earliest")
    member.subscribe([TOPIC])
    assert [read.record.value for read in take(member, 1)] == [b"one"]
    proxy.refuse(refusing=True)
    proxy.freeze()
    until(lambda: told_by(server) == NOBODY, LEASE_MS / 1000 + 1, "it leads nothing")
    proxy.refuse(refusing=False)
    until(lambda: told_by(server) == (0, 1), NOTICED_S, "it leads again")
    send(producer(server.bootstrap), TOPIC, 0, [Record(None, b"two", (), NOW_MS)])
    assert [read.record.value for read in take(member, 1)] == [b"two"]
    member.close()


def fetched(client: Client, number: int) -> int:
    """The error of a fetch."""
    asked = {"partition": number, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    topics = [{"topic": TOPIC, "partitions": [asked]}]
    answer = client("Fetch", 12, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    return int(answer.responses[0].partitions[0].error_code)


def told_by(server: KorvetServer, number: int = 0) -> tuple[int, int]:
    """Error and leader of a partition, as a broker reports them."""
    return told_of_all(server)[number]


def told_of_all(server: KorvetServer) -> dict[int, tuple[int, int]]:
    with Cluster(server.bootstrap, timeout_s=5) as cluster:
        (topic,) = cluster.metadata([TOPIC]).topics
        return {each.partition_index: (int(each.error_code), each.leader_id) for each in topic.partitions}


def led_by_both(first: KorvetServer, second: KorvetServer) -> int:
    """The number of a partition that the first broker leads, plus 1, once both agree that each leads some."""
    told = told_of_all(first)
    if told != told_of_all(second) or {leader for _, leader in told.values()} != {1, 2}:
        return 0
    return min(number for number, (_, leader) in told.items() if leader == 1) + 1
