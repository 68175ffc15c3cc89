"""The simple assignor, which spreads members evenly over partitions.

Every partition has a member at least, and with more members than partitions several: all partitions then
have nearly equal numbers of members. Members keep their partitions as far as possible. If all members have
the same topics, all partitions are spread together, else those of each topic alone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from korvet.groups.consumer.assignors import Target

NAME: Final = "simple"

_Partition: TypeAlias = "tuple[bytes, int]"


class Sharer(msgspec.Struct, frozen=True):
    """A member as input of the assignor: the topics (ids) that it subscribes to, and its current target."""

    member_id: str
    topics: frozenset[bytes]
    target: Mapping[bytes, frozenset[int]]


def assign_simple(
    members: Collection[Sharer], partitions: Mapping[bytes, Collection[int]]
) -> dict[str, Target]:
    """Returns the target by member id. partitions: those that can be assigned, by topic id."""
    ordered = sorted(members, key=lambda member: member.member_id)
    targets: dict[str, list[_Partition]] = {member.member_id: [] for member in ordered}
    if len({member.topics for member in ordered}) == 1:
        topics = [topic for topic in sorted(partitions) if topic in ordered[0].topics]
        _Pool([(topic, number) for topic in topics for number in sorted(partitions[topic])]).spread(
            ordered, targets
        )
    else:
        for topic in sorted(partitions):
            readers = [member for member in ordered if topic in member.topics]
            _Pool([(topic, number) for number in sorted(partitions[topic])]).spread(readers, targets)
    return {member_id: _target(own) for member_id, own in targets.items()}


class _Pool:
    """Partitions that are spread over the same members."""

    def __init__(self, partitions: list[_Partition]) -> None:
        self._users: dict[_Partition, int] = dict.fromkeys(partitions, 0)
        """By partition: how many members have it."""

    def spread(self, members: list[Sharer], targets: dict[str, list[_Partition]]) -> None:
        """Add the members' partitions to their targets."""
        if not self._users or not members:
            return
        # Members of each partition, rounded up.
        sharing = -(-len(members) // len(self._users))
        places = sharing * len(self._users)
        unfilled: deque[tuple[set[_Partition], int]] = deque()
        kept: list[tuple[str, set[_Partition]]] = []
        for position, member in enumerate(members):
            quota = _share(places, position + 1, len(members)) - _share(places, position, len(members))
            own = self._keep(member, quota, sharing)
            kept.append((member.member_id, own))
            if len(own) < quota:
                unfilled.append((own, quota))
        for partition in self._users:
            self._fill(partition, sharing, unfilled)
        for member_id, own in kept:
            targets[member_id] += sorted(own)

    def _keep(self, member: Sharer, quota: int, sharing: int) -> set[_Partition]:
        """What a member keeps of its current target."""
        own: set[_Partition] = set()
        for topic, numbers in sorted(member.target.items()):
            for number in sorted(numbers):
                users = self._users.get((topic, number), sharing)
                if users < sharing and len(own) < quota:
                    own.add((topic, number))
                    self._users[topic, number] = users + 1
        return own

    def _fill(
        self, partition: _Partition, sharing: int, unfilled: deque[tuple[set[_Partition], int]]
    ) -> None:
        """Give a partition to members that have too few, in turn, until it has enough members."""
        for _ in range(len(unfilled)):
            if self._users[partition] >= sharing:
                return
            own, quota = unfilled.popleft()
            if partition not in own:
                own.add(partition)
                self._users[partition] += 1
            if len(own) < quota:
                unfilled.append((own, quota))


def _share(places: int, members: int, of: int) -> int:
    """How many of `places` the first `members` of all members have, rounded up."""
    return -(-places * members // of)


def _target(partitions: list[_Partition]) -> Target:
    numbers: dict[bytes, set[int]] = {}
    for topic, number in partitions:
        numbers.setdefault(topic, set()).add(number)
    return {topic: frozenset(of_topic) for topic, of_topic in numbers.items()}
