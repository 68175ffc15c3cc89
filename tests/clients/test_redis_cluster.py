"""Kafka clients of a korvet on a Redis Cluster."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from korvet.cli.client import Cluster
from korvet.cli.group_requests import committed_offsets
from korvet.offsets.packing import entry_id
from tests.support.admin import create_topic
from tests.support.certificates import Authority
from tests.support.cluster import RedisCluster, Tls, program_with_tls
from tests.support.confluent import consumer, producer, read_all, send
from tests.support.polling import until
from tests.support.processes import run
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.clients]

PARTITIONS = 6
_serial = itertools.count()


@pytest.fixture
def keyspace() -> str:
    return f"clients{next(_serial)}"


@pytest.fixture
def server(
    own_korvet: Callable[..., KorvetServer], redis_cluster: RedisCluster, keyspace: str
) -> KorvetServer:
    """The broker has the address of one node, and discovers the others."""
    return own_korvet("--set", f"keyspace={keyspace}", redis_url=redis_cluster.nodes[1].url)


@pytest.fixture
def tls_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisCluster]:
    """Nodes without a plain port. This process and its children trust their authority."""
    program = program_with_tls()
    if program is None:
        pytest.skip("needs a valkey-server or redis-server that was built with TLS on PATH")
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    tls = Tls(authority.certificate, authority.issue("node", "/CN=node"))
    cluster = RedisCluster(program, tmp_path, tls=tls)
    yield cluster
    cluster.stop()


def test_produce_consume_commit(server: KorvetServer, redis_cluster: RedisCluster, keyspace: str) -> None:
    create_topic(server.bootstrap, "t", PARTITIONS)
    offsets = {}
    for partition in range(PARTITIONS):
        records = [Record(b"k", b"%d-%d" % (partition, number), (), NOW_MS) for number in range(100)]
        offsets[partition] = send(producer(server.bootstrap), "t", partition, records)
    client = consumer(server.bootstrap, "g", auto_offset_reset="earliest", enable_auto_commit=False)
    client.subscribe(["t"])
    values: list[bytes] = []

    def consumed() -> bool:
        messages = client.consume(1000, 0.1)
        assert all(message.error() is None for message in messages)
        values.extend(message.value() or b"" for message in messages)
        return len(values) >= PARTITIONS * 100

    until(consumed, 30, "all records are read")
    expected = [b"%d-%d" % (partition, number) for partition in range(PARTITIONS) for number in range(100)]
    assert Counter(values) == Counter(expected)
    client.commit(asynchronous=False)
    client.close()
    streams = [f"{keyspace}:t:{partition}".encode() for partition in range(PARTITIONS)]
    assert len({redis_cluster.owner(stream) for stream in streams}) > 1
    for partition, stream in enumerate(streams):
        (group,) = redis_cluster.owner(stream).client.xinfo_groups(stream)
        assert group["last-delivered-id"].decode() == entry_id(offsets[partition][-1])
        assert group["lag"] == 0


def test_redis_groups_on_all_nodes(server: KorvetServer, redis_cluster: RedisCluster, keyspace: str) -> None:
    """Native consumers acknowledge on each partition: the Kafka group commits, also while slots move."""
    create_topic(server.bootstrap, "t", PARTITIONS)
    wanted: dict[tuple[str, int], int] = {}
    streams = [f"{keyspace}:t:{partition}".encode() for partition in range(PARTITIONS)]
    records = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(10)]
    for partition in range(PARTITIONS):
        wanted["t", partition] = send(producer(server.bootstrap), "t", partition, records)[-1] + 1

    def read(stream: bytes, count: int) -> None:
        client = redis_cluster.owner(stream).client
        [[_, entries]] = client.xreadgroup("native", "me", {stream: ">"}, count=count)
        assert client.xack(stream, "native", *(one for one, _ in entries)) == count

    def committed() -> dict[tuple[str, int], int]:
        with Cluster(server.bootstrap) as cluster:
            found = committed_offsets(cluster, "native")
        return {place: int(part.committed_offset) for place, part in found.items()}

    for stream in streams:
        redis_cluster.owner(stream).client.xgroup_create(stream, "native", "0")
        read(stream, 9)
    until(lambda: committed().keys() == wanted.keys(), 30, "the group has committed on all partitions")
    redis_cluster.move(streams[0], redis_cluster.other_than_owner(streams[0]))
    for stream in streams:
        read(stream, 1)
    until(lambda: committed() == wanted, 30, "all is committed")


def korvet_command(*arguments: str) -> str:
    done = run([sys.executable, "-m", "korvet", *arguments], timeout_s=60)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode()


def test_commands_that_look_into_redis(
    server: KorvetServer, redis_cluster: RedisCluster, keyspace: str
) -> None:
    """One URL begins with a node that is down."""
    create_topic(server.bootstrap, "t", PARTITIONS)
    for partition in range(PARTITIONS):
        send(producer(server.bootstrap), "t", partition, [Record(b"k", b"v", (), NOW_MS)] * 5)
    client = consumer(server.bootstrap, "g", auto_offset_reset="earliest", enable_auto_commit=False)
    client.commit(
        offsets=[TopicPartition("t", number, 0) for number in range(PARTITIONS)], asynchronous=False
    )
    client.close()
    where = "--redis", redis_cluster.nodes[2].url, "--keyspace", keyspace
    described = korvet_command(
        "groups", "describe", "g", "--bootstrap-server", server.bootstrap, *where, "--json"
    )
    assert {row["record_lag"] for row in json.loads(described)["offsets"]} == {5}
    url = f"redis://127.0.0.1:1,127.0.0.1:{redis_cluster.nodes[0].port}"
    done = run(
        [sys.executable, "-m", "korvet", "doctor", "--redis", url, "--keyspace", keyspace], timeout_s=60
    )
    text = done.stdout.decode()
    assert "3 primaries, 16384 of 16384 slots served" in text
    assert all(f"replicas, 127.0.0.1:{node.port}" in text for node in redis_cluster.nodes[:3])
    # The clients of __consumer_offsets count too.
    assert re.search(r"entries .*[0-9]+ in [0-9]+ streams, all with an offset", text)
    assert done.returncode == 1, "without persistence"


def test_nodes_that_speak_tls(
    own_korvet: Callable[..., KorvetServer], tls_cluster: RedisCluster, keyspace: str
) -> None:
    """All connections use it: those to discovered nodes, and to the new node of a slot."""
    server = own_korvet("--set", f"keyspace={keyspace}", redis_url=tls_cluster.nodes[0].url)
    create_topic(server.bootstrap, "t", PARTITIONS)
    records = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(200)]
    streams = [f"{keyspace}:t:{partition}".encode() for partition in range(PARTITIONS)]
    for half in (records[:100], records[100:]):
        for partition in range(PARTITIONS):
            send(producer(server.bootstrap), "t", partition, half)
        tls_cluster.move(streams[0], tls_cluster.other_than_owner(streams[0]))
    assert len({tls_cluster.owner(stream) for stream in streams}) > 1
    for partition in range(PARTITIONS):
        assert [read.record for read in read_all(server.bootstrap, "t", partition)] == records
