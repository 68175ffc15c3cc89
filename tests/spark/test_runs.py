"""Lags by runs of offsets equal what is counted record by record; if offsets have gaps, they are bounds."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as sf

from korvet.spark.tables.runs import ALWAYS, RUNS, Found, Observed, Run, runs_of
from korvet.spark.tables.trends import Span, lag_over_time
from korvet.spark.tables.views import record_lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

BASE = 1_700_000_000_000
WITHOUT = None
"""A place in the log of a record that compaction removed, of an aborted one, or of a marker."""


@dataclass(frozen=True)
class PlainLog:
    """One partition: the timestamps of its offsets from `start` on."""

    start: int
    times: list[int | None]

    @property
    def end(self) -> int:
        return self.start + len(self.times)

    @property
    def records(self) -> list[tuple[int, int]]:
        return [(offset, ms) for offset, ms in enumerate(self.times, self.start) if ms is not None]

    def unread(self, committed: int) -> list[tuple[int, int]]:
        return [record for record in self.records if record[0] >= committed]

    def unread_then(self, committed: int, moment: int) -> int:
        """A record had been appended at a moment unless it, or one before it, was made later."""
        later = [offset for offset, ms in self.records if ms > moment]
        end = min(later, default=self.end)
        return sum(offset < end for offset, _ in self.unread(committed))

    def observed(self, committed: list[int], moments: list[int], gapless_ms: int | None) -> Observed:
        later = {
            moment: next((Found(*record) for record in self.records if record[1] > moment), None)
            for moment in moments
        }
        start = max(self.start, min(committed))
        waits = {start, *(offset for offset in committed if start < offset < self.end)}
        firsts = {offset: next(map(_found, self.unread(offset)), None) for offset in waits}
        return Observed(start, self.end, later, firsts, (), gapless_ms)


def _found(record: tuple[int, int]) -> Found:
    return Found(*record)


def unread(runs: list[Run], committed: int, moment: int) -> tuple[int, int, int | None, bool]:
    """What views.unread makes of runs: unread records, those then, the first one's time, whether exact."""
    rest = [run for run in runs if run.offset + run.records > committed]
    before = max(0, committed - rest[0].offset) if rest else 0
    count = sum(run.records for run in rest) - before
    then = max(0, count - sum(run.records for run in runs if run.at_ms > moment))
    first_ms = rest[0].first_ms if rest else None
    return count, then, first_ms, all(run.exact for run in rest)


TIMES = st.lists(st.integers(0, 12), min_size=1, max_size=30)


@st.composite
def asked(
    draw: st.DrawFn, times: st.SearchStrategy[list[int | None]]
) -> tuple[PlainLog, list[int], list[int]]:
    """A log, committed offsets, and moments."""
    log = PlainLog(draw(st.integers(0, 5)), [None if ms is None else BASE + ms for ms in draw(times)])
    committed = draw(st.lists(st.integers(-2, log.end + 3), min_size=1, max_size=5))
    moments = draw(st.lists(st.integers(BASE - 2, BASE + 14), min_size=1, max_size=5))
    return log, committed, moments


@given(asked(TIMES.map(lambda some: list(accumulate(some, max)))))
def test_lags_of_dense_logs_are_exact(given_log: tuple[PlainLog, list[int], list[int]]) -> None:
    log, committed, moments = given_log
    runs = runs_of(log.observed(committed, moments, ALWAYS))
    for offset in committed:
        rest = log.unread(offset)
        for moment in moments:
            then = log.unread_then(offset, moment)
            # Counted record by record, the timestamps of a log in order say the same.
            assert then == sum(ms <= moment for _, ms in rest)
            first_ms = rest[0][1] if rest else None
            assert unread(runs, offset, moment) == (len(rest), then, first_ms, True)


@given(asked(TIMES))
def test_records_after_a_later_one_had_not_been_appended(
    given_log: tuple[PlainLog, list[int], list[int]],
) -> None:
    """Producers write late, and their clocks differ."""
    log, committed, moments = given_log
    runs = runs_of(log.observed(committed, moments, ALWAYS))
    for offset in committed:
        rest = log.unread(offset)
        for moment in moments:
            found = unread(runs, offset, moment)
            assert found[:2] == (len(rest), log.unread_then(offset, moment))
            assert found[2] == (rest[0][1] if rest else None)


