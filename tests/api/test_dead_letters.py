"""Dead letters of share groups (KIP-1191), with the headers that Kafka 4.4 writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.api.asking import connect
from tests.api.batches import batch
from tests.api.test_features import SAFE, UPGRADE, update
from tests.api.test_produce import put
from tests.api.test_share import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    Member,
    configure,
    member,
    queue,
    runs,
)
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["member", "queue"]

TOPIC, COPIES = "errors.deadletterqueue.topic.name", "errors.deadletterqueue.copy.record.enable"
ENABLE = "errors.deadletterqueue.group.enable"
LOCK, LIMIT = "share.record.lock.duration.ms", "share.delivery.count.limit"
REJECTED, EXHAUSTED = "Offset rejected by client.", "Offset delivery count exceeded the threshold."


@pytest.fixture(scope="module")
def pages() -> Pages:
    """The server's admin endpoint."""
    return Pages(free_port())


@pytest.fixture(scope="module")
def server(pages: Pages) -> Iterator[KorvetServer]:
    """A server with share groups and dead letters."""
    settings = (
        f"admin.listen=127.0.0.1:{pages.port}",
        "group.share.min.record.lock.duration.ms=1000",
        "num.partitions=3",
    )
    with KorvetServer(*(f"--set={setting}" for setting in settings)) as server:
        yield server


def create(queue: Any, name: str, partitions: int = 1, **configs: str) -> None:
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    assert not queue.ask("CreateTopics", 7, topics=[topic], timeout=10_000).topics[0].error_code


def keep(queue: Any, *, copies: bool = False, partitions: int = 1, **configs: str) -> str:
    """Let the group keep dead letters in a new topic."""
    name = f"dlq.{queue.group}"
    create(queue, name, partitions, **{ENABLE: "true", **configs})
    configure(queue, **{TOPIC: name, COPIES: str(copies).lower()})
    return name


def letters(server: KorvetServer, topic: str, count: int, partition: int = 0) -> list[Any]:
    """(key, value, headers) of the first letters of a topic's partition."""
    found: list[Any] = []
    settings = {"bootstrap.servers": f"{server.host}:{server.port}", "group.id": "letters"}
    reader = Consumer({**settings, "enable.auto.commit": False})
    try:
        reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])

        def read() -> bool:
            found.extend(message for message in reader.consume(100, 0.1) if message.error() is None)
            return len(found) >= count

        until(read, 60, f"{count} letters")
    finally:
        reader.close()
    return [(each.key(), each.value(), each.headers()) for each in found]


def headers(queue: Any, offset: int, deliveries: int, message: str, index: int = 0) -> list[Any]:
    values = {
        "topic": queue.topic,
        "partition": index,
        "offset": offset,
        "group": queue.group,
        "delivery.count": deliveries,
        "message": message,
    }
    return [(f"__dlq.errors.{name}", str(value).encode()) for name, value in values.items()]


def failures(pages: Pages) -> float:
    name = "korvet_share_dead_letter_failures_total"
    lines = pages.read("/metrics").text.splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return float(found)


def pending(queue: Any, stream_client: Any) -> int:
    return int(stream_client.xpending(f"korvet:{queue.topic}:0", queue.group)["pending"])


def test_rejected_and_exhausted_records(queue: Any, member: Member, server: KorvetServer) -> None:
    topic = keep(queue)
    configure(queue, **{LIMIT: "2"})
    first, second, _, fourth = queue.add(4)
    member.fetch()
    types = [ACCEPT, REJECT, GAP, RELEASE]
    assert runs(member.fetch((*queue.part, (first, fourth, types)))) == [(fourth, fourth, 2)]
    member.acknowledge((*queue.part, (fourth, fourth, [RELEASE])))
    assert letters(server, topic, 2) == [
        (None, None, headers(queue, second, 1, REJECTED)),
        (None, None, headers(queue, fourth, 2, EXHAUSTED)),
    ]


@pytest.mark.parametrize("layout", ["record", "batch"])
def test_copies_have_key_and_value(
    queue: Any, member: Member, server: KorvetServer, stream_client: Any, layout: str
) -> None:
    """Those of native entries as Kafka clients see them. What is too large has none."""
    topic = keep(queue, copies=True, **{"storage.layout": layout, "max.message.bytes": "5000"})
    small = [(b"k", b"v"), (None, b""), (b"", None)]
    pairs = [*small, (b"large", b"x" * 5000), (b"m", b"y" * 3000), (b"n", b"z" * 3000)]
    first = put(queue.ask, queue.topic, batch(pairs)).base_offset
    stream_client.xadd(f"korvet:{queue.topic}:0", {"name": "own"})
    found = runs(member.fetch())
    member.acknowledge(*((*queue.part, (begin, last, [REJECT])) for begin, last, _ in found[:1]))
    member.acknowledge(*((*queue.part, (begin, last, [REJECT])) for begin, last, _ in found[1:]))
    got = letters(server, topic, 7)
    assert [pair[:2] for pair in got] == [
        *small,
        (None, None),
        *pairs[4:],
        (None, b'{"name":"own"}'),
    ]
    assert got[3][2] == headers(queue, first + 3, 1, REJECTED)
    until(lambda: pending(queue, stream_client) == 0, 10, "the records are archived")


