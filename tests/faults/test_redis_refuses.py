"""A Redis that answers with errors: each has its own Kafka error, and one cause is one log line."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from tests.api.asking import Client, connect
from tests.api.batches import batch
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.redis_server import Server, server_programs
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.faults, pytest.mark.clients]

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "refused"
LEASE_MS = 1_000
NONE, NOT_LEADER, LOADING, NOT_AVAILABLE = 0, 6, 14, 15
NOT_ENOUGH_REPLICAS, UNKNOWN_MEMBER, STORAGE_ERROR = 19, 25, 56
COMMITS = 200


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(server_programs()[0], tmp_path_factory.mktemp("redis"), "--busy-reply-threshold", "50")
    yield running
    running.stop()


@pytest.fixture
def korvet(store: Server) -> Iterator[KorvetServer]:
    with KorvetServer("-s", f"broker.session.timeout.ms={LEASE_MS}", redis_url=store.url) as server:
        create_topic(server.bootstrap, TOPIC, 1)
        yield server


@pytest.fixture
def client(korvet: KorvetServer) -> Iterator[Client]:
    made = connect(korvet)
    yield made
    made.raw.socket.close()


def produce(client: Client) -> int:
    data = [{"index": 0, "records": batch([(b"k", b"v")])}]
    answer = client("Produce", 9, acks=-1, timeout=1000, topic_data=[{"name": TOPIC, "partition_data": data}])
    return int(answer.responses[0].partition_responses[0].error_code)


def fetch(client: Client) -> int:
    """The error of a fetch that Redis must answer."""
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    topics = [{"topic": TOPIC, "partitions": [asked]}]
    answer = client("Fetch", 12, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    return int(answer.responses[0].partitions[0].error_code)


def list_offsets(client: Client) -> int:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    answer = client("ListOffsets", 7, replica_id=-1, topics=[{"name": TOPIC, "partitions": [asked]}])
    return int(answer.topics[0].partitions[0].error_code)


def commit(client: Client, offset: int = 1) -> int:
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
    answer = client("OffsetCommit", 8, group_id="g", generation_id_or_member_epoch=-1, topics=topics)
    return int(answer.topics[0].partitions[0].error_code)


def committed(client: Client) -> tuple[int, int]:
    """The error of an OffsetFetch, and the committed offset."""
    answer = client("OffsetFetch", 5, group_id="g", topics=[{"name": TOPIC, "partition_indexes": [0]}])
    found = answer.topics[0].partitions[0].committed_offset if answer.topics else -1
    return int(answer.error_code), int(found)


def test_groups_are_read_while_redis_takes_no_writes(
    store: Server, korvet: KorvetServer, client: Client
) -> None:
    """A commit is refused, to its client alone; OffsetFetch is answered."""
    assert commit(client) == NONE
    store.client.config_set("min-replicas-to-write", 1)
    # The first line comes from the failed append, or from the lease that was not renewed.
    until(lambda: commit(client, 2) == LOADING, 10, "commits are refused")
    beat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert client("Heartbeat", 4, **beat).error_code in {NONE, UNKNOWN_MEMBER}
    until(lambda: committed(client) == (NONE, 1), 10, "offsets are read")
    for _ in range(COMMITS):
        assert commit(client, 3) == LOADING
        assert committed(client) == (NONE, 1)
    store.client.config_set("min-replicas-to-write", 0)
    until(lambda: commit(client, 4) == NONE, 10, "groups commit again")
    assert committed(client) == (NONE, 4)
    until(lambda: client("Heartbeat", 4, **beat).error_code == UNKNOWN_MEMBER, 10, "the group is served")


def ends(korvet: KorvetServer, part: str) -> list[str]:
    """The lines that tell of the end of a cause."""
    return re.findall(
        rf"WARNING .*: {part}.* \(ended after [\d.]+ s, (?:once|\d+ times)\)$", korvet.tail(1_000_000), re.M
    )


def test_too_few_replicas(store: Server, korvet: KorvetServer, client: Client) -> None:
    """NOREPLICAS for longer than a lease: nothing is written, and reads continue."""
    assert produce(client) == commit(client) == NONE
    store.client.config_set("min-replicas-to-write", 1)
    for _ in range(COMMITS):
        assert produce(client) == NOT_ENOUGH_REPLICAS
        assert commit(client) in {LOADING, NOT_AVAILABLE}
        assert fetch(client) == list_offsets(client) == NONE
    until(lambda: korvet.tail(100_000).count("could not be renewed") == 1, 10, "the lease is not renewed")
    assert fetch(client) == NONE
    assert client("InitProducerId", 4, transactional_id=None).error_code in {NONE, LOADING}
    store.client.config_set("min-replicas-to-write", 0)
    assert produce(client) == NONE
    until(lambda: commit(client) == NONE, 10, "groups commit again")
    assert len(read_all(korvet.bootstrap, TOPIC)) == 2
    # One cause with hundreds of errors: a few lines, one for each part of the broker, and one of its end.
    until(lambda: ends(korvet, "the lease on node id 1 could not be renewed"), 10, "the end is logged")
    until(lambda: ": over after " in korvet.tail(1_000_000), 10, "the end of what was refused is logged")
    lines = [line for line in korvet.tail(1_000_000).splitlines() if "NOREPLICAS" in line]
    begun = [line for line in lines if " (ended after " not in line and ": over after " not in line]
    assert len(begun) < 10
    assert len(lines) <= 2 * len(begun)


def test_a_broker_starts_while_the_memory_of_redis_is_full(store: Server, korvet: KorvetServer) -> None:
    """Records and commits can be read, so that consumers catch up and retention makes room."""
    client = connect(korvet)
    assert produce(client) == commit(client) == NONE
    client.raw.socket.close()
    assert korvet.stop() == 0
    store.client.config_set("maxmemory", 1)
    korvet.start()
    client = connect(korvet)
    assert committed(client) == (NONE, 1)
    assert fetch(client) == list_offsets(client) == NONE
    assert produce(client) == NOT_ENOUGH_REPLICAS
    until(lambda: commit(client, 2) == LOADING, 10, "commits are refused")
    until(lambda: committed(client) == (NONE, 1), 10, "offsets are read")
    store.client.config_set("maxmemory", 0)
    assert produce(client) == NONE
    until(lambda: commit(client, 2) == NONE, 10, "groups commit again")
    client.raw.socket.close()
    assert len(read_all(korvet.bootstrap, TOPIC)) == 2


def test_a_busy_server(store: Server, client: Client) -> None:
    """BUSY: a script has been running for long, and nothing else is served."""
    assert produce(client) == NONE
    other = redis.Redis(unix_socket_path=str(store.socket))

    def keep_busy() -> None:
        with pytest.raises(redis.ResponseError, match="killed"):
            other.eval("while true do end", 0)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    until(lambda: is_busy(store.client), 10, "the server is busy")
    try:
        assert produce(client) == NOT_LEADER
        assert list_offsets(client) == NOT_LEADER
    finally:
        store.client.script_kill()
        busy.join()
        other.close()
    until(lambda: produce(client) == NONE, 10, "the server takes records again")


def is_busy(client: Any) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


def test_rights_that_are_taken_away(store: Server, client: Client) -> None:
    """NOPERM: nothing that a client could change."""
    assert produce(client) == NONE
    store.client.acl_setuser("default", enabled=True, nopass=True, commands=["-fcall"], keys=["*"])
    assert produce(client) == STORAGE_ERROR
    store.client.acl_setuser("default", enabled=True, nopass=True, commands=["+fcall"], keys=["*"])
    until(lambda: produce(client) == NONE, 10, "the server takes records again")


def test_the_documented_user_may_do_all_that_a_broker_does(tmp_path: Path) -> None:
    """The user of docs/reference/redis.md: transactions, groups, and the looks for native changes."""
    (rule,) = re.findall(r"ACL SETUSER korvet .*", (ROOT / "docs" / "reference" / "redis.md").read_text())
    port = free_port()
    store = Server(server_programs()[0], tmp_path, "--port", str(port), "--bind", "127.0.0.1")
    korvet = KorvetServer(redis_url=f"redis://korvet:PASSWORD@127.0.0.1:{port}")
    try:
        store.client.execute_command(*rule.split())
        korvet.start()
        create_topic(korvet.bootstrap, TOPIC, 1)
        writer = producer(korvet.bootstrap, transactional_id="t")
        writer.init_transactions(30)
        writer.begin_transaction()
        for number in range(COMMITS):
            writer.produce(TOPIC, b"%d" % number)
        writer.commit_transaction(30)
        group = consumer(korvet.bootstrap, "g", auto_offset_reset="earliest")
        group.subscribe([TOPIC])
        assert len(group.consume(COMMITS, 60)) == COMMITS
        group.commit(asynchronous=False)
        group.close()
        store.client.xreadgroup("g", "native", {f"korvet:{TOPIC}:0": ">"})
        assert store.client.execute_command("ACL", "LOG") == []
    finally:
        korvet.discard()
        store.stop()
