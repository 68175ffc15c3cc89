"""Server-side assignors: the target assignment of each member.

`uniform` gives all members nearly equal numbers of partitions and lets them keep theirs as far as possible.
`range` gives each member the same range of every topic, so that topics with equal partition counts are
co-partitioned.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Target: TypeAlias = "dict[bytes, frozenset[int]]"
"""Partitions by topic id."""


class AssignedMember(msgspec.Struct, frozen=True):
    """A member as input of an assignor: the topics (ids) that it subscribes to, and its current target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    target: Mapping[bytes, frozenset[int]]


Assignor: TypeAlias = "Callable[[list[AssignedMember], Mapping[bytes, int]], dict[str, Target]]"
"""(members, partition count by topic id) -> target by member id."""

_Partition: TypeAlias = "tuple[bytes, int]"


def assign_range(members: list[AssignedMember], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Contiguous ranges of each topic for its subscribers, static members first, by instance id."""
    ordered = sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or m.member_id))
    targets: dict[str, Target] = {member.member_id: {} for member in members}
    for topic, count in counts.items():
        readers = [member.member_id for member in ordered if topic in member.topics]
        first = 0
        for position, member_id in enumerate(readers):
            size = count // len(readers) + (position < count % len(readers))
            if size:
                targets[member_id][topic] = frozenset(range(first, first + size))
            first += size
    return targets


def assign_uniform(members: list[AssignedMember], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Nearly equal numbers for all members, as far as their topics allow, with few partitions moved."""
    if len({member.topics for member in members}) <= 1:
        return _assign_alike(members, counts)
    return _assign_unlike(members, counts)


def _assign_alike(members: list[AssignedMember], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Members with the same topics have a quota each; some of them one partition more."""
    topics = members[0].topics if members else frozenset()
    free = {
        (topic, number): None for topic, count in counts.items() if topic in topics for number in range(count)
    }
    quota, extra = divmod(len(free), len(members) or 1)
    kept: dict[str, list[_Partition]] = {}
    for member in members:
        own = kept[member.member_id] = []
        most = quota + (extra > 0)
        for partition in _partitions(member.target):
            if len(own) == most:
                break
            if partition in free:
                del free[partition]
                own.append(partition)
        if len(own) > quota:
            extra -= 1
    rest = iter(free)
    for own in kept.values():
        wanted = quota - len(own)
        if extra and wanted >= 0:
            wanted += 1
            extra -= 1
        own += [next(rest) for _ in range(wanted)]
    return {member_id: _target(own) for member_id, own in kept.items()}


def _assign_unlike(members: list[AssignedMember], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Members keep the partitions of their topics, the least loaded subscriber takes free ones, then
    loads are balanced.
    """
    loads = {member.member_id: 0 for member in members}
    owners: dict[_Partition, str] = {}
    for member in members:
        for partition in _partitions(member.target):
            topic, number = partition
            if topic in member.topics and number < counts.get(topic, 0) and partition not in owners:
                owners[partition] = member.member_id
                loads[member.member_id] += 1
    readers = {topic: [m.member_id for m in members if topic in m.topics] for topic in counts}
    topics = sorted((topic for topic in counts if readers[topic]), key=lambda topic: len(readers[topic]))
    for topic in topics:
        least = _LeastLoaded(readers[topic], loads)
        for number in range(counts[topic]):
            if (topic, number) not in owners:
                owners[topic, number] = least.take()
    moved = True
    while moved:
        moved = False
        for topic in topics:
            moved = _even_out(topic, counts[topic], readers[topic], loads, owners) or moved
    targets: dict[str, list[_Partition]] = {member.member_id: [] for member in members}
    for partition, member_id in owners.items():
        targets[member_id].append(partition)
    return {member_id: _target(own) for member_id, own in targets.items()}


def _even_out(
    topic: bytes, count: int, readers: list[str], loads: dict[str, int], owners: dict[_Partition, str]
) -> bool:
    """Move partitions of a topic from subscribers that have at least two more than another; returns whether
    any moved.

    Each move decreases the sum of the squares of the loads, so the moves end.
    """
    least = _LeastLoaded(readers, loads)
    moved = False
    for number in reversed(range(count)):
        owner = owners[topic, number]
        if loads[owner] > least.load() + 1:
            owners[topic, number] = least.take()
            least.give_back(owner)
            moved = True
    return moved


class _LeastLoaded:
    """Yields the subscriber of a topic with the fewest partitions, while loads change only through this
    object.
    """

    def __init__(self, readers: list[str], loads: dict[str, int]) -> None:
        self._loads = loads
        self._places = {member_id: place for place, member_id in enumerate(readers)}
        self._readers = readers
        # Entries with an outdated load are superseded.
        self._heap = [(loads[member_id], place) for place, member_id in enumerate(readers)]
        heapify(self._heap)

    def load(self) -> int:
        """The member's number of partitions."""
        while self._loads[self._readers[self._heap[0][1]]] != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0]

    def take(self) -> str:
        """Give the least loaded member one more partition; returns the member."""
        self.load()
        member_id = self._readers[self._heap[0][1]]
        self._change(member_id, 1)
        return member_id

    def give_back(self, member_id: str) -> None:
        """Take one partition from a member's load."""
        self._change(member_id, -1)

    def _change(self, member_id: str, by: int) -> None:
        self._loads[member_id] += by
        heappush(self._heap, (self._loads[member_id], self._places[member_id]))


def _partitions(target: Mapping[bytes, frozenset[int]]) -> list[_Partition]:
    return [(topic, number) for topic, numbers in target.items() for number in sorted(numbers)]


def _target(partitions: list[_Partition]) -> Target:
    numbers: dict[bytes, set[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, set()).add(number)
    return {topic: frozenset(of_topic) for topic, of_topic in numbers.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that group.consumer.assignors and members use."""
