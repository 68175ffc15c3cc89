"""Share groups (KIP-932) with real clients: librdkafka's share consumer, and Kafka's tools."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from tests.api.asking import Client, connect
from tests.support.confluent import producer
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.clients
TOPIC, PARTITIONS = "orders", 4
RECORDS = 1000


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A server with share groups, whose members get partitions soon, and stay although tools are slow."""
    settings = {"heartbeat.interval.ms": 500, "min.heartbeat.interval.ms": 500, "assignment.interval.ms": 0}
    settings |= {"max.session.timeout.ms": 600_000, "session.timeout.ms": 600_000}
    with KorvetServer(*(f"--set=group.share.{name}={value}" for name, value in settings.items())) as server:
        with connect(server) as client:
            topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
            client("CreateTopics", 7, topics=[topic], timeout=10_000, validate_only=False)
        yield server


@pytest.fixture
def ask(server: KorvetServer) -> Iterator[Client]:
    with connect(server) as client:
        yield client


def partitions(ask: Client, group: str) -> list[list[int]]:
    """What the members of a group have, the most first."""
    (found,) = ask("ShareGroupDescribe", 1, group_ids=[group]).groups
    of_members = (
        [number for topic in member.assignment.topic_partitions for number in topic.partitions]
        for member in found.members
    )
    return sorted(of_members, key=len, reverse=True)


def test_librdkafka_joins_shares_and_leaves(server: KorvetServer, ask: Client, group: str) -> None:
    config = {"bootstrap.servers": server.bootstrap, "group.id": group, "log_level": 0}
    one, other = ShareConsumer(config), ShareConsumer(config)
    try:
        one.subscribe([TOPIC])
        until(lambda: partitions(ask, group) == [[0, 1, 2, 3]], 60, "the first member has all partitions")
        other.subscribe([TOPIC])
        until(lambda: [len(own) for own in partitions(ask, group)] == [2, 2], 60, "both have two partitions")
        one.close()
        until(lambda: partitions(ask, group) == [[0, 1, 2, 3]], 60, "the other one has all partitions")
    finally:
        one.close()
        other.close()
    until(lambda: partitions(ask, group) == [], 60, "both have left")


# Records


class Queue:
    """A topic of two partitions with records, and a group that begins with the first ones."""

    def __init__(self, server: KorvetServer, ask: Client, group: str, **configs: str) -> None:
        self.ask, self.group = ask, group
        self.name = f"queue-{group}"
        named = [{"name": key, "value": value} for key, value in configs.items()]
        topic = {"name": self.name, "num_partitions": 2, "replication_factor": 1, "configs": named}
        ask("CreateTopics", 7, topics=[topic], timeout=10_000, validate_only=False)
        first = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
        resource = {"resource_type": 32, "resource_name": group, "configs": [first]}
        ask("IncrementalAlterConfigs", 1, resources=[resource])
        client = producer(server.bootstrap)
        for number in range(RECORDS):
            client.produce(self.name, str(number).encode(), partition=number % 2)
        assert client.flush(30) == 0

    def lag(self) -> int:
        """Records that are not accepted."""
        (found,) = self.ask("DescribeShareGroupOffsets", 1, groups=[{"group_id": self.group}]).groups
        return sum(part.lag for topic in found.topics for part in topic.partitions)


@pytest.fixture
def queue(server: KorvetServer, ask: Client, group: str) -> Queue:
    return Queue(server, ask, group)


def test_librdkafka_accepts_and_releases(server: KorvetServer, queue: Queue) -> None:
    config = {"bootstrap.servers": server.bootstrap, "group.id": queue.group, "log_level": 0}
    client = ShareConsumer(config | {"share.acknowledgement.mode": "explicit"})
    client.subscribe([queue.name])
    deliveries: Counter[bytes] = Counter()

    def took_all() -> bool:
        for message in client.poll(0.1):
            assert message.error() is None
            value = message.value()
            deliveries[value] += 1
            again = int(value) % 10 == 0 and deliveries[value] == 1
            client.acknowledge(message, AcknowledgeType.RELEASE if again else AcknowledgeType.ACCEPT)
        return deliveries.total() >= RECORDS + RECORDS // 10

    try:
        until(took_all, 60, "all records")
        client.commit_sync(30)
    finally:
        client.close()
    assert deliveries == {str(number).encode(): 1 + (number % 10 == 0) for number in range(RECORDS)}
    assert queue.lag() == 0


