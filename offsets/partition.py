"""Which partition of `__consumer_offsets` holds a group: Kafka's map from group id to coordinator."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

# Kafka's default offsets.topic.num.partitions. The map depends on it, so it never changes in a keyspace.
DEFAULT_PARTITIONS: Final = 50

_MIN_INT32: Final = -(1 << 31)
# Characters of a group ID that the cache keeps. Clients may make up IDs of up to 32,767 bytes: without longer
# ones, the number of cached IDs bounds the memory.
_LONGEST_KEPT: Final = 255


def java_hash(text: str) -> int:
    """Return Java's String.hashCode of `text` (over its UTF-16 units), as a signed 32 bit number."""
    # surrogatepass: a Java string may hold a lone surrogate, and hashes it like any other unit.
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for i in range(0, len(units), 2):
        result = (31 * result + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    return result - (1 << 32) if result >> 31 else result


def partition_for(group_id: str, partitions: int = DEFAULT_PARTITIONS) -> int:
    """Return the partition of `__consumer_offsets` (which has `partitions`) that holds `group_id`.

    Raises ValueError if partitions is not positive.
    """
    if len(group_id) > _LONGEST_KEPT:
        return _partition_for(group_id, partitions)
    return _kept_partition_for(group_id, partitions)


def _partition_for(group_id: str, partitions: int) -> int:
    if partitions < 1:
        raise ValueError(f"a topic of {partitions} partitions has no partition for a group")
    code = java_hash(group_id)
    # Java's Math.abs leaves the smallest int negative; Kafka's own abs makes it 0.
    return 0 if code == _MIN_INT32 else abs(code) % partitions


# Cached, since every heartbeat and commit needs it.
_kept_partition_for = lru_cache(maxsize=16_384)(_partition_for)
