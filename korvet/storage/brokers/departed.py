"""Brokers that have just left as planned: Metadata lists them for a moment, although they lead nothing.

librdkafka does not use a partition for a second if its new leader appears in the Metadata in which the former
leader is missing for the first time. A broker whose lease has expired is not listed: if it is cut off from
Redis only, a client that turns to it would not learn who leads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.storage.versions import ANNOUNCING_PROTOCOL

if TYPE_CHECKING:
    from korvet.storage.brokers.assignment import Assignment, Broker

LISTED_S: Final = 2.0
"""How long a broker that has left is listed."""


class Departed:
    """The brokers that have just left as planned."""

    __slots__ = ("_announced", "_left")

    def __init__(self) -> None:
        # By node id: the broker, and until when it is listed.
        self._left: dict[int, tuple[Broker, float]] = {}
        # By node id: until when the announcement holds.
        self._announced: dict[int, float] = {}

    def announced(self, node_id: int, now_s: float) -> None:
        """A broker has announced that it leaves; it may have left already."""
        self._announced[node_id] = now_s + LISTED_S

    def note(self, before: Assignment, after: Assignment, now_s: float) -> None:
        """The assignment has changed at `now_s`."""
        for broker in before.brokers:
            if after.broker(broker.node_id) is None:
                self._left[broker.node_id] = broker, now_s + LISTED_S

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
