"""Checkers of transactions: made-up histories to catch, and to pass."""

from __future__ import annotations

from typing import Any

import pytest

from robustness.history import Place
from robustness.story import Story

COMMITTED: dict[str, Any] = {"isolation": "read_committed"}


def test_readers_of_committed_records_see_no_aborted_ones() -> None:
    aborted = Story().in_txn("x", (5, "a"), end="abort").polled("c", (5, "a"), **COMMITTED)
    assert aborted.violations() == {"aborted read"}
    refused = Story().in_txn("x", (5, "a"), type_="fail").polled("c", (5, "a"), **COMMITTED)
    assert refused.violations() == {"aborted read"}
    assert Story().in_txn("x", (5, "a"), end="abort").end((5, "a")).violations() == {"aborted read"}


def test_a_transaction_whose_commit_nobody_asked_for_is_aborted() -> None:
    story = Story().txn("x", "begin").sent("a", 5, txn="x").polled("c", (5, "a"), **COMMITTED)
    assert story.violations() == {"aborted read"}


def test_other_readers_may_see_aborted_records() -> None:
    story = Story().in_txn("x", (5, "a"), end="abort").polled("c", (5, "a"))
    assert story.end(hidden=[(5, "a")]).violations() == set()


@pytest.mark.parametrize("type_", ["ok", "info"])
def test_committed_records_may_be_read(type_: str) -> None:
    story = Story().in_txn("x", (5, "a"), type_=type_).polled("c", (5, "a"), **COMMITTED)
    assert story.end((5, "a")).violations() == set()


def test_readers_of_committed_records_wait_for_the_commit() -> None:
    story = Story().txn("x", "begin").sent("a", 5, txn="x").polled("c", (5, "a"), **COMMITTED)
    assert story.txn("x", "commit").end((5, "a")).violations() == {"precommitted read"}
    story = Story().txn("x", "begin").sent("a", 5, txn="x").polled("c", (5, "a"))
    assert story.txn("x", "commit").end((5, "a")).violations() == set()


def test_a_committed_transaction_has_all_its_records() -> None:
    story = Story().in_txn("x", (5, "a"), (6, "b"))
    assert story.end((5, "a"), hidden=[(6, "b")]).violations() == {"torn transaction"}
    story = Story().in_txn("x", (5, "a"), (6, "b"))
    assert story.end((5, "a"), (6, "b")).violations() == set()


def test_a_committed_transaction_is_not_lost() -> None:
    assert Story().in_txn("x", (5, "a"), (6, "b")).end().violations() == {"lost transaction"}
    story = Story(kept_commits=False).in_txn("x", (5, "a")).end()
    assert (story.violations(), story.notes()) == (set(), {"lost transaction"})


def test_a_transaction_with_an_unknown_end_has_all_records_or_none() -> None:
    records = ((5, "a"), (6, "b"))
    assert Story().in_txn("x", *records, type_="info").end(hidden=records).violations() == set()
    assert Story().in_txn("x", *records, type_="info").end(*records).violations() == set()
    story = Story().in_txn("x", *records, type_="info").end((5, "a"), hidden=[(6, "b")])
    assert story.violations() == {"torn transaction"}


def test_a_transaction_that_was_read_as_committed_is_not_lost() -> None:
    story = Story().in_txn("x", (5, "a"), type_="info").polled("c", (5, "a"), **COMMITTED)
    assert "lost transaction" in story.end(hidden=[(5, "a")]).violations()


def test_records_that_were_not_acknowledged_are_no_part_of_a_transaction() -> None:
    story = Story().txn("x", "begin").sent("a", 5, txn="x").failed("b", "info", txn="x").txn("x", "commit")
    assert story.end((5, "a")).violations() == set()


def test_deleted_records_do_not_tear_a_transaction() -> None:
    story = Story().in_txn("x", (5, "a"), (6, "b")).admin("delete_records", offset=6)
    assert story.end((6, "b")).violations() == set()


def in_circle(*, last: str) -> Story:
    """Transaction x reads a record of y, and y one of `last`."""
    story = Story().txn("x", "begin").txn("y", "begin").send("a", txn="x").send("b", "q", txn="y")
    story.send("plain", "q").polled("c", (6, "b"), txn="x")
    return story.polled("d", (5, last), txn="y").txn("x", "commit").txn("y", "commit")


