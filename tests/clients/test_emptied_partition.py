"""Consumers that have read everything, and a partition that is emptied meanwhile."""

from __future__ import annotations

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients.test_confluent import numbered
from tests.support.confluent import consumer, producer, send, take

pytestmark = pytest.mark.clients


def test_a_consumer_of_a_queue_whose_entries_redis_clients_delete_once_they_are_done(korvet, broker, topic):
    stream = f"korvet:{topic}:0"
    client = consumer(broker.bootstrap, "queue", auto_offset_reset="latest")
    client.assign([TopicPartition(topic, 0, 0)])
    for number in range(10):
        entry = korvet.redis.xadd(stream, {"value": f"{number}"})
        assert [read.record.value for read in take(client, 1, timeout_s=10)] == [b"%d" % number]
        korvet.redis.xdel(stream, entry)
        assert client.poll(0.05) is None
    client.close()


def test_a_consumer_that_waits_at_the_end_of_an_emptied_partition_gets_the_next_record(broker, topic):
    writer = producer(broker.bootstrap, linger_ms=0)
    client = consumer(broker.bootstrap, "waits", auto_offset_reset="latest")
    offsets = send(writer, topic, 0, numbered(3))
    client.assign([TopicPartition(topic, 0, offsets[0])])
    assert [read.offset for read in take(client, 3, timeout_s=20)] == offsets
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, OFFSET_END)]).values():
        future.result(20)
    for _ in range(10):
        assert client.poll(0.05) is None
    offsets = send(writer, topic, 0, numbered(3))
    assert [read.offset for read in take(client, 3, timeout_s=10)] == offsets
    client.close()
