"""Short forms of what the steps do with librdkafka. Offsets are Kafka's (packed), times in ms."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from korvet.demo.failure import DemoFailed
from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.partition import partition_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from korvet.offsets.schema import Key, Value

TIMEOUT_S = 20.0
_POLL_S = 0.05
# Members hear of a rebalance with a heartbeat: quick ones, so that it can be watched.
_HEARTBEAT_MS = 300
_SESSION_MS = 10_000
_REBALANCING = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION)
OFFSETS_TOPIC = "__consumer_offsets"


class Record(NamedTuple):
    """What is produced."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


class Read(NamedTuple):
    """Where a record was read, and its value."""

    partition: int
    offset: int
    value: bytes


def create_topics(bootstrap: str, partitions: dict[str, int]) -> None:
    """CreateTopics, and wait for all. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic(name, num_partitions=count, replication_factor=1) for name, count in partitions.items()
    ]
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)


def produce(bootstrap: str, topic: str, records: Iterable[Record]) -> dict[int, list[int]]:
    """Produce with an idempotent producer; the offsets by partition, as the broker acknowledged them."""
    acknowledged: dict[int, list[int]] = {}
    faults: list[str] = []

    def done(error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            faults.append(str(error))
        else:
            acknowledged.setdefault(partition, []).append(offset)

    client = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
        }
    )
    for record in records:
        client.produce(
            topic,
            record.value,
            record.key,
            on_delivery=done,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
        )
        client.poll(0)
    left = client.flush(TIMEOUT_S)
    if left or faults:
        raise DemoFailed(
            f"{left} records of {topic} were not acknowledged in {TIMEOUT_S:.0f} s; {faults[:3]}"
        )
    return acknowledged


class Member:
    """One consumer of a group. Nothing is committed but by `commit`."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        client_id: str,
        *,
        instance: str | None = None,
        start: str = "earliest",
    ) -> None:
        config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": client_id,
            "enable.auto.commit": False,
            "auto.offset.reset": start,
            "heartbeat.interval.ms": _HEARTBEAT_MS,
            "session.timeout.ms": _SESSION_MS,
            # Reading on while nothing is asked for would only fill buffers.
            "queued.max.messages.kbytes": 1_024,
        }
        if instance is not None:
            config["group.instance.id"] = instance
        self.client_id = client_id
        self._client = Consumer(config)
        self._topic = topic
        self._positions: dict[int, int] = {}
        self._closed = False
        self._client.subscribe([topic])

    def poll(self, count: int = 500, timeout_s: float = _POLL_S) -> list[Read]:
        """Up to `count` records that came within the time. Raises KafkaException."""
        found = []
        for message in self._client.consume(count, timeout_s):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            if partition is None or offset is None:
                raise DemoFailed("a consumed record has no offset")
            found.append(Read(partition, offset, bytes(message.value() or b"")))
            self._positions[partition] = offset + 1
        return found

    def take(self, count: int) -> list[Read]:
        """Exactly `count` records. Raises DemoFailed when they do not come in time."""
        found: list[Read] = []

        def complete() -> bool:
            found.extend(self.poll(count - len(found)))
            return len(found) == count

        until(
            complete,
            lambda: f"{self.client_id} read {len(found)} of {count} records",
        )
        return found

    def commit(self) -> None:
        """Commit the place behind the last record read of every partition, and wait for the answer.

        Refused while the group rebalances: then whoever gets the partitions reads these records again.
        """
        places = [TopicPartition(self._topic, *place) for place in self._positions.items()]
        self._positions.clear()
        if not places:
            return
        try:
            self._client.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _REBALANCING:
                raise

    def commit_all(self) -> None:
        """`commit`, with the beginning of the assigned partitions of which nothing was read.

        A partition without a commit has no lag: nobody can tell where the group would begin.
        """
        for partition in self.partitions():
            if partition not in self._positions:
                place = TopicPartition(self._topic, partition)
                self._positions[partition] = self._client.get_watermark_offsets(place, TIMEOUT_S)[0]
        self.commit()

    def partitions(self) -> frozenset[int]:
        """The partitions that it is assigned."""
        return frozenset(place.partition for place in self._client.assignment())

    def member_id(self) -> str:
        """Its id in the group, empty before it has joined."""
        return str(self._client.memberid() or "")

    def close(self) -> None:
        """Leave the group (a static member only goes away) and end; again it does nothing."""
        if not self._closed:
            self._closed = True
            self._client.close()


def until(done: Callable[[], bool], what: Callable[[], str], timeout_s: float = TIMEOUT_S) -> None:
    """Call `done`, which waits a little itself, until it is true. Raises DemoFailed with what was reached."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise DemoFailed(f"after {timeout_s:.0f} s: {what()}")


def share(members: Sequence[Member], partitions: int) -> None:
    """Let the members poll (and commit what they read) until each partition is with exactly one of them."""

    def settled() -> bool:
        for member in members:
            member.poll()
            member.commit()
        owned = [member.partitions() for member in members]
        return all(owned) and sorted(part for parts in owned for part in parts) == list(range(partitions))

    until(settled, lambda: f"assigned are {[sorted(member.partitions()) for member in members]}")


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """What the coordinator answers an OffsetFetch with; partitions without a commit are left out."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        asked = [TopicPartition(topic, index) for index in range(partitions)]
        return {
            place.partition: place.offset
            for place in client.committed(asked, timeout=TIMEOUT_S)
            if place.offset >= 0
        }
    finally:
        client.close()


def group_records(bootstrap: str, group: str) -> list[tuple[Key, Value | None]]:
    """All records of a group in `__consumer_offsets`, read by a consumer of that topic and decoded."""
    client = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "korvet-demo-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[Key, Value | None]] = []

    def at_end() -> bool:
        for message in client.consume(1_000, _POLL_S):
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return True
                raise KafkaException(error)
            key = decode_key(bytes(message.key() or b""))
            if getattr(key, "group", None) == group:
                value = message.value()
                found.append((key, decode_value(key, None if value is None else bytes(value))))
        return False

    try:
        client.assign([TopicPartition(OFFSETS_TOPIC, partition_for(group), OFFSET_BEGINNING)])
        until(at_end, lambda: f"{len(found)} records of group {group} in {OFFSETS_TOPIC}")
    finally:
        client.close()
    return found
