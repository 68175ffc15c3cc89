"""aiokafka: producer, consumer, group and admin client."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete

from tests.support.polling import until_async
from tests.support.records import CODECS, NOW_MS

pytestmark = pytest.mark.clients

HEADERS = [("trace", b"1"), ("trace", b"2"), ("empty", b"")]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.short
async def test_produce_and_consume(broker, topic, codec, idempotent):
    compression = None if codec == "none" else codec
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap, compression_type=compression, enable_idempotence=idempotent
    )
    async with producer:
        sent = [
            await producer.send(topic, b"v%d" % n * 50, b"k%d" % n, 0, NOW_MS + n, HEADERS)
            for n in range(200)
        ]
        acknowledged = [(await future).offset for future in sent]
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        found = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(200)]
    assert [record.offset for record in found] == acknowledged
    assert [record.value for record in found] == [b"v%d" % n * 50 for n in range(200)]
    assert [record.key for record in found] == [b"k%d" % n for n in range(200)]
    assert [record.timestamp for record in found] == [NOW_MS + n for n in range(200)]
    assert all(list(record.headers) == HEADERS for record in found)


async def test_null_keys_and_values(broker, topic):
    shapes = [(None, b""), (b"", None), (b"k", None), (None, b"v")]
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for key, value in shapes:
            await producer.send_and_wait(topic, value, key)
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        found = [await asyncio.wait_for(consumer.getone(), 20) for _ in shapes]
    assert [(record.key, record.value) for record in found] == shapes


async def test_positions_times_and_seeks(broker, topic):
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        offsets = [
            (await producer.send_and_wait(topic, b"%d" % n, None, 0, NOW_MS + n)).offset for n in range(50)
        ]
    partition = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([partition])
        assert (await consumer.beginning_offsets([partition]))[partition] <= offsets[0]
        assert (await consumer.end_offsets([partition]))[partition] == offsets[-1] + 1
        found = await consumer.offsets_for_times({partition: NOW_MS + 20})
        assert found[partition].offset == offsets[20]
        assert found[partition].timestamp == NOW_MS + 20
        assert (await consumer.offsets_for_times({partition: NOW_MS + 50}))[partition] is None
        for number in (30, 0, 49):
            consumer.seek(partition, offsets[number])
            assert (await asyncio.wait_for(consumer.getone(), 10)).value == b"%d" % number


@pytest.mark.short
async def test_group_commit_and_takeover(broker, new_topic, group):
    topic = new_topic(2)

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )

    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(20):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % 2)
    first = member()
    await first.start()
    found = [await asyncio.wait_for(first.getone(), 20) for _ in range(20)]
    assert {int(record.value) for record in found} == set(range(20))
    await first.commit()
    assert await first.committed(TopicPartition(topic, 0)) == 1 + max(
        record.offset for record in found if record.partition == 0
    )
    second = member()
    await second.start()

    async def shared() -> bool:
        await first.getmany(timeout_ms=20)
        await second.getmany(timeout_ms=20)
        return len(first.assignment()) == len(second.assignment()) == 1

    await until_async(shared, 20, "two members with a partition each")
    await first.stop()

    async def alone() -> bool:
        assert await second.getmany(timeout_ms=20) == {}, "a committed record came again"
        return len(second.assignment()) == 2

    await until_async(alone, 20, "the member left has both partitions")
    await second.stop()


async def test_admin(broker, fresh):
    name = fresh("aio")
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 3, 1)])
        (described,) = await admin.describe_topics([name])
        assert len(described["partitions"]) == 3
        assert name in await admin.list_topics()
        await admin.delete_topics([name])

        async def gone() -> bool:
            return name not in await admin.list_topics()

        await until_async(gone, 10, "the topic is gone")
    finally:
        await admin.close()


async def test_admin_describes_groups_and_deletes_records(broker, topic, group):
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        offsets = [(await producer.send_and_wait(topic, b"%d" % n)).offset for n in range(4)]
    partition = TopicPartition(topic, 0)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=broker.bootstrap, group_id=group, auto_offset_reset="earliest"
        ) as consumer:
            await asyncio.wait_for(consumer.getone(), 20)
            await consumer.commit()
            (described,) = (await admin.describe_consumer_groups([group]))[0].groups
            assert described[1:3] == (group, "Stable")
            assert len(described[5]) == 1
            end = (await consumer.end_offsets([partition]))[partition]
        assert (group, "consumer") in await admin.list_consumer_groups()
        committed = (await admin.list_consumer_group_offsets(group))[partition].offset
        assert (committed, end) == (offsets[0] + 1, offsets[3] + 1)
        deleted = await admin.delete_records({partition: RecordsToDelete(before_offset=offsets[2])})
        assert deleted == {partition: offsets[2]}
    finally:
        await admin.close()


async def test_naming_a_new_topic_creates_it_empty(broker, fresh):
    async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap) as consumer:
        partition = TopicPartition(fresh("named"), 0)
        assert await asyncio.wait_for(consumer.end_offsets([partition]), 20) == {partition: 0}
