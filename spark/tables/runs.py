"""Runs of offsets, which stand for the records of a partition where reading them would cost more.

On a topic of Kafka, every offset is a record, except those that compaction or a transaction took. So the
number of records between two offsets is their difference, or at most that. korvet's index knows the number.
The time of a record is known if it was looked up, and else within bounds. A record that was read is a run of
one.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from korvet.spark.records.columns import MAX_SPARK_MS, MIN_SPARK_MS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.tables.needs import Starts, TopicPartition

RUNS: Final = (
    "topic string, partition int, offset bigint, records bigint, timestamp timestamp, last_ms bigint, "
    "at_ms bigint, exact boolean"
)
"""Columns of a log in runs. records: their number, from `offset` on and before the next run. Their offsets
are consecutive unless a run begins at each offset that is asked. timestamp: of the first of them; null if it
is unknown, or outside Spark's timestamps. last_ms: the latest time that any of them has, in ms. at_ms: at
each moment that is asked, all of them had been appended if it is not before at_ms, else none. exact: all are
records.
"""
ALWAYS: Final = 0
"""No offset was ever taken by anything but a record."""


@dataclass(frozen=True, slots=True)
class Found:
    """A record that was looked up: its offset and its timestamp in ms."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Run:
    """The columns of RUNS. `timestamp` is first_ms."""

    offset: int
    records: int
    first_ms: int | None
    last_ms: int
    at_ms: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """What was looked up in the log of one partition, of the offsets start .. end - 1.

    later: by moment in ms, the first record with a later timestamp; None if there is none. Those before it
    had been appended by then. firsts: by offset, the first record at or after it; None if there is none.
    proofs: moments, and offsets before which all had been appended by then, even if `later` says less.
    gapless_ms: from this time on, all offsets are records; None if that is unknown.
    before: the number of records before each of these offsets; None if offsets are consecutive.
    """

    start: int
    end: int
    later: Mapping[int, Found | None] = field(default_factory=dict)
    firsts: Mapping[int, Found | None] = field(default_factory=dict)
    proofs: Iterable[tuple[int, int]] = ()
    gapless_ms: int | None = None
    before: Mapping[int, int] | None = None

    def records(self, first: int, last: int) -> int:
        """Return the number of records at the offsets first .. last - 1."""
        return last - first if self.before is None else self.before[last] - self.before[first]


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs of partitions: runs, and the offsets from which records are to be read."""

    runs: Mapping[TopicPartition, list[Run]]
    read: Mapping[TopicPartition, int]

    @property
    def read_from(self) -> Starts:
        """The offsets from which records are to be read, by topic and partition."""
        found: Starts = {}
        for (topic, partition), offset in self.read.items():
            found.setdefault(topic, {})[partition] = offset
        return found

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the runs with the columns of RUNS."""
        rows = [
            (*place, run.offset, run.records, _timestamp(run), run.last_ms, run.at_ms, run.exact)
            for place, runs in self.runs.items()
            for run in runs
        ]
        frame = spark.createDataFrame(rows, RUNS.replace("timestamp timestamp", "timestamp bigint"))
        return frame.withColumn("timestamp", sf.timestamp_millis("timestamp"))


def _timestamp(run: Run) -> int | None:
    is_known = run.first_ms is not None and MIN_SPARK_MS <= run.first_ms <= MAX_SPARK_MS
    return run.first_ms if is_known else None


def runs_of(log: Observed) -> list[Run]:
    """Return the runs of a log, in the order of offsets.

    Each looked-up offset begins one, and each end of the log at a moment: all records of a run had been
    appended at a moment, or none.
    """
    moments = sorted(log.later)
    ends = _ends(log, moments)
    gaps = [
        (max(offset, log.start), log.end if found is None else found.offset)
        for offset, found in log.firsts.items()
    ]
    known = {found.offset: found.timestamp_ms for found in log.later.values() if found is not None}
    fetched = {found.offset: found.timestamp_ms for found in log.firsts.values() if found is not None}
    known |= fetched
    places = {log.start, log.end, *ends, *fetched, *(first for first, _ in gaps)}
    cuts = sorted(place for place in places if log.start <= place <= log.end)
    empty_until = log.start
    gap_ends = dict(sorted(gaps))
    runs = []
    for first, last in pairwise(cuts):
        empty_until = max(empty_until, gap_ends.get(first, first))
        records = log.records(first, last)
        if first < empty_until or not records:
            continue
        # The moments at which the run had been appended are those from this one on.
        at = bisect_right(ends, first)
        after_ms = moments[at - 1] if at else None
        until_ms = moments[at] if at < len(moments) else None
        at_ms = until_ms if after_ms is None else after_ms + 1
        first_ms = known.get(first, at_ms)
        if first_ms is None:
            raise ValueError(f"nothing tells the time of offset {first}")
        last_ms = max(first_ms, min(_given(until_ms, known.get(last)), default=first_ms))
        runs.append(
            Run(
                first,
                records,
                first_ms,
                last_ms,
                first_ms if at_ms is None else at_ms,
                exact=_is_exact(log, after_ms) or (last - first == 1 and first in fetched),
            )
        )
    return runs


def _ends(log: Observed, moments: list[int]) -> list[int]:
    """The log end at each moment."""
    proofs = sorted(log.proofs)
    ends, proven, used = [], log.start, 0
    for moment in moments:
        found = log.later[moment]
        while used < len(proofs) and proofs[used][0] <= moment:
            proven = max(proven, proofs[used][1])
            used += 1
        proven = min(max(proven, log.end if found is None else found.offset), log.end)
        ends.append(proven)
    return ends


def _is_exact(log: Observed, after_ms: int | None) -> bool:
    if log.gapless_ms is None:
        return False
    return log.gapless_ms == ALWAYS or (after_ms is not None and after_ms >= log.gapless_ms)


def _given(*numbers: int | None) -> list[int]:
    return [number for number in numbers if number is not None]
