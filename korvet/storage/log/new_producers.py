"""Producers that a log may not know yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.offsets.record_batch import NO_SEQUENCE

if TYPE_CHECKING:
    from korvet.storage.log.values import ProducerSequence

# More known producers than this are forgotten, all at once: each then waits once more.
_MOST_KNOWN: Final = 10_000


class NewProducers:
    """The idempotent producers with an append in flight by script that may be their first one in the log.

    A producer that the log does not know may begin with any sequence. If its first batch failed and the next
    one was already on its way, that one would be accepted in the place of the first.
    """

    __slots__ = ("_in_flight", "_known")

    def __init__(self) -> None:
        self._in_flight: set[int] = set()
        # Producers that have appended by script.
        self._known: set[int] = set()

    def awaits(self, producer: ProducerSequence | None) -> bool:
        """Whether the next batch of a producer has to wait for the one in flight."""
        return producer is not None and producer.producer_id in self._in_flight

    def sent(self, producer: ProducerSequence | None) -> None:
        """An append of a producer is sent."""
        if producer is None or producer.base_sequence == NO_SEQUENCE:
            return
        if producer.producer_id not in self._known:
            self._in_flight.add(producer.producer_id)

    def ended(self, producer: ProducerSequence | None, *, took_effect: bool) -> None:
        """An append of a producer is answered."""
        if producer is None or producer.base_sequence == NO_SEQUENCE:
            return
        self._in_flight.discard(producer.producer_id)
        if took_effect and producer.producer_id not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known.add(producer.producer_id)
