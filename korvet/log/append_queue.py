"""The appends of one log that wait to be sent, and which of them go in one call."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeGuard

from korvet.log.appends import MarkerAppend, RecordsAppend
from korvet.offsets.record_batch import NO_SEQUENCE
from korvet.redis.calls import answer
from korvet.redis.errors import StorageFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from korvet.log.appends import AnyAppend
    from korvet.log.values import Producer

# Limits a call: some ms of Redis's time, during which other clients wait; and the bits of a double, which has
# one for each batch.
_CALL_BYTES: Final = 128 << 10
_CALL_BATCHES: Final = 48
# More known producers than this are forgotten, all at once: each then waits once more.
_MOST_KNOWN: Final = 10_000


class NewProducers:
    """The idempotent producers with an append in flight that may be their first one in the log.

    A producer that the log does not know may begin with any sequence. If its first batch failed and the next
    one was already on its way, that one would be accepted in the place of the first.
    """

    __slots__ = ("_in_flight", "_known")

    def __init__(self) -> None:
        self._in_flight: set[int] = set()
        # Producers that have appended.
        self._known: set[int] = set()

    def awaits(self, producer: Producer | None) -> bool:
        """Whether the next batch of a producer has to wait for the one in flight."""
        return producer is not None and producer.producer_id in self._in_flight

    def sent(self, producer: Producer | None) -> None:
        """An append of a producer is sent."""
        if producer is None or producer.base_sequence == NO_SEQUENCE:
            return
        assert not self.awaits(producer), f"the first batch of {producer.producer_id} is still in flight"
        if producer.producer_id not in self._known:
            self._in_flight.add(producer.producer_id)

    def ended(self, producer: Producer | None, *, took_effect: bool) -> None:
        """An append of a producer is answered."""
        if producer is None or producer.base_sequence == NO_SEQUENCE:
            return
        self._in_flight.discard(producer.producer_id)
        if took_effect and producer.producer_id not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known.add(producer.producer_id)


class AppendQueue:
    """The appends in their order. Batches of clients go together, records of the broker and markers alone."""

    __slots__ = ("_alone", "_appends", "_new_producers", "_size_bytes", "record_count")

    def __init__(self) -> None:
        self._appends: deque[AnyAppend] = deque()
        self._new_producers = NewProducers()
        self._size_bytes = 0
        # Markers, and records of the broker.
        self._alone = 0
        self.record_count = 0
        """The records of all appends."""

    def __len__(self) -> int:
        return len(self._appends)

    def __iter__(self) -> Iterator[AnyAppend]:
        return iter(self._appends)

    def add(self, append: AnyAppend) -> None:
        """Queue an append after all others."""
        self._appends.append(append)
        self._count(append, 1)

    def put_first(self, appends: Sequence[AnyAppend]) -> None:
        """Queue appends, in their order, before all others."""
        for append in reversed(appends):
            self._appends.appendleft(append)
            self._count(append, 1)

    def take_all(self) -> list[AnyAppend]:
        """All appends, none of which is queued any longer."""
        taken = list(self._appends)
        self._appends.clear()
        self.record_count = self._size_bytes = self._alone = 0
        return taken

    def drop_unwanted(self) -> None:
        """Refuse the first appends as long as nobody waits for them."""
        while self._appends and not self._appends[0].is_wanted():
            answer(self._take().done, StorageFault("the producer does not wait for it any more"))

    def take_call(self, *, alone: bool) -> MarkerAppend | list[RecordsAppend]:
        """What goes next: a marker, or the records of one call. `alone`: batches don't go together."""
        first = self._take()
        if isinstance(first, MarkerAppend):
            return first
        taken, size = [first], first.form.size_bytes
        self._new_producers.sent(first.producer)
        while not alone and self._appends and size < _CALL_BYTES and len(taken) < _CALL_BATCHES:
            append = self._appends[0]
            if not self._joins(append, first):
                break
            self._take()
            self._new_producers.sent(append.producer)
            taken.append(append)
            size += append.form.size_bytes
        return taken

    def _joins(self, append: AnyAppend, first: RecordsAppend) -> TypeGuard[RecordsAppend]:
        """Whether an append may go in the same call as those before it, which begin with `first`."""
        return (
            isinstance(append, RecordsAppend)
            and first.received is not None
            and append.received is not None
            and append.epoch == first.epoch
            and not self._new_producers.awaits(append.producer)
            and append.is_wanted()
        )

    @property
    def first(self) -> AnyAppend:
        """The append that is next; there must be one."""
        return self._appends[0]

    @property
    def awaits_answer(self) -> bool:
        """Whether the first append has to wait for the answer to the one before it of its producer."""
        return self._new_producers.awaits(self._appends[0].producer)

    @property
    def fills_call(self) -> bool:
        """Whether it is no use to wait for more appends that join those of the next call."""
        return self._alone > 0 or self._size_bytes >= _CALL_BYTES or len(self._appends) >= _CALL_BATCHES

    def answered(self, append: RecordsAppend, *, took_effect: bool) -> None:
        """Take over that an append is answered, or did nothing and is sent again."""
        self._new_producers.ended(append.producer, took_effect=took_effect)

    def _take(self) -> AnyAppend:
        append = self._appends.popleft()
        self._count(append, -1)
        assert self.record_count >= len(self._appends), f"{self.record_count} records are queued"
        return append

    def _count(self, append: AnyAppend, sign: int) -> None:
        self.record_count += sign * append.record_count
        if isinstance(append, MarkerAppend) or append.received is None:
            self._alone += sign
        else:
            self._size_bytes += sign * append.form.size_bytes
