"""Brokers that have just left as planned: Metadata lists them for a moment, although they lead nothing.

librdkafka does not use a partition for a second if its new leader appears in the Metadata in which the former
leader is missing for the first time. A broker whose lease has expired is not listed: if it is cut off from
Redis only, a client that turns to it would not learn who leads.

The log tells who has left, who is lost and who is back:

| state | in the assignment | not in it, announced | not in it for a second |
|---|---|---|---|
| live | | info: left, forgotten | warning: lost |
| lost | warning: back, live | | |
| unknown | info: joined, live | | |

A broker that comes back under its node id may never be missing: then it has joined in another version.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from korvet.cluster.assignment import NO_NODE
from korvet.cluster.versions import ANNOUNCING_PROTOCOL

if TYPE_CHECKING:
    from korvet.cluster.assignment import Assignment, Broker

LISTED_S: Final = 2.0
"""How long a broker that has left is listed."""
# How long after a departure its announcement may arrive.
_ANNOUNCED_WITHIN_S: Final = 1.0

log = logging.getLogger(__name__)


class Departed:
    """The brokers that have just left as planned, and those that are lost."""

    __slots__ = ("_announced", "_left", "_lost", "_own", "_untold")

    def __init__(self, own: int = NO_NODE) -> None:
        """own: the node id of this broker, of which the log tells otherwise."""
        self._own = own
        # By node id: the broker, and until when it is listed.
        self._left: dict[int, tuple[Broker, float]] = {}
        # By node id: until when the announcement holds.
        self._announced: dict[int, float] = {}
        # By node id: the brokers whose departure is not logged yet, and since when they are gone.
        self._untold: dict[int, tuple[Broker, float]] = {}
        # By node id: since when a broker is lost.
        self._lost: dict[int, float] = {}

    def announced(self, node_id: int, now_s: float) -> None:
        """A broker has announced that it leaves; it may have left already."""
        self._announced[node_id] = now_s + LISTED_S
        self._tell_left(node_id)

    def note(self, before: Assignment, after: Assignment, now_s: float) -> None:
        """The assignment has changed at `now_s`."""
        for broker in before.brokers:
            node_id, present = broker.node_id, after.broker(broker.node_id)
            if present is None:
                self._left[node_id] = broker, now_s + LISTED_S
            if (present is None or present.joined != broker.joined) and node_id != self._own:
                self._untold[node_id] = broker, now_s
                if self._announced.get(node_id, now_s) > now_s:
                    self._tell_left(node_id)
        for broker in after.brokers:
            known = before.broker(broker.node_id)
            if (known is None or known.joined != broker.joined) and broker.node_id != self._own:
                self._joined(broker, now_s)

    def tell(self, now_s: float) -> None:
        """Log which brokers are lost: those that are gone and have not announced it. Call it regularly."""
        for node_id, (broker, since_s) in list(self._untold.items()):
            if now_s - since_s >= _ANNOUNCED_WITHIN_S:
                self._tell_lost(node_id, broker, since_s)

    def _tell_left(self, node_id: int) -> None:
        if node_id in self._untold:
            broker, _ = self._untold.pop(node_id)
            log.info("%s has left", _named(broker))

    def _tell_lost(self, node_id: int, broker: Broker, since_s: float) -> None:
        del self._untold[node_id]
        # Earlier releases leave without a word.
        can_announce = broker.protocols.highest >= ANNOUNCING_PROTOCOL
        level = logging.WARNING if can_announce else logging.INFO
        log.log(level, "%s is lost: it has not renewed its lease", _named(broker))
        self._lost[node_id] = since_s

    def _joined(self, broker: Broker, now_s: float) -> None:
        node_id = broker.node_id
        # The announcement belongs to the departure before this return.
        self._announced.pop(node_id, None)
        if node_id in self._untold:
            self._tell_lost(node_id, *self._untold[node_id])
        since_s = self._lost.pop(node_id, None)
        if since_s is None:
            log.info("%s has joined", _named(broker))
        else:
            log.warning("%s is back after %.0f s", _named(broker), now_s - since_s)

    def brokers(self, now_s: float) -> list[Broker]:
        """The brokers that Metadata still lists, also of releases that cannot announce that they leave."""
        if not self._left:
            return []
        self._left = {node_id: each for node_id, each in self._left.items() if each[1] > now_s}
        self._announced = {
            node_id: until_s for node_id, until_s in self._announced.items() if until_s > now_s
        }
        return [
            broker
            for node_id, (broker, _) in self._left.items()
            if node_id in self._announced or broker.protocols.highest < ANNOUNCING_PROTOCOL
        ]


def _named(broker: Broker) -> str:
    return f"node {broker.node_id} at {broker.host}:{broker.port}"
