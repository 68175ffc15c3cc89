"""Which broker leads which partition: rendezvous hashing over the live brokers, as one versioned value.

Every broker reckons alike from the same version, so nobody hands out partitions. A broker that leaves takes
along only what it led, and one that comes takes only what it is to lead: all other partitions stay where they
are, with their leader epochs.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


# How often a leader can take a partition up anew (a coordinator does after each append that failed).
_TERM_BITS: Final = 20
# Kafka's leader id for a partition without a leader.
NO_NODE: Final = -1


class Broker(msgspec.Struct, frozen=True):
    """A live broker and where clients find it."""

    node_id: int
    host: str
    port: int
    joined: int
    """The version of the assignment that it came with."""
    listeners: tuple[tuple[str, str, int], ...] = ()
    """Name, host and port of all its listeners, the first one being that of `host` and `port`."""

    def endpoint(self, listener: str) -> tuple[str, int] | None:
        """Where clients of a listener find it; None where it has no listener of that name."""
        if not self.listeners:
            return self.host, self.port
        return next(((host, port) for name, host, port in self.listeners if name == listener), None)


class Leader(NamedTuple):
    """Who leads a partition, and since which version of the assignment: that is Kafka's leader epoch."""

    node_id: int
    """NO_NODE if nobody may lead it now."""
    epoch: int


class Assignment:
    """One version of who is there, and what follows from it. Versions only grow.

    Raises ValueError without any broker.
    """

    __slots__ = ("_leaders", "_left", "_silent", "brokers", "memo", "sole_leader", "version")

    def __init__(
        self,
        version: int,
        brokers: Iterable[Broker],
        left: Iterable[tuple[int, int]] = (),
        silent: int = NO_NODE,
    ) -> None:
        """`left`: node ids that are there no more, each with the version in which it was missing first.

        Those that left before any of `brokers` came need not be named. `silent`: see `silencing`.
        """
        self.version = version
        self.brokers = tuple(sorted(brokers, key=lambda broker: broker.node_id))
        if not self.brokers:
            raise ValueError("an assignment needs a broker")
        self._left = tuple(left)
        self._silent = silent
        only = self.brokers[0]
        alone = len(self.brokers) == 1 and not any(since > only.joined for _, since in self._left)
        self.sole_leader = self._leader(only.node_id, only.joined) if alone else None
        """The leader of all partitions where one has led them all since it came."""
        self.memo: dict[Any, Any] = {}
        """What others derive from this version, to be kept as long as it is."""
        self._leaders: dict[str, list[Leader]] = {}

    def silencing(self, node_id: int) -> Assignment:
        """The same version, but the partitions of this node have no leader: it does not know whether it is
        still among the brokers.
        """
        return Assignment(self.version, self.brokers, self._left, node_id)

    @property
    def controller(self) -> Broker:
        """The broker that does what one of them has to do: the one with the smallest node id."""
        return self.brokers[0]

    def broker(self, node_id: int) -> Broker | None:
        """The live broker of that id."""
        return next((broker for broker in self.brokers if broker.node_id == node_id), None)

    def endpoints(self, listener: str) -> list[tuple[int, str, int]]:
        """Node id, host and port of the brokers that have a listener of that name."""
        found = ((broker.node_id, broker.endpoint(listener)) for broker in self.brokers)
        return [(node_id, *endpoint) for node_id, endpoint in found if endpoint is not None]

    def leader(self, topic: str, partition: int) -> Leader:
        """Who leads a partition."""
        return self.sole_leader or self.leaders(topic, partition + 1)[partition]

    def leaders(self, topic: str, count: int) -> list[Leader]:
        """The leaders of a topic's partitions, the first `count` of them at least. Not to be changed."""
        known = self._leaders.setdefault(topic, [])
        for partition in range(len(known), count):
            known.append(self.sole_leader or self._reckon(topic, partition))
        return known

    def _reckon(self, topic: str, partition: int) -> Leader:
        ranks = [(_rank(broker.node_id, topic, partition), broker) for broker in self.brokers]
        highest, leader = max(ranks, key=lambda ranked: (ranked[0], ranked[1].node_id))
        epoch = leader.joined
        for node_id, since in self._left:
            # One that ranks higher led it (or one that ranks higher still did, and has left since).
            if since > epoch and (_rank(node_id, topic, partition), node_id) > (highest, leader.node_id):
                epoch = since
        return self._leader(leader.node_id, epoch)

    def _leader(self, node_id: int, epoch: int) -> Leader:
        return Leader(NO_NODE if node_id == self._silent else node_id, epoch)


def writer_epochs(leader_epoch: int) -> range:
    """The writers' epochs, as meta hashes have them, that belong to a leader epoch."""
    return range(leader_epoch << _TERM_BITS, (leader_epoch + 1) << _TERM_BITS)


def to_leader_epoch(writer_epoch: int) -> int:
    """The leader epoch that a writers' epoch belongs to."""
    return writer_epoch >> _TERM_BITS


def _rank(node_id: int, topic: str, partition: int) -> int:
    """What a broker bids for a partition: the same on every machine, in every release."""
    return int.from_bytes(blake2b(f"{node_id}:{topic}:{partition}".encode(), digest_size=8).digest())
