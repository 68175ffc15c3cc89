"""The committed offsets of a shard's groups, and those of open transactions.

A transaction's value is pending until its marker: a commit applies it unless the current value is younger, an
abort drops it. Tombstones remove both. "Younger" refers to the order of replay, which is log order.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from korvet.offsets.codec import decode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue

NO_PRODUCER_ID = -1

GroupTopicPartition: TypeAlias = tuple[str, str, int]
"""Group, topic, partition."""

KeptValue: TypeAlias = OffsetCommitValue | bytes
"""A committed value. A loaded value may stay encoded as in the log: that takes a third of the memory, and
gives the garbage collector nothing to traverse.
"""

# decode_value needs only the kind of the key.
_ANY_KEY: Final = OffsetCommitKey("", "", 0)


def value_of(kept: KeptValue) -> OffsetCommitValue:
    """The decoded value."""
    if isinstance(kept, OffsetCommitValue):
        return kept
    value = decode_value(_ANY_KEY, kept)
    assert isinstance(value, OffsetCommitValue)
    return value


class _PendingOffset:
    """An offset of an open transaction, and the sequence number of its replay."""

    __slots__ = ("sequence", "value")

    def __init__(self, value: OffsetCommitValue, sequence: int) -> None:
        self.value = value
        self.sequence = sequence


class OffsetTable:
    """Committed offsets by group, topic and partition."""

    __slots__ = ("_committed", "_moved", "_open_producers", "_pending", "_sequence", "_sequences")

    def __init__(self) -> None:
        self._committed: dict[str, dict[str, dict[int, KeptValue]]] = {}
        self._pending: dict[int, dict[GroupTopicPartition, _PendingOffset]] = {}  # by producer id
        self._open_producers: dict[str, set[int]] = {}  # by group
        self._sequence = 0
        # None while nobody asks.
        self._moved: set[GroupTopicPartition] | None = None
        # The sequence numbers of commits' replays, for groups with open transactions only, since these began.
        self._sequences: dict[str, dict[GroupTopicPartition, int]] = {}

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None, producer_id: int) -> None:
        """Apply a record; producer_id is -1 if the record is not transactional."""
        place = (key.group, key.topic, key.partition)
        if value is None:
            self._remove(place)
        elif producer_id == NO_PRODUCER_ID:
            self._put(place, value)
        else:
            self._sequence += 1
            self._pending.setdefault(producer_id, {})[place] = _PendingOffset(value, self._sequence)
            self._open_producers.setdefault(key.group, set()).add(producer_id)

    def end_transaction(
        self, producer_id: int, *, committed: bool
    ) -> list[tuple[GroupTopicPartition, OffsetCommitValue]]:
        """Apply a control record: the producer's pending offsets count from now on, or are dropped. Returns
        the offsets that count.
        """
        changed = []
        for place, pending in self._pending.pop(producer_id, {}).items():
            if committed and self._sequences.get(place[0], {}).get(place, 0) < pending.sequence:
                self._put(place, pending.value)
                self._sequences[place[0]][place] = pending.sequence
                changed.append((place, pending.value))
        for group_id in [g for g, producers in self._open_producers.items() if producer_id in producers]:
            self._close(group_id, producer_id)
        return changed

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        """The committed value of a partition."""
        kept = self._committed.get(group_id, {}).get(topic, {}).get(partition)
        return None if kept is None else value_of(kept)

    def topics(self, group_id: str) -> dict[str, dict[int, KeptValue]]:
        """All committed values of the group; read-only."""
        return self._committed.get(group_id, {})

    def take_moved(self) -> set[GroupTopicPartition] | None:
        """The partitions whose committed value has changed since the last call; None (all) the first time."""
        moved, self._moved = self._moved, set()
        return moved

    def partitions_to_load(self, group_id: str, topic: str) -> dict[int, KeptValue]:
        """The target for a loader with at least one offset of the group's topic; valid until a tombstone
        is replayed.
        """
        return self._committed.setdefault(group_id, {}).setdefault(topic, {})

    def has_any(self, group_id: str) -> bool:
        """Whether the group has committed offsets, or may have some when a transaction ends."""
        return group_id in self._committed or group_id in self._open_producers

    def has_open_transaction(self, group_id: str) -> bool:
        """Whether an open transaction has commits of this group."""
        return group_id in self._open_producers

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has a commit of the partition."""
        place = (group_id, topic, partition)
        return any(place in self._pending[producer] for producer in self._open_producers.get(group_id, ()))

    def places(self, group_id: str) -> list[GroupTopicPartition]:
        """The partitions with a committed or pending offset of the group; each once."""
        places = {
            (group_id, topic, partition): None
            for topic, partitions in self.topics(group_id).items()
            for partition in partitions
        }
        for producer_id in self._open_producers.get(group_id, ()):
            for place in self._pending[producer_id]:
                if place[0] == group_id:
                    places[place] = None
        return list(places)

    def places_of_topics(self, topics: frozenset[str]) -> list[GroupTopicPartition]:
        """The partitions of these topics with a committed or pending offset of any group; each once."""
        group_ids = dict.fromkeys([*self._committed, *self._open_producers])
        return [place for group_id in group_ids for place in self.places(group_id) if place[1] in topics]

    def _put(self, place: GroupTopicPartition, value: OffsetCommitValue) -> None:
        group_id, topic, partition = place
        self._committed.setdefault(group_id, {}).setdefault(topic, {})[partition] = value
        if self._moved is not None:
            self._moved.add(place)
        if group_id in self._open_producers:
            self._sequence += 1
            self._sequences.setdefault(group_id, {})[place] = self._sequence

    def _remove(self, place: GroupTopicPartition) -> None:
        group_id, topic, partition = place
        topics = self._committed.get(group_id)
        if self._moved is not None:
            self._moved.add(place)
        if topics is not None and topic in topics:
            topics[topic].pop(partition, None)
            if not topics[topic]:
                del topics[topic]
            if not topics:
                del self._committed[group_id]
        for producer_id in self._open_producers.get(group_id, ()):
            self._pending[producer_id].pop(place, None)

    def _close(self, group_id: str, producer_id: int) -> None:
        producers = self._open_producers.get(group_id)
        if producers is not None:
            producers.discard(producer_id)
            if not producers:
                del self._open_producers[group_id]
                self._sequences.pop(group_id, None)
