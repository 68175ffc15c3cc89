"""Tables about commits: current and pending offsets, lag, status and anomalies."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.spark.reckoning.records import commit_columns, day, moment, place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from korvet.offsets.schema import OffsetCommitValue
    from tests.spark.reckoning.logs import Entry, Log
    from tests.spark.reckoning.records import Place, Record, Row

STATUSES = ("OK", "WARNING", "STOPPED", "STALLED", "REWIND", "AHEAD", "LOST")
WINDOW = 10
RECENT_MS = 100_000
GAP_FACTOR, GAP_MS = 5, 60_000
FUTURE_MS = 1_000
# Offsets with a time are at least of the year 2001.
FIRST_CLOCK_OFFSET = 1_000_000_000_000 << 10


@dataclass(frozen=True, slots=True)
class Unread:
    """What a commit leaves unread, as of now."""

    records: list[Entry]
    as_of_ms: int

    @property
    def first(self) -> Entry | None:
        return self.records[0] if self.records else None

    @property
    def wait_ms(self) -> int:
        return max(0, self.as_of_ms - self.first.timestamp_ms) if self.first else 0


class Commits:
    """The commits of `__consumer_offsets` in order, and the logs of the topics."""

    def __init__(
        self,
        records: Sequence[Record],
        pending: Sequence[Record],
        logs: Mapping[tuple[str, int], Log],
        as_of_ms: int,
    ) -> None:
        self.records = records
        self.as_of_ms = as_of_ms
        self._pending = pending
        self._logs = logs
        self._visible = {
            place: [entry for entry in log.stable() if log.dense or entry.offset >> 10 <= as_of_ms]
            for place, log in logs.items()
        }
        self.by_place: dict[Place, list[Record]] = defaultdict(list)
        for record in records:
            self.by_place[place_of(record)].append(record)

    def lives(self, place: Place) -> list[list[Record]]:
        """Returns the commits of a partition between its tombstones; the last life may be empty."""
        lives: list[list[Record]] = [[]]
        for record in self.by_place[place]:
            if record.value is None:
                lives.append([])
            else:
                lives[-1].append(record)
        return lives

    @property
    def current(self) -> dict[Place, Record]:
        """The newest commit of each place that isn't removed."""
        return {place: life[-1] for place in self.by_place if (life := self.lives(place)[-1])}

    def offset_commits(self) -> list[Row]:
        return [
            {**commit_columns(record), **record.position, "src_date": day(record.timestamp_ms)}
            for record in self.records
        ]

    def current_offsets(self) -> list[Row]:
        return [_without_kind(record) for record in self.current.values()]

    def pending_offsets(self) -> list[Row]:
        newest: dict[Place, Record] = {}
        for record in self._pending:
            place = place_of(record)
            removed = [one.offset for one in self.by_place.get(place, ()) if one.value is None]
            if record.offset > max(removed, default=-1):
                newest[place] = record
        return [
            {
                **_without_kind(record),
                "pending_ms": max(0, self.as_of_ms - record.timestamp_ms),
                "as_of_ts": self.as_of_ms,
            }
            for record in newest.values()
        ]

    def commit_rate(self) -> list[Row]:
        made = Counter(
            (place_of(record)[0], at_ms // 60_000 * 60_000)
            for record in self.records
            if record.value is not None and (at_ms := moment(record.value.commit_timestamp_ms)) is not None
        )
        return [{"group": group, "minute": at, "commits": count} for (group, at), count in made.items()]

    def unread(self, place: Place, committed: int) -> Unread:
        records = self._visible.get(place[1:], [])
        return Unread([entry for entry in records if entry.offset >= committed], self.as_of_ms)

    def record_lag(self) -> list[Row]:
        return [
            {
                **_place_columns(place),
                "committed_offset": record.value.offset,
                "record_lag": len(self.unread(place, record.value.offset).records),
                "exact": True,
                "as_of_ts": self.as_of_ms,
            }
            for place, record in self.current.items()
        ]

    def time_lag(self) -> list[Row]:
        rows = []
        for place, record in self.current.items():
            unread = self.unread(place, record.value.offset)
            first = unread.first
            rows.append(
                {
                    **_place_columns(place),
                    "committed_offset": record.value.offset,
                    "first_unread_offset": first.offset if first else None,
                    "first_unread_ts": first.timestamp_ms if first else None,
                    "lag_ms": unread.wait_ms,
                    "as_of_ts": self.as_of_ms,
                }
            )
        return rows

    def partition_status(self) -> list[Row]:
        rows = []
        for place in self.current:
            window = self.window(place)
            unread = self.unread(place, window[-1].offset)
            rows.append(
                {
                    **_place_columns(place),
                    "status": self._status(place, window),
                    "committed_offset": window[-1].offset,
                    "record_lag": len(unread.records),
                    "exact": True,
                    "lost_records": self._lost(place, window[-1].offset),
                    "lag_ms": unread.wait_ms,
                    "commits": len(window),
                    "complete": len(window) / WINDOW,
                    "first_commit_ts": moment(window[0].commit_timestamp_ms),
                    "last_commit_ts": moment(window[-1].commit_timestamp_ms),
                    "as_of_ts": self.as_of_ms,
                }
            )
        return rows

    def window(self, place: Place) -> list[OffsetCommitValue]:
        """Returns the last commits of a partition since its last tombstone."""
        return [record.value for record in self.lives(place)[-1][-WINDOW:]]

    def _status(self, place: Place, window: Sequence[OffsetCommitValue]) -> str:
        newest, unread = window[-1], self.unread(place, window[-1].offset)
        first_ms, last_ms = window[0].commit_timestamp_ms, newest.commit_timestamp_ms
        behind = [self._unread_then(place, commit) for commit in window]
        offsets = [commit.offset for commit in window]
        log = self._logs.get(place[1:])
        if (self._lost(place, newest.offset) or 0) > 0:
            return "LOST"
        if log is not None and newest.offset > log.end:
            return "AHEAD"
        if unread.first is None:
            return "OK"
        silent = self.as_of_ms - last_ms > last_ms - first_ms
        if silent and _appended_ms(unread.first) <= self.as_of_ms - RECENT_MS:
            return "STOPPED"
        if min(behind) == 0:
            return "OK"
        if newest.offset < max(offsets):
            return "REWIND"
        if len(window) > 1 and len(set(offsets)) == 1:
            return "STALLED"
        if len(window) > 1 and all(later >= earlier for earlier, later in pairwise(behind)):
            return "WARNING"
        return "OK"

    def _unread_then(self, place: Place, commit: OffsetCommitValue) -> int:
        records = self.unread(place, commit.offset).records
        return sum(_appended_ms(entry) <= commit.commit_timestamp_ms for entry in records)

    def _lost(self, place: Place, committed: int) -> int | None:
        """Records deleted unread. Between clock offsets before the log start there may have been none."""
        log = self._logs.get(place[1:])
        if log is None:
            return None
        if committed >= log.start:
            return 0
        return log.start - committed if log.dense and committed >= 0 else None

    def anomalies(self) -> list[Row]:
        rows = []
        for place in self.by_place:
            lives = self.lives(place)
            for life in lives:
                removed = life is not lives[-1]
                for count in range(1, len(life) + 1):
                    newest = not removed and count == len(life)
                    rows += self._odd(place, life[:count], removed=removed, newest=newest)
        return rows

    def _odd(self, place: Place, life: Sequence[Record], *, removed: bool, newest: bool) -> list[Row]:
        """The rows on the last commit of a life so far."""
        record, value, log = life[-1], life[-1].value, self._logs.get(place[1:])
        previous = life[-2].value if len(life) > 1 else None
        times = [one.value.commit_timestamp_ms for one in life]
        intervals = [later - earlier for earlier, later in pairwise(times)]
        interval = intervals[-1] if intervals else None
        usual = _usual(intervals[:-1])
        lost = self._lost(place, value.offset)
        own_ms = (value.offset - 1) >> 10
        kinds = {
            "rewind": previous is not None and value.offset < previous.offset,
            "gap": usual is not None and interval is not None and interval > max(usual * GAP_FACTOR, GAP_MS),
            "lost_records": newest and (lost or 0) > 0,
            "past_end": own_ms > value.commit_timestamp_ms + FUTURE_MS
            or (not removed and log is not None and value.offset > log.end),
            "unknown_partition": not removed and log is None,
        }
        return [
            {
                **_place_columns(place),
                "kind": kind,
                "committed_offset": value.offset,
                "previous_offset": previous.offset if previous else None,
                "interval_ms": interval,
                "usual_interval_ms": usual,
                "end_offset": log.end if log else None,
                "lost_records": lost if kind == "lost_records" else None,
                "commit_ms": value.commit_timestamp_ms,
                "commit_ts": moment(value.commit_timestamp_ms),
                **record.position,
                "src_date": day(record.timestamp_ms),
            }
            for kind, found in kinds.items()
            if found
        ]


def _usual(intervals: Sequence[int]) -> int | None:
    """The lower median of up to ten intervals; None below three."""
    last = sorted(intervals[-10:])
    return last[(len(last) - 1) // 2] if len(last) >= 3 else None


def _appended_ms(entry: Entry) -> int:
    return entry.offset >> 10 if entry.offset >= FIRST_CLOCK_OFFSET else entry.timestamp_ms


def _place_columns(place: Place) -> Row:
    return dict(zip(("group", "topic", "partition"), place, strict=True))


def _without_kind(record: Record) -> Row:
    left_out = ("tombstone", "key_version", "value_version")
    columns = {name: value for name, value in commit_columns(record).items() if name not in left_out}
    return {**columns, **record.position}
