"""Subscription and assignment bytes, which consumers exchange through the coordinator.

Schemas of protocol type "consumer": ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0
to 3, after an int16 version. A newer version is read in the layout of version 3 and the bytes
after it are ignored, as by Kafka's clients: newer versions may only append.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from korvet.offsets.wire import DecodeError, EncodeError, Reader, Writer

__all__ = [
    "Assignment",
    "DecodeError",
    "EncodeError",
    "Subscription",
    "TopicPartitions",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
]

MAX_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Partitions of one topic."""

    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics that one member subscribes to.

    owned_partitions (KIP-429) is on the wire from version 1, generation_id (-1: none) from 2 (KIP-792),
    rack_id from 3 (KIP-881).
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartitions, ...] = ()
    generation_id: int = -1
    rack_id: str | None = None
    version: int = MAX_VERSION


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions assigned to one member; all versions have the same layout."""

    assigned_partitions: tuple[TopicPartitions, ...]
    user_data: bytes | None = None
    version: int = MAX_VERSION


def decode_subscription(data: bytes | bytearray | memoryview) -> Subscription:
    """Decode a member's subscription. Raises DecodeError if it is empty, damaged, or of version < 0."""
    reader = Reader(data)
    version = _read_version(reader, "subscription")
    topics = tuple(reader.string("topic") for _ in range(reader.array_length("topics")))
    user_data = reader.nullable_blob("user data")
    owned = _read_partitions(reader, "owned partitions") if version >= 1 else ()
    generation_id = reader.int32() if version >= 2 else -1
    # Clients without a rack write null or "" (librdkafka); for Kafka both mean no rack.
    rack_id = (reader.nullable_string("rack id") or None) if version >= 3 else None
    return Subscription(topics, user_data, owned, generation_id, rack_id, version)


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode a subscription in its own version; fields that the version lacks are left out.

    Raises EncodeError if a field does not fit or the version is not 0 to 3.
    """
    writer = Writer()
    _write_version(writer, subscription.version, "ConsumerProtocolSubscription")
    writer.array_length(len(subscription.topics), "topics")
    for topic in subscription.topics:
        writer.string(topic, "topic")
    writer.nullable_blob(subscription.user_data, "user data")
    if subscription.version >= 1:
        _write_partitions(writer, subscription.owned_partitions, "owned partitions")
    if subscription.version >= 2:
        writer.int32(subscription.generation_id, "generation id")
    if subscription.version >= 3:
        writer.nullable_string(subscription.rack_id, "rack id")
    return writer.done()


def decode_assignment(data: bytes | bytearray | memoryview) -> Assignment:
    """Decode a member's assignment. Raises DecodeError if it is empty, damaged, or of a negative version.

    A group that was not synced yet holds empty bytes for each member, which are no assignment.
    """
    reader = Reader(data)
    version = _read_version(reader, "assignment")
    assigned = _read_partitions(reader, "assigned partitions")
    return Assignment(assigned, reader.nullable_blob("user data"), version)


def encode_assignment(assignment: Assignment) -> bytes:
    """Encode an assignment. Raises EncodeError if a field does not fit or the version is not 0 to 3."""
    writer = Writer()
    _write_version(writer, assignment.version, "ConsumerProtocolAssignment")
    _write_partitions(writer, assignment.assigned_partitions, "assigned partitions")
    writer.nullable_blob(assignment.user_data, "user data")
    return writer.done()


def _read_version(reader: Reader, what: str) -> int:
    version = reader.int16()
    if version < 0:
        raise DecodeError(f"unsupported {what} version {version}")
    return version


def _write_version(writer: Writer, version: int, schema: str) -> None:
    if not 0 <= version <= MAX_VERSION:
        raise EncodeError(f"{schema} has no version {version}")
    writer.int16(version, "version")


def _read_partitions(reader: Reader, field: str) -> tuple[TopicPartitions, ...]:
    return tuple(_read_topic(reader) for _ in range(reader.array_length(field)))


def _read_topic(reader: Reader) -> TopicPartitions:
    topic = reader.string("topic")
    return TopicPartitions(topic, tuple(reader.int32() for _ in range(reader.array_length("partitions"))))


def _write_partitions(writer: Writer, topics: tuple[TopicPartitions, ...], field: str) -> None:
    writer.array_length(len(topics), field)
    for entry in topics:
        writer.string(entry.topic, "topic")
        writer.array_length(len(entry.partitions), "partitions")
        for partition in entry.partitions:
            writer.int32(partition, "partition")
