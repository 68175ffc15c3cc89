"""Keys and values of `__transaction_state` in Kafka's binary format: TransactionLogKey version 0,
TransactionLogValue versions 0 and 1.

Version 1 is flexible (KIP-915) and has what protocol version 2 of transactions needs (KIP-890): Kafka writes
it once transaction.version is 2. Decoding is strict, as that of korvet.offsets.codec: encode(decode(x)) == x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from korvet.offsets.fields import (
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Array,
    Layout,
    NullableArray,
    Struct,
    Tagged,
)
from korvet.offsets.partition import partition_for
from korvet.offsets.wire import DecodeError, EncodeError, Reader, Writer

if TYPE_CHECKING:
    from korvet.offsets.wire import TaggedFields

__all__ = [
    "DecodeError",
    "EncodeError",
    "TopicPartitions",
    "TransactionLogValue",
    "decode_transaction_key",
    "decode_transaction_value",
    "encode_transaction_key",
    "encode_transaction_value",
    "transaction_partition_for",
]

KEY_VERSION: Final = 0
PLAIN_VERSION: Final = 0
FLEXIBLE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Partitions of one topic that a transaction has written to (PartitionsSchema)."""

    topic: str
    partition_ids: tuple[int, ...]
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class TransactionLogValue:
    """The state of one transactional id (schema TransactionLogValue).

    transaction_status is a number of Kafka's TransactionState. transaction_partitions is None if none was
    ever added (state Empty). Times are ms since the epoch; -1: no transaction was begun. Only in version 1,
    as tagged fields: the ids before and after an exhausted producer id (-1: none), the epoch that belongs to
    the next one, and the protocol version of the client.
    """

    producer_id: int
    producer_epoch: int
    transaction_timeout_ms: int
    transaction_status: int
    transaction_partitions: tuple[TopicPartitions, ...] | None
    transaction_last_update_timestamp_ms: int
    transaction_start_timestamp_ms: int
    previous_producer_id: int = -1
    next_producer_id: int = -1
    client_transaction_version: int = 0
    next_producer_epoch: int = -1
    version: int = FLEXIBLE_VERSION
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


TopicPartitions.LAYOUT = Layout(TopicPartitions, {"topic": STRING, "partition_ids": Array(INT32)})
TransactionLogValue.LAYOUT = Layout(
    TransactionLogValue,
    {
        "producer_id": INT64,
        "producer_epoch": INT16,
        "transaction_timeout_ms": INT32,
        "transaction_status": INT8,
        "transaction_partitions": NullableArray(Struct(TopicPartitions)),
        "transaction_last_update_timestamp_ms": INT64,
        "transaction_start_timestamp_ms": INT64,
        "previous_producer_id": Tagged(0, INT64, -1),
        "next_producer_id": Tagged(1, INT64, -1),
        "client_transaction_version": Tagged(2, INT16, 0),
        "next_producer_epoch": Tagged(3, INT16, -1),
    },
)


def transaction_partition_for(transactional_id: str, partitions: int) -> int:
    """The partition of `__transaction_state` that holds an ID: the same map as for groups.

    `partitions` is the number of the topic's partitions. Raises ValueError if it is not positive.
    """
    return partition_for(transactional_id, partitions)


def encode_transaction_key(transactional_id: str) -> bytes:
    """A record key. Raises EncodeError if the id does not fit."""
    writer = Writer()
    writer.int16(KEY_VERSION, "key version")
    writer.string(transactional_id, "transactional id")
    return writer.done()


def decode_transaction_key(data: bytes) -> str | None:
    """The transactional id of a record key; None for a key version that Kafka does not have. Raises
    DecodeError if the key is damaged.
    """
    reader = Reader(data)
    if reader.int16() != KEY_VERSION:
        return None
    transactional_id = reader.string("transactional id")
    reader.finish()
    return transactional_id


def encode_transaction_value(value: TransactionLogValue) -> bytes:
    """A record value in its own version. Raises EncodeError if a field does not fit, or there is no
    such version.
    """
    writer = Writer()
    writer.int16(value.version, "value version")
    if value.version == FLEXIBLE_VERSION:
        TransactionLogValue.LAYOUT.write(writer, value)
    elif value.version == PLAIN_VERSION:
        _write_plain(writer, value)
    else:
        raise EncodeError(f"TransactionLogValue has no version {value.version}")
    return writer.done()


def decode_transaction_value(data: bytes) -> TransactionLogValue:
    """A record value. Raises DecodeError if it is damaged or of a version that Kafka does not have."""
    reader = Reader(data)
    version = reader.int16()
    value: TransactionLogValue
    if version == FLEXIBLE_VERSION:
        value = TransactionLogValue.LAYOUT.read(reader)
    elif version == PLAIN_VERSION:
        value = _read_plain(reader)
    else:
        raise DecodeError(f"TransactionLogValue has no version {version}")
    reader.finish()
    return value


def _read_plain(reader: Reader) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=reader.int64(),
        producer_epoch=reader.int16(),
        transaction_timeout_ms=reader.int32(),
        transaction_status=reader.int8(),
        transaction_partitions=_read_partitions(reader),
        transaction_last_update_timestamp_ms=reader.int64(),
        transaction_start_timestamp_ms=reader.int64(),
        version=PLAIN_VERSION,
    )


def _read_partitions(reader: Reader) -> tuple[TopicPartitions, ...] | None:
    count = reader.int32()
    if count == -1:
        return None
    if count < 0:
        raise DecodeError(f"transaction_partitions has {count} elements")
    topics = []
    # The bytes bound the loop: reading beyond them raises.
    for _ in range(count):
        topic = reader.string("topic")
        ids = reader.array_length("partition_ids")
        topics.append(TopicPartitions(topic, tuple(reader.int32() for _ in range(ids))))
    return tuple(topics)


def _write_plain(writer: Writer, value: TransactionLogValue) -> None:
    defaults = (-1, -1, 0, -1)
    tagged = (
        value.previous_producer_id,
        value.next_producer_id,
        value.client_transaction_version,
        value.next_producer_epoch,
    )
    if tagged != defaults or value.unknown_tags:
        raise EncodeError("version 0 of TransactionLogValue has no tagged fields")
    writer.int64(value.producer_id, "producer_id")
    writer.int16(value.producer_epoch, "producer_epoch")
    writer.int32(value.transaction_timeout_ms, "transaction_timeout_ms")
    writer.int8(value.transaction_status, "transaction_status")
    topics = value.transaction_partitions
    writer.array_length(-1 if topics is None else len(topics), "transaction_partitions")
    for each in topics or ():
        writer.string(each.topic, "topic")
        writer.array_length(len(each.partition_ids), "partition_ids")
        for partition in each.partition_ids:
            writer.int32(partition, "partition_ids")
    writer.int64(value.transaction_last_update_timestamp_ms, "transaction_last_update_timestamp_ms")
    writer.int64(value.transaction_start_timestamp_ms, "transaction_start_timestamp_ms")
