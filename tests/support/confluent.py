"""Short forms of what most tests do with librdkafka: produce and keep the reports, read back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.support.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a consumer saw it, with its offset."""

    offset: int
    record: Record


def producer(bootstrap: str, **config: Any) -> Producer:
    """A producer in its default configuration except for the given keys (dots as underscores)."""
    return Producer({"bootstrap.servers": bootstrap, **_dotted(config)})


def consumer(bootstrap: str, group: str, **config: Any) -> Consumer:
    """A consumer in its default configuration except for the given keys (dots as underscores)."""
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, **_dotted(config)})


def _dotted(config: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "."): value for key, value in config.items()}


class Deliveries:
    """Collects delivery reports: the offsets in the order of the records."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self.errors: dict[int, KafkaError] = {}

    def report(self, number: int) -> Any:
        """The delivery callback for the record with this number."""

        def done(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.errors[number] = error
            else:
                offset = message.offset()
                assert offset is not None
                self.offsets[number] = offset

        return done

    def in_order(self) -> list[int]:
        assert not self.errors, f"deliveries failed: {dict(list(self.errors.items())[:3])}"
        return [self.offsets[number] for number in sorted(self.offsets)]


def send(
    client: Producer, topic: str, partition: int, records: Iterable[Record], timeout_s: float = 60
) -> list[int]:
    """Produce, wait for all reports, and return the offset of each record."""
    deliveries = Deliveries()
    count = 0
    for record in records:
        _produce(client, topic, partition, record, deliveries.report(count))
        count += 1
    left = client.flush(timeout_s)
    assert left == 0, f"{left} of {count} deliveries were not reported in {timeout_s:g} s"
    return deliveries.in_order()


def _produce(client: Producer, topic: str, partition: int, record: Record, report: Any) -> None:
    while True:
        try:
            client.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=report,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )
        except BufferError:  # the local queue is full: serve reports first
            client.poll(0.1)
        else:
            client.poll(0)
            return


def as_read(message: Message) -> Read:
    """The content of a message. Raises the error that it carries instead."""
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    offset, (_, timestamp_ms) = message.offset(), message.timestamp()
    assert offset is not None
    headers = tuple(message.headers() or ())
    return Read(offset, Record(message.key(), message.value(), headers, timestamp_ms))


def take(client: Consumer, count: int, timeout_s: float = 30) -> list[Read]:
    """Poll until `count` records came; fails at the deadline."""
    found: list[Read] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(found)} of {count} records came in {timeout_s:g} s"
        found += [as_read(message) for message in client.consume(count - len(found), min(left, 0.05))]
    return found


def read_all(
    bootstrap: str, topic: str, partition: int = 0, timeout_s: float = 60, **config: Any
) -> list[Read]:
    """Every record of a partition up to its current end, without a group."""
    client = consumer(bootstrap, "read-all", enable_auto_commit=False, enable_partition_eof=True, **config)
    found: list[Read] = []
    deadline = time.monotonic() + timeout_s
    try:
        client.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        while True:
            assert time.monotonic() < deadline, f"no end of {topic}/{partition} after {len(found)} records"
            for message in client.consume(1000, 0.05):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return found
                found.append(as_read(message))
    finally:
        client.close()
