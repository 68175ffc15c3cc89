"""Compacted topics and the history of `__consumer_offsets`, as clients and Redis applications see them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from korvet.offsets.partition import partition_for
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.polling import until
from tests.support.records import NOW_MS, Record
from tests.support.servers import KAFKA_VARIABLE, KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A broker that compacts often and keeps little history."""
    if os.environ.get(KAFKA_VARIABLE):
        pytest.skip("needs korvet: looks into Redis")
    with KorvetServer(
        "--set", "log.cleaner.backoff.ms=50", "--set", "offsets.history.retention.bytes=10000"
    ) as own:
        yield own


def updates(count: int, keys: int) -> list[Record]:
    return [Record(b"key %d" % (n % keys), b"%d" % n, (("h", b"%d" % n),), NOW_MS + n) for n in range(count)]


def test_a_compacted_topic(server, java):
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    create_topic(server.bootstrap, "table", 1, configs)
    client = producer(server.bootstrap)
    records = updates(5000, 100)
    offsets = send(client, "table", 0, records)
    stream = b"korvet:table:0"
    until(lambda: server.redis.xlen(stream) == 100, 30, f"one record is left of each key; {server.tail()}")
    kept = [(read.offset, read.record) for read in read_all(server.bootstrap, "table")]
    assert kept == list(zip(offsets[-100:], records[-100:], strict=True))
    # A consumer in the gap continues after the gap, and receives new records.
    reading = consumer(server.bootstrap, "readers", auto_offset_reset="error", enable_auto_commit=False)
    reading.assign([TopicPartition("table", 0, offsets[17])])
    assert [read.record.value for read in take(reading, 100)] == [record.value for record in records[-100:]]
    send(client, "table", 0, [Record(b"key 3", None, (), NOW_MS)])
    assert take(reading, 1)[0].record.key == b"key 3"
    reading.close()
    until(lambda: server.redis.xlen(stream) == 100, 30, f"the tombstone supersedes; {server.tail()}")
    shown = java.run(
        "console-consumer",
        *("--bootstrap-server", server.bootstrap, "--topic", "table", "--from-beginning"),
        *("--max-messages", "100", "--formatter-property", "print.key=true"),
    )
    live = [record for record in records[-100:] if record.key != b"key 3"]
    expected = [f"{record.key.decode()}\t{record.value.decode()}" for record in live if record.key]
    assert shown.splitlines() == [*expected, "key 3\tnull"]
    # Log start and log end have not moved.
    low, high = consumer(server.bootstrap, "ends").get_watermark_offsets(TopicPartition("table", 0), 10)
    assert low == 0
    assert high > offsets[-1]
    errors: list[KafkaError] = []
    client.produce("table", b"keyless", on_delivery=lambda error, _: errors.append(error))
    client.flush(30)
    assert [error.code() for error in errors] == [KafkaError.INVALID_RECORD]


@pytest.mark.parametrize("layout", ["record", "batch"])
def test_transactions_in_a_compacted_topic(server, layout):
    name = f"transfers-{layout}"
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "delete.retention.ms": "1000",
        "storage.layout": layout,
    }
    create_topic(server.bootstrap, name, 1, configs)
    client = producer(server.bootstrap, transactional_id=name)
    client.init_transactions(30)
    for number in range(30):
        client.begin_transaction()
        for key in (b"a", b"b", b"key %d" % (number % 10)):
            client.produce(name, b"%d" % number, key, 0)
        assert client.flush(30) == 0
        if number % 3:
            client.commit_transaction(30)
        else:
            client.abort_transaction(30)
    # The survivors: the last number of both keys, and the last committed number of each other key.
    last = {b"key %d" % (number % 10): b"%d" % number for number in range(30) if number % 3}
    expected = {b"a": b"29", b"b": b"29"} | last

    def left() -> list[tuple[bytes, bytes]]:
        reading = consumer(server.bootstrap, "left", isolation_level="read_uncommitted")
        reading.assign([TopicPartition(name, 0, 0)])
        records = [read.record for read in take(reading, len(expected))]
        reading.close()
        return sorted((record.key, record.value) for record in records if record.key and record.value)

    until(lambda: left() == sorted(expected.items()), 30, f"what was aborted is gone; {server.tail()}")
    markers = len(expected) - 2
    stream = f"korvet:{name}:0"

    def controls() -> int:
        found = [fields for _, fields in server.redis.xrange(stream)]
        return sum(b"ctl" in each or each.get(b"batch", b"\0" * 23)[22] & 32 > 0 for each in found)

    until(lambda: controls() == markers, 30, f"markers of nothing are gone; {server.tail()}")
    assert server.redis.zcard(f"{{{stream}}}:aborted") == 0
    reading = consumer(server.bootstrap, "committed", isolation_level="read_committed")
    reading.assign([TopicPartition(name, 0, 0)])
    read = [each.record for each in take(reading, len(expected))]
    reading.close()
    assert {record.key: record.value for record in read} == expected


def test_a_topic_that_is_compacted_later(server):
    create_topic(server.bootstrap, "later", 1, {"cleanup.policy": "delete"})
    records = [*updates(1000, 10), Record(None, b"keyless", (), NOW_MS)]
    offsets = send(producer(server.bootstrap), "later", 0, records)
    change = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "later", incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(timeout=20)
    # The newest record stays, although it has no key.
    until(lambda: server.redis.xlen(b"korvet:later:0") == 11, 30, f"it is compacted; {server.tail()}")
    assert [read.offset for read in read_all(server.bootstrap, "later")] == offsets[-11:]


def test_the_history_of_commits_is_bounded(server):
    create_topic(server.bootstrap, "t", 2)
    stream = b"korvet:__consumer_offsets:%d" % partition_for("g")
    client = consumer(server.bootstrap, "g")
    for number in range(400):
        client.commit(offsets=[TopicPartition("t", 0, number)], asynchronous=False)
    (first,) = client.commit(offsets=[TopicPartition("t", 1, 7)], asynchronous=False)
    assert first.offset == 7
    client.close()
    other = consumer(server.bootstrap, "other")
    other.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
    other.close()
    until(lambda: server.redis.xlen(stream) < 200, 30, f"history goes; {server.tail()}")
    length = server.redis.xlen(stream)
    assert length > 25, "and some of it stays"
    assert [read.offset for read in read_all(server.bootstrap, "__consumer_offsets", partition_for("g"))][-1]
    server.kill()
    server.restart()
    for group, expected in (("g", [399, 7]), ("other", [5, -1001])):
        client = consumer(server.bootstrap, group)
        asked = [TopicPartition("t", 0), TopicPartition("t", 1)]
        assert [found.offset for found in client.committed(asked, timeout=20)] == expected
        client.close()
