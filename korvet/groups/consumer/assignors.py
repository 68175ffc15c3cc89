"""Server-side assignors: which member shall have which partitions.

`uniform` gives all members about as many partitions and lets them keep what they have, as far as that goes.
`range` gives each member the same range of every topic, so that topics with alike counts are co-partitioned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Target: TypeAlias = "dict[bytes, frozenset[int]]"
"""Partitions by topic id."""


class AssignedMember(msgspec.Struct, frozen=True):
    """A member as assignors see it: the topics (ids) that it reads, and its target so far."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    target: Mapping[bytes, frozenset[int]]


Assignor: TypeAlias = "Callable[[list[AssignedMember], Mapping[bytes, int]], dict[str, Target]]"
"""(members, partition count by topic id) -> target by member id."""

_Partition: TypeAlias = "tuple[bytes, int]"


def assign_range(members: list[AssignedMember], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Contiguous ranges of each topic for those that read it, static members by instance id first."""
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
    """As many partitions for each as its topics allow, with few of them changing hands."""
    if len({member.topics for member in members}) <= 1:
        return _assign_alike(members, counts)
    return _assign_unlike(members, counts)


def _assign_alike(members: list[AssignedMember], counts: Mapping[bytes, int]) -> dict[str, Target]:
    """Of members with the same topics each has a quota, some of them one more."""
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
    """Members keep what they still read, the least loaded reader takes what is free, then loads are evened
    out.
    """
    owned: dict[str, dict[_Partition, None]] = {member.member_id: {} for member in members}
    owners: dict[_Partition, str] = {}
    for member in members:
        for partition in _partitions(member.target):
            topic, number = partition
            if topic in member.topics and number < counts.get(topic, 0) and partition not in owners:
                owners[partition] = member.member_id
                owned[member.member_id][partition] = None
    readers = {topic: [m.member_id for m in members if topic in m.topics] for topic in counts}
    topics = sorted((topic for topic in counts if readers[topic]), key=lambda topic: len(readers[topic]))
    for topic in topics:
        for number in range(counts[topic]):
            if (topic, number) not in owners:
                least = min(readers[topic], key=lambda member_id: len(owned[member_id]))
                owners[topic, number] = least
                owned[least][topic, number] = None
    while any(_even_out(topic, counts[topic], readers[topic], owned, owners) for topic in topics):
        pass
    return {member_id: _target(list(own)) for member_id, own in owned.items()}


def _even_out(
    topic: bytes,
    count: int,
    readers: list[str],
    owned: dict[str, dict[_Partition, None]],
    owners: dict[_Partition, str],
) -> bool:
    """Move partitions of a topic from readers that have two more than another; whether any was moved.

    Each move makes the sum of the squares of the loads smaller, so that there is an end to it.
    """
    moved = False
    for number in reversed(range(count)):
        partition = topic, number
        least = min(readers, key=lambda member_id: len(owned[member_id]))
        owner = owners[partition]
        if len(owned[owner]) > len(owned[least]) + 1:
            del owned[owner][partition]
            owned[least][partition] = None
            owners[partition] = least
            moved = True
    return moved


def _partitions(target: Mapping[bytes, frozenset[int]]) -> list[_Partition]:
    return [(topic, number) for topic, numbers in target.items() for number in sorted(numbers)]


def _target(partitions: list[_Partition]) -> Target:
    numbers: dict[bytes, set[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, set()).add(number)
    return {topic: frozenset(of_topic) for topic, of_topic in numbers.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that group.consumer.assignors and members use."""
