"""Transactions over partitions and coordinators of several brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from korvet.offsets.partition import partition_for
from tests.faults.brokers import PARTITIONS, Brokers
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = [pytest.mark.faults, pytest.mark.clients]


def transactional_id_at(brokers: Brokers, node_id: int, size: int = 0) -> str:
    """A transactional id of at least `size` bytes that this broker coordinates."""
    led = brokers.leaders("__transaction_state")
    names = (f"t{number}".ljust(size, "x") for number in range(1000))
    return next(name for name in names if led[partition_for(name, len(led))] == node_id)


def committed(brokers: Brokers, topic: str) -> list[bytes]:
    """The committed records of all partitions, up to the ends that their readers are told."""
    client = consumer(brokers.bootstrap, "any", isolation_level="read_committed", enable_partition_eof=True)
    try:
        client.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        values, ends = [], 0
        while ends < PARTITIONS:
            message = client.poll(20)
            assert message is not None, values
            ends += message.error() is not None
            if message.error() is None:
                values.append(message.value())
        return sorted(values)
    finally:
        client.close()


@pytest.mark.parametrize(("coordinator", "id_bytes"), [(1, 0), (2, 32_767)])
def test_a_transaction_over_partitions_of_several_brokers(
    pair: Brokers, coordinator: int, id_bytes: int
) -> None:
    topic = f"transactions-{coordinator}"
    create_topic(pair.bootstrap, topic, PARTITIONS)
    assert set(pair.leaders(topic).values()) == {1, 2}
    first = producer(pair.bootstrap, transactional_id="any")
    first.init_transactions(60)  # creates the coordinator's topic
    name = transactional_id_at(pair, coordinator, id_bytes)
    client = producer(pair.bootstrap, transactional_id=name)
    client.init_transactions(60)
    expected: list[bytes] = []
    for number in range(4):
        client.begin_transaction()
        values = {partition: b"%d-%d" % (number, partition) for partition in range(PARTITIONS)}
        for partition, value in values.items():
            client.produce(topic, value, partition=partition)
        for node_id in (1, 2):
            reader = consumer(pair.bootstrap, pair.group_at(node_id))
            client.send_offsets_to_transaction(
                [TopicPartition(topic, 0, number)], reader.consumer_group_metadata(), 60
            )
            reader.close()
        if number % 2:
            assert client.flush(60) == 0
            client.abort_transaction(60)
        else:
            client.commit_transaction(60)
            expected += values.values()
    until(lambda: committed(pair, topic) == sorted(expected), 60, "the markers")
    for node_id in (1, 2):
        reader = consumer(pair.bootstrap, pair.group_at(node_id), isolation_level="read_committed")
        (found,) = reader.committed([TopicPartition(topic, 0)], 60)
        reader.close()
        assert found.offset == 2


def test_a_java_producer_of_protocol_2_at_several_brokers(pair: Brokers, java: Any) -> None:
    topic = "java-transactions"
    create_topic(pair.bootstrap, topic, PARTITIONS)
    settings = [f"bootstrap.servers={pair.bootstrap}", "transactional.id=java"]
    java.run(
        "producer-perf-test",
        *("--topic", topic, "--num-records", "500", "--record-size", "10", "--throughput", "500"),
        *("--transaction-duration-ms", "100", "--producer-props", *settings),
    )
    until(lambda: len(committed(pair, topic)) == 500, 60, "the markers")


def test_a_transaction_outlives_its_coordinator(start: Callable[[int], Brokers]) -> None:
    brokers = start(2)
    topic = "outlives"
    create_topic(brokers.bootstrap, topic, PARTITIONS)
    first = producer(brokers.bootstrap, transactional_id="any")
    first.init_transactions(60)
    client = producer(brokers.bootstrap, transactional_id=transactional_id_at(brokers, 2))
    client.init_transactions(60)
    client.begin_transaction()
    for partition in range(PARTITIONS):
        client.produce(topic, b"%d" % partition, partition=partition)
    assert client.flush(60) == 0
    brokers.node(2).kill()
    client.commit_transaction(60)
    expected = [b"%d" % partition for partition in range(PARTITIONS)]
    until(lambda: committed(brokers, topic) == expected, 60, "the markers")
