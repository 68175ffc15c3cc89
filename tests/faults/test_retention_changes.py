"""A change of retention takes effect at once, on the partitions of all brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.admin import alter_broker, alter_topic, create_topic
from tests.support.confluent import producer, send
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from tests.faults.brokers import Brokers

pytestmark = [pytest.mark.faults, pytest.mark.clients]

PARTITIONS = 4
OLD = Record(None, b"old", (), NOW_MS - 3_600_000)
# Retention is applied every five minutes.
SOON_S = 10


def fill(pair: Brokers, topic: str, **configs: str) -> None:
    """Old records in each partition; brokers lead half of them each."""
    create_topic(
        pair.bootstrap, topic, PARTITIONS, {name.replace("_", "."): configs[name] for name in configs}
    )
    client = producer(pair.bootstrap)
    for partition in range(PARTITIONS):
        send(client, topic, partition, [OLD] * 10)
    assert set(pair.leaders(topic).values()) == {1, 2}


def left(pair: Brokers, topic: str) -> set[int]:
    """The partitions that still have records."""
    return {
        partition
        for partition in range(PARTITIONS)
        if pair.store.client.xlen(f"korvet:{topic}:{partition}") > 0
    }


def test_of_a_topic(pair: Brokers) -> None:
    fill(pair, "changed")
    fill(pair, "kept")
    alter_topic(pair.bootstrap, "changed", {"retention.ms": "1000"})
    until(lambda: not left(pair, "changed"), SOON_S, "all records of the topic are deleted")
    assert left(pair, "kept") == set(range(PARTITIONS))


def test_of_a_broker(pair: Brokers) -> None:
    """For the topics that have no retention of their own."""
    fill(pair, "follows")
    fill(pair, "has-its-own", retention_ms="-1")
    mine = {partition for partition, leader in pair.leaders("follows").items() if leader == 2}
    alter_broker(pair.bootstrap, 2, {"log.retention.ms": "1000"})
    try:
        until(lambda: left(pair, "follows") == set(range(PARTITIONS)) - mine, SOON_S, "broker 2 deletes")
    finally:
        alter_broker(pair.bootstrap, 2, {"log.retention.ms": None})
    assert left(pair, "has-its-own") == set(range(PARTITIONS))
