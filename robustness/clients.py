"""librdkafka clients that write what they ask and are answered into a history."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from robustness.history import UNKNOWN, Assign, Commit, Place, Poll, Record, Send, Txn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from robustness.history import Event, Isolation, Writer

# After this long a record or request without an answer counts as unknown.
REQUEST_TIMEOUT_S: Final = 5.0
# Faults cut connections, which clients would log; they return to the broker soon.
QUIET: Final[dict[str, Any]] = {
    "log_level": 0,
    "reconnect.backoff.max.ms": 200,
    # After "rebootstrap", librdkafka 2.16 waits forever for the coordinator of a group that it knew before.
    "metadata.recovery.strategy": "none",
}
POLL_S: Final = 0.1
END_OF_LOG_TIMEOUT_S: Final = 10.0


class Recorder:
    """Adds the time to events and writes them."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._start_ns = time.monotonic_ns()

    def log_file(self, process: str) -> Path:
        """Returns the file for what the library of a client logs, beside the history."""
        return self._writer.path.with_name(f"{process.replace('/', '-')}.log")

    def add(self, event: type[Event], process: str, type_: str, /, **fields: Any) -> None:
        """Write an event that happens now."""
        at = time.monotonic_ns() - self._start_ns
        self._writer.write(event(at=at, process=process, type=type_, **fields))  # type: ignore[arg-type]


