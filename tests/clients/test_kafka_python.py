"""kafka-python: its default producer (idempotent), group consumer and admin client."""

from __future__ import annotations

import gc
import warnings
from typing import TYPE_CHECKING

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from tests.support.polling import until
from tests.support.records import CODECS, NOW_MS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.clients


@pytest.fixture(autouse=True)
def leaked_sockets() -> Iterator[None]:
    """kafka-python leaves its wake-up sockets to the garbage collector: run it here, not in a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def poll_values(consumer: KafkaConsumer, count: int, timeout_s: float = 20) -> list[bytes | None]:
    values: list[bytes | None] = []

    def enough() -> bool:
        for records in consumer.poll(timeout_ms=100).values():
            values.extend(record.value for record in records)
        return len(values) >= count

    until(enough, timeout_s, f"{count} records")
    return values


@pytest.mark.short
def test_default_producer_and_consumer(broker, topic, group):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    headers = [("h", b"1"), ("h", b"2")]
    sent = [
        producer.send(topic, b"v%d" % n, b"k%d" % n, headers, timestamp_ms=NOW_MS + n) for n in range(300)
    ]
    producer.flush(20)
    offsets = [future.get(10).offset for future in sent]
    producer.close()

    consumer = KafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, group_id=group, auto_offset_reset="earliest"
    )
    found = []

    def enough() -> bool:
        for records in consumer.poll(timeout_ms=100).values():
            found.extend(records)
        return len(found) >= 300

    until(enough, 20, "300 records")
    assert [record.offset for record in found] == offsets
    assert [record.value for record in found] == [b"v%d" % n for n in range(300)]
    assert [record.timestamp for record in found] == [NOW_MS + n for n in range(300)]
    assert all(list(record.headers) == headers for record in found)
    consumer.close()


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_codecs(broker, topic, codec):
    assert codec in CODECS
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type=codec, linger_ms=20)
    for number in range(100):
        producer.send(topic, b"value %d " % number * 20)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    assert poll_values(consumer, 100) == [b"value %d " % number * 20 for number in range(100)]
    consumer.close()


@pytest.mark.short
def test_group_commits_and_continues(broker, topic, group):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(10):
        producer.send(topic, b"%d" % number)
    producer.flush(20)

    def member() -> KafkaConsumer:
        return KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_poll_records=4,
        )

    first = member()
    assert poll_values(first, 4) == [b"0", b"1", b"2", b"3"]
    first.commit()
    first.close()
    second = member()
    assert poll_values(second, 6) == [b"%d" % number for number in range(4, 10)]
    second.close()
    producer.close()


def test_offsets_and_times(broker, topic):
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    offsets = [producer.send(topic, b"x", timestamp_ms=NOW_MS + n).get(10).offset for n in range(20)]
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap)
    partition = TopicPartition(topic, 0)
    assert consumer.end_offsets([partition])[partition] == offsets[-1] + 1
    assert consumer.beginning_offsets([partition])[partition] <= offsets[0]
    assert consumer.offsets_for_times({partition: NOW_MS + 7})[partition].offset == offsets[7]
    consumer.close()


def test_admin(broker, fresh):
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    name = fresh("kpy")
    admin.create_topics([NewTopic(name, 2, 1)])
    until(lambda: name in admin.list_topics(), 10, "the topic is listed")
    admin.delete_topics([name])
    until(lambda: name not in admin.list_topics(), 10, "the topic is gone")
    admin.close()
