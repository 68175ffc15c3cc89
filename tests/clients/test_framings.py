"""The framings of compressed records: those that the broker accepts are read by every client.

The others, of which `tests.support.framings` has many, are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer
from kafka import KafkaConsumer, TopicPartition

from tests.api.asking import connect
from tests.api.batches import batch, record
from tests.api.test_produce import put
from tests.support.admin import create_topic
from tests.support.confluent import read_all
from tests.support.framings import READ_BY_ALL, framings
from tests.support.go import BUILD_TIMEOUT_S, GoPrograms
from tests.support.polling import until
from tests.support.records import NOW_MS, digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.java import JavaTools
    from tests.support.node import NodeTools
    from tests.support.servers import Broker

pytestmark = pytest.mark.clients

INVALID_RECORD = 87
# More than a block of LZ4, in records that are not alike.
RANDOM = random.Random(11)
PAIRS = [(b"k%d" % number, RANDOM.randbytes(400) * 50) for number in range(4)]


class Written(NamedTuple):
    """A topic with all framings that the broker accepts, one batch of PAIRS each."""

    topic: str
    names: dict[int, str]
    """The framing of the batch at each base offset."""

    @property
    def offsets(self) -> list[int]:
        return [base + index for base in self.names for index in range(len(PAIRS))]

    def check(self, found: Mapping[int, str], expected: list[str]) -> None:
        """All records were read: their digests by offset."""
        for base, name in self.names.items():
            read = [found.get(base + index) for index in range(len(PAIRS))]
            assert read == expected, name
        assert sorted(found) == self.offsets


@pytest.fixture(scope="module")
def written(broker: Broker) -> Written:
    topic, names = "framings", {}
    create_topic(broker.bootstrap, topic, 1, {"storage.layout": "batch"} if broker.korvet else {})
    plain = b"".join(record(index, *pair) for index, pair in enumerate(PAIRS))
    with connect(broker) as client:
        for framing in framings(plain):
            data = batch(
                PAIRS,
                timestamp_ms=NOW_MS,
                attributes=framing.codec,
                compress=lambda _, section=framing.section: section,
            )
            result = put(client, topic, data)
            if framing.name in READ_BY_ALL[framing.codec]:
                assert result.error_code == 0, framing.name
                names[result.base_offset] = f"{framing.codec} {framing.name}"
            elif broker.korvet:
                assert (result.error_code, result.base_offset) == (INVALID_RECORD, -1), framing.name
                assert result.error_message
    assert len(names) == sum(map(len, READ_BY_ALL.values()))
    return Written(topic, names)


def sum_of(value: bytes | None) -> str:
    return hashlib.sha256(value or b"").hexdigest()


VALUES = [sum_of(value) for _, value in PAIRS]


def test_librdkafka(broker: Broker, written: Written) -> None:
    read = read_all(broker.bootstrap, written.topic)
    written.check({each.offset: sum_of(each.record.value) for each in read}, VALUES)


def test_kafka_python(broker: Broker, written: Written) -> None:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap)
    partition = TopicPartition(written.topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: dict[int, str] = {}

    def all_came() -> bool:
        for records in consumer.poll(timeout_ms=100).values():
            found.update((each.offset, sum_of(each.value)) for each in records)
        return len(found) >= len(written.offsets)

    try:
        until(all_came, 30, "all records")
    finally:
        consumer.close()
    written.check(found, VALUES)


def test_aiokafka(broker: Broker, written: Written) -> None:
    async def read() -> dict[int, str]:
        async with AIOKafkaConsumer(
            written.topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            records = [await asyncio.wait_for(consumer.getone(), 20) for _ in written.offsets]
            return {each.offset: sum_of(each.value) for each in records}

    written.check(asyncio.run(read()), VALUES)


def test_java(broker: Broker, java: JavaTools, written: Written) -> None:
    lines = [line.split() for line in java.run("ReadBack", broker.bootstrap, written.topic, "0").splitlines()]
    expected = [digest(key, value, (), NOW_MS) for key, value in PAIRS]
    written.check({int(offset): found for offset, found in lines}, expected)


def test_kafkajs(broker: Broker, node: NodeTools, fresh: Callable[[str], str], written: Written) -> None:
    arguments = {"topic": written.topic, "group": fresh("group"), "count": len(written.offsets)}
    found = node.run("readback.js", {"bootstrap": broker.bootstrap, **arguments})
    written.check({int(offset): value for offset, value in found.items()}, VALUES)


@pytest.mark.long
@pytest.mark.timeout(2 * BUILD_TIMEOUT_S + 120)
def test_go(broker: Broker, written: Written) -> None:
    arguments = {"bootstrap": broker.bootstrap, "topic": written.topic, "count": len(written.offsets)}
    for client, found in GoPrograms.build().run("readback", arguments).items():
        assert client in ("franz", "sarama", "segmentio")
        written.check({int(offset): value for offset, value in found.items()}, VALUES)
