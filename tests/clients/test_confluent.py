"""librdkafka (confluent-kafka): produce and consume in every shape, metadata, offsets, admin calls."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.polling import until
from tests.support.records import CODECS, NOW_MS, Record, RecordMaker

pytestmark = pytest.mark.clients


def numbered(count: int, start: int = 0) -> list[Record]:
    return [Record(b"k%d" % n, b"v%d" % n, (), NOW_MS + n) for n in range(start, start + count)]


@pytest.mark.short
def test_records_come_back_as_they_were_sent(broker, topic):
    records = numbered(500)
    offsets = send(producer(broker.bootstrap), topic, 0, records)
    found = read_all(broker.bootstrap, topic)
    assert [read.record for read in found] == records
    assert [read.offset for read in found] == offsets
    assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.short
def test_every_codec_and_awkward_content(broker, topic, codec):
    maker = RecordMaker(seed=CODECS.index(codec))
    records = [maker.record(NOW_MS) for _ in range(300)]
    client = producer(broker.bootstrap, compression_type=codec, linger_ms=20, message_max_bytes=1_048_588)
    offsets = send(client, topic, 0, records)
    found = read_all(broker.bootstrap, topic)
    assert [read.record for read in found] == records
    assert [read.offset for read in found] == offsets


def test_null_and_empty_are_different(broker, topic):
    shapes = [(None, None), (b"", b""), (None, b""), (b"", None)]
    headers = (("h", None), ("h", b""), ("h", None), ("", b"x"))
    records = [Record(key, value, headers, NOW_MS) for key, value in shapes]
    send(producer(broker.bootstrap), topic, 0, records)
    assert [read.record for read in read_all(broker.bootstrap, topic)] == records


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(broker, topic, acks):
    records = numbered(50)
    client = producer(broker.bootstrap, acks=acks, enable_idempotence=False)
    for record in records:
        client.produce(topic, record.value, record.key, 0, timestamp=record.timestamp_ms)
    assert client.flush(20) == 0

    def all_there() -> bool:
        return [read.record for read in read_all(broker.bootstrap, topic)] == records

    until(all_there, 20, "every record sent is read")


@pytest.mark.short
def test_idempotent_producer_gives_each_record_once_and_in_order(broker, topic):
    records = numbered(5_000)
    client = producer(broker.bootstrap, enable_idempotence=True, linger_ms=1)
    offsets = send(client, topic, 0, records)
    found = read_all(broker.bootstrap, topic)
    assert [read.record for read in found] == records
    assert [read.offset for read in found] == offsets


def test_values_of_one_megabyte(broker, topic):
    noise = RecordMaker(seed=9)._block(1_000_000)
    records = [Record(b"big", noise, (), NOW_MS), *numbered(3), Record(None, noise[::-1], (), NOW_MS)]
    send(producer(broker.bootstrap, message_max_bytes=1_048_588), topic, 0, records)
    assert [read.record for read in read_all(broker.bootstrap, topic)] == records


def test_too_large_a_record_is_refused_and_the_next_accepted(broker, topic):
    client = producer(broker.bootstrap, message_max_bytes=8_000_000)
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        send(client, topic, 0, [Record(None, b"x" * 3_000_000, (), NOW_MS)])
    assert len(send(client, topic, 0, numbered(1))) == 1


def test_keys_spread_over_partitions_and_each_partition_keeps_its_order(broker, new_topic):
    topic = new_topic(3)
    client = producer(broker.bootstrap)
    for record in numbered(300):
        client.produce(topic, record.value, record.key)
    assert client.flush(20) == 0
    values = [[read.record.value for read in read_all(broker.bootstrap, topic, p)] for p in range(3)]
    assert all(values)
    assert sorted(value for part in values for value in part) == sorted(b"v%d" % n for n in range(300))
    for part in values:
        assert part == sorted(part, key=lambda value: int(value[1:]))


def test_offsets_for_times(broker, topic):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(100))
    client = consumer(broker.bootstrap, "times")

    def first_at(timestamp_ms: int) -> int:
        (found,) = client.offsets_for_times([TopicPartition(topic, 0, timestamp_ms)], timeout=10)
        return found.offset

    assert first_at(NOW_MS) == offsets[0]
    assert first_at(NOW_MS - 1_000_000) == offsets[0]
    assert first_at(NOW_MS + 57) == offsets[57]
    assert first_at(NOW_MS + 99) == offsets[99]
    assert first_at(NOW_MS + 100) == OFFSET_END
    client.close()


def test_offset_for_a_time_is_the_first_record_not_before_it(broker, topic):
    # Create times needn't grow: Kafka returns the first offset whose time is at or after the requested time.
    times = [100, 50, 300, 200, 400]
    records = [Record(None, b"%d" % time, (), NOW_MS + time) for time in times]
    client = producer(broker.bootstrap)
    offsets = [send(client, topic, 0, [record])[0] for record in records]
    reader = consumer(broker.bootstrap, "times")
    asked = {60: 0, 100: 0, 150: 2, 250: 2, 300: 2, 301: 4, 400: 4}
    for time_ms, number in asked.items():
        (found,) = reader.offsets_for_times([TopicPartition(topic, 0, NOW_MS + time_ms)], timeout=10)
        assert found.offset == offsets[number], time_ms
    reader.close()


def test_watermarks(broker, topic):
    client = consumer(broker.bootstrap, "watermarks")
    low, high = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    assert low == high == 0
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    low, high = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
    assert low <= offsets[0]
    assert high == offsets[-1] + 1
    client.close()


def test_seek_to_any_offset(broker, topic):
    offsets = send(producer(broker.bootstrap, linger_ms=50), topic, 0, numbered(200))
    client = consumer(broker.bootstrap, "seek")
    client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert take(client, 200)[-1].offset == offsets[-1]
    for number in (150, 0, 199, 77):
        client.seek(TopicPartition(topic, 0, offsets[number]))
        assert take(client, 1)[0].record.value == b"v%d" % number
    client.close()


def test_an_offset_past_the_end_resets_by_policy(broker, topic):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(5))
    client = consumer(broker.bootstrap, "reset", auto_offset_reset="earliest")
    client.assign([TopicPartition(topic, 0, offsets[-1] + 1_000)])
    assert [read.offset for read in take(client, 5)] == offsets
    client.close()


def test_a_latest_consumer_parked_on_an_empty_partition_gets_the_first_record(broker, topic):
    client = consumer(broker.bootstrap, "parked", auto_offset_reset="latest")
    client.assign([TopicPartition(topic, 0, OFFSET_END)])

    def parked() -> bool:
        assert client.poll(0.05) is None
        _, high = client.get_watermark_offsets(TopicPartition(topic, 0), cached=True)
        return high >= 0  # only a fetch response sets the cached one

    until(parked, 10, "the consumer knows where the empty partition ends")
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(3))
    assert [read.offset for read in take(client, 3, timeout_s=20)] == offsets
    client.close()


def test_a_tail_consumer_sees_a_record_soon_after_it_was_sent(broker, topic):
    client = consumer(broker.bootstrap, "tail", auto_offset_reset="earliest")
    client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    writer = producer(broker.bootstrap, linger_ms=0)
    send(writer, topic, 0, numbered(1))
    take(client, 1)
    delays = []
    for number in range(10):
        start = time.monotonic()
        send(writer, topic, 0, numbered(1, number))
        take(client, 1, timeout_s=20)
        delays.append(time.monotonic() - start)
    # A fetch that waits its full 500 ms although the record exists would be visible in every round.
    assert sorted(delays)[5] < 0.25, delays
    client.close()


@pytest.mark.short
def test_topic_life(broker, fresh):
    name = fresh("life")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "7200000"})])[name].result(20)
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(name, 2, 1)])[name].result(20)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert len(admin.list_topics(timeout=10).topics[name].partitions) == 2

    admin.create_partitions([NewPartitions(name, 5)])[name].result(20)
    until(lambda: len(admin.list_topics(name, 10).topics[name].partitions) == 5, 10, "five partitions")

    resource = ConfigResource(ResourceType.TOPIC, name)
    configs = admin.describe_configs([resource])[resource].result(20)
    assert configs["retention.ms"].value == "7200000"
    assert configs["cleanup.policy"].value == "delete"

    admin.delete_topics([name])[name].result(20)
    until(lambda: name not in admin.list_topics(timeout=10).topics, 10, "the topic is gone")
    with pytest.raises(KafkaException) as missing:
        admin.delete_topics([name])[name].result(20)
    assert missing.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@pytest.mark.parametrize(
    ("name", "partitions", "code"),
    [
        ("no spaces", 1, KafkaError.TOPIC_EXCEPTION),
        ("", 1, KafkaError.TOPIC_EXCEPTION),
        ("..", 1, KafkaError.TOPIC_EXCEPTION),
        ("x" * 250, 1, KafkaError.TOPIC_EXCEPTION),
        ("zero-partitions", 0, KafkaError.INVALID_PARTITIONS),
    ],
)
def test_invalid_topics_are_refused(broker, name, partitions, code):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    assert refused.value.args[0].code() == code


def test_an_invalid_config_is_refused(broker, fresh):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = fresh("bad-config")
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic(name, 1, 1, config={"retention.ms": "soon"})])[name].result(20)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert name not in admin.list_topics(timeout=10).topics


def test_producing_to_a_new_name_creates_the_topic(broker, fresh):
    name = fresh("auto")
    offsets = send(producer(broker.bootstrap), name, 0, numbered(3))
    assert [read.offset for read in read_all(broker.bootstrap, name)] == offsets


def test_a_deleted_and_recreated_topic_starts_empty(broker, new_topic):
    name = new_topic(1)
    send(producer(broker.bootstrap), name, 0, numbered(20))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([name])[name].result(20)
    until(lambda: name not in admin.list_topics(timeout=10).topics, 10, "the topic is gone")
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    until(lambda: name in admin.list_topics(timeout=10).topics, 10, "the topic is back")
    assert read_all(broker.bootstrap, name) == []
    offsets = send(producer(broker.bootstrap), name, 0, numbered(2))
    assert [read.offset for read in read_all(broker.bootstrap, name)] == offsets


def test_the_cluster_describes_itself(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    cluster = admin.describe_cluster().result(20)
    assert cluster.cluster_id
    assert [(node.host, node.port) for node in cluster.nodes] == [(broker.host, broker.port)]
    assert cluster.controller is not None
