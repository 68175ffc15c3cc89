"""The run with a queue of many workers, and its checker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from robustness.checkers.deliveries import check_deliveries, deliveries
from robustness.queue.journal import Journal, Notes
from robustness.queue.run import Plan, run

if TYPE_CHECKING:
    from pathlib import Path

STORED = {1, 2, 3}


def kinds(*workers: Notes) -> set[str]:
    return {violation.kind for violation in check_deliveries(STORED, workers)}


def noted(*lines: str, was_killed: bool = False) -> Notes:
    return Notes([f"{line}\n" for line in lines], was_killed=was_killed)


def test_each_record_is_accepted_once() -> None:
    assert kinds(noted("taken 1 2", "accepted 1 2"), noted("taken 3", "accepted 3")) == set()
    assert kinds(noted("taken 1 2", "accepted 1 2")) == {"lost from queue"}
    twice = noted("taken 3", "accepted 3")
    assert kinds(noted("taken 1 2 3", "accepted 1 2 3"), twice) == {"accepted again"}
    assert kinds(noted("taken 1 2 3 4", "accepted 1 2 3 4")) == {"taken from nowhere"}


def test_killed_workers_explain_repeats() -> None:
    killed = noted("taken 1 2", "accepted 1", was_killed=True)
    workers = [killed, noted("taken 2 3", "accepted 2"), noted("taken 3", "accepted 3")]
    assert kinds(*workers) == set()
    found = deliveries(STORED, workers)
    assert (found.repeats, found.accepted, found.lost_with_workers, found.other) == (2, 3, 1, 1)


def test_a_line_that_a_kill_has_cut_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path).note("taken", [1, 2])
    with path.open("a") as file:
        file.write("accepted 1")
    with path.open() as lines:
        notes = Notes(lines, was_killed=True)
    assert (notes.taken.total(), notes.accepted.total()) == (2, 0)


@pytest.mark.long
@pytest.mark.clients
def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    found = run(Plan(records=50_000, kafka=2, java=2, redis=4, kill_s=0.25), tmp_path)
    assert found.violations == []
    assert found.kills > 0
