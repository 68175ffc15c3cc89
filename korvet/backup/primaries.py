"""The servers that a URL leads to: one server, or all primaries of a Redis Cluster."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from korvet.backup.connection import RedisConnection, ServerError
from korvet.backup.errors import BackupError
from korvet.redis.sentinel import servers_of
from korvet.redis.slots import SLOTS, parse_slots, slot_of

# States of a migration (CLUSTER GETSLOTMIGRATIONS) that has ended.
_ENDED: Final = frozenset((b"success", b"failed", b"cancelled"))

_Map = frozenset[tuple[int, int, bytes]]
"""Which slots, first to last, are on which node: its ID."""


class Primaries:
    """Connections to one server, or to each primary of a cluster."""

    def __init__(
        self,
        connections: Sequence[RedisConnection],
        owners: Sequence[RedisConnection] = (),
        known: _Map | None = None,
    ) -> None:
        """`owners`: the connection of each slot of a cluster. `known`: the map of a cluster."""
        self.connections = tuple(connections)
        self._owners = owners
        self._known = known

    @classmethod
    def of_cluster(cls, seed: RedisConnection, stack: contextlib.ExitStack) -> Self:
        """Connect to all primaries that a node knows. Raises BackupError."""
        if seed.address.database:
            raise BackupError("a Redis Cluster has database 0 only")
        ranges = parse_slots(seed.call("CLUSTER", "SLOTS"), seed.address.host)
        if sum(each.last - each.first + 1 for each in ranges) != SLOTS:
            raise BackupError(f"the Redis Cluster at {seed.address} has slots that no node serves")
        nodes = {
            node: stack.enter_context(RedisConnection(seed.address.at(*node)))
            for node in sorted({each.primary for each in ranges})
        }
        owners = [seed] * SLOTS
        for each in ranges:
            owners[each.first : each.last + 1] = [nodes[each.primary]] * (each.last - each.first + 1)
        made = cls([*nodes.values()], owners, _map_of(seed))
        made.check_unchanged()
        return made

    @property
    def is_cluster(self) -> bool:
        """Whether the servers are nodes of a cluster."""
        return self._known is not None

    def __str__(self) -> str:
        if self.is_cluster:
            return f"Redis Cluster at {','.join(str(each.address) for each in self.connections)}"
        return f"server at {self.connections[0].address}"

    def of(self, key: bytes) -> RedisConnection:
        """The connection to the server that has a key."""
        return self._owners[slot_of(key)] if self.is_cluster else self.connections[0]

    def check_unchanged(self) -> None:
        """Raise BackupError unless every primary of a cluster knows the same map as at the beginning, and
        moves no slot.
        """
        if self._known is None:
            return
        for each in self.connections:
            if _map_of(each) != self._known or _moves_slots(each):
                raise BackupError(
                    f"the {self} is changing: by the node at {each.address}, another node has taken over, or "
                    "slots are being moved. Run the command again when the cluster is stable"
                )


@contextlib.contextmanager
def primaries(url: str) -> Iterator[Primaries]:
    """Yields connections to the one server that a URL names, to the primary if it names sentinels, or to all
    primaries if it names nodes of a cluster. Raises BackupError and StoreError.
    """
    addresses = asyncio.run(servers_of(url))
    with contextlib.ExitStack() as stack:
        failures: list[BackupError] = []
        for address in addresses:
            try:
                seed = stack.enter_context(RedisConnection(address))
                info = seed.info("cluster")
            except ServerError as error:
                raise BackupError(f"the server at {address} refuses the connection: {error}") from error
            except BackupError as error:
                failures.append(error)
                continue
            break
        else:
            raise failures[0]
        if info.get("cluster_enabled") == "1":
            yield Primaries.of_cluster(seed, stack)
            return
        if len(addresses) > 1:
            raise BackupError(f"the server at {address} is no node of a Redis Cluster: name one server")
        if seed.info("replication").get("role") != "master":
            raise BackupError(
                f"the server at {address} is a replica, which may lack acknowledged records: name its primary"
            )
        yield Primaries([seed])


def _map_of(node: RedisConnection) -> _Map:
    slots: Any = node.call("CLUSTER", "SLOTS")
    return frozenset((first, last, primary[2]) for first, last, primary, *_ in slots)


def _moves_slots(node: RedisConnection) -> bool:
    """Whether a node gives or takes slots now: by keys (CLUSTER SETSLOT) or, in Valkey 9, as a whole."""
    lines = [line.split() for line in node.call("CLUSTER", "NODES").splitlines()]
    # Eight fields, then slots; one in brackets is being moved. A node names only its own moves.
    if any(word.startswith(b"[") for words in lines for word in words[8:]):
        return True
    try:
        jobs = node.call("CLUSTER", "GETSLOTMIGRATIONS")
    except ServerError:  # another kind of server, or an older one
        return False
    return any(dict(zip(job[::2], job[1::2], strict=True)).get(b"state") not in _ENDED for job in jobs)
