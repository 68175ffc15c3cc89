"""Checkers of lost records: made-up histories to catch, and to pass."""

from __future__ import annotations

import pytest

from robustness.history import ReadAll, Stuck, Topic, addressed
from robustness.story import LOSSY, Story


def test_an_acknowledged_record_below_what_others_read_is_a_lost_write() -> None:
    story = Story().sent("a", 5).sent("b", 9).polled("c", (9, "b")).end((9, "b"))
    assert story.violations() == {"lost write"}


def test_an_acknowledged_record_that_nobody_reached_is_unseen() -> None:
    assert Story().sent("a", 5).sent("b", 9).end((5, "a")).violations() == {"unseen"}
    assert Story().sent("a", 5).end().violations() == {"unseen"}
    assert Story().send("a").acked("a").end().violations() == {"unseen"}


def test_readers_of_committed_records_see_all_records_outside_of_transactions() -> None:
    story = Story().sent("a", 5).sent("b", 7)
    assert story.end((7, "b"), hidden=[(5, "a")]).violations() == {"unseen"}
    story = Story().sent("a", 5).read_all((5, "a"), isolation="read_committed").read_all()
    assert story.violations() == {"unseen"}


def test_partitions_do_not_get_lost() -> None:
    story = Story().sent("a", 5).sent("b", 7, partition=1).end((5, "a"))
    assert story.violations() == {"lost partition"}
    story = Story((-1,)).sent("a", 5).sent("b", 7, acks=1, partition=1).end((5, "a"))
    assert story.violations() == set()
    story = Story().sent("a", 5).admin("create_partitions", detail="2").end((5, "a"))
    assert story.violations() == {"lost partition"}
    assert story.read_all(partition=1).violations() == set()
    story = Story().sent("a", 5).admin("create_partitions", "info", detail="2").end((5, "a"))
    assert story.violations() == set()


def test_without_a_final_read_a_passed_record_is_lost() -> None:
    assert Story().sent("a", 5).sent("b", 9).polled("c", (9, "b")).violations() == {"lost write"}
    assert Story().sent("a", 5).sent("b", 9).polled("c", (5, "a")).violations() == set()


def test_gaps_between_offsets_are_no_loss() -> None:
    story = Story().sent("a", 5).sent("b", 90_000).polled("c", (5, "a"), (90_000, "b"))
    assert story.end((5, "a"), (90_000, "b")).violations() == set()


@pytest.mark.parametrize("type_", ["fail", "info"])
def test_records_that_were_not_acknowledged_may_be_missing(type_: str) -> None:
    assert Story().failed("a", type_).end().violations() == set()
    assert Story().send("a").end().violations() == set()


def test_a_topic_that_may_lose_acks_of_the_primary_keeps_those_of_all() -> None:
    story = Story((-1,)).sent("a", 5, acks=1).end()
    assert (story.violations(), story.notes()) == (set(), {"unseen"})
    assert Story((-1,)).sent("a", 5, acks=-1).end().violations() == {"unseen"}


def test_deleted_records_and_topics_are_not_lost() -> None:
    deleted = Story().sent("a", 5).sent("b", 9).polled("c", (5, "a")).admin("delete_records", offset=9)
    assert deleted.end((9, "b")).violations() == set()
    assert Story().sent("a", 5).admin("delete_records", offset=3).end().violations() == {"unseen"}
    assert Story().sent("a", 5).admin("delete_topic").end().violations() == set()
    unknown = Story().sent("a", 5).admin("delete_records", "info")
    assert unknown.end().violations() == set()


def test_compaction_removes_only_records_that_newer_ones_replace() -> None:
    story = Story(compacted=True).sent("a", 5, key="k").sent("b", 9, key="k")
    assert story.end((9, "b")).violations() == set()
    story = Story(compacted=True).sent("a", 5, key="k").sent("b", 9, key="other")
    assert story.end((9, "b")).violations() == {"lost write"}


def test_native_entries_are_kept_like_acks_of_the_primary() -> None:
    assert Story().native_sent("a", "5-1").end().violations() == {"unseen"}
    assert Story((-1,)).native_sent("a", "5-1").end().violations() == set()
    assert Story().native_sent("a", "5-1").end((5 << 10 | 1, "a")).violations() == set()


def test_an_entry_that_no_offset_names_is_not_a_record() -> None:
    story = Story().native_sent("a", "5-1").native_sent("b", "5-1024").native_sent("c", "6-0")
    story.native_polled(("5-1", "a"), ("5-1024", "b"), ("6-0", "c"))
    in_redis = tuple(addressed((("5-1", "a"), ("5-1024", "b"), ("6-0", "c"))))
    assert in_redis == ((5 << 10 | 1, "a"), (6 << 10, "c"))
    story.end(*in_redis)
    assert story.violations() == set()
    assert "phantom" in story.polled("c", (6 << 10 | 1, "b")).violations()


def test_a_record_that_a_consumer_has_read_may_not_vanish() -> None:
    story = Story((-1,)).send("a", acks=1).polled("c", (5, "a"))
    assert story.end().violations() == {"vanished read"}
    story = Story(LOSSY).send("a", acks=1).polled("c", (5, "a")).end()
    assert (story.violations(), story.notes()) == (set(), {"vanished read"})