class Sender:
    """A producer that stops at a fatal error: an idempotent one, with transactions if it has a transactional
    ID; or a plain one, which repeats nothing.
    """

    def __init__(
        self,
        recorder: Recorder,
        address: str,
        name: str,
        transactional_id: str | None = None,
        *,
        plain: bool = False,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """`timeout_s`: after this time a record without an answer counts as unknown."""
        self._record = recorder
        self._name = name
        self._transactional_id = transactional_id
        self._serial = 0
        self._txn: str | None = None
        self._is_fatal = False
        self._is_plain = plain
        self._timeout_s = timeout_s
        self.acknowledged: set[tuple[str, int]] = set()
        """The partitions that have acknowledged a record."""
        config: dict[str, Any] = {
            "bootstrap.servers": address,
            "enable.idempotence": not plain,
            "linger.ms": 0,
            "message.timeout.ms": int(timeout_s * 1000),
            "retry.backoff.ms": 20,
            **QUIET,
        }
        if plain:
            config |= {"retries": 0, "batch.num.messages": 1}
        if transactional_id is not None:
            config |= {"transactional.id": transactional_id, "transaction.timeout.ms": 60_000}
        self._producer = Producer(config)
        if transactional_id is not None:
            self._producer.init_transactions(REQUEST_TIMEOUT_S)

    def send(self, topic: str, partition: int, key: str | None = None) -> None:
        """Send a record with a new value."""
        if self._is_fatal or (self._transactional_id is not None and self._txn is None):
            return
        self._serial += 1
        value = f"{self._name}-{self._serial}"
        fields = {
            "topic": topic,
            "partition": partition,
            "value": value,
            "key": key,
            "txn": self._txn,
            "idempotent": not self._is_plain,
            "ordered": self._is_plain,
        }
        self._record.add(Send, self._name, "invoke", **fields)

        def done(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._record.add(Send, self._name, "info", **fields, error=error.name())
                self._is_fatal |= error.fatal()
                return
            offset = message.offset()
            known = UNKNOWN if offset is None else max(offset, UNKNOWN)
            self._record.add(Send, self._name, "ok", **fields, offset=known)
            self.acknowledged.add((topic, partition))

        try:
            self._producer.produce(topic, value, key, partition=partition, on_delivery=done)
        except KafkaException as error:
            self._is_fatal = True
            self._record.add(Send, self._name, "fail", **fields, error=str(error))

    def flush(self) -> None:
        """Wait until all records are answered or have timed out."""
        self._producer.flush(2 * self._timeout_s)

    def waits(self, timeout_s: float) -> bool:
        """Serve callbacks for some time. Returns true, also if nothing is left to wait for."""
        self._producer.poll(timeout_s)
        return True

    @property
    def last(self) -> str:
        """The value of the newest record."""
        return f"{self._name}-{self._serial}"

    def begin(self) -> None:
        """Begin a transaction."""
        if self._is_fatal:
            return
        self._serial += 1
        self._txn = f"{self._name}/{self._serial}"
        self._producer.begin_transaction()
        self._step("begin", "ok")

    def end(self, action: str, group: str = "", places: Sequence[Place] = ()) -> None:
        """End the transaction, and with a commit also commit offsets of a group."""
        if self._txn is None:
            return
        is_commit = action == "commit" and bool(places)
        offsets: dict[str, Any] = {"group": group, "offsets": tuple(places)} if is_commit else {}
        try:
            if is_commit:
                self._send_offsets(group, places)
            self._step(action, "invoke", **offsets)
            if action == "commit":
                self._producer.commit_transaction(REQUEST_TIMEOUT_S)
            else:
                self._producer.abort_transaction(REQUEST_TIMEOUT_S)
            self._step(action, "ok")
        except KafkaException as error:
            self._step(action, "info", error=str(error))
            self._is_fatal = True
        self._txn = None

    def _send_offsets(self, group: str, places: Sequence[Place]) -> None:
        outsider = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": group, **QUIET})
        try:
            metadata = outsider.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(_partitions(places), metadata, REQUEST_TIMEOUT_S)
        finally:
            outsider.close()

    def _step(self, action: str, type_: str, **fields: Any) -> None:
        where = {"txn": self._txn, "transactional_id": self._transactional_id, "action": action}
        self._record.add(Txn, self._name, type_, **where, **fields)


def _partitions(places: Sequence[Place]) -> list[TopicPartition]:
    return [TopicPartition(place.topic, place.partition, place.offset) for place in places]


class Reader:
    """A consumer: a member of a group, or one with partitions of its own."""

    def __init__(
        self, recorder: Recorder, address: str, name: str, isolation: Isolation, group: str | None = None
    ) -> None:
        self._record = recorder
        self._name = name
        self._isolation: Isolation = isolation
        self._group = group
        self._positions: dict[tuple[str, int], int] = {}
        self.values: set[str] = set()
        """All values that were read."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": group or name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "enable.partition.eof": group is None,
                "fetch.wait.max.ms": 20,
                **QUIET,
            }
        )

    def subscribe(self, topic: str) -> None:
        """Join the group, and wait for an assignment."""

        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            places = tuple(Place(each.topic, each.partition) for each in partitions)
            self._record.add(Assign, self._name, "info", places=places, why="rebalance", group=self._group)

        self._consumer.subscribe([topic], on_assign=assigned)

    def assign(self, topic: str, partitions: Sequence[int]) -> None:
        """Read partitions from the beginning."""
        self._record.add(Assign, self._name, "info", places=tuple(Place(topic, each) for each in partitions))
        self._consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])

    def poll(self) -> None:
        """Read what arrives within a moment."""
        messages = [each for each in self._consumer.consume(1_000, POLL_S) if each.error() is None]
        records = tuple(map(record_of, messages))
        if not records:
            return
        for record in records:
            self._positions[record.topic, record.partition] = record.offset + 1
        self.values.update(record.value for record in records)
        self._record.add(
            Poll,
            self._name,
            "ok",
            records=records,
            isolation=self._isolation,
            group=self._group,
            validates=True,
        )

    def places(self) -> list[Place]:
        """Returns the positions after the records that were read."""
        return [Place(*partition, offset) for partition, offset in self._positions.items()]

    def commit(self) -> None:
        """Commit the positions."""
        places = self.places()
        if not places:
            return
        fields = {"group": self._group, "offsets": tuple(places)}
        self._record.add(Commit, self._name, "invoke", **fields)
        try:
            self._consumer.commit(offsets=_partitions(places), asynchronous=False)
        except KafkaException as error:
            self._record.add(Commit, self._name, "info", **fields, error=str(error))
        else:
            self._record.add(Commit, self._name, "ok", **fields)

    def read_to_end(self, topic: str, partition: int) -> tuple[tuple[tuple[int, str], ...], bool]:
        """Read a partition, then close the reader. Returns its records, and whether it got to the end."""
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        records: list[tuple[int, str]] = []
        deadline = time.monotonic() + END_OF_LOG_TIMEOUT_S
        is_complete = False
        while not is_complete and time.monotonic() < deadline:
            message = self._consumer.poll(POLL_S)
            if message is None:
                continue
            error = message.error()
            if error is None:
                record = record_of(message)
                records.append((record.offset, record.value))
            else:
                is_complete = error.code() == KafkaError._PARTITION_EOF
        self.close()
        return tuple(records), is_complete

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def record_of(message: Message) -> Record:
    topic, partition, offset, value = message.topic(), message.partition(), message.offset(), message.value()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    epoch = message.leader_epoch()
    return Record(topic, partition, offset, value.decode(), UNKNOWN if epoch is None else epoch)


class Committer:
    """Commits for a group without members, as administrators do."""

    def __init__(self, recorder: Recorder, address: str, group: str) -> None:
        self._record = recorder
        self._group = group
        self.last = UNKNOWN
        """The offset of the newest commit."""
        self._admin = AdminClient({"bootstrap.servers": address, **QUIET})

    def commit(self, places: Sequence[Place], timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Commit offsets, and wait for the answer for a limited time."""
        self.last = places[-1].offset
        fields = {"group": self._group, "offsets": tuple(places)}
        self._record.add(Commit, self._group, "invoke", **fields)
        request = ConsumerGroupTopicPartitions(self._group, _partitions(places))
        try:
            answer = self._admin.alter_consumer_group_offsets([request], request_timeout=timeout_s)
            answer[self._group].result()
        except KafkaException as error:
            self._record.add(Commit, self._group, "info", **fields, error=str(error))
        else:
            self._record.add(Commit, self._group, "ok", **fields)
