"""Checkers of the order of polls and sends: made-up histories to catch, and to pass."""

from __future__ import annotations

import pytest

from robustness.story import LOSSY, Story


def three() -> Story:
    """Three records at 5, 7 and 9."""
    return Story().sent("a", 5).sent("b", 7).sent("d", 9)


LOG = ((5, "a"), (7, "b"), (9, "d"))


def test_offsets_grow_within_a_poll() -> None:
    story = three().polled("c", (7, "b"), (5, "a"))
    assert story.violations() == {"internal nonmonotonic poll"}
    assert three().polled("c", (5, "a"), (5, "a")).violations() == {"internal nonmonotonic poll"}
    assert three().polled("c", *LOG).violations() == set()


def test_offsets_grow_from_poll_to_poll() -> None:
    story = three().polled("c", (5, "a"), (7, "b"))
    assert story.polled("c", (7, "b"), (9, "d")).violations() == {"nonmonotonic poll"}
    story = three().polled("c", (5, "a"), (7, "b")).polled("c").polled("c", (9, "d"))
    assert story.violations() == set()


def test_other_consumers_have_their_own_order() -> None:
    assert three().polled("c", *LOG).polled("d", *LOG).violations() == set()


@pytest.mark.parametrize("why", ["rebalance", "assign", "seek"])
def test_an_assignment_excuses_going_back(why: str) -> None:
    story = three().polled("c", *LOG).assigned("c", why=why).polled("c", (7, "b"))
    assert story.violations() == set()


def test_the_assignment_of_another_consumer_excuses_nothing() -> None:
    story = three().polled("c", *LOG).assigned("d").polled("c", (7, "b"))
    assert story.violations() == {"nonmonotonic poll"}


def test_a_truncation_excuses_going_back_to_its_offset_only() -> None:
    lossy = Story(LOSSY).sent("a", 5).send("old").send("new").polled("c", (5, "a"), (6, "old"))
    assert lossy.truncated("c", 6).polled("c", (6, "new")).violations() == set()
    assert lossy.polled("c", (5, "a")).violations() == {"nonmonotonic poll"}


def test_a_record_between_two_polls_is_skipped() -> None:
    story = three().polled("c", (5, "a")).polled("c", (9, "d")).end(*LOG)
    assert story.violations() == {"skipped poll"}


def test_a_record_within_a_poll_is_skipped() -> None:
    assert three().polled("c", (5, "a"), (9, "d")).end(*LOG).violations() == {"internal skipped poll"}


def test_free_offsets_are_not_skipped() -> None:
    assert three().polled("c", (5, "a")).polled("c", (7, "b"), (9, "d")).end(*LOG).violations() == set()


def test_an_assignment_excuses_skipping() -> None:
    story = three().polled("c", (5, "a")).assigned("c").polled("c", (9, "d"))
    assert story.end(*LOG).violations() == set()


def test_a_truncated_consumer_reads_on_where_the_log_was_cut() -> None:
    story = Story(LOSSY).send("old").sent("a", 5).sent("b", 7, "q").sent("d", 9, "q")
    story.polled("c", (5, "a"), (8, "old")).truncated("c", 6)
    skipping = Story(LOSSY)
    skipping.events = [*story.events]
    assert skipping.polled("c", (9, "d"), validates=True).end(*LOG).violations() == {"skipped poll"}
    assert story.polled("c", (7, "b"), (9, "d")).end(*LOG).violations() == set()
    higher = Story(LOSSY).send("old").sent("a", 5).sent("b", 7, "q").sent("d", 9, "q")
    higher.polled("c", (5, "a"), (8, "old")).truncated("c", 8)
    assert higher.polled("c", (9, "d")).end(*LOG).violations() == set()


def test_deleted_records_are_not_skipped() -> None:
    story = three().polled("c", (5, "a")).admin("delete_records", offset=9).polled("c", (9, "d"))
    assert story.end(LOG[-1]).violations() == set()


def test_readers_of_committed_records_skip_aborted_ones() -> None:
    story = Story().sent("a", 5).in_txn("x", (7, "b"), end="abort").sent("d", 9)
    story.polled("c", (5, "a"), (9, "d"), isolation="read_committed")
    assert story.end((5, "a"), (9, "d"), hidden=[(7, "b")]).violations() == set()


def test_other_readers_may_not_skip_aborted_records() -> None:
    story = (
        Story().sent("a", 5).in_txn("x", (7, "b"), end="abort").sent("d", 9).polled("c", (5, "a"), (9, "d"))
    )
    assert story.end((5, "a"), (9, "d"), hidden=[(7, "b")]).violations() == {"internal skipped poll"}


def test_readers_of_committed_records_may_not_skip_committed_ones() -> None:
    story = Story().sent("a", 5).in_txn("x", (7, "b")).sent("d", 9)
    story.polled("c", (5, "a"), (9, "d"), isolation="read_committed")
    assert story.end(*LOG).violations() == {"internal skipped poll"}


def test_a_consumer_that_does_not_validate_may_have_read_a_marker_that_was_lost() -> None:
    def skipping(**reader: bool) -> Story:
        story = Story(LOSSY).sent("a", 5).sent("b", 7, "q").sent("d", 9, "q")
        return story.polled("c", (5, "a"), **reader).polled("c", (9, "d"), **reader).end(*LOG)

    assert skipping().violations() == set()
    assert "skipped poll" in skipping().notes()
    assert skipping(validates=True).violations() == {"skipped poll"}


def test_records_of_a_lost_history_are_not_compared_with_the_new_one() -> None:
    """The record at 7 took the place of a marker of the lost history."""
    story = Story(LOSSY).sent("a", 5).send("old").polled("c", (5, "a"), (9, "old")).sent("new", 7, "q")
    assert story.end((5, "a"), (7, "new")).violations() == set()


def test_offsets_of_an_idempotent_producer_grow() -> None:
    story = Story().sent("a", 7, idempotent=True).sent("b", 5, idempotent=True).end((5, "b"), (7, "a"))
    assert story.violations() == {"nonmonotonic send"}
    story = Story().send("a", idempotent=True).send("b", idempotent=True)
    story.acked("b", 7, idempotent=True).acked("a", 5, idempotent=True)
    assert story.end((5, "a"), (7, "b")).violations() == set()


def test_a_plain_producer_that_overtakes_itself_is_only_reported() -> None:
    story = Story().sent("a", 7).sent("b", 5).end((5, "b"), (7, "a"))
    assert (story.violations(), story.notes()) == (set(), {"nonmonotonic send"})


def test_a_plain_producer_that_repeats_nothing_may_not_be_overtaken() -> None:
    story = Story().sent("a", 7, ordered=True).sent("b", 5, ordered=True).end((5, "b"), (7, "a"))
    assert story.violations() == {"nonmonotonic send"}
    story = Story().sent("a", 5, ordered=True).sent("b", 7, ordered=True).end((5, "a"), (7, "b"))
    assert story.violations() == set()


def test_several_producers_may_overtake_each_other() -> None:
    story = Story().send("a", idempotent=True).sent("b", 5, "q", idempotent=True).acked("a", 7)
    assert story.end((5, "b"), (7, "a")).violations() == set()


def test_offsets_may_go_back_after_a_loss_that_is_allowed() -> None:
    story = Story(LOSSY).sent("a", 7, idempotent=True).sent("b", 5, idempotent=True)
    assert story.end((5, "b")).violations() == set()
