"""Ordinary Kafka clients (librdkafka) and a Redis client, as applications would use them."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMEOUT_S = 30.0
_POLL_S = 0.1


def create_topics(bootstrap: str, partitions_of: dict[str, int]) -> None:
    """Create topics that are not there yet. Raises confluent_kafka.KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    present = admin.list_topics(timeout=_TIMEOUT_S).topics
    wanted = [NewTopic(name, count, 1) for name, count in partitions_of.items() if name not in present]
    for created in admin.create_topics(wanted).values() if wanted else ():
        created.result(_TIMEOUT_S)


class Orders:
    """Sends made-up orders, in the default configuration of the client."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.sent = 0
        self._topic = topic
        self._random = random.Random(seed)
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._errors: list[KafkaError] = []

    def send(self, count: int, span_ms: int, note: Callable[[str], None]) -> None:
        """Send `count` orders whose create times are spread over the last `span_ms`.

        Raises click.ClickException when one is not acknowledged.
        """
        now_ms = time.time_ns() // 1_000_000
        for number in range(count):
            self._send_one(now_ms - span_ms + span_ms * (number + 1) // count)
            if number % 5_000 == 0:
                note(f"{number:,} of {count:,}")
        if self._producer.flush(_TIMEOUT_S) or self._errors:
            reason = self._errors[0] if self._errors else f"no answer in {_TIMEOUT_S:.0f} s"
            raise click.ClickException(f"orders were not acknowledged: {reason}")

    def _send_one(self, timestamp_ms: int) -> None:
        customer = f"customer-{self._random.randint(1, 500)}"
        order = {"order": self.sent, "customer": customer, "amount": self._random.randint(100, 50_000) / 100}
        content = json.dumps(order).encode()
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    content,
                    customer,
                    timestamp=timestamp_ms,
                    headers={"source": b"demo"},
                    on_delivery=self._report,
                )
            except BufferError:  # the client's own queue is full
                self._producer.poll(_POLL_S)
            else:
                self._producer.poll(0)
                self.sent += 1
                return

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._errors.append(error)


class Member:
    """A member of a consumer group on a thread of its own, committing after every batch.

    `pause_s` after each batch of at most `batch` records makes a slow one.
    """

    def __init__(
        self, bootstrap: str, group: str, topic: str, *, batch: int = 500, pause_s: float = 0.0
    ) -> None:
        self.group = group
        self.read = 0
        self._batch, self._pause_s = batch, pause_s
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([topic])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=group, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            messages = self._consumer.consume(self._batch, _POLL_S)
            read = sum(message.error() is None for message in messages)
            if read:
                self.read += read
                self._consumer.commit(asynchronous=True)
                self._closing.wait(self._pause_s)

    def close(self) -> None:
        """Leave the group."""
        self._closing.set()
        self._thread.join(_TIMEOUT_S)
        self._consumer.close()


def read_and_leave(bootstrap: str, group: str, topic: str, count: int) -> TopicPartition:
    """Read `count` records of a topic's partition 0 as a group, commit, and leave; the committed position.

    Raises click.ClickException when they do not come in time.
    """
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "client.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(config)
    consumer.subscribe([topic])
    left = count
    deadline = time.monotonic() + _TIMEOUT_S
    last: Message | None = None
    while left and time.monotonic() < deadline:
        for message in consumer.consume(left, _POLL_S):
            if message.error() is None:
                last = message
                left -= 1
    if left or last is None:
        raise click.ClickException(f"{group} read {count - left} of {count} records in {_TIMEOUT_S:.0f} s")
    consumer.commit(asynchronous=False)
    (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=_TIMEOUT_S)
    consumer.close()
    return committed
