"""Replicas of Redis are replicas of partitions for Kafka's tools and clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from korvet.api.common.replicas import FIRST_REPLICA
from korvet.embedded.binary import find_server
from tests.api.asking import connect
from tests.clients.test_confluent import numbered
from tests.support.admin import create_topic
from tests.support.cluster import RedisCluster
from tests.support.confluent import producer, read_all, send
from tests.support.polling import until
from tests.support.sentinel import SentinelGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.java import JavaTools
    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.clients

WAIT_S = 20
REPLICATION_FACTOR, REPLICA_ASSIGNMENT = 38, 39
LEADER, COPY = 1, FIRST_REPLICA
"""The only broker, and the replica of its Redis."""


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelGroup]:
    """A primary with a replica."""
    group = SentinelGroup(str(find_server().path), tmp_path_factory.mktemp("pair") / "group", sentinels=1)
    yield group
    group.stop()


@pytest.fixture
def server(pair: SentinelGroup, own_korvet: Callable[..., KorvetServer]) -> KorvetServer:
    url = f"redis://127.0.0.1:{pair.primary.port}"
    started = own_korvet("--set", "offsets.topic.num.partitions=1", redis_url=url)
    create_topic(started.bootstrap, "careless", 1)
    create_topic(started.bootstrap, "careful", 2, {"min.insync.replicas": "2"})
    until(lambda: replicas(started, "careless") == ([LEADER, COPY],) * 2, WAIT_S, "the replica is seen")
    return started


def asked(server: KorvetServer, name: str, version: int, **fields: Any) -> Any:
    client = connect(server)
    try:
        return client(name, version, **fields)
    finally:
        client.raw.socket.close()


def replicas(server: KorvetServer, topic: str) -> tuple[list[int], list[int]]:
    """Replicas and in-sync replicas of the topic's first partition."""
    (found,) = asked(server, "Metadata", 12, topics=[{"topic_id": None, "name": topic}]).topics
    return [*found.partitions[0].replica_nodes], [*found.partitions[0].isr_nodes]


def created(server: KorvetServer, name: str, factor: int = -1, brokers: list[int] | None = None) -> Any:
    topic = {
        "name": name,
        "num_partitions": -1 if brokers else 1,
        "replication_factor": factor,
        "assignments": [{"partition_index": 0, "broker_ids": brokers}] if brokers else [],
        "configs": [],
    }
    (result,) = asked(server, "CreateTopics", 7, topics=[topic], timeout=5000, validate_only=False).topics
    return result


def test_kafka_topics_shows_missing_replicas(
    pair: SentinelGroup, server: KorvetServer, java: JavaTools
) -> None:
    def listed(*options: str) -> set[str]:
        """The topics of the partitions that kafka-topics lists."""
        shown = java.run("topics", "--bootstrap-server", server.bootstrap, "--describe", *options)
        return {line.split()[1] for line in shown.splitlines() if "Partition: " in line}

    described = java.run("topics", "--bootstrap-server", server.bootstrap, "--describe", "--topic", "careful")
    assert "PartitionCount: 2\tReplicationFactor: 2\t" in described
    assert described.count(f"Leader: {LEADER}\tReplicas: {LEADER},{COPY}\tIsr: {LEADER},{COPY}\t") == 2
    assert listed("--under-replicated-partitions") == set()
    assert listed("--at-min-isr-partitions") == {"careful"}

    pair.replica.kill()
    until(lambda: replicas(server, "careless") == ([LEADER, COPY], [LEADER]), WAIT_S, "it is missed")
    assert listed("--under-replicated-partitions") >= {"careful", "careless"}
    assert listed("--under-min-isr-partitions") == {"careful"}
    assert "careless" in listed("--at-min-isr-partitions")
    assert listed("--unavailable-partitions") == set()


def test_kafka_topics_creates_topics_with_as_many_replicas(server: KorvetServer, java: JavaTools) -> None:
    at = "--bootstrap-server", server.bootstrap
    java.run("topics", *at, "--create", "--topic", "two", "--replication-factor", "2")
    assert replicas(server, "two") == ([LEADER, COPY], [LEADER, COPY])
    refused = java.attempt("topics", *at, "--create", "--topic", "three", "--replication-factor", "3")
    assert "Unable to replicate the partition 3 time(s): Redis has 1 replica(s)" in refused
    java.run("topics", *at, "--alter", "--topic", "two", "--partitions", "3")


