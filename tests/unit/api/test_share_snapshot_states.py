"""The states of records in snapshots, from pending entries: offset by offset, and their limits."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from korvet.api.sharing.acknowledgements import given_up_ranges
from korvet.api.sharing.states import MOST_BATCHES, batches_of, delivery_complete_count
from korvet.offsets.share_state import ACKNOWLEDGED, ARCHIVED, AVAILABLE, StateBatch
from korvet.redis_groups.share import PendingKind, PendingRun, PendingView, Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KINDS = st.sampled_from(PendingKind)
PENDING = st.dictionaries(st.integers(0, 29), st.tuples(KINDS, st.integers(0, 4)), max_size=20)
STATES = st.sampled_from((AVAILABLE, ACKNOWLEDGED, ARCHIVED))
BEFORE = st.dictionaries(st.integers(0, 29), st.tuples(STATES, st.integers(1, 4)), max_size=20)
RANGES = st.lists(st.tuples(st.integers(0, 29), st.integers(0, 5)), max_size=4).map(
    lambda ranges: [(first, first + more) for first, more in ranges]
)


def runs_of(offsets: Mapping[int, tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """First and last offset of each run with the same numbers, and these."""
    numbered = enumerate(sorted(offsets.items()))
    found = []
    for (_, numbers), run in groupby(numbered, lambda each: (each[1][0] - each[0], each[1][1])):
        members = [offset for _, (offset, _) in run]
        found.append((members[0], members[-1], *numbers))
    return found


def view_of(pending: Mapping[int, tuple[int, int]], end: int, *, has_more: bool = False) -> PendingView:
    runs = [
        PendingRun(first, last, count, PendingKind(kind)) for first, last, kind, count in runs_of(pending)
    ]
    live = sum(kind != PendingKind.ARCHIVED for kind, _ in pending.values())
    return PendingView(min(pending, default=end), end, live, has_more, runs)


def batches(states: Mapping[int, tuple[int, int]]) -> tuple[StateBatch, ...]:
    return tuple(StateBatch(*run) for run in runs_of(states))


def covers(ranges: Iterable[tuple[int, int]], offset: int) -> bool:
    return any(first <= offset <= last for first, last in ranges)


def expected(
    view: PendingView,
    pending: Mapping[int, tuple[int, int]],
    before: Mapping[int, tuple[int, int]],
    given_up: list[tuple[int, int]],
) -> dict[int, tuple[int, int]]:
    """The state of each offset."""
    found = {}
    end = max(pending, default=-1) + 1 if view.has_more else view.end
    for offset in range(view.start, end):
        kind, deliveries = pending.get(offset, (None, 0))
        state, count = before.get(offset, (AVAILABLE, 0))
        if kind is PendingKind.ARCHIVED:
            found[offset] = ARCHIVED, deliveries
        elif kind is not None:
            ended = deliveries - (kind is PendingKind.TAKEN)
            if ended > 0:
                found[offset] = AVAILABLE, ended
        elif state != AVAILABLE:
            found[offset] = state, count
        else:
            found[offset] = ARCHIVED if covers(given_up, offset) else ACKNOWLEDGED, count + 1
    return found


@given(PENDING, st.integers(0, 5), BEFORE, RANGES, st.booleans())
def test_each_offset_has_its_state(
    pending: dict[int, tuple[int, int]],
    more: int,
    before: dict[int, tuple[int, int]],
    given_up: list[tuple[int, int]],
    has_more: bool,
) -> None:
    view = view_of(pending, max(pending, default=-1) + 1 + more, has_more=has_more)
    found = batches_of(view, batches(before), given_up)
    states = expected(view, pending, before, given_up)
    assert found == batches(states)
    if not has_more:
        ended = sum(state != AVAILABLE for state, _ in states.values())
        assert delivery_complete_count(view) == ended


def test_numbers_that_do_not_fit() -> None:
    view = PendingView(0, 1 << 40, 1, False, [PendingRun(0, 0, 1 << 20, PendingKind.RELEASED)])
    assert delivery_complete_count(view) == -1
    (first, rest) = batches_of(view, (), ())
    assert (first, rest) == (
        StateBatch(0, 0, AVAILABLE, 32_767),
        StateBatch(1, (1 << 40) - 1, ACKNOWLEDGED, 1),
    )
    (again, _) = batches_of(view._replace(start=0, runs=[]), (first,), ())
    assert again == StateBatch(0, 0, ACKNOWLEDGED, 32_767)


def test_the_first_batches_fit() -> None:
    runs = [PendingRun(2 * at, 2 * at, 1, PendingKind.RELEASED) for at in range(MOST_BATCHES)]
    found = batches_of(PendingView(0, 10_000, MOST_BATCHES, True, runs), (), ())
    assert len(found) == MOST_BATCHES
    assert found[-1] == StateBatch(MOST_BATCHES - 1, MOST_BATCHES - 1, ACKNOWLEDGED, 1)


def test_what_was_given_up() -> None:
    ranges = [Range(0, 4, b"13301"), Range(7, 9, b"3"), Range(11, 12, b"2"), Range(14, 16, b"122")]
    assert given_up_ranges(ranges, released=False) == [(1, 3), (7, 9)]
    assert given_up_ranges(ranges, released=True) == [(1, 3), (7, 9), (11, 12), (15, 16)]
