"""Checkers of records that are not where they belong: made-up histories to catch, and to pass."""

from __future__ import annotations

from typing import Any

import pytest

from robustness.story import LOSSY, Story


def test_a_record_that_nobody_sent_is_a_phantom() -> None:
    assert Story().polled("c", (5, "a")).violations() == {"phantom"}
    assert Story().end((5, "a")).violations() == {"phantom"}
    assert Story().polled("c", (5, "a")).sent("a", 5).violations() == {"phantom"}


def test_a_record_may_be_read_before_it_is_acknowledged() -> None:
    assert Story().send("a").polled("c", (5, "a")).acked("a", 5).end((5, "a")).violations() == set()
    assert Story().failed("a", "info").polled("c", (5, "a")).end((5, "a")).violations() == set()


def test_a_failed_send_may_not_be_read() -> None:
    assert Story().failed("a").polled("c", (5, "a")).end((5, "a")).violations() == {"failed write"}
    assert Story().failed("a").end((5, "a")).violations() == {"failed write"}


def test_a_record_in_another_partition_is_misplaced() -> None:
    story = Story().send("a", partition=1).polled("c", (5, "a"))
    assert story.violations() == {"misplaced"}
    story = Story().sent("a", 5).polled("c", (5, "a")).end((5, "a")).read_all((5, "a"), partition=1)
    assert story.violations() == {"misplaced"}


@pytest.mark.parametrize("fields", [{"idempotent": True}, {"txn": "x"}])
def test_an_idempotent_producer_has_no_duplicates(fields: dict[str, Any]) -> None:
    story = Story().txn("x", "begin").sent("a", 5, **fields).txn("x", "commit")
    assert story.end((5, "a"), (7, "a")).violations() == {"duplicate"}


def test_a_duplicate_that_is_not_there_at_the_end_was_read() -> None:
    story = Story().sent("a", 5, idempotent=True).polled("c", (5, "a")).polled("d", (9, "a"))
    assert story.end((9, "a")).violations() == {"duplicate"}
    story = Story(compacted=True).sent("a", 5, idempotent=True, key="k").polled("c", (5, "a"), (9, "a"))
    assert story.end((9, "a")).violations() == {"duplicate"}
    story = Story(compacted=True).sent("a", 5, key="k").polled("c", (5, "a"), (9, "a")).end((9, "a"))
    assert (story.violations(), story.notes()) == (set(), {"duplicate"})


def test_duplicates_of_a_plain_producer_are_only_reported() -> None:
    story = Story().sent("a", 5).end((5, "a"), (7, "a"))
    assert (story.violations(), story.notes()) == (set(), {"duplicate"})


def test_a_record_that_was_lost_and_sent_again_is_no_duplicate() -> None:
    story = Story(LOSSY).send("a", idempotent=True).polled("c", (5, "a")).acked("a", 7, idempotent=True)
    assert story.end((7, "a")).violations() == set()


def test_a_record_is_where_its_producer_was_told() -> None:
    assert Story().sent("a", 5).end((7, "a")).violations() == {"moved offset"}
    assert Story().sent("a", 5).polled("c", (7, "a")).violations() == {"moved offset"}
    assert Story().sent("a", 5).end((5, "a"), (7, "a")).violations() == set()
    assert Story().send("a").acked("a").end((7, "a")).violations() == set()


def test_the_acknowledged_copy_of_a_record_that_a_plain_producer_wrote_twice_may_be_lost() -> None:
    story = Story(kept_acks=LOSSY).sent("a", 5).end((3, "a"))
    assert story.violations() == set()
    assert "moved offset" in story.notes()
    idempotent = Story(kept_acks=LOSSY).sent("a", 5, idempotent=True).end((3, "a"))
    assert idempotent.violations() == {"moved offset"}


def test_the_acknowledged_copy_of_a_record_that_a_plain_producer_wrote_twice_may_be_deleted() -> None:
    story = Story().send("a").polled("c", (3, "a")).acked("a", 5).admin("delete_records", offset=6)
    assert story.end().violations() == set()
    assert "moved offset" in story.notes()