def test_letters_wait_for_a_usable_topic(
    queue: Any, member: Member, server: KorvetServer, pages: Pages, stream_client: Any
) -> None:
    """Whatever is wrong with it, and also when the members have left."""
    name = f"dlq.{queue.group}"
    configure(queue, **{TOPIC: f"letters-{queue.group}"})
    (first,) = queue.add()
    member.fetch()
    before = failures(pages)
    member.fetch((*queue.part, (first, first, [REJECT])))
    member.client.raw.socket.close()
    until(lambda: failures(pages) > before, 20, "the name is refused")
    configure(queue, **{TOPIC: name})
    before = failures(pages)
    until(lambda: failures(pages) > before, 20, "the topic is missed")
    create(queue, name)
    before = failures(pages)
    until(lambda: failures(pages) > before, 20, "the topic is refused")
    assert pending(queue, stream_client) == 1
    changed = [{"name": ENABLE, "config_operation": 0, "value": "true"}]
    resource = {"resource_type": 2, "resource_name": name, "configs": changed}
    assert not queue.ask("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code
    assert letters(server, name, 1) == [(None, None, headers(queue, first, 1, REJECTED))]
    until(lambda: pending(queue, stream_client) == 0, 10, "the record is archived")


def test_missing_topics_are_created_if_that_is_allowed(
    queue: Any, member: Member, server: KorvetServer
) -> None:
    setting = "errors.deadletterqueue.auto.create.topics.enable"
    changed = [{"name": setting, "config_operation": 0, "value": "true"}]
    resource = {"resource_type": 4, "resource_name": "", "configs": changed}
    assert not queue.ask("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code
    name = f"dlq.made-{queue.group}"
    configure(queue, **{TOPIC: name})
    (first,) = queue.add()
    member.fetch()
    member.fetch((*queue.part, (first, first, [REJECT])))
    assert letters(server, name, 1) == [(None, None, headers(queue, first, 1, REJECTED))]
    (found,) = queue.ask("Metadata", 12, topics=[{"name": name, "topic_id": None}]).topics
    assert len(found.partitions) == 3


def test_partition_of_a_letter(queue: Any, server: KorvetServer) -> None:
    topic = keep(queue, partitions=2)
    queue.topic, topic_id = queue.new_topic(4)
    taker = queue.member()
    taker.fetch((topic_id, 3))
    first = put(queue.ask, queue.topic, batch(), partition=3).base_offset
    taker.fetch()
    taker.fetch((topic_id, 3, (first, first, [REJECT])))
    assert letters(server, topic, 1, partition=1) == [(None, None, headers(queue, first, 1, REJECTED, 3))]


def test_native_consumers_by_the_same_rule(queue: Any, server: KorvetServer, stream_client: Any) -> None:
    """Also if no member of the share group is there, and if they reject by XCLAIM."""
    topic = keep(queue, copies=True)
    configure(queue, **{LIMIT: "2", LOCK: "1000"})
    stream = f"korvet:{queue.topic}:0"
    first, second, _ = queue.add(3)
    ((_, entries),) = stream_client.xreadgroup(queue.group, "worker", {stream: ">"})
    ids = [entry for entry, _ in entries]
    stream_client.xclaim(stream, queue.group, "korvet:rejected", 0, ids[:1], justid=True)
    stream_client.xclaim(stream, queue.group, "other", 0, ids[1:2])
    stream_client.xack(stream, queue.group, ids[2])
    assert letters(server, topic, 2) == [
        (None, b"v", headers(queue, first, 1, REJECTED)),
        (None, b"v", headers(queue, second, 2, EXHAUSTED)),
    ]
    until(lambda: pending(queue, stream_client) == 0, 10, "all are archived")


def test_without_dead_letters(queue: Any, member: Member, server: KorvetServer, stream_client: Any) -> None:
    """In a cluster with share.version 1, and in groups without a dead letter topic."""
    first, second = queue.add(2)
    member.fetch()
    member.acknowledge((*queue.part, (first, first, [REJECT])))
    assert pending(queue, stream_client) == 1
    with connect(server) as client:
        assert update(client, ("share.version", 1, SAFE))[0] == 0
        try:
            keep(queue)
            member.acknowledge((*queue.part, (second, second, [REJECT])))
            assert pending(queue, stream_client) == 0
        finally:
            assert update(client, ("share.version", 2, UPGRADE))[0] == 0


def test_impossible_names_are_refused(queue: Any) -> None:
    changed = [{"name": TOPIC, "config_operation": 0, "value": "__letters"}]
    resource = {"resource_type": 32, "resource_name": queue.group, "configs": changed}
    (refused,) = queue.ask("IncrementalAlterConfigs", 1, resources=[resource]).responses
    assert refused.error_code
    assert "must not begin with '__'" in refused.error_message
