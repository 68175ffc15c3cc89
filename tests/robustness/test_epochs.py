"""Checkers of truncations and leader epochs: made-up histories to catch, and to pass."""

from __future__ import annotations

from typing import Any

from korvet.offsets.packing import offset_of
from robustness.story import LOSSY, Story

VALIDATES: dict[str, Any] = {"validates": True}


def lost() -> Story:
    """A consumer has read a record that is lost then; another record is appended after it."""
    return Story(LOSSY).sent("old", 6).polled("c", (6, "old"), **VALIDATES).sent("new", 90, "q")


def test_a_consumer_that_validates_is_told_of_lost_records() -> None:
    story = lost().polled("c", (90, "new"), **VALIDATES)
    assert story.end((90, "new")).violations() == {"untold truncation"}


def test_a_consumer_that_was_told_may_go_on() -> None:
    story = lost().truncated("c", 6).polled("c", (90, "new"), **VALIDATES)
    assert story.end((90, "new")).violations() == set()


def test_a_truncation_above_the_lost_record_does_not_count() -> None:
    story = lost().truncated("c", 7).polled("c", (90, "new"), **VALIDATES)
    assert story.end((90, "new")).violations() == {"untold truncation"}


def test_consumers_that_do_not_validate_or_begin_again_need_not_be_told() -> None:
    story = Story(LOSSY).sent("old", 6).polled("c", (6, "old")).sent("new", 90, "q").polled("c", (90, "new"))
    assert story.end((90, "new")).violations() == set()
    story = lost().assigned("c").polled("c", (90, "new"), **VALIDATES)
    assert story.end((90, "new")).violations() == set()


def test_a_consumer_that_reads_only_the_lost_history_need_not_be_told() -> None:
    story = (
        Story(LOSSY).sent("old", 6).sent("older", 5, "q").polled("c", (5, "older"), (6, "old"), **VALIDATES)
    )
    assert story.end().violations() == set()


def test_a_truncation_is_told_only_if_something_was_lost() -> None:
    story = Story().sent("a", 5).polled("c", (5, "a"), **VALIDATES).truncated("c", 6)
    assert story.end((5, "a")).violations() == {"needless truncation"}


def test_a_truncation_of_what_was_lost_or_deleted_is_not_needless() -> None:
    assert lost().truncated("c", 7).end((90, "new")).violations() == set()
    deleted = Story().sent("a", 5).polled("c", (5, "a"), **VALIDATES).admin("delete_records", offset=6)
    assert deleted.truncated("c", 6).end().violations() == set()
    # A failover undoes a deletion that was not acknowledged.
    undone = Story().sent("a", 5).polled("c", (5, "a"), **VALIDATES)
    undone.admin("delete_records", "invoke", offset=6).admin("delete_records", "info", offset=6)
    assert undone.truncated("c", 6).end((5, "a")).violations() == set()


def test_a_truncation_may_be_that_of_a_marker_in_a_topic_that_may_lose_records() -> None:
    story = Story(kept_acks=LOSSY).sent("a", 5).polled("c", (5, "a"), **VALIDATES)
    assert story.truncated("c", 6).end((5, "a")).violations() == set()
    lower = Story(kept_acks=LOSSY).sent("a", 5).polled("c", (5, "a"), **VALIDATES)
    assert lower.truncated("c", 5).end((5, "a")).violations() == {"needless truncation"}


def epochs() -> Story:
    """Epoch 1 has offset 5, epoch 3 has offset 9."""
    return Story().sent("a", 5, epoch=1).sent("b", 9, epoch=3)


LOG = ((5, "a"), (9, "b"))


def test_an_epoch_ends_after_its_records() -> None:
    assert epochs().epoch_end(1, 1, 6).epoch_end(2, 1, 9).epoch_end(3, 3, 10).end(*LOG).violations() == set()
    assert epochs().epoch_end(1, 1, 5).end(*LOG).violations() == {"wrong epoch end"}
    assert epochs().epoch_end(3, 3, 9).end(*LOG).violations() == {"wrong epoch end"}


def test_a_leader_may_continue_the_log_of_an_older_epoch() -> None:
    assert epochs().epoch_end(1, 1, 10).end(*LOG).violations() == set()


def test_an_epoch_ends_before_its_lost_records_once_a_later_one_has_begun() -> None:
    story = Story(LOSSY).sent("old", 6).polled("c", (6, "old"), epoch=1)
    assert story.epoch_end(1, 1, 7).end().violations() == set()
    for end, kinds in ((6, set()), (7, {"wrong epoch end"})):
        story = Story(LOSSY).sent("old", 6).polled("c", (6, "old"), epoch=1)
        story.sent("new", 6, "q", epoch=3).epoch_end(1, 1, end)
        assert story.end((6, "new")).violations() == kinds


def test_a_later_epoch_may_have_the_offsets_of_lost_records() -> None:
    story = Story(LOSSY).sent("old", 6).polled("c", (6, "old"), epoch=1).sent("new", 6, "q", epoch=2)
    story.sent("newer", 7, "q", epoch=3).epoch_end(1, 1, 6).epoch_end(2, 2, 7)
    assert story.end((6, "new"), (7, "newer")).violations() == set()


def test_an_entry_of_a_redis_client_after_lost_records_may_belong_to_their_epoch() -> None:
    lost, kept, new = offset_of("6-0"), offset_of("7-0"), offset_of("9-0")
    story = Story(LOSSY).sent("old", lost).polled("c", (lost, "old"), epoch=1, **VALIDATES)
    story.native_sent("native", "7-0").polled("c", (kept, "native"), epoch=1, **VALIDATES)
    story.sent("new", new, "q", epoch=3).epoch_end(1, 1, kept + 1).end((kept, "native"), (new, "new"))
    assert story.violations() == set()
    assert story.notes() >= {"untold truncation", "wrong epoch end"}


def test_an_epoch_whose_records_are_all_lost_ends_where_the_one_before_it_does() -> None:
    for end, kinds in ((6, set()), (7, {"wrong epoch end"})):
        story = Story(LOSSY).sent("kept", 5, epoch=1).sent("old", 6).polled("c", (6, "old"), epoch=2)
        story.sent("new", 6, "q", epoch=3).epoch_end(2, 1, end)
        assert story.end((5, "kept"), (6, "new")).violations() == kinds


def test_epochs_of_records_that_were_read_count() -> None:
    story = Story().sent("a", 5).polled("c", (5, "a"), epoch=1)
    assert story.epoch_end(1, 1, 5).end((5, "a")).violations() == {"wrong epoch end"}


def test_records_after_the_answer_prove_nothing() -> None:
    story = Story().sent("a", 5, epoch=1).epoch_end(1, 1, 6).sent("b", 9, epoch=1)
    assert story.end(*LOG).violations() == set()


def test_lost_records_prove_nothing_about_epochs() -> None:
    story = Story(LOSSY).sent("a", 5, epoch=1).epoch_end(1, 1, 3)
    assert story.end().violations() == set()