def test_the_console_share_consumer_takes_all(server: KorvetServer, queue: Queue, java) -> None:
    where = ("--bootstrap-server", server.bootstrap, "--topic", queue.name, "--group", queue.group)
    taken = java.run(
        "console-share-consumer", *where, "--max-messages", str(RECORDS), "--timeout-ms", "60000"
    )
    assert sorted(map(int, taken.split())) == [*range(RECORDS)]
    assert queue.lag() == 0


def test_the_verifiable_share_consumer_accepts_all(server: KorvetServer, queue: Queue, java) -> None:
    where = ("--bootstrap-server", server.bootstrap, "--topic", queue.name, "--group-id", queue.group)
    told = java.run("verifiable-share-consumer", *where, "--max-messages", str(RECORDS))
    events = [json.loads(line) for line in told.splitlines()]
    for name in ("records_consumed", "offsets_acknowledged"):
        assert sum(event["count"] for event in events if event["name"] == name) == RECORDS
    assert queue.lag() == 0


def test_topics_of_batches_are_refused_in_words(server: KorvetServer, ask: Client, group: str, java) -> None:
    whole = Queue(server, ask, group, **{"storage.layout": "batch"})
    where = ("--bootstrap-server", server.bootstrap, "--topic", whole.name, "--group", group)
    said = java.attempt("console-share-consumer", *where, "--timeout-ms", "5000")
    assert (
        f"InvalidRequestException: {whole.name}: Share groups cannot read topics with storage.layout=" in said
    )


# Tools


def test_kafkas_tools(server: KorvetServer, ask: Client, java, group: str) -> None:
    at = ("--bootstrap-server", server.bootstrap)
    fields = {"group_id": group, "member_id": "m"}
    epoch = 0

    def has_partitions() -> bool:
        nonlocal epoch
        names = [TOPIC] if epoch == 0 else None
        answer = ask("ShareGroupHeartbeat", 1, member_epoch=epoch, subscribed_topic_names=names, **fields)
        epoch = answer.member_epoch
        return answer.error_code == 0 and partitions(ask, group) == [[0, 1, 2, 3]]

    until(has_partitions, 30, "the member has all partitions")
    assert [group, "Share", "share"] in rows(java.run("groups", *at, "--list", "--share"))
    assert [group, "Stable"] in rows(java.run("share-groups", *at, "--list", "--state"))
    shown = rows(java.run("share-groups", *at, "--describe", "--group", group, "--members"))
    assert [group, "m", "/127.0.0.1", "api", "4", f"{TOPIC}:0,1,2,3"] in shown
    refused = java.attempt("share-groups", *at, "--delete", "--group", group)
    assert "GroupNotEmptyException" in refused
    ask("ShareGroupHeartbeat", 1, member_epoch=-1, **fields)
    of_topic = ("--group", group, "--topic", TOPIC)
    java.run("share-groups", *at, "--reset-offsets", *of_topic, "--to-earliest", "--execute")
    shown = rows(java.run("share-groups", *at, "--describe", "--group", group, "--offsets"))
    assert [[group, TOPIC, str(number), "0", "0"] for number in range(PARTITIONS)] == sorted(
        row for row in shown if row[:1] == [group]
    )
    java.run("share-groups", *at, "--delete-offsets", *of_topic)
    assert TOPIC not in java.run("share-groups", *at, "--describe", "--group", group, "--offsets")
    java.run("share-groups", *at, "--delete", "--group", group)
    assert group not in java.run("groups", *at, "--list")


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# The states of groups, for readers

