"""Brokers that have just left: for a moment, Metadata still lists them, although they lead nothing.

librdkafka does not use a partition for a second if its new leader appears in the Metadata in which the former
leader is missing for the first time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from korvet.storage.brokers.assignment import Assignment, Broker

LISTED_S: Final = 2.0
"""How long a broker that has left is listed."""


class Departed:
    """The brokers that have just left."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        # By node id: the broker, and until when it is listed.
        self._left: dict[int, tuple[Broker, float]] = {}

    def note(self, before: Assignment, after: Assignment, now_s: float) -> None:
        """The assignment has changed at `now_s`."""
        for broker in before.brokers:
            if after.broker(broker.node_id) is None:
                self._left[broker.node_id] = broker, now_s + LISTED_S

    def brokers(self, now_s: float) -> list[Broker]:
        """Those that are still listed."""
        if self._left:
            self._left = {node_id: each for node_id, each in self._left.items() if each[1] > now_s}
        return [broker for broker, _ in self._left.values()]
