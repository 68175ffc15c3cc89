"""Transactional producers of real clients, and consumers with read_committed."""

from __future__ import annotations

import asyncio
import uuid

import aiokafka
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition

from tests.support.confluent import consumer, producer
from tests.support.polling import until, until_async

pytestmark = pytest.mark.clients


def committed_values(bootstrap, topic, isolation="read_committed"):
    """Returns what a consumer reads up to the end that it sees."""
    client = consumer(bootstrap, str(uuid.uuid4()), isolation_level=isolation, enable_partition_eof=True)
    try:
        client.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        values, is_over = [], False
        while not is_over:
            message = client.poll(20)
            assert message is not None, values
            is_over = message.error() is not None
            if not is_over:
                values.append(message.value())
        return values
    finally:
        client.close()


@pytest.mark.short
def test_librdkafka_commits_and_aborts(broker, topic):
    client = producer(broker.bootstrap, transactional_id=str(uuid.uuid4()))
    client.init_transactions(30)
    expected = []
    for number in range(6):
        client.begin_transaction()
        values = [b"%d-%d" % (number, each) for each in range(20)]
        for value in values:
            client.produce(topic, value, partition=0)
        if number % 3 == 1:
            assert client.flush(20) == 0
            client.abort_transaction(30)
        else:
            client.commit_transaction(30)
            expected += values
    until(lambda: committed_values(broker.bootstrap, topic) == expected, 30, "the markers")
    assert len(committed_values(broker.bootstrap, topic, "read_uncommitted")) == 120


KINDS = pytest.mark.parametrize(
    "kind",
    [
        {"storage.layout": layout, "offset.assignment": assignment}
        for layout in ("record", "batch")
        for assignment in ("clock", "dense")
    ],
    ids=lambda kind: "-".join(kind.values()),
)


@KINDS
def test_librdkafka_waits_for_transactions_without_asking_for_more_bytes(broker, new_topic, kind):
    """The client treats a response of batches without records as too large for its fetch size."""
    topic = new_topic(1, kind)
    client = producer(broker.bootstrap, transactional_id=str(uuid.uuid4()))
    client.init_transactions(30)
    # It doubles this size after one such response, and reports an error after the next.
    largest = {"max_partition_fetch_bytes": 1_000_000_000, "fetch_max_bytes": 2_000_000_000}
    reader = consumer(broker.bootstrap, str(uuid.uuid4()), isolation_level="read_committed", **largest)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    read = []

    def reads(wanted):
        message = reader.poll(0.05)
        if message is not None:
            assert message.error() is None
            read.append(message.value())
        return read == wanted

    try:
        wanted = []
        for number in range(5):
            client.begin_transaction()
            client.produce(topic, b"%d" % number, partition=0)
            assert client.flush(20) == 0
            # The reader waits at the start of the open transaction.
            assert reader.poll(0.2) is None
            client.commit_transaction(30)
            wanted.append(b"%d" % number)
            until(lambda: reads(wanted), 20, "the committed record")
    finally:
        reader.close()


@KINDS
def test_readers_reach_the_end_that_they_are_told_before_an_open_transaction(broker, new_topic, kind):
    topic = new_topic(1, kind)
    client = producer(broker.bootstrap, transactional_id=str(uuid.uuid4()))
    client.init_transactions(30)
    client.begin_transaction()
    client.produce(topic, b"decided", partition=0)
    client.commit_transaction(30)
    until(lambda: committed_values(broker.bootstrap, topic) == [b"decided"], 30, "the marker")
    client.begin_transaction()
    client.produce(topic, b"open", partition=0)
    assert client.flush(20) == 0
    try:
        assert committed_values(broker.bootstrap, topic) == [b"decided"]
        assert values_of_kafka_python(broker.bootstrap, topic) == [b"decided"]
        assert asyncio.run(values_of_aiokafka(broker.bootstrap, topic)) == [b"decided"]
    finally:
        client.abort_transaction(30)


def values_of_kafka_python(bootstrap, topic):
    """Returns what the consumer reads until its position is the end that it sees."""
    partition = kafka.TopicPartition(topic, 0)
    reader = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    try:
        reader.assign([partition])
        end, values = reader.end_offsets([partition])[partition], []

        def is_at_end():
            for records in reader.poll(timeout_ms=100).values():
                values.extend(record.value for record in records)
            return reader.position(partition) >= end

        until(is_at_end, 20, "the last stable offset")
        return values
    finally:
        reader.close()


async def values_of_aiokafka(bootstrap, topic):
    """The same for aiokafka, whose end_offsets always includes uncommitted records."""
    partition = aiokafka.TopicPartition(topic, 0)
    reader = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    async with reader:
        reader.assign([partition])
        values = []

        async def is_at_end():
            for records in (await reader.getmany(timeout_ms=100)).values():
                values.extend(record.value for record in records)
            stable = reader.last_stable_offset(partition)
            return stable is not None and await reader.position(partition) >= stable

        await until_async(is_at_end, 20, "the last stable offset")
    return values


