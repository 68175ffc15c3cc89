"""How many copies of their data partitions have: the replicas of the servers that hold them.

The log tells which replicas follow, are lost and are back:

| state | in sync | not in sync for some seconds |
|---|---|---|
| unknown | info: follows, following | |
| following | | warning: gone, or silent; lost |
| lost | warning: back, following | |

Time in which the primary does not report its replicas does not count.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from korvet.redis.keys import Keyspace
    from korvet.redis.replication import Replication
    from korvet.redis.server import Router, Server

# How long a replica that is gone counts as missing. Servers forget it at once.
_REMEMBERED_S: Final = 3600.0
# Interval of looks at the servers' replicas. Servers report them once a second.
_PERIOD_S: Final = 1.0
# A replica whose connection breaks is back within a second or two.
_LOST_AFTER_S: Final = 3.0
# Limits the remembered replicas of one primary; addresses may change with each restart.
_MOST_REPLICAS: Final = 100
# Limits the replicas that a topic can ask to be shown: responses name each one for each partition.
_MOST_WANTED: Final = 31


log = logging.getLogger(__name__)


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
        self._log = ReplicaLog()
        # The copies of any partition at the last look; None if they depend on the partition's server.
        self._same: Copies | None = Copies()

    async def run(self) -> NoReturn:
        """Notice replicas that come and go, until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_PERIOD_S)

    def look(self) -> None:
        """Count the replicas of all servers."""
        servers, now_s = self._router.servers(), self._clock_s()
        for server in servers:
            self._log.note(str(server.address), server.replication, now_s)
        self._log.keep([str(server.address) for server in servers])
        counts = [len(server.replication.standing) for server in servers if server.replication is not None]
        # Nothing follows while those of one server are unknown.
        known = bool(counts) and len(counts) == len(servers)
        if known and (min(counts) >= self._expected or now_s >= self._until_s):
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


class _Known:
    """A replica that has followed once."""

    __slots__ = ("is_lost", "missing_s", "since_s")

    def __init__(self, now_s: float) -> None:
        self.follows(now_s)

    def follows(self, now_s: float) -> None:
        """It is in sync. `since_s`: when it was so last; `missing_s`: how long the primary says otherwise."""
        self.is_lost, self.missing_s, self.since_s = False, 0.0, now_s


class ReplicaLog:
    """The replicas of all primaries, by their addresses. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, _Known]] = {}
        # When each primary reported last.
        self._reported_s: dict[str, float] = {}

    def note(self, primary: str, replication: Replication | None, now_s: float) -> None:
        """Note what a primary reports now; None if it reports nothing."""
        if replication is None:
            self._reported_s.pop(primary, None)
            return
        known = self._known.setdefault(primary, {})
        passed_s = now_s - self._reported_s.get(primary, now_s)
        self._reported_s[primary] = now_s
        # What has no port accepts no clients: a tool that copies the data.
        present = {f"{each.host}:{each.port}": each for each in replication.replicas if each.port}
        for name, replica in present.items():
            if replica.is_in_sync:
                self._follows(primary, name, now_s)
        for name, each in known.items():
            if name in present and present[name].is_in_sync:
                continue
            each.missing_s += passed_s
            if not each.is_lost and each.missing_s >= _LOST_AFTER_S:
                each.is_lost = True
                why = "does not report" if name in present else "is gone"
                log.warning("the replica %s of Redis at %s %s", name, primary, why)

    def keep(self, primaries: Collection[str]) -> None:
        """Forget all other primaries, and their replicas."""
        for primary in self._known.keys() - set(primaries):
            del self._known[primary]
            self._reported_s.pop(primary, None)

    def _follows(self, primary: str, name: str, now_s: float) -> None:
        known = self._known[primary]
        each = known.get(name)
        if each is None:
            if len(known) >= _MOST_REPLICAS:
                del known[next(iter(known))]
            known[name] = _Known(now_s)
            log.info("the replica %s follows Redis at %s", name, primary)
            return
        if each.is_lost:
            gone_s = now_s - each.since_s
            log.warning("the replica %s of Redis at %s is back after %.0f s", name, primary, gone_s)
        each.follows(now_s)