@given(asked(st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=30)))
def test_gaps_make_lags_upper_bounds(given_log: tuple[PlainLog, list[int], list[int]]) -> None:
    log, committed, moments = given_log
    runs = runs_of(log.observed(committed, moments, None))
    for offset in committed:
        rest = log.unread(offset)
        for moment in moments:
            count, then, first_ms, is_exact = unread(runs, offset, moment)
            assert len(rest) <= count <= max(0, log.end - max(offset, log.start))
            assert log.unread_then(offset, moment) <= then <= count
            # Whether there is an unread record, and how long it has waited, is certain.
            assert (count == 0) == (not rest)
            assert first_ms == (rest[0][1] if rest else None)
            assert not is_exact or count == len(rest)


@given(asked(TIMES.map(lambda some: list(accumulate(some, max)))), st.integers(BASE, BASE + 12))
def test_lags_since_the_last_gap_are_exact(
    given_log: tuple[PlainLog, list[int], list[int]], gapless_ms: int
) -> None:
    log, committed, moments = given_log
    times = [None if ms < gapless_ms and offset % 2 else ms for offset, ms in log.records]
    gappy = PlainLog(log.start, times)
    runs = runs_of(gappy.observed(committed, [*moments, gapless_ms], gapless_ms))
    for offset in committed:
        count, _, _, is_exact = unread(runs, offset, moments[0])
        assert not is_exact or count == len(gappy.unread(offset))
        if all(ms > gapless_ms for at, ms in log.records if at >= offset):
            assert is_exact


@given(asked(TIMES.map(lambda some: list(accumulate(some, max)))))
def test_waits_between_known_records_are_within_their_times(
    given_log: tuple[PlainLog, list[int], list[int]],
) -> None:
    log, committed, moments = given_log
    observed = log.observed([min(committed)], moments, ALWAYS)
    times = dict(log.records)
    for run in runs_of(observed):
        for offset in range(run.offset, run.offset + run.records):
            assert run.first_ms <= times[offset]
            if any(moment >= times[offset] for moment in moments):
                assert times[offset] <= run.last_ms


def test_a_record_of_the_future_hides_no_commits() -> None:
    """It comes third. A group had read all ten records a minute later, and another one two of them."""
    later = {BASE + 60_000: Found(2, BASE + 10**9), BASE + 120_000: Found(2, BASE + 10**9)}
    firsts: dict[int, Found | None] = {2: Found(2, BASE + 10**9)}
    runs = runs_of(Observed(2, 12, later, firsts, [(BASE + 60_000, 10)], ALWAYS))
    assert unread(runs, 2, BASE + 60_000)[:2] == (10, 8)
    assert unread(runs, 10, BASE + 120_000)[:2] == (2, 0)


def test_an_offset_without_any_time_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nothing tells the time of offset 3"):
        runs_of(Observed(3, 5))


@pytest.mark.spark
def test_views_take_runs_for_their_records(spark: SparkSession) -> None:
    """Lags as of now, then, and over time are the same by runs and by records."""
    chance = random.Random(5)
    log = PlainLog(3, [BASE + ms for ms in accumulate(chance.choices(range(4), k=200))])
    now_ms = BASE + 1000
    commits = [("g", "t", 0, chance.randrange(3, 206), BASE + chance.randrange(400)) for _ in range(40)]
    committed = [commit[3] for commit in commits]
    observed = log.observed(committed, [*(commit[4] for commit in commits), now_ms], ALWAYS)
    rows = [
        ("t", 0, run.offset, run.records, moment_of(run.first_ms), run.last_ms, run.at_ms, run.exact)
        for run in runs_of(observed)
    ]
    records = [("t", 0, offset, moment_of(ms)) for offset, ms in log.records]
    logs = [
        spark.createDataFrame(rows, RUNS),
        spark.createDataFrame(records, "topic string, partition int, offset bigint, timestamp timestamp"),
    ]
    assert len(rows) < len(records)
    frame = spark.createDataFrame(
        commits,
        "group string, topic string, partition int, committed_offset bigint, commit_ms bigint",
    )
    # Each ms is a step.
    step = (sf.col("commit_ms") - BASE).cast("int")
    positions = frame.withColumns({"first_step": step, "last_step": step})
    now = [_rows(record_lag(frame, each, now_ms)) for each in logs]
    then = [_rows(lag_over_time(positions, each, Span(BASE - 1, BASE + 400, 1))) for each in logs]
    assert now[0] == now[1]
    assert then[0] == then[1]
    assert len({row["lag_then"] for row in now[0]}) > 5


def moment_of(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _rows(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=repr)
