"""The states of records in `__share_group_state`, from pending entries. No I/O.

A pending entry tells how often its record was delivered. Of a record that has ended, which is not pending any
more, Redis keeps nothing: what was written of it before tells the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from korvet.offsets.share_state import ACKNOWLEDGED, ARCHIVED, AVAILABLE, StateBatch
from korvet.redis_groups.share import PendingKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from korvet.redis_groups.share import PendingRun, PendingView

# Limits the record to 20 kB, and the time for it to some ms.
MOST_BATCHES: Final = 1_000
_MOST_DELIVERIES: Final = (1 << 15) - 1
_MOST_COUNTED: Final = (1 << 31) - 1
_UNKNOWN: Final = -1


class Offsets(NamedTuple):
    """Consecutive offsets, both ends included."""

    first_offset: int
    last_offset: int


class _Span(Protocol):
    @property
    def first_offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...


_S = TypeVar("_S", bound=_Span)


class _Spans(Generic[_S]):
    """Spans without overlap, in order."""

    def __init__(self, spans: Sequence[_S]) -> None:
        self._spans = spans
        self._firsts = [span.first_offset for span in spans]

    def at(self, offset: int, last: int) -> tuple[_S | None, int]:
        """The span with an offset, if there is one, and up to where, but not after `last`, that holds."""
        place = bisect_right(self._firsts, offset)
        span = self._spans[place - 1] if place else None
        if span is not None and offset <= span.last_offset:
            return span, min(last, span.last_offset)
        return None, min(last, self._firsts[place] - 1) if place < len(self._firsts) else last


def joined(ranges: Iterable[tuple[int, int]]) -> list[Offsets]:
    """The same offsets in order, without overlap."""
    found: list[Offsets] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1].last_offset + 1:
            found[-1] = Offsets(found[-1].first_offset, max(found[-1].last_offset, last))
        else:
            found.append(Offsets(first, last))
    return found


def delivery_complete_count(view: PendingView) -> int:
    """How many offsets from the start on are acknowledged or archived; -1 if that exceeds 32 bits."""
    count = max(view.end - view.start - view.live, 0)
    return count if count <= _MOST_COUNTED else _UNKNOWN


def batches_of(
    view: PendingView, before: Sequence[StateBatch], given_up: Sequence[tuple[int, int]]
) -> tuple[StateBatch, ...]:
    """The states of the delivered records, up to MOST_BATCHES, and up to the last pending entry that is known
    if there are more. before: the last such batches; given_up: offsets that are archived unless pending.

    Locks are not shown: a record that somebody has is in the state before. What has ended since `before` was
    acknowledged, with one delivery more than it had.
    """
    found: list[StateBatch] = []
    for batch in _all_batches(view, _Spans(before), _Spans(joined(given_up))):
        last = found[-1] if found else None
        if last is not None and _continues(last, batch):
            found[-1] = StateBatch(
                last.first_offset, batch.last_offset, last.delivery_state, last.delivery_count
            )
        elif len(found) == MOST_BATCHES:
            break
        else:
            found.append(batch)
    return tuple(found)


def _continues(last: StateBatch, batch: StateBatch) -> bool:
    same = (last.delivery_state, last.delivery_count) == (batch.delivery_state, batch.delivery_count)
    return same and last.last_offset + 1 == batch.first_offset


def _all_batches(
    view: PendingView, before: _Spans[StateBatch], given_up: _Spans[Offsets]
) -> Iterator[StateBatch]:
    following = view.start
    for run in view.runs:
        yield from _ended(following, run.first - 1, before, given_up)
        if (batch := _pending(run)) is not None:
            yield batch
        following = run.last + 1
    if not view.has_more:
        yield from _ended(following, view.end - 1, before, given_up)


def _pending(run: PendingRun) -> StateBatch | None:
    """The batch of pending entries; None if they are as if they had never been delivered."""
    deliveries = min(run.deliveries - (run.kind is PendingKind.TAKEN), _MOST_DELIVERIES)
    if run.kind is PendingKind.ARCHIVED:
        return StateBatch(run.first, run.last, ARCHIVED, deliveries)
    return StateBatch(run.first, run.last, AVAILABLE, deliveries) if deliveries > 0 else None


def _ended(
    first: int, last: int, before: _Spans[StateBatch], given_up: _Spans[Offsets]
) -> Iterator[StateBatch]:
    while first <= last:
        known, until = before.at(first, last)
        archived, until = given_up.at(first, until)
        if known is not None and known.delivery_state != AVAILABLE:
            state, deliveries = known.delivery_state, known.delivery_count
        else:
            state = ACKNOWLEDGED if archived is None else ARCHIVED
            deliveries = 1 if known is None else min(known.delivery_count + 1, _MOST_DELIVERIES)
        yield StateBatch(first, until, state, deliveries)
        first = until + 1
