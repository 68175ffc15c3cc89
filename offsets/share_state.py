"""Keys and values of `__share_group_state` (KIP-932) in Kafka's binary format: how far a share group has
come in a partition.

ShareSnapshotKey (key version 0) and ShareUpdateKey (1) name the same state; their values have version 0. A
snapshot is the whole state, an update what changed since. A snapshot key without value says that the state
was deleted. Other versions pass through as UnknownKey and UnknownValue; decoding is strict, as that of
korvet.offsets.codec: encode(decode(x)) == x.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias

from korvet.offsets.fields import INT8, INT16, INT32, INT64, Array, Layout, Struct, Tagged, lay_out
from korvet.offsets.partition import DEFAULT_PARTITIONS, partition_for
from korvet.offsets.schema import UnknownKey, UnknownValue
from korvet.offsets.wire import DecodeError, EncodeError, Reader, Writer, uuid_text

if TYPE_CHECKING:
    from korvet.offsets.wire import TaggedFields

__all__ = [
    "ACKNOWLEDGED",
    "ARCHIVED",
    "AVAILABLE",
    "SNAPSHOT",
    "UPDATE",
    "DecodeError",
    "EncodeError",
    "ShareSnapshot",
    "ShareStateKey",
    "ShareUpdate",
    "StateBatch",
    "decode_share_key",
    "decode_share_value",
    "encode_share_key",
    "encode_share_value",
    "share_state_partition_for",
]

SNAPSHOT, UPDATE = 0, 1
"""Versions of keys: of a ShareSnapshot, of a ShareUpdate."""
AVAILABLE, ACKNOWLEDGED, ARCHIVED = 0, 2, 4
"""Delivery states. Locks are not stored: a record that is acquired has the state before."""
_VALUE_VERSION: Final = 0
# The fields of a StateBatch, and the number of its tagged fields.
_PLAIN_BATCH: Final = struct.Struct(">qqbhB")


@dataclass(frozen=True, slots=True)
class ShareStateKey:
    """Names the state of a share group in a partition of a topic (schemas ShareSnapshotKey, ShareUpdateKey).

    topic_id has 16 bytes; `version` is SNAPSHOT or UPDATE.
    """

    group: str
    topic_id: bytes
    partition: int
    version: int = SNAPSHOT


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Records with the same delivery state, and how often they were delivered."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ShareSnapshot:
    """The state of a share group in a partition (schema ShareSnapshotValue).

    start_offset is -1 until records are acquired. Records from there on that are in no batch are available
    and were never delivered. delivery_complete_count: of records from there on that are acknowledged or
    archived (-1: unknown). Times are ms since the epoch.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    create_timestamp: int
    write_timestamp: int
    state_batches: tuple[StateBatch, ...]
    delivery_complete_count: int = -1
    version: int = _VALUE_VERSION
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


@dataclass(frozen=True, slots=True)
class ShareUpdate:
    """What changed since the snapshot with the same snapshot_epoch (schema ShareUpdateValue).

    start_offset is -1 if it is the same; batches take the place of those that they overlap.
    """

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    state_batches: tuple[StateBatch, ...]
    delivery_complete_count: int = -1
    version: int = _VALUE_VERSION
    unknown_tags: TaggedFields = ()
    LAYOUT: ClassVar[Layout]


class _StateBatches(Array):
    """The batches of a value: as an array, but without one call per field. There may be thousands."""

    def read(self, reader: Reader, field: str) -> tuple[StateBatch, ...]:
        """The next array."""
        count = reader.array_length(field, compact=True)
        plain = reader.peek(count * _PLAIN_BATCH.size)
        # Each batch ends with the number of its tagged fields.
        if len(plain) < count * _PLAIN_BATCH.size or any(plain[_PLAIN_BATCH.size - 1 :: _PLAIN_BATCH.size]):
            return tuple(self.element.read(reader, field) for _ in range(count))
        reader.take(len(plain))
        return tuple(StateBatch(*batch[:-1]) for batch in _PLAIN_BATCH.iter_unpack(plain))

    def write(self, writer: Writer, value: tuple[StateBatch, ...], field: str) -> None:
        """Append an array."""
        try:
            plain = b"".join(
                _PLAIN_BATCH.pack(
                    each.first_offset, each.last_offset, each.delivery_state, each.delivery_count, 0
                )
                for each in value
                if not each.unknown_tags
            )
        except struct.error:
            plain = b""
        if len(plain) == len(value) * _PLAIN_BATCH.size:
            writer.array_length(len(value), field, compact=True)
            writer.raw(plain)
        else:
            super().write(writer, value, field)