def test_the_acknowledged_copy_of_a_record_that_a_plain_producer_wrote_twice_may_be_compacted() -> None:
    def written(key: str, *, idempotent: bool = False) -> Story:
        story = Story(compacted=True).send("a", key="k", idempotent=idempotent).polled("c", (3, "a"))
        return story.acked("a", 5, key="k", idempotent=idempotent).sent("b", 9, key=key)

    story = written("k").end((9, "b"))
    assert story.violations() == set()
    assert "moved offset" in story.notes()
    assert "moved offset" in written("k", idempotent=True).end((9, "b")).violations()
    assert "moved offset" in written("other").end((9, "b")).violations()


def test_one_offset_has_one_value() -> None:
    story = Story().send("a").send("b").polled("c", (5, "a")).polled("d", (5, "b"))
    assert story.violations() == {"inconsistent offset"}
    assert "inconsistent offset" in Story().sent("a", 5).sent("b", 5).end((5, "b")).violations()
    story = Story().send("a").send("b").polled("c", (5, "a")).end((5, "b"))
    assert "inconsistent offset" in story.violations()


def test_a_lossy_topic_may_have_two_values_at_an_offset_in_two_epochs() -> None:
    story = Story(LOSSY).sent("a", 5, epoch=1).sent("b", 5, epoch=2).end((5, "b"))
    assert (story.violations(), story.notes()) == (set(), {"inconsistent offset", "unseen"})
    story = Story(LOSSY).send("a").send("b").polled("c", (5, "a"), epoch=1).polled("d", (5, "b"), epoch=2)
    assert story.violations() == set()


def test_even_a_lossy_topic_has_one_value_at_an_offset_of_one_epoch() -> None:
    story = Story(LOSSY).sent("a", 5, epoch=2).sent("b", 5, epoch=2).end((5, "b"))
    assert story.violations() == {"inconsistent offset"}
    story = Story(LOSSY).send("a").send("b").polled("c", (5, "a"), epoch=2).polled("d", (5, "b"), epoch=2)
    assert story.violations() == {"inconsistent offset"}


def test_an_acknowledgement_of_acks_that_may_be_lost_reserves_no_offset() -> None:
    story = Story((-1,)).sent("a", 5, acks=1).sent("b", 5, "q", acks=-1).end((5, "b"))
    assert story.violations() == set()


def test_a_consumer_that_validates_reads_one_value_at_an_offset_unless_told() -> None:
    story = Story(LOSSY).send("a").send("b").polled("c", (5, "a"), validates=True)
    assert "two values for a consumer" in story.polled("c", (5, "b"), validates=True).violations()
    story = Story(LOSSY).send("a").send("b").polled("c", (5, "a"), validates=True).truncated("c", 6)
    assert "two values for a consumer" in story.polled("c", (5, "b"), validates=True).violations()


def test_a_consumer_that_was_told_or_begins_again_may_read_another_value() -> None:
    story = Story(LOSSY).send("a").send("b").polled("c", (5, "a"), validates=True).truncated("c", 5)
    assert story.polled("c", (5, "b"), validates=True).violations() == set()
    story = Story(LOSSY).send("a").send("b").polled("c", (5, "a"), validates=True).assigned("c")
    assert story.polled("c", (5, "b"), validates=True).violations() == set()


def test_redis_and_kafka_clients_see_the_same() -> None:
    for native in ([], [(5, "a"), (6, "b")], [(4, "a")]):
        story = Story().send("a").send("b").read_all((5, "a")).read_all(*native, reader="native")
        assert story.violations() == {"native readers differ"}
    story = Story().send("a").read_all((5, "a")).read_all((5, "a"), reader="native")
    assert story.violations() == set()


def test_redis_clients_read_in_the_order_of_entries() -> None:
    assert Story().native_polled(("5-1", "a"), ("4-1", "b")).violations() == {"native readers differ"}
    assert Story().native_polled(("5-1", "a")).native_polled(("5-2", "b")).violations() == set()
    assert Story().native_polled(("5-1", "a"), ("4-1", "b"), group="g").violations() == set()