def test_a_deleted_record_may_vanish() -> None:
    story = Story().sent("a", 5).polled("c", (5, "a")).admin("delete_records", offset=6)
    assert story.end().violations() == set()


def test_an_aborted_record_stays_for_readers_of_uncommitted_ones() -> None:
    story = Story().in_txn("x", (5, "a"), end="abort").polled("c", (5, "a"))
    assert story.end(hidden=[(5, "a")]).violations() == set()


def test_a_final_read_that_does_not_complete_is_reported() -> None:
    assert Story().read_all((5, "a"), complete=False).violations() >= {"unreadable"}
    story = Story().sent("a", 5).sent("b", 6)
    assert story.read_all((5, "a"), complete=False).read_all((6, "b")).violations() == set()


def test_a_read_of_redis_does_not_stand_for_one_by_kafka() -> None:
    story = Story().sent("a", 5).read_all(complete=False).read_all((5, "a"), reader="native")
    assert story.violations() == {"unreadable"}


def test_a_final_read_that_begins_again_forgets_its_first_part() -> None:
    story = Story().sent("a", 5).read_all((5, "a"), complete=False)
    story.add(ReadAll, "final", "invoke", topic="t", partition=0)
    assert story.read_all((5, "a")).violations() == set()


def test_members_that_do_not_get_to_the_end_are_stalled() -> None:
    assert Story().sent("a", 5).caught_up("info").violations() == {"stalled group"}
    assert Story().sent("a", 5).caught_up().violations() == set()


def group_story(*read: tuple[int, str]) -> Story:
    story = Story(groups=("g",)).sent("a", 5).sent("b", 9).sent("d", 12)
    return story.polled("m", *read, group="g")


def test_a_group_may_not_commit_past_a_record_that_no_member_has_read() -> None:
    everything = ((5, "a"), (9, "b"), (12, "d"))
    story = group_story((9, "b"), (12, "d")).commit(13).end(*everything).fetched(13)
    assert story.violations() == {"unread by group"}
    story = Story(groups=("g",)).sent("a", 5).commit(6).end((5, "a")).fetched(6)
    assert story.violations() == {"unread by group"}


def test_a_group_may_leave_records_above_its_commit_unread() -> None:
    story = group_story((5, "a"), (9, "b")).commit(10).end((5, "a"), (9, "b"), (12, "d")).fetched(10)
    assert story.violations() == set()


def test_members_of_a_group_share_the_records() -> None:
    story = group_story((5, "a")).assigned("n").polled("n", (9, "b"), (12, "d"), group="g").commit(13, "n")
    assert story.end((5, "a"), (9, "b"), (12, "d")).fetched(13).violations() == set()


def test_a_group_that_validates_may_not_skip_a_new_history() -> None:
    story = Story(LOSSY, groups=("g",)).sent("old", 6).polled("m", (6, "old"), group="g", validates=True)
    story.commit(7).sent("a", 6, "q").sent("b", 7, "q").sent("c", 8, "q").assigned("n")
    story.polled("n", (8, "c"), group="g", validates=True).commit(9, "n")
    assert "unread by group" in story.end((6, "a"), (7, "b"), (8, "c")).fetched(9).violations()


def test_a_member_may_commit_past_a_lost_record_before_it_is_told() -> None:
    """The next member begins there."""
    story = Story(LOSSY, groups=("g",)).sent("old", 6).polled("m", (6, "old"), group="g", validates=True)
    story.sent("a", 6, "q").sent("b", 7, "q").commit(7).assigned("n")
    story.polled("n", (7, "b"), group="g", validates=True).commit(8, "n")
    assert "unread by group" not in story.end((6, "a"), (7, "b")).fetched(8).violations()


def test_a_commit_of_a_lost_history_proves_nothing() -> None:
    story = Story(LOSSY, groups=("g",)).sent("old", 6).polled("m", (6, "old"), group="g", validates=True)
    story.commit(7).sent("a", 6, "q")
    assert story.end((6, "a")).fetched(7).violations() == set()


def test_a_client_that_hangs_after_the_faults_is_found() -> None:
    story = Story().sent("a", 5).add(Stuck, "runner", "info", subject="p", waited_s=60)
    assert story.end((5, "a")).violations() == {"stuck client"}


def test_records_that_were_deleted_do_not_come_back() -> None:
    story = Story().sent("a", 1).sent("b", 2).admin("delete_records", offset=2)
    assert "undeleted" in story.end((1, "a"), (2, "b")).violations()


def test_deleted_records_may_be_gone() -> None:
    story = Story().sent("a", 1).sent("b", 2).admin("delete_records", offset=2)
    assert story.end((2, "b")).violations() == set()


def test_a_topic_that_was_not_read_is_a_violation() -> None:
    story = Story(topics=(Topic(name="t"), Topic(name="u")))
    story.sent("a", 1).sent("b", 1, topic="u")
    assert story.end((1, "a")).violations() == {"lost partition"}
