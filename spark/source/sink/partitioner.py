"""The partition of a record without one: by its key as Kafka's producers choose it (murmur2)."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from korvet.spark.source.sink.columns import SinkRow

# A partition gets so many records without a key before the next one does.
STICKY_RECORDS = 500
_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


class Partitioner:
    """The partitions of a task's rows in one topic, the same in each attempt."""

    def __init__(self, topic: str, partitions: int, task: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._task = task
        self._keyless = 0

    def partition(self, row: SinkRow) -> int:
        """The next row's partition. Raises SourceError for one that the topic doesn't have."""
        if row.partition is not None:
            if not 0 <= row.partition < self._partitions:
                last = self._partitions - 1
                raise SourceError(f"topic {self._topic} has no partition {row.partition}; it has 0 to {last}")
            return row.partition
        if row.key is not None:
            return partition_of(row.key, self._partitions)
        self._keyless += 1
        return sticky_partition(self._task, self._keyless - 1, self._partitions)


@lru_cache(maxsize=65_536)
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key. Source: Utils.toPositive(Utils.murmur2(key)) % partitions in Kafka."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def sticky_partition(task: int, number: int, partitions: int) -> int:
    """Return the partition of a task's `number`-th record without a key, the same in each attempt."""
    return (task + number // STICKY_RECORDS) % partitions


def murmur2(data: bytes) -> int:
    """Return the unsigned 32-bit hash of the bytes, with Kafka's seed. Source: Kafka's Utils.murmur2."""
    hashed = _SEED ^ len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = word * _M & _MASK
        mixed = (mixed ^ mixed >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ mixed
    if len(data) > whole:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15