ShareStateValue: TypeAlias = ShareSnapshot | ShareUpdate | UnknownValue

lay_out(StateBatch, first_offset=INT64, last_offset=INT64, delivery_state=INT8, delivery_count=INT16)
_BATCHES: Final = _StateBatches(Struct(StateBatch))
_COMPLETE: Final = Tagged(0, INT32, -1)
lay_out(
    ShareSnapshot,
    snapshot_epoch=INT32,
    state_epoch=INT32,
    leader_epoch=INT32,
    start_offset=INT64,
    delivery_complete_count=_COMPLETE,
    create_timestamp=INT64,
    write_timestamp=INT64,
    state_batches=_BATCHES,
)
lay_out(
    ShareUpdate,
    snapshot_epoch=INT32,
    leader_epoch=INT32,
    start_offset=INT64,
    delivery_complete_count=_COMPLETE,
    state_batches=_BATCHES,
)
_VALUES: Final[dict[int, type[ShareSnapshot | ShareUpdate]]] = {SNAPSHOT: ShareSnapshot, UPDATE: ShareUpdate}


def share_state_partition_for(key: ShareStateKey, partitions: int = DEFAULT_PARTITIONS) -> int:
    """The partition of `__share_group_state` (which has `partitions`) that holds a state.

    Raises ValueError if partitions is not positive.
    """
    return partition_for(f"{key.group}:{uuid_text(key.topic_id)}:{key.partition}", partitions)


def decode_share_key(data: bytes) -> ShareStateKey | UnknownKey:
    """A record key. Raises DecodeError if it is damaged."""
    reader = Reader(data)
    version = reader.int16()
    if version not in _VALUES:
        return UnknownKey(version, reader.rest())
    key = ShareStateKey(reader.string("group"), reader.uuid(), reader.int32(), version)
    reader.finish()
    return key


def encode_share_key(key: ShareStateKey | UnknownKey) -> bytes:
    """A record key in its own version. Raises EncodeError if a field does not fit, or there is no such
    version.
    """
    writer = Writer()
    writer.int16(key.version, "key version")
    if isinstance(key, UnknownKey):
        writer.raw(key.payload)
        return writer.done()
    if key.version not in _VALUES:
        raise EncodeError(f"ShareStateKey has no version {key.version}")
    writer.string(key.group, "group")
    writer.uuid(key.topic_id, "topic_id")
    writer.int32(key.partition, "partition")
    return writer.done()


def decode_share_value(key: ShareStateKey | UnknownKey, data: bytes | None) -> ShareStateValue | None:
    """The value of the record with this key; None, a tombstone, stays None. Raises DecodeError if it is
    damaged.
    """
    if data is None:
        return None
    reader = Reader(data)
    version = reader.int16()
    value: ShareStateValue
    if isinstance(key, ShareStateKey) and version == _VALUE_VERSION:
        value = _VALUES[key.version].LAYOUT.read(reader)
    else:
        value = UnknownValue(version, reader.rest())
    reader.finish()
    return value


def encode_share_value(value: ShareStateValue) -> bytes:
    """A record value in its own version. Raises EncodeError if a field does not fit, or there is no such
    version.
    """
    writer = Writer()
    writer.int16(value.version, "value version")
    if isinstance(value, UnknownValue):
        writer.raw(value.payload)
    elif value.version != _VALUE_VERSION:
        raise EncodeError(f"{type(value).__name__} has no version {value.version}")
    else:
        value.LAYOUT.write(writer, value)
    return writer.done()
