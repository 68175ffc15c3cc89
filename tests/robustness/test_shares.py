"""Checkers of share groups: made-up histories to catch, and to pass."""

from __future__ import annotations

import msgspec
import pytest

from robustness.plan import DELIVERIES, LOCK_MS
from robustness.story import Story

X, Y = (1, "x"), (2, "y")


def story(*, kept_locks: bool = True) -> Story:
    return Story(share_groups=("q",), lock_ms=LOCK_MS, deliveries=DELIVERIES, kept_locks=kept_locks)


def test_a_record_is_taken_and_accepted() -> None:
    assert story().takes("a", X, Y).settles("a", *X).settles("a", *Y, "reject").violations() == set()


def test_released_and_silently_kept_records_are_taken_again() -> None:
    released = story().takes("a", X).settles("a", *X, "release").takes("b", X).settles("b", *X)
    assert released.violations() == set()
    assert story().takes("a", X).takes("b", X).settles("b", *X).violations() == set()
    again = story().takes("a", X).takes("b", X).settles("b", *X, "release").takes("a", X).settles("a", *X)
    assert again.violations() == set()


@pytest.mark.parametrize("outcome", ["accept", "reject"])
def test_nobody_gets_a_record_after_its_end(outcome: str) -> None:
    ended = story().takes("a", X).settles("a", *X, outcome)
    assert ended.takes("b", X).violations() == {"taken after its end"}


def test_a_record_is_taken_as_often_as_the_limit_says() -> None:
    found = story()
    for _ in range(DELIVERIES):
        found.takes("a", X).settles("a", *X, "release")
    assert found.violations() == set()
    assert found.takes("a", X).violations() == {"taken too often"}


def test_what_was_asked_before_the_end_may_be_answered_after_it() -> None:
    told = story().asks("b").takes("a", X).settles("a", *X).gets("b", X)
    assert told.violations() == set()


@pytest.mark.parametrize("type_", ["fail", "info"])
def test_what_does_not_count_ends_nothing(type_: str) -> None:
    assert story().takes("a", X).settles("a", *X, type_=type_).takes("b", X).violations() == set()


def test_an_answer_after_the_end_of_the_lock_proves_nothing() -> None:
    late = story().takes("a", X).takes("b", X).settles("b", *X)
    late.events[-1] = msgspec.structs.replace(late.events[-1], at=2 * LOCK_MS * 1_000_000)
    assert late.takes("a", X).violations() == set()


def test_a_record_ends_once() -> None:
    twice = story().takes("a", X).takes("b", X).settles("b", *X).settles("a", *X, "reject")
    assert "ended twice" in twice.violations()


def test_a_record_has_one_owner() -> None:
    owned = story().takes("a", X).takes("b", X).settles("a", *X)
    assert owned.violations() == {"two owners"}


def test_every_record_is_taken_by_a_group_that_has_caught_up() -> None:
    sent = story().sent("x", 1).sent("y", 2).takes("a", X).settles("a", *X).end(X, Y)
    assert sent.violations() == set()
    assert sent.caught_up(group="q").violations() == {"never taken"}
    all_taken = story().sent("x", 1).sent("y", 2).takes("a", X, Y).end(X, Y)
    assert all_taken.caught_up(group="q").violations() == set()


def test_runs_that_may_lose_locks_report_what_is_repeated() -> None:
    lossy = story(kept_locks=False).takes("a", X).settles("a", *X).takes("b", X)
    assert (lossy.violations(), lossy.notes()) == (set(), {"taken after its end"})
