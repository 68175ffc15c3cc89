"""How many copies of their data partitions have: the replicas of the servers that hold them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.keys import Keyspace
    from korvet.storage.link.server import Router, Server

# How long a replica that is gone counts as missing. Servers forget it at once.
_REMEMBERED_S: Final = 3600.0
# Interval of looks at the servers' replicas. Servers report them once a second.
_PERIOD_S: Final = 1.0
# Limits the replicas that a topic can ask to be shown: responses name each one for each partition.
_MOST_WANTED: Final = 31


class Copies(NamedTuple):
    """The replicas of a partition's data, besides the primary."""

    expected: int = 0
    """Replicas that should be there, at least the attached ones."""
    attached: int = 0
    """Replicas that are connected to the primary, including those that synchronise."""
    in_sync: int = 0
    """Replicas that follow the primary."""

    def expecting(self, replicas: int) -> Copies:
        """The same replicas, of which at least this number is expected; a number above 31 counts as 31."""
        wanted = min(replicas, _MOST_WANTED)
        return self if wanted <= self.expected else self._replace(expected=wanted)


class PartitionCopies:
    """Knows the copies of all partitions.

    Expected are as many replicas as every server has had at the same time within the last hour: a replica
    that is gone, or that has become a primary, is missing.
    """

    def __init__(self, router: Router, keyspace: Keyspace, clock_s: Callable[[], float]) -> None:
        """`clock_s`: a monotonic clock."""
        self._router = router
        self._keyspace = keyspace
        self._clock_s = clock_s
        self._expected = 0
        # When the number of expected replicas falls to the present one.
        self._until_s = 0.0
        # The copies of any partition at the last look; None if they depend on the partition's server.
        self._same: Copies | None = Copies()

    async def run(self) -> NoReturn:
        """Notice replicas that come and go, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_PERIOD_S)

    def look(self) -> None:
        """Count the replicas of all servers."""
        servers = self._router.servers()
        counts = [len(server.replication.standing) for server in servers if server.replication is not None]
        # Nothing follows while those of one server are unknown.
        if counts and len(counts) == len(servers):
            now_s = self._clock_s()
            if min(counts) >= self._expected or now_s >= self._until_s:
                self._expected, self._until_s = min(counts), now_s + _REMEMBERED_S
        found = {self._of(server) for server in servers}
        self._same = found.pop() if len(found) == 1 else None

    @property
    def expected(self) -> int:
        """The number of replicas that every partition should have."""
        return self._expected

    def expecting(self, replicas: int) -> int:
        """The number of replicas that every partition of a topic should have that asks for this number."""
        return Copies(self._expected).expecting(replicas).expected

    def of_topic(self, topic: str, count: int, wanted: int = 0) -> Copies | list[Copies]:
        """The copies of any partition of a topic, or those of each of its first `count` partitions. At least
        `wanted` replicas are expected.
        """
        if self._same is not None:
            return self._same.expecting(wanted)
        key, links = self._keyspace.stream, self._router.links
        return [self._of(links(key(topic, index)).server).expecting(wanted) for index in range(count)]

    def _of(self, server: Server) -> Copies:
        replication = server.replication
        if replication is None:
            return Copies(self._expected)
        attached = len(replication.standing)
        return Copies(max(self._expected, attached), attached, replication.in_sync)
