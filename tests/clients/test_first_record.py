"""A new group's first record arrives within one second of subscribe, with default settings."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer
from kafka import KafkaConsumer

from tests.clients.test_confluent import numbered
from tests.support.confluent import consumer, producer, send

pytestmark = pytest.mark.clients

LIMIT_S = 1.0
ROUNDS = 3


@pytest.fixture
def filled(broker, topic) -> str:
    """A topic with records.

    Another group has existed before, because the first one creates the offsets topic.
    """
    send(producer(broker.bootstrap), topic, 0, numbered(10))
    warm = consumer(broker.bootstrap, f"{topic}-warm", auto_offset_reset="earliest")
    warm.subscribe([topic])
    assert warm.poll(30) is not None
    warm.close()
    return topic


def test_librdkafka(broker, filled, fresh):
    waited = []
    for _ in range(ROUNDS):
        client = consumer(broker.bootstrap, fresh("first"), auto_offset_reset="earliest")
        start = time.monotonic()
        client.subscribe([filled])
        message = client.poll(20)
        waited.append(time.monotonic() - start)
        assert message is not None
        assert message.error() is None
        client.close()
    assert sorted(waited)[ROUNDS // 2] <= LIMIT_S, waited


def test_aiokafka(broker, filled, fresh):
    async def once() -> float:
        start = time.monotonic()
        async with AIOKafkaConsumer(
            filled, bootstrap_servers=broker.bootstrap, group_id=fresh("first"), auto_offset_reset="earliest"
        ) as client:
            await asyncio.wait_for(client.getone(), 20)
            return time.monotonic() - start

    waited = [asyncio.run(once()) for _ in range(ROUNDS)]
    assert sorted(waited)[ROUNDS // 2] <= LIMIT_S, waited


def test_kafka_python(broker, filled, fresh):
    waited = []
    for _ in range(ROUNDS):
        client = KafkaConsumer(
            bootstrap_servers=broker.bootstrap, group_id=fresh("first"), auto_offset_reset="earliest"
        )
        start = time.monotonic()
        client.subscribe([filled])
        deadline = start + 20
        while not client.poll(timeout_ms=1000):
            assert time.monotonic() < deadline, "no record in 20 s"
        waited.append(time.monotonic() - start)
        client.close()
    assert sorted(waited)[ROUNDS // 2] <= LIMIT_S, waited


def test_java(broker, filled, java, fresh):
    """All rounds run in one JVM, because the first rounds load its classes."""
    groups = [fresh("first") for _ in range(2 + ROUNDS)]
    printed = java.run("FirstRecord", broker.bootstrap, filled, *groups)
    waited = [int(line) / 1000 for line in printed.split()][2:]
    assert sorted(waited)[ROUNDS // 2] <= LIMIT_S, waited
