"""Which positions are read again, and which logs a look reads. Whether the numbers are right:
tests/storage/test_log_model.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from korvet.groups.share.messages import SharePartition
from korvet.observe.ordinals import Ends, Known, OrdinalPosition
from korvet.observe.positions import Progress, Turns, WatchedLog
from korvet.observe.queues import WatchedQueue

if TYPE_CHECKING:
    from korvet.observe.ordinals import LogOrdinals

# 10 records at the offsets 100, 110 and so on; 5 more are gone.
ENDS = Ends(edition=0, log_start=100, log_end=191, start_ordinal=5, end_ordinal=15)


def counted(offset: int, ordinal: int, next_ms: int | None = 7_000) -> Progress:
    progress = Progress(offset)
    assert progress.must_be_read(ENDS)
    progress.take(OrdinalPosition(offset, ordinal, next_ms), ENDS)
    assert not progress.must_be_read(ENDS)
    return progress


def test_a_position_that_does_not_move_is_read_once() -> None:
    progress = counted(120, 7)
    grown = ENDS._replace(log_end=400, end_ordinal=20)
    assert not progress.must_be_read(grown)
    assert progress.position is not None
    assert grown.end_ordinal - progress.ordinal(progress.position, grown) == 13
    assert progress.waiting_s(9_500) == 2.5
    assert progress.waiting_s(6_000) == 0


def test_a_position_that_moves_is_counted_from_the_last_one_if_it_goes_on() -> None:
    progress = counted(120, 7)
    progress.offset = 150
    assert progress.must_be_read(ENDS)
    assert progress.near(ENDS.edition) == Known(120, 7)
    assert progress.near(ENDS.edition + 1) is None
    progress.offset = 110
    assert progress.must_be_read(ENDS)
    assert progress.near(ENDS.edition) is None


def test_the_log_end_needs_no_reading() -> None:
    progress = Progress(191)
    assert not progress.must_be_read(ENDS)
    assert progress.position == OrdinalPosition(191, 15, None)
    # Records come: the first one's timestamp is unknown.
    assert progress.must_be_read(ENDS._replace(log_end=192, end_ordinal=16))


def test_an_offset_beyond_the_log_end_has_no_lag_whatever_comes_before_it() -> None:
    progress = Progress(1_000)
    for end in (191, 200, 1_000):
        ends = ENDS._replace(log_end=end, end_ordinal=15 + end)
        assert not progress.must_be_read(ends)
        assert progress.position is not None
        assert progress.ordinal(progress.position, ends) == ends.end_ordinal
    assert progress.must_be_read(ENDS._replace(log_end=1_001))
    # The records in between are not counted yet.
    assert progress.near(ENDS.edition) == Known(1_000, ends.end_ordinal)


def test_records_up_to_an_offset_beyond_the_former_log_end_are_counted() -> None:
    progress = Progress(195)
    assert not progress.must_be_read(ENDS)
    assert progress.must_be_read(ENDS._replace(log_end=200, end_ordinal=24))
    assert progress.near(ENDS.edition) == Known(ENDS.log_end, ENDS.end_ordinal)


def test_a_trim_moves_the_ordinal_with_the_log_start() -> None:
    progress = counted(120, 7)
    trimmed = ENDS._replace(log_start=150, start_ordinal=10)
    # The first unread record is another one.
    assert progress.must_be_read(trimmed)
    assert progress.position is not None
    assert progress.ordinal(progress.position, trimmed) == 10


def test_deletions_within_the_log_count_everything_again() -> None:
    assert counted(120, 7).must_be_read(ENDS._replace(edition=1))


def test_commits_are_read_in_the_order_of_their_offsets() -> None:
    log = watched()
    log.commits = {name: Progress(offset) for name, offset in (("a", 180), ("b", 191), ("c", 110))}
    assert [progress.offset for progress in log.due_commits(ENDS)] == [110, 180]
    assert log.is_urgent
    assert log.is_needed


def watched() -> WatchedLog:
    return WatchedLog(cast("LogOrdinals", None))


def quiet(count: int) -> list[WatchedLog]:
    logs = [watched() for _ in range(count)]
    for log in logs:
        log.take(ENDS, 1)
    return logs


def nothing_grew(log: WatchedLog) -> bool:
    del log
    return False


def test_few_logs_are_all_read() -> None:
    logs = quiet(10)
    assert Turns(10, 3).choose(logs, nothing_grew, 100) == logs


def test_many_logs_take_turns() -> None:
    logs = quiet(25)
    turns = Turns(10, 3)
    read: list[Any] = [turns.choose(logs, nothing_grew, 100 + look) for look in range(3)]
    assert [len(some) for some in read] == [10, 10, 10]
    assert {id(log) for some in read for log in some} == {id(log) for log in logs}


@pytest.mark.parametrize("reason", ["new", "grown", "changed lately", "commit", "queue"])
def test_what_has_changed_comes_first_and_the_others_still_take_turns(reason: str) -> None:
    logs = quiet(100)
    busy = logs[40:70]
    for log in busy:
        if reason == "new":
            log.ends = None
        elif reason == "changed lately":
            log.take(ENDS._replace(log_end=500), 98)
        elif reason == "commit":
            log.commits["g"] = Progress(3)
        elif reason == "queue":
            log.queues = [WatchedQueue(SharePartition("g", bytes(16), "t", 0))]
    chosen = Turns(20, 3).choose(logs, lambda log: reason == "grown" and log in busy, 100)
    assert chosen[:30] == busy
    # A fifth of a look.
    assert chosen[30:] == logs[:4]