def test_librdkafka_is_fenced(broker, topic):
    name = str(uuid.uuid4())
    old, new = (producer(broker.bootstrap, transactional_id=name) for _ in range(2))
    old.init_transactions(30)
    old.begin_transaction()
    old.produce(topic, b"old", partition=0)
    assert old.flush(20) == 0
    new.init_transactions(30)
    with pytest.raises(KafkaException) as fenced:
        old.commit_transaction(30)
    assert fenced.value.args[0].fatal()
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    new.commit_transaction(30)
    until(lambda: committed_values(broker.bootstrap, topic) == [b"new"], 30, "the markers")


class Mover:
    """Reads a partition, and writes each record to another topic in one transaction with its offset."""

    def __init__(self, bootstrap, source, target, group, name):
        self.source, self.target = source, target
        self.reader = consumer(
            bootstrap,
            group,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        self.writer = producer(bootstrap, transactional_id=name)
        self.writer.init_transactions(30)
        self.reader.subscribe([source])

    def move(self, count):
        """Write this number of records in one open transaction."""
        self.writer.begin_transaction()
        for _ in range(count):
            message = self.reader.poll(30)
            assert message is not None
            assert message.error() is None
            self.writer.produce(self.target, message.value(), partition=0)
        # The client drops unsent records when the transaction is aborted or fenced.
        assert self.writer.flush(30) == 0
        positions = self.reader.position(self.reader.assignment())
        self.writer.send_offsets_to_transaction(positions, self.reader.consumer_group_metadata(), 30)

    def rewind(self):
        """Continue at the group's committed offset."""
        assigned = self.reader.assignment()
        for place in self.reader.committed(assigned, 30):
            self.reader.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))


@pytest.mark.short
def test_librdkafka_reads_processes_and_writes(broker, topic, new_topic):
    target, group, name = new_topic(), str(uuid.uuid4()), str(uuid.uuid4())
    values = [b"%d" % number for number in range(30)]
    first = producer(broker.bootstrap)
    for value in values:
        first.produce(topic, value, partition=0)
    assert first.flush(20) == 0
    mover = Mover(broker.bootstrap, topic, target, group, name)
    mover.move(10)
    mover.writer.commit_transaction(30)
    mover.move(10)
    mover.writer.abort_transaction(30)
    mover.rewind()
    mover.move(10)
    mover.reader.close()
    # The next one begins at the end of the last committed transaction, and fences an open one.
    successor = Mover(broker.bootstrap, topic, target, group, name)
    with pytest.raises(KafkaException) as fenced:
        mover.writer.commit_transaction(30)
    assert fenced.value.args[0].fatal()
    successor.move(20)
    successor.writer.commit_transaction(30)
    successor.reader.close()
    until(lambda: committed_values(broker.bootstrap, target) == values, 30, "the markers")
    assert len(committed_values(broker.bootstrap, target, "read_uncommitted")) == 50


def test_java_producer_and_consumer(broker, topic, java):
    """Producers of protocol version 2, which Kafka's tools use if the broker offers it (KIP-890)."""
    name = str(uuid.uuid4())
    at = ("--bootstrap-server", broker.bootstrap)
    settings = [f"bootstrap.servers={broker.bootstrap}", f"transactional.id={name}"]
    java.run(
        "producer-perf-test",
        *("--topic", topic, "--num-records", "3000", "--record-size", "10", "--throughput", "-1"),
        *("--transaction-duration-ms", "20", "--producer-props", *settings),
    )
    # Each transaction has bumped the epoch; producers of version 1 don't do that.
    (described,) = _rows(java.run("transactions", *at, "describe", "--transactional-id", name))
    assert described["TransactionState"] == "CompleteCommit"
    assert int(described["ProducerEpoch"]) > 1
    listed = _rows(java.run("transactions", *at, "list"))
    assert [each["TransactionState"] for each in listed if each["TransactionalId"] == name] == [
        "CompleteCommit"
    ]
    place = ("--topic", topic, "--partition", "0")
    (left,) = _rows(java.run("transactions", *at, "describe-producers", *place))
    assert (left["ProducerId"], left["CurrentTransactionStartOffset"]) == (described["ProducerId"], "None")
    shown = java.run(
        "console-consumer",
        *at,
        *("--topic", topic, "--from-beginning", "--max-messages", "3000", "--timeout-ms", "60000"),
        *("--isolation-level", "read_committed"),
    )
    assert len(shown.splitlines()) == 3000


def test_the_transactions_tool_ends_what_hangs(broker, topic, java):
    client = producer(broker.bootstrap, transactional_id=str(uuid.uuid4()))
    client.init_transactions(30)
    client.begin_transaction()
    client.produce(topic, b"lost", partition=0)
    assert client.flush(20) == 0
    at = ("--bootstrap-server", broker.bootstrap)
    place = ("--topic", topic, "--partition", "0")
    (hanging,) = _rows(java.run("transactions", *at, "describe-producers", *place))
    start = hanging["CurrentTransactionStartOffset"]
    assert committed_values(broker.bootstrap, topic) == []
    java.run("transactions", *at, "abort", *place, "--start-offset", start)
    assert committed_values(broker.bootstrap, topic) == []
    (ended,) = _rows(java.run("transactions", *at, "describe-producers", *place))
    assert ended["CurrentTransactionStartOffset"] == "None"


def _rows(table):
    """Parses a tool's table: one dictionary per row, by heading."""
    headings, *rows = [line.split() for line in table.splitlines() if line.strip()]
    return [dict(zip(headings, row, strict=False)) for row in rows]