def test_replication_factors_and_assignments(server: KorvetServer) -> None:
    for name, factor in (("default", -1), ("one", 1), ("two", 2)):
        result = created(server, name, factor)
        assert (result.error_code, result.replication_factor) == (0, 2), name
    assert created(server, "three", 3).error_code == REPLICATION_FACTOR
    for name, brokers in (("leader", [LEADER]), ("both", [LEADER, COPY])):
        assert created(server, name, brokers=brokers).error_code == 0
    for brokers in ([COPY], [COPY, LEADER], [LEADER, COPY + 1], [LEADER, COPY, COPY + 1], [LEADER, LEADER]):
        assert created(server, "other", brokers=brokers).error_code == REPLICA_ASSIGNMENT, brokers
    added = {"name": "both", "count": 2, "assignments": [{"broker_ids": [LEADER, COPY]}]}
    answer = asked(server, "CreatePartitions", 3, topics=[added], timeout=5000, validate_only=False)
    assert answer.results[0].error_code == 0


def test_replicas_are_known_when_the_broker_is_ready(
    pair: SentinelGroup, own_korvet: Callable[..., KorvetServer]
) -> None:
    started = own_korvet(redis_url=f"redis://127.0.0.1:{pair.primary.port}")
    assert created(started, "two", 2).error_code == 0


def test_topics_that_ask_for_more_replicas_than_there_are(server: KorvetServer) -> None:
    """Their missing replicas are shown, as those of a topic in Kafka are."""
    create_topic(server.bootstrap, "greedy", 1, {"min.insync.replicas": "4"})
    assert replicas(server, "greedy") == ([LEADER, COPY, COPY + 1, COPY + 2], [LEADER, COPY])
    found = asked(
        server,
        "DescribeTopicPartitions",
        0,
        topics=[{"name": "greedy"}],
        response_partition_limit=10,
        cursor=None,
    )
    (partition,) = found.topics[0].partitions
    assert [*partition.replica_nodes] == [LEADER, COPY, COPY + 1, COPY + 2]
    assert [*partition.isr_nodes] == [LEADER, COPY]
    assert [*partition.offline_replicas] == [COPY + 1, COPY + 2]


def test_librdkafka_describes_replicas(server: KorvetServer) -> None:
    """It looks for each replica among the brokers."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    listed = admin.list_topics("careful", timeout=WAIT_S)
    assert [*listed.brokers] == [LEADER]
    assert listed.topics["careful"].partitions[0].replicas == [LEADER, COPY]
    described = admin.describe_topics(TopicCollection(["careful"]))["careful"].result(WAIT_S)
    for partition in described.partitions:
        assert [node.id for node in partition.replicas] == [LEADER, COPY]
        assert [node.id for node in partition.isr] == [LEADER, COPY]


def test_partitions_of_a_cluster_have_the_replicas_of_their_servers(
    own_korvet: Callable[..., KorvetServer], tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster = RedisCluster(str(find_server().path), tmp_path_factory.mktemp("cluster"), replicas=3)
    try:
        server = own_korvet("--set", "offsets.topic.num.partitions=1", redis_url=cluster.url)
        create_topic(server.bootstrap, "t", 8)
        until(lambda: missing(server, "t") == set(), WAIT_S, "all replicas are seen")
        primary, replica = cluster.nodes[0], cluster.nodes[3]
        streams = [f"korvet:t:{index}".encode() for index in range(8)]
        concerned = {index for index, stream in enumerate(streams) if cluster.owner(stream) is primary}
        assert 0 < len(concerned) < 8
        replica.kill()
        until(lambda: missing(server, "t") == concerned, WAIT_S, "the replica is missed")
    finally:
        cluster.stop()


def missing(server: KorvetServer, topic: str) -> set[int]:
    """The partitions that lack a replica; a topic of a cluster whose primaries have one replica each."""
    (found,) = asked(server, "Metadata", 12, topics=[{"topic_id": None, "name": topic}]).topics
    return {each.partition_index for each in found.partitions if [*each.isr_nodes] != [LEADER, COPY]}


def test_clients_use_the_leader(server: KorvetServer, java: JavaTools) -> None:
    send(producer(server.bootstrap), "careful", 0, numbered(5))
    java.run(
        "console-producer",
        *("--bootstrap-server", server.bootstrap, "--topic", "careful"),
        stdin=b"java\n",
    )
    assert sum(len(read_all(server.bootstrap, "careful", index)) for index in range(2)) == 6
    shown = java.run(
        "console-consumer",
        *("--bootstrap-server", server.bootstrap, "--topic", "careful"),
        *("--from-beginning", "--max-messages", "6", "--command-property", "client.rack=here"),
    )
    assert len(shown.split()) == 6
    assert asyncio.run(_read_by_aiokafka(server.bootstrap)) == 6


async def _read_by_aiokafka(bootstrap: str) -> int:
    consumer = AIOKafkaConsumer("careful", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return len([await asyncio.wait_for(anext(consumer), WAIT_S) for _ in range(6)])
    finally:
        await consumer.stop()
