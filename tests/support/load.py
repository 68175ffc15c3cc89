"""Producers and group consumers on threads: they continue through every fault and record what was
acknowledged.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from tests.support.confluent import as_read, consumer, producer

# Clients reconnect soon, so that a test of the server's return does not wait for their backoff.
QUICK: dict[str, Any] = {"reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 250}

# Limits the records in flight: enough to be always busy, few enough to end quickly.
_IN_FLIGHT = 2_000


class LoadProducer:
    """Sends numbered records to one partition. `acknowledged`: number → reported offset."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        name: str,
        *,
        idempotent: bool,
        partition: int = 0,
        in_flight: int = _IN_FLIGHT,
        pause_s: float = 0,
        **config: Any,
    ) -> None:
        """`pause_s`: between two records."""
        self.name = name
        self.bootstrap = bootstrap
        self.acknowledged: dict[int, int] = {}
        self.failed: dict[int, KafkaError] = {}
        self.sent = 0
        self.partition = partition
        self._topic, self._in_flight, self._pause_s = topic, in_flight, pause_s
        self._client = producer(
            bootstrap,
            enable_idempotence=idempotent,
            acks="all",
            linger_ms=2,
            message_timeout_ms=120_000,
            **(QUICK | config),
        )
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def value(self, number: int) -> bytes:
        return f"{self.name}-{number}".encode()

    def _run(self) -> None:
        while not self._closing.is_set():
            if self.sent - len(self.acknowledged) - len(self.failed) >= self._in_flight:
                self._client.poll(0.01)
                continue
            number = self.sent
            self.sent += 1
            self._client.produce(
                self._topic, self.value(number), partition=self.partition, on_delivery=self._report(number)
            )
            self._client.poll(self._pause_s)

    def _report(self, number: int) -> Any:
        def done(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                self.failed[number] = error or KafkaError(KafkaError.UNKNOWN)
            else:
                self.acknowledged[number] = offset

        return done

    def finish(self) -> None:
        """Stop sending, and wait until every record is reported."""
        self._closing.set()
        self._thread.join(10)
        left = self._client.flush(60)
        assert left == 0, f"{left} records of {self.name} were never reported"


@dataclass
class Seen:
    """The records that a group consumer received, and the results of its commits."""

    values: list[tuple[int, int, bytes]] = field(default_factory=list)
    committed: dict[int, int] = field(default_factory=dict)
    commit_errors: Counter[str] = field(default_factory=Counter)


class LoadConsumer:
    """A group member that commits synchronously after every few records."""

    def __init__(self, bootstrap: str, topic: str, group: str, **config: Any) -> None:
        self.seen = Seen()
        self.group = group
        self.partitions: set[int] = set()
        self.member_id = ""
        self.errors: Counter[str] = Counter()
        settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **QUICK, **config}
        self._client = consumer(bootstrap, group, **settings)
        self._client.subscribe([topic])
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            messages = self._client.consume(200, 0.05)
            good = [message for message in messages if message.error() is None]
            for message in messages:
                error = message.error()
                if error is not None:
                    self.errors[error.name()] += 1
            for message in good:
                read = as_read(message)
                partition = message.partition()
                assert partition is not None
                self.seen.values.append((partition, read.offset, read.record.value or b""))
            if good:
                self._commit()
            self.partitions = {assigned.partition for assigned in self._client.assignment()}
            self.member_id = self._client.memberid() or ""

    def _commit(self) -> None:
        try:
            answered = self._client.commit(asynchronous=False)
        except KafkaException as error:
            self.seen.commit_errors[error.args[0].name()] += 1
            return
        for partition in answered or ():
            if partition.error is None:
                self.seen.committed[partition.partition] = partition.offset
            else:
                self.seen.commit_errors[partition.error.name()] += 1

    def close(self) -> None:
        self._closing.set()
        self._thread.join(30)
        self._client.close()
