"""Helpers of the steps for librdkafka. Offsets are Kafka's (packed), times are in ms."""

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
# A heartbeat's response announces a rebalance: a short interval, so that rebalances are quick.
_HEARTBEAT_MS = 300
_SESSION_MS = 10_000
_REBALANCING = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION)
OFFSETS_TOPIC = "__consumer_offsets"


class Record(NamedTuple):
    """A record to produce."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


class Read(NamedTuple):
    """The position and value of a consumed record."""

    partition: int
    offset: int
    value: bytes


def create_topics(bootstrap: str, partitions: dict[str, int]) -> None:
    """Create topics and wait until all exist. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [
        NewTopic(name, num_partitions=count, replication_factor=1) for name, count in partitions.items()
    ]
    for future in admin.create_topics(topics).values():
        future.result(TIMEOUT_S)


def produce(bootstrap: str, topic: str, records: Iterable[Record]) -> dict[int, list[int]]:
    """Produce with an idempotent producer. Returns the acknowledged offsets by partition."""
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
    """One consumer of a group. Only `commit` commits."""

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
            # Fetching ahead between polls would only fill buffers.
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
        """Returns up to `count` records that arrive within the time. Raises KafkaException."""
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
        """Returns exactly `count` records. Raises DemoFailed if they don't arrive in time."""
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
        """Commit the offset after the last consumed record of every partition, and wait for the response.

        The broker refuses a commit during a rebalance. Then the next owner of a partition reads these records
        again.
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
        """Like `commit`, but also commits the beginning of assigned partitions without a consumed record.

        Without a commit, the report does not know where the group will begin in a partition.
        """
        for partition in self.partitions():
            if partition not in self._positions:
                place = TopicPartition(self._topic, partition)
                self._positions[partition] = self._client.get_watermark_offsets(place, TIMEOUT_S)[0]
        self.commit()

    def partitions(self) -> frozenset[int]:
        """Returns the assigned partitions."""
        return frozenset(place.partition for place in self._client.assignment())

    def member_id(self) -> str:
        """Returns the member ID; empty before the member has joined."""
        return str(self._client.memberid() or "")

    def close(self) -> None:
        """Close the consumer, which leaves the group unless it is static. Further calls do nothing."""
        if not self._closed:
            self._closed = True
            self._client.close()


def until(done: Callable[[], bool], what: Callable[[], str], timeout_s: float = TIMEOUT_S) -> None:
    """Call `done`, which itself waits a little, until it returns True.

    Raises DemoFailed with the last state.
    """
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise DemoFailed(f"after {timeout_s:.0f} s: {what()}")


def share(members: Sequence[Member], partitions: int) -> None:
    """Let the members poll and commit until each partition has exactly one owner."""

    def settled() -> bool:
        for member in members:
            member.poll()
            member.commit()
        owned = [member.partitions() for member in members]
        return all(owned) and sorted(part for parts in owned for part in parts) == list(range(partitions))

    until(settled, lambda: f"assigned are {[sorted(member.partitions()) for member in members]}")


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """Returns the committed offsets (OffsetFetch), without partitions that have no commit."""
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
    """Returns the decoded records of a group in `__consumer_offsets`, read by a consumer of that topic."""
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
