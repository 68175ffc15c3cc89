"""What the coordinator knows of the states of a share group's partitions: the record of type 15.

    unknown ──initialising──► initialising ──initialised──► initialised ──remove──► deleting
                                   └──────────failed──────► unknown

Members get initialised partitions only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

from korvet.offsets.group_records import NamedTopic, NamedTopicPartitions, SharePartitions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


class TopicStates(msgspec.Struct, frozen=True):
    """Partitions of one topic in the same state."""

    name: str
    partitions: frozenset[int]


class PartitionStates(msgspec.Struct, frozen=True):
    """The states by topic id; of topics in `deleting`, only names are known."""

    initialising: Mapping[bytes, TopicStates] = {}
    initialised: Mapping[bytes, TopicStates] = {}
    deleting: Mapping[bytes, str] = {}

    @classmethod
    def of(cls, record: SharePartitions) -> Self:
        """The states that a record of type 15 contains."""
        return cls(
            _read(record.initializing_topics),
            _read(record.initialized_topics),
            {topic.topic_id: topic.topic_name for topic in record.deleting_topics},
        )

    def to_record(self) -> SharePartitions:
        """The record of type 15."""
        return SharePartitions(
            _written(self.initialising),
            _written(self.initialised),
            tuple(NamedTopic(topic_id, name) for topic_id, name in self.deleting.items()),
        )

    @property
    def topics(self) -> set[bytes]:
        """The ids of topics with partitions that are initialised, or will be."""
        return {*self.initialising, *self.initialised}

    def places(self, topics: Collection[str] | None = None) -> Iterator[tuple[bytes, str, int]]:
        """Topic id, topic name and number of partitions that may have a state, of these topics or all."""
        found = _each(_merged(self.initialising, self.initialised))
        return (place for place in found if topics is None or place[1] in topics)

    def initialised_places(self) -> Iterator[tuple[bytes, str, int]]:
        """Topic id, topic name and number of each initialised partition."""
        return _each(self.initialised)

    def is_initialising(self, topic_id: bytes, partition: int) -> bool:
        """Whether the partition is being initialised."""
        return _has(self.initialising, topic_id, partition)

    def is_initialised(self, topic_id: bytes, partition: int) -> bool:
        """Whether members get the partition."""
        return _has(self.initialised, topic_id, partition)

    def with_initialising(self, topics: Mapping[bytes, TopicStates]) -> Self:
        """The states after the beginning of initialisations."""
        initialising = _merged(self.initialising, topics)
        left = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in initialising}
        return type(self)(initialising, self.initialised, left)

    def with_initialised(self, topics: Mapping[bytes, TopicStates]) -> Self:
        """The states after initialisations that succeeded."""
        initialising = _without(self.initialising, topics)
        return type(self)(initialising, _merged(self.initialised, topics), self.deleting)

    def with_failed(self, topics: Mapping[bytes, TopicStates]) -> Self:
        """The states after initialisations that failed."""
        return type(self)(_without(self.initialising, topics), self.initialised, self.deleting)

    def with_deleting(self, topics: Collection[str] | None = None) -> Self:
        """The states while those of these topics, or all of them, are being removed."""
        gone = {topic_id: name for topic_id, name, _ in self.places(topics)}
        return type(self)(
            {topic_id: topic for topic_id, topic in self.initialising.items() if topic_id not in gone},
            {topic_id: topic for topic_id, topic in self.initialised.items() if topic_id not in gone},
            {**self.deleting, **gone},
        )

    def with_removed(self, topics: Collection[bytes]) -> Self:
        """The states after the removal of those of these topics."""
        left = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in topics}
        return type(self)(self.initialising, self.initialised, left)

    def without_topics(self, names: Collection[str]) -> Self:
        """The states without those of deleted topics."""
        initialising, initialised = (
            {topic_id: topic for topic_id, topic in states.items() if topic.name not in names}
            for states in (self.initialising, self.initialised)
        )
        left = {topic_id: name for topic_id, name in self.deleting.items() if name not in names}
        return type(self)(initialising, initialised, left)


def _has(topics: Mapping[bytes, TopicStates], topic_id: bytes, partition: int) -> bool:
    topic = topics.get(topic_id)
    return topic is not None and partition in topic.partitions


def _each(topics: Mapping[bytes, TopicStates]) -> Iterator[tuple[bytes, str, int]]:
    for topic_id, topic in topics.items():
        for number in sorted(topic.partitions):
            yield topic_id, topic.name, number


def _merged(old: Mapping[bytes, TopicStates], new: Mapping[bytes, TopicStates]) -> dict[bytes, TopicStates]:
    merged = dict(old)
    for topic_id, topic in new.items():
        known = old.get(topic_id)
        partitions = topic.partitions if known is None else known.partitions | topic.partitions
        merged[topic_id] = TopicStates(topic.name, partitions)
    return merged


def _without(old: Mapping[bytes, TopicStates], gone: Mapping[bytes, TopicStates]) -> dict[bytes, TopicStates]:
    left = {}
    for topic_id, topic in old.items():
        without = gone.get(topic_id)
        partitions = topic.partitions if without is None else topic.partitions - without.partitions
        if partitions:
            left[topic_id] = TopicStates(topic.name, partitions)
    return left


def _read(topics: tuple[NamedTopicPartitions, ...]) -> dict[bytes, TopicStates]:
    return {each.topic_id: TopicStates(each.topic_name, frozenset(each.partitions)) for each in topics}


def _written(topics: Mapping[bytes, TopicStates]) -> tuple[NamedTopicPartitions, ...]:
    return tuple(
        NamedTopicPartitions(topic_id, topic.name, tuple(sorted(topic.partitions)))
        for topic_id, topic in topics.items()
    )
