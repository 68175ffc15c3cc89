"""Which broker leads which partition: rendezvous hashing over the live brokers, as one versioned value.

All brokers compute the same leaders from the same version, so no broker hands out partitions. When a broker
leaves, only the partitions that it led get new leaders. When a broker joins, only its own share of the
partitions moves to it. All other partitions keep their leader and their leader epoch.

A test may move a partition to another broker (see korvet.testing, move_leader). Its leader then joins again
and publishes that it yields the partition. The partition is led by the broker that has yielded it least
often; of several such brokers, by the one with the highest hash.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from korvet.cluster.versions import FIRST_PROTOCOLS, Versions
from korvet.redis.functions import PUBLIC_LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterable


# Limits the claims of one partition in one leader epoch: a coordinator claims its partition again after each
# append that failed.
_TERM_BITS: Final = 20
# Kafka's leader id of a partition without a leader.
NO_NODE: Final = -1


class Broker(msgspec.Struct, frozen=True):
    """A live broker and its endpoints."""

    node_id: int
    host: str
    port: int
    joined: int
    """The version of the assignment in which this broker joined."""
    listeners: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of each listener; the first listener is the one of `host` and `port`."""
    protocols: Versions = FIRST_PROTOCOLS
    library: str = PUBLIC_LIBRARY
    """The Function library that the broker calls."""
    admin: str = ""
    """The URL of its admin endpoint; empty without one."""
    yields: tuple[tuple[str, int], ...] = ()
    """The partitions that it has yielded. One that it has yielded twice is here twice."""

    def endpoint(self, listener: str) -> tuple[str, int] | None:
        """Host and port for clients of a listener; None if the broker has no listener of that name."""
        if not self.listeners:
            return self.host, self.port
        return next(((host, port) for name, host, port in self.listeners if name == listener), None)


class Leader(NamedTuple):
    """The leader of a partition, and the version of the assignment since which it leads: the leader epoch."""

    node_id: int
    """NO_NODE if no broker may lead the partition now."""
    epoch: int


class Assignment:
    """One version of the set of live brokers, and the leaders that follow from it. Versions only grow.

    Raises ValueError without any broker.
    """

    __slots__ = ("__weakref__", "_leaders", "_left", "_suspended", "brokers", "sole_leader", "version")

    def __init__(
        self,
        version: int,
        brokers: Iterable[Broker],
        left: Iterable[tuple[int, int]] = (),
        suspended: int = NO_NODE,
    ) -> None:
        """`left`: node ids of brokers that have left, each with the first version without it. A broker that
        left before any of `brokers` joined may be missing. `suspended`: see `suspending`.
        """
        self.version = version
        self.brokers = tuple(sorted(brokers, key=lambda broker: broker.node_id))
        if not self.brokers:
            raise ValueError("an assignment needs a broker")
        self._left = tuple(left)
        self._suspended = suspended
        only = self.brokers[0]
        alone = len(self.brokers) == 1 and not any(since > only.joined for _, since in self._left)
        self.sole_leader = self._leader(only.node_id, only.joined) if alone else None
        """The leader of all partitions if one broker has led all of them since it joined, else None."""
        self._leaders: dict[str, list[Leader]] = {}

    def suspending(self, node_id: int) -> Assignment:
        """The same version, but the partitions of this node have no leader: the node does not know whether
        it is still a live broker.
        """
        return Assignment(self.version, self.brokers, self._left, node_id)

    @property
    def controller(self) -> Broker:
        """The broker that does the work of the whole cluster: the one with the smallest node id."""
        return self.brokers[0]

    def broker(self, node_id: int) -> Broker | None:
        """The live broker of that id; None if there is none."""
        return next((broker for broker in self.brokers if broker.node_id == node_id), None)

    def endpoints(self, listener: str, gone: Iterable[Broker] = ()) -> list[tuple[int, str, int]]:
        """Node id, host and port of each broker that has a listener of that name; also of those of `gone`
        that are not live.
        """
        brokers = [*self.brokers, *(each for each in gone if self.broker(each.node_id) is None)]
        found = ((broker.node_id, broker.endpoint(listener)) for broker in brokers)
        return [(node_id, *endpoint) for node_id, endpoint in found if endpoint is not None]

    def leader(self, topic: str, partition: int) -> Leader:
        """The leader of a partition."""
        return self.sole_leader or self.leaders(topic, partition + 1)[partition]

    def leaders(self, topic: str, count: int) -> list[Leader]:
        """The leaders of at least the first `count` partitions of a topic. Do not change the list."""
        known = self._leaders.setdefault(topic, [])
        for partition in range(len(known), count):
            known.append(self.sole_leader or self._compute(topic, partition))
        return known

    def yields_of(self, node_id: int, topic: str, partition: int) -> tuple[tuple[str, int], ...]:
        """What a live broker has to yield from its next join on so that another broker leads a partition, if
        there is one.
        """
        brokers = {broker.node_id: broker for broker in self.brokers}
        own = brokers[node_id]
        if len(brokers) == 1:
            return own.yields
        while Assignment(self.version, brokers.values()).leader(topic, partition).node_id == node_id:
            own = replace(own, yields=(*own.yields, (topic, partition)))
            brokers[node_id] = own
        return own.yields

    def forget(self, topic: str) -> None:
        """Free what is kept of a topic that is deleted."""
        self._leaders.pop(topic, None)

    def _compute(self, topic: str, partition: int) -> Leader:
        place = topic, partition
        ranks = [
            (-broker.yields.count(place), _rank(broker.node_id, *place), broker.node_id)
            for broker in self.brokers
        ]
        highest = max(ranks)
        leader = self.brokers[ranks.index(highest)]
        epoch = leader.joined
        yielded = [
            (broker.node_id, broker.joined)
            for broker, rank in zip(self.brokers, ranks, strict=True)
            if rank[0] != 0
        ]
        for node_id, since in (*self._left, *yielded):
            # A broker that left or yielded, and ranks higher without that, led the partition; or an even
            # higher one did, and left or yielded too.
            if since > epoch and (0, _rank(node_id, *place), node_id) > highest:
                epoch = since
        return self._leader(leader.node_id, epoch)

    def _leader(self, node_id: int, epoch: int) -> Leader:
        return Leader(NO_NODE if node_id == self._suspended else node_id, epoch)


def writer_epochs(leader_epoch: int) -> range:
    """The writers' epochs that belong to a leader epoch; meta hashes hold writers' epochs."""
    return range(leader_epoch << _TERM_BITS, (leader_epoch + 1) << _TERM_BITS)


def to_leader_epoch(writer_epoch: int) -> int:
    """The leader epoch that a writers' epoch belongs to."""
    return writer_epoch >> _TERM_BITS


def _rank(node_id: int, topic: str, partition: int) -> int:
    """The rank of a broker for a partition: the same on every machine and in every release."""
    return int.from_bytes(blake2b(f"{node_id}:{topic}:{partition}".encode(), digest_size=8).digest())
