"""What is remembered of aborted transactions: all from some offset on, and never more than so many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from korvet.storage import transactions
from korvet.storage.transactions import Aborted, TransactionIndex, overlapping

MOST = transactions._REMEMBERED


def aborted_at(offset: int) -> Aborted:
    """A transaction of one record right before its marker."""
    return Aborted(offset, offset - 1, 7, offset + 1)


def loaded(log_end: int) -> TransactionIndex:
    index = TransactionIndex()
    index.bounds_known(log_end, log_end)
    return index


@given(
    markers=st.lists(st.integers(1, 400), unique=True).map(sorted),
    known_from=st.integers(0, 500),
    asked=st.lists(st.integers(0, 500), max_size=4),
    end=st.integers(0, 500),
)
def test_what_is_known_is_what_redis_has(
    markers: list[int], known_from: int, asked: list[int], end: int
) -> None:
    kept = [aborted_at(2 * marker) for marker in markers]
    known_from *= 2
    index = loaded(known_from)
    for each in kept:
        if each.last_offset >= known_from:
            index.ended(7, each.last_offset, each.first_offset, each.stable_end, committed=False)
    for first in asked:
        told = [each for each in kept if each.last_offset >= first]
        index.learned(first, told, index.known_from)
    assert index.known_from == min([known_from, *asked])
    for first in (index.known_from, *asked):
        there = [each for each in kept if each.last_offset >= first]
        assert index.aborted_in(first, end) == overlapping(there, end)


def test_the_newest_are_remembered_where_there_are_too_many() -> None:
    kept = [aborted_at(2 * number) for number in range(1, MOST + 101)]
    index = loaded(10_000)
    index.learned(0, kept, 10_000)
    assert index.known_from == kept[99].last_offset + 1
    assert index.aborted_in(index.known_from, 10_000) == kept[100:]
    index.ended(7, 10_001, 10_000, 10_002, committed=False)
    assert index.known_from == kept[100].last_offset + 1


def test_an_answer_to_an_older_question_is_not_used() -> None:
    index = loaded(100)
    index.forget()
    index.learned(0, [aborted_at(50)], 100)
    assert index.known_from == -1
    index.bounds_known(200, 200)
    index.learned(0, [aborted_at(50)], 100)
    assert index.known_from == 200
    assert index.aborted_in(0, 200) == []