def test_transactions_that_read_each_other_are_a_cycle() -> None:
    assert in_circle(last="a").violations() == {"write-read cycle"}
    assert in_circle(last="plain").violations() == set()


def test_longer_cycles_are_found() -> None:
    story = Story()
    for name, value in (("x", "a"), ("y", "b"), ("z", "d")):
        story.txn(name, "begin").send(value, txn=name)
    story.polled("c1", (5, "a"), txn="y").polled("c2", (6, "b"), txn="z").polled("c3", (7, "d"), txn="x")
    for name in "xyz":
        story.txn(name, "commit")
    assert story.violations() == {"write-read cycle"}


def test_a_transaction_may_read_its_own_records() -> None:
    story = Story().txn("x", "begin").sent("a", 5, txn="x").polled("c", (5, "a"), txn="x").txn("x", "commit")
    assert story.violations() == set()


def test_aborted_transactions_make_no_cycle() -> None:
    story = Story().txn("x", "begin").txn("y", "begin").send("a", txn="x").send("b", "q", txn="y")
    story.polled("c", (6, "b"), txn="x").polled("d", (5, "a"), txn="y").txn("x", "commit").txn("y", "abort")
    assert story.violations() == set()


def test_writes_may_be_interleaved() -> None:
    """Two logs with two transactions in opposite orders: a cycle of writes, which Kafka allows."""
    story = Story().txn("x", "begin").txn("y", "begin")
    story.sent("a", 1, txn="x").sent("b", 2, "q", txn="y").sent("d", 1, "q", txn="y", partition=1)
    story.sent("e", 2, txn="x", partition=1).txn("x", "commit").txn("y", "commit")
    assert story.violations() == set()


def copies(*ends: str, groups: tuple[str, str] = ("g", "g")) -> Story:
    """Two transactions that copy one value, with the offsets of these groups."""
    story = Story().sent("a", 5)
    for number, end in enumerate(ends):
        story.txn(f"t{number}", "begin").sent(f"copy-{number}", 10 + number, txn=f"t{number}", copy_of="a")
        story.txn(f"t{number}", end, group=groups[number])
    return story


def test_each_group_copies_a_value() -> None:
    story = copies("commit", "commit", groups=("g", "h"))
    assert story.end((5, "a"), (10, "copy-0"), (11, "copy-1")).violations() == set()


def test_a_value_is_copied_once() -> None:
    story = copies("commit", "commit").end((5, "a"), (10, "copy-0"), (11, "copy-1"))
    assert story.violations() == {"repeated copy"}
    story = copies("commit", "commit").end((5, "a"), (6, "a"), (10, "copy-0"), (11, "copy-1"))
    assert "repeated copy" not in story.violations()
    # The first place was deleted or compacted.
    story = copies("commit", "commit").polled("m", (5, "a"), (6, "a"))
    assert "repeated copy" not in story.end((6, "a"), (10, "copy-0"), (11, "copy-1")).violations()
    story = copies("abort", "commit").end((5, "a"), (11, "copy-1"), hidden=[(10, "copy-0")])
    assert story.violations() == set()


def test_offsets_take_effect_with_the_copies() -> None:
    """The transaction of the first copy is aborted, but its offsets stay."""
    story = Story(groups=("g",)).sent("a", 5).sent("b", 6).polled("m", (5, "a"), (6, "b"), group="g")
    story.txn("x", "begin").sent("copy-a", 10, txn="x", copy_of="a").txn("x", "abort", group="g")
    story.txn("y", "begin").sent("copy-b", 11, txn="y", copy_of="b")
    story.txn("y", "commit", group="g", offsets=(Place("t", 0, 7),))
    story.end((5, "a"), (6, "b"), (11, "copy-b"), hidden=[(10, "copy-a")])
    before = len(story.events)
    assert story.fetched(7).violations() == {"missing copy"}
    del story.events[before:]
    story.sent("copied again", 12, txn="z", copy_of="a").txn("z", "commit", group="g")
    story.end((5, "a"), (6, "b"), (11, "copy-b"), (12, "copied again"), hidden=[(10, "copy-a")])
    assert story.fetched(7).violations() == set()
