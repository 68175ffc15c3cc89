"""The source on data of a real korvet: index, both layouts, compressed batches, headers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from korvet.spark.source.address import Address
from korvet.spark.source.connection import connected
from korvet.spark.source.index import Index
from korvet.spark.versions import features
from tests.spark.direct import Stream, batch, tasks, values
from tests.spark.keyspace import Keyspace
from tests.support.admin import create_topic
from tests.support.confluent import producer
from tests.support.polling import until

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from tests.support.servers import KorvetServer

RECORDS = 3000
MS = 1_700_000_000_000
LAYOUTS = {"single": {}, "batched": {"storage.layout": "batch"}, "dense": {"offset.assignment": "dense"}}


def time_of(number: int) -> int:
    """Record times that repeatedly decrease."""
    return MS + 1000 * (number // 100) + (number * 37) % 5000


@pytest.fixture(scope="module")
def written(server: KorvetServer) -> Keyspace:
    """Topics with the same records, of which every tenth has a header."""
    client = producer(server.bootstrap, linger_ms=20, batch_num_messages=100, compression_type="zstd")
    for topic, configs in LAYOUTS.items():
        create_topic(server.bootstrap, topic, 1, configs)
        for number in range(RECORDS):
            headers = [("h", b"%d" % number)] if number % 10 == 0 else None
            client.produce(
                topic, b"%d" % number, b"k", partition=0, timestamp=time_of(number), headers=headers
            )
        assert client.flush(60) == 0
    return Keyspace(server.redis, f"unix://{server.socket_path()}")


@pytest.mark.parametrize("topic", LAYOUTS)
def test_records_in_order_however_they_are_divided(written: Keyspace, topic: str) -> None:
    assert len(tasks(written, topic=topic, maxRecordsPerPartition="600")) >= 5
    whole = batch(written, topic=topic)
    assert [row["value"] for row in whole] == [b"%d" % number for number in range(RECORDS)]
    assert batch(written, topic=topic, maxRecordsPerPartition="600") == whole
    assert [row["headers"] for row in whole[:11]] == [
        [{"key": "h", "value": b"0"}],
        *[None] * 9,
        [{"key": "h", "value": b"10"}],
    ]


@pytest.mark.parametrize("topic", LAYOUTS)
def test_times_are_found_where_kafka_finds_them(server: KorvetServer, written: Keyspace, topic: str) -> None:
    with connected(Address(written.url)) as connection:
        assert Index(connection, f"{{korvet:{topic}:0}}:index").points > 5
    client = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "times"})
    try:
        for time_ms in (MS, MS + 4321, MS + 15_000, MS + 31_000):
            (found,) = client.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=20)
            got = batch(written, topic=topic, startingTimestamp=str(time_ms))
            assert got[0]["offset"] == found.offset
    finally:
        client.close()


@pytest.mark.skipif(not features().read_limits, reason="this Spark has no read limits")
@pytest.mark.parametrize("topic", LAYOUTS)
def test_limits_are_exact(written: Keyspace, topic: str) -> None:
    stream = Stream(written, topic=topic, maxRecordsPerTrigger="700")
    batches = []
    while (rows := stream.trigger()) is not None:
        batches.append(rows)
    assert [len(rows) for rows in batches] == [700, 700, 700, 700, 200]
    assert [row["value"] for rows in batches for row in rows] == [b"%d" % number for number in range(RECORDS)]


@pytest.mark.parametrize(("layout", "configs"), LAYOUTS.items())
def test_brokers_note_where_open_transactions_begin(
    server: KorvetServer, layout: str, configs: dict[str, str]
) -> None:
    topic = f"open-{layout}"
    create_topic(server.bootstrap, topic, 1, configs)
    keyspace = Keyspace(server.redis, f"unix://{server.socket_path()}")
    plain, writer = producer(server.bootstrap), producer(server.bootstrap, transactional_id=topic)

    def send(client: Producer, value: bytes) -> None:
        client.produce(topic, value, partition=0)
        assert client.flush(20) == 0

    send(plain, b"before")
    writer.init_transactions(20)
    writer.begin_transaction()
    send(writer, b"open")
    # Later than the transaction, by the clock of entry IDs.
    time.sleep(0.005)
    send(plain, b"behind")
    assert values(batch(keyspace, topic=topic)) == [b"before"]
    assert values(batch(keyspace, topic=topic, openTransactions="only")) == [b"open"]
    writer.commit_transaction(20)
    # The marker is written after the answer.
    everything = [b"before", b"open", b"behind"]
    until(lambda: values(batch(keyspace, topic=topic)) == everything, 10, "the transaction is committed")
