"""Checkers of committed offsets: made-up histories to catch, and to pass."""

from __future__ import annotations

import pytest

from robustness.history import UNKNOWN
from robustness.story import Story


def test_the_newest_acknowledged_commit_is_fetched() -> None:
    assert Story().commit(5).commit(7).fetched(7).violations() == set()
    assert Story().commit(5).commit(7).fetched(5).violations() == {"commit went back"}
    assert Story().commit(5).commit(7, "n").fetched(5).violations() == {"commit went back"}


def test_an_acknowledged_commit_is_not_lost() -> None:
    assert Story().commit(5).fetched(UNKNOWN).violations() == {"lost commit"}
    assert Story().fetched(UNKNOWN).violations() == set()
    assert Story().commit(5, type_="info").fetched(UNKNOWN).violations() == set()


def test_runs_that_may_lose_commits_report_them() -> None:
    story = Story(kept_commits=False).commit(5).commit(7).fetched(5)
    assert (story.violations(), story.notes()) == (set(), {"commit went back"})


def test_a_later_commit_may_go_back() -> None:
    assert Story().commit(7).commit(5).fetched(5).violations() == set()
    assert Story().commit(7).commit(5, "older").fetched(5).violations() == set()


def test_a_refused_commit_has_no_effect() -> None:
    assert Story().commit(7).commit(5, "older", "fail").fetched(5).violations() == {"unknown commit"}
    assert Story().commit(7).commit(5, "older", "fail").fetched(7).violations() == set()


def test_a_commit_without_an_answer_may_take_effect_at_any_later_time() -> None:
    story = Story().committing(5, "n").commit(7)
    assert story.fetched(7).fetched(5).violations() == set()
    assert Story().commit(5, "n", "info").commit(7).fetched(5).violations() == set()


def test_a_commit_has_no_effect_before_it_begins() -> None:
    assert Story().commit(5).fetched(7).commit(7).violations() == {"unknown commit"}


def test_commits_at_the_same_time_may_take_effect_in_any_order() -> None:
    story = Story().committing(5, "m").committing(7, "n").committed(5, "m").committed(7, "n")
    assert story.fetched(5).violations() == set()
    assert story.fetched(7).violations() == set()


def test_a_fetch_during_a_commit_may_return_either() -> None:
    story = Story().commit(5).committing(7).fetched(5).fetched(7).committed(7)
    assert story.violations() == set()


def test_an_offset_that_nobody_committed_is_unknown() -> None:
    assert Story().commit(5).fetched(6).violations() == {"unknown commit"}


@pytest.mark.parametrize(
    ("type_", "fetched", "found"), [("ok", 5, "lost commit"), ("fail", 9, "unknown commit")]
)
def test_offsets_of_transactions(type_: str, fetched: int, found: str) -> None:
    def story() -> Story:
        place = {"group": "g", "offsets": (Story().commit(9).events[-1].offsets[0],)}  # type: ignore[attr-defined]
        return Story().txn("x", "begin").txn("x", "commit", type_, **place)

    assert story().fetched(UNKNOWN if type_ == "ok" else fetched).violations() == {found}
    assert story().fetched(9 if type_ == "ok" else UNKNOWN).violations() == set()


def test_groups_that_others_move_are_left_out() -> None:
    story = Story().commit(7).native_polled(("1-1", "a"), group="g").fetched(5)
    assert "commit went back" not in story.violations()
    assert Story().commit(7).admin("delete_group", detail="g").fetched(UNKNOWN).violations() == set()


LOG = ((5, "a"), (7, "b"))


def log() -> Story:
    return Story().sent("a", 5).sent("b", 7).commit(6)


def test_the_redis_group_is_at_the_commit() -> None:
    assert log().end(*LOG).fetched(6).redis_group(6).violations() == set()
    assert log().end(*LOG).fetched(6).redis_group(7).violations() == set()
    assert log().end(*LOG).fetched(6).redis_group(8).violations() == {"Redis group differs"}
    assert log().end(*LOG).fetched(6).redis_group(0).violations() == {"Redis group differs"}


def test_no_entry_below_the_commit_is_pending() -> None:
    assert log().end(*LOG).fetched(6).redis_group(6, [5]).violations() == {"Redis group differs"}
    assert log().end(*LOG).fetched(6).redis_group(6, [7]).violations() == set()


def test_a_partition_has_one_owner() -> None:
    story = Story(groups=("g",)).sent("a", 1).sent("b", 2)
    story.assigned("m1", group="g").polled("m1", (1, "a"), group="g")
    story.assigned("m2", group="g").polled("m2", (1, "a"), (2, "b"), group="g")
    story.commit(2, "m1").commit(3, "m2").fetched(3)
    assert story.end((1, "a"), (2, "b")).violations() == {"two owners"}


def test_the_next_owner_commits_what_the_former_one_has_read() -> None:
    story = Story(groups=("g",)).sent("a", 1).sent("b", 2)
    story.assigned("m1", group="g").polled("m1", (1, "a"), group="g").commit(2, "m1")
    story.assigned("m2", group="g").polled("m2", (2, "b"), group="g").commit(3, "m2").fetched(3)
    assert story.end((1, "a"), (2, "b")).violations() == set()