STATES = "__share_group_state"
FORMATTER = "org.apache.kafka.tools.consumer.group.share.ShareGroupStateMessageFormatter"
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
# What two members do with 20 records; the others are accepted. Kafka 4.4 has the same state then.
FIRST = {3: AcknowledgeType.RELEASE, 5: AcknowledgeType.RELEASE, 6: AcknowledgeType.RELEASE}
FIRST |= dict.fromkeys((8, 12, 13), AcknowledgeType.REJECT)
FIRST |= dict.fromkeys(range(15, 20), AcknowledgeType.RELEASE)
SECOND = dict.fromkeys((3, 6, 15, 17, 18, 19), AcknowledgeType.RELEASE)
AFTER_FIRST = [
    (3, 3, AVAILABLE, 1),
    (4, 4, ACKNOWLEDGED, 1),
    (5, 6, AVAILABLE, 1),
    (7, 7, ACKNOWLEDGED, 1),
    (8, 8, ARCHIVED, 1),
    (9, 11, ACKNOWLEDGED, 1),
    (12, 13, ARCHIVED, 1),
    (14, 14, ACKNOWLEDGED, 1),
    (15, 19, AVAILABLE, 1),
]
AFTER_SECOND = [
    (3, 3, AVAILABLE, 2),
    (4, 4, ACKNOWLEDGED, 1),
    (5, 5, ACKNOWLEDGED, 2),
    (6, 6, AVAILABLE, 2),
    (7, 7, ACKNOWLEDGED, 1),
    (8, 8, ARCHIVED, 1),
    (9, 11, ACKNOWLEDGED, 1),
    (12, 13, ARCHIVED, 1),
    (14, 14, ACKNOWLEDGED, 1),
    (15, 15, AVAILABLE, 2),
    (16, 16, ACKNOWLEDGED, 2),
    (17, 19, AVAILABLE, 2),
]


def take(server: KorvetServer, group: str, topic: str, count: int, types: dict[int, AcknowledgeType]) -> None:
    """Take that many records, once each, and acknowledge them."""
    config = {"bootstrap.servers": server.bootstrap, "group.id": group, "log_level": 0}
    client = ShareConsumer(config | {"share.acknowledgement.mode": "explicit"})
    client.subscribe([topic])
    taken: list[int] = []

    def took_all() -> bool:
        for message in client.poll(0.1):
            assert message.error() is None
            taken.append(message.offset())
            client.acknowledge(message, types.get(message.offset(), AcknowledgeType.ACCEPT))
        return len(taken) >= count

    try:
        until(took_all, 60, "all records")
        client.commit_sync(30)
    finally:
        client.close()
    assert len({*taken}) == len(taken) == count


def printed_states(server: KorvetServer, group: str, java) -> list[dict]:
    """The values that Kafka's formatter prints for the group's only partition, in order."""
    where = ("--bootstrap-server", server.bootstrap, "--topic", STATES, "--from-beginning")
    text = java.attempt("console-consumer", *where, "--formatter", FORMATTER, "--timeout-ms", "3000")
    found, at, decoder = [], text.find("{"), json.JSONDecoder()
    while at >= 0 and text.startswith("{", at):
        record, at = decoder.raw_decode(text, at)
        if record["key"]["data"]["groupId"] == group:
            assert (record["key"]["type"], record["key"]["data"]["partition"]) == (0, 0)
            found.append(record["value"]["data"])
    return found


def test_kafkas_formatter_prints_the_states(server: KorvetServer, ask: Client, group: str, java) -> None:
    name = f"states-{group}"
    dense = [{"name": "offset.assignment", "value": "dense"}]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": dense}
    assert (
        not ask("CreateTopics", 7, topics=[topic], timeout=10_000, validate_only=False).topics[0].error_code
    )
    first = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": group, "configs": [first]}
    ask("IncrementalAlterConfigs", 1, resources=[resource])
    client = producer(server.bootstrap)
    for number in range(20):
        client.produce(name, str(number).encode())
    assert client.flush(30) == 0

    def rests_with(complete: int, batches: list[tuple[int, ...]]) -> bool:
        states = printed_states(server, group, java)
        if not states:
            return False
        shown = [tuple(batch.values()) for batch in states[-1]["stateBatches"]]
        return (states[-1]["startOffset"], states[-1]["deliveryCompleteCount"], shown) == (
            3,
            complete,
            batches,
        )

    take(server, group, name, 20, FIRST)
    until(lambda: rests_with(9, AFTER_FIRST), 60, "the state after the first member")
    take(server, group, name, 8, SECOND)
    until(lambda: rests_with(11, AFTER_SECOND), 60, "the state after the second member")
