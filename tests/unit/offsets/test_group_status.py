"""What offsets say of groups agrees with the rules that know the history of commits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.offsets.group_status import AHEAD, LOST, OK, STATUSES, status_of_offsets, worst_status
from tests.spark.reckoning import status as reckoned
from tests.spark.reckoning.status import MINUTE, Commit, Facts

OFFSETS = st.integers(0, 6)
LIVES = st.lists(st.tuples(OFFSETS, st.integers(0, 200)), min_size=1, max_size=15)
LAGS_MS = st.integers(0, 20 * MINUTE)


@given(LIVES, OFFSETS, OFFSETS, OFFSETS, LAGS_MS, st.booleans())
def test_the_word_is_that_of_the_history(
    life: list[tuple[int, int]], start: int, length: int, known_from: int, lag_ms: int, is_known: bool
) -> None:
    """known_from: every offset from it to the log start was a record. is_known: whether that is known."""
    times = sorted(minute * MINUTE for _, minute in life)
    commits = [Commit(offset, at, at) for (offset, _), at in zip(life, times, strict=True)]
    committed, end = commits[-1].offset, start + length
    habits = reckoned.habits(commits)
    unread = max(0, end - max(committed, start))
    facts = Facts(
        now_ms=times[-1] + lag_ms,
        habits=habits,
        behind=[max(0, end - max(commit.offset, start)) for commit in habits.window],
        unread=unread,
        waited_ms=lag_ms if unread else None,
        lag_ms=lag_ms if unread else 0,
        lost=0 if committed >= start else start - committed if committed >= known_from else None,
        log_end=end,
        group_last_ms=times[-1],
    )
    whole = reckoned.status(facts)
    word = status_of_offsets(committed, start, end, known_from if is_known else None, is_read=not unread)
    assert word in (whole, None)
    if committed >= start or is_known:
        assert word == (whole if whole in (LOST, AHEAD) or not unread else None)


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([], None),
        ([OK, OK], OK),
        ([OK, None], None),
        ([None], None),
        ([OK, AHEAD, None], AHEAD),
        ([AHEAD, LOST, OK], LOST),
        (["REWIND", None], None),
        (["REWIND", OK], "REWIND"),
    ],
)
def test_the_status_of_a_group(statuses: list[str | None], status: str | None) -> None:
    assert worst_status(statuses) == status


def test_the_words_are_those_of_the_rules() -> None:
    assert STATUSES == reckoned.STATUSES
