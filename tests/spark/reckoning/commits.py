"""Tables about commits: current and pending offsets, lag, status and anomalies."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.spark.reckoning.records import commit_columns, commit_ms, day, moment, place_of
from tests.spark.reckoning.status import (
    REACTION_MS,
    WINDOW,
    Commit,
    Facts,
    Habits,
    difference,
    habits,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.spark.reckoning.logs import Entry, Log
    from tests.spark.reckoning.records import Place, Record, Row

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
        assigned: Mapping[Place, int],
    ) -> None:
        """assigned: since when each partition is assigned to a member."""
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
        self._uncommitted = {
            place: since_ms
            for place, since_ms in assigned.items()
            if place not in self.current and place[1:] in logs
        }

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
                "committed_offset": committed,
                "record_lag": len(self.unread(place, committed or 0).records),
                "exact": True,
                "as_of_ts": self.as_of_ms,
            }
            for place, committed in self._positions.items()
        ]

    @property
    def _positions(self) -> dict[Place, int | None]:
        """The committed offsets, None for partitions without one."""
        committed = {place: record.value.offset for place, record in self.current.items()}
        return {**committed, **dict.fromkeys(self._uncommitted)}

    def time_lag(self) -> list[Row]:
        rows = []
        for place, committed in self._positions.items():
            unread = self.unread(place, committed or 0)
            first = unread.first
            rows.append(
                {
                    **_place_columns(place),
                    "committed_offset": committed,
                    "first_unread_offset": first.offset if first else None,
                    "first_unread_ts": first.timestamp_ms if first else None,
                    "lag_ms": None if committed is None else unread.wait_ms,
                    "as_of_ts": self.as_of_ms,
                }
            )
        return rows

    def partition_status(self) -> list[Row]:
        rows = []
        for place in self.current:
            known = self.habits(place)
            newest = known.window[-1].offset
            unread = self.unread(place, newest)
            rows.append(
                {
                    **_place_columns(place),
                    "status": self._status(place, known),
                    "committed_offset": newest,
                    "record_lag": len(unread.records),
                    "exact": True,
                    "lost_records": _lost(self._logs.get(place[1:]), newest),
                    "lag_ms": unread.wait_ms,
                    **self._drain(place, known),
                    "commits": len(known.bursts),
                    "complete": len(known.bursts) / WINDOW,
                    "usual_ms": known.usual_ms,
                    "first_commit_ts": _moment(known.bursts[0].at_ms),
                    "last_commit_ts": _moment(known.bursts[-1].at_ms),
                    "as_of_ts": self.as_of_ms,
                }
            )
        return rows + [self._uncommitted_status(place, at) for place, at in self._uncommitted.items()]

    def _uncommitted_status(self, place: Place, since_ms: int) -> Row:
        unread = self.unread(place, 0)
        recent = since_ms >= self.as_of_ms - REACTION_MS
        found = "UNKNOWN" if recent else "UNCOMMITTED"
        row: Row = dict.fromkeys(
            (
                "committed_offset",
                "lost_records",
                "lag_ms",
                "usual_ms",
                "consumed_per_s",
                "produced_per_s",
                "first_commit_ts",
                "last_commit_ts",
            )
        )
        return row | {
            **_place_columns(place),
            "status": found if unread.first else "OK",
            "record_lag": len(unread.records),
            "exact": True,
            "drain_ms": None if unread.first else 0,
            "commits": 0,
            "complete": 0.0,
            "as_of_ts": self.as_of_ms,
        }

    def _drain(self, place: Place, known: Habits) -> Row:
        """How fast a partition was read and written since the first burst of the window."""
        first, newest = known.bursts[0], known.window[-1]
        from_first, now = (self.unread(place, commit.offset).records for commit in (first, newest))
        then, first_ms = self._unread_then(place, first), first.at_ms
        if len(known.bursts) < 2 or first_ms is None or not 0 <= first_ms < self.as_of_ms:
            return {
                "consumed_per_s": None,
                "produced_per_s": None,
                "drain_ms": None if now else 0,
            }
        window_ms = self.as_of_ms - first_ms
        read, added = len(from_first) - len(now), len(from_first) - then
        drained_ms = math.ceil(len(now) * (window_ms / (read - added))) if read > added else None
        return {
            "consumed_per_s": read * 1000 / window_ms,
            "produced_per_s": added * 1000 / window_ms,
            "drain_ms": drained_ms if now else 0,
        }

    def habits(self, place: Place) -> Habits:
        """Returns the habits of a partition since its last tombstone."""
        life = [(record.value, record.timestamp_ms) for record in self.lives(place)[-1]]
        return habits([Commit(value.offset, commit_ms(value), at_ms) for value, at_ms in life])

    def last_ms(self, place: Place) -> int | None:
        """Returns the time of the newest commit; None without a commit or a time."""
        newest = self.current.get(place)
        return None if newest is None else commit_ms(newest.value)

    def _status(self, place: Place, known: Habits) -> str:
        newest, log = known.window[-1].offset, self._logs.get(place[1:])
        unread = self.unread(place, newest)
        first, now_ms = unread.first, self.as_of_ms
        of_group = [self.last_ms(other) for other in self.current if other[0] == place[0]]
        return status(
            Facts(
                now_ms,
                known,
                [self._unread_then(place, commit) for commit in known.window],
                len(unread.records),
                None if first is None else now_ms - _appended_ms(first),
                unread.wait_ms,
                _lost(self._logs.get(place[1:]), newest),
                log.end if log else None,
                max((at_ms for at_ms in of_group if at_ms is not None), default=None),
            )
        )

    def _unread_then(self, place: Place, commit: Commit) -> int:
        """Nothing, if the time of the commit is unknown."""
        if commit.at_ms is None:
            return 0
        records = self.unread(place, commit.offset).records
        return sum(_appended_ms(entry) <= commit.at_ms for entry in records)

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
        times = [commit_ms(one.value) for one in life]
        intervals = [difference(later, earlier) for earlier, later in pairwise(times)]
        interval = intervals[-1] if intervals else None
        usual = _usual(intervals[:-1])
        lost = _lost(self._logs.get(place[1:]), value.offset)
        own_ms = (value.offset - 1) >> 10
        kinds = {
            "rewind": previous is not None and value.offset < previous.offset,
            "gap": usual is not None and interval is not None and interval > max(usual * GAP_FACTOR, GAP_MS),
            "lost_records": newest and (lost or 0) > 0,
            "past_end": (times[-1] is not None and own_ms > times[-1] + FUTURE_MS)
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
                "commit_ms": times[-1],
                "commit_ts": _moment(times[-1]),
                **record.position,
                "src_date": day(record.timestamp_ms),
            }
            for kind, found in kinds.items()
            if found
        ]


def _lost(log: Log | None, committed: int) -> int | None:
    """Records deleted unread. Between clock offsets before the log start there may have been none."""
    if log is None:
        return None
    if committed >= log.start:
        return 0
    return log.start - committed if log.dense and committed >= 0 else None


def _moment(ms: int | None) -> int | None:
    return None if ms is None else moment(ms)


def _usual(intervals: Sequence[int | None]) -> int | None:
    """The lower median of the known ones of up to ten intervals; None below three."""
    last = sorted(interval for interval in intervals[-10:] if interval is not None)
    return last[(len(last) - 1) // 2] if len(last) >= 3 else None


def _appended_ms(entry: Entry) -> int:
    return entry.offset >> 10 if entry.offset >= FIRST_CLOCK_OFFSET else entry.timestamp_ms


def _place_columns(place: Place) -> Row:
    return dict(zip(("group", "topic", "partition"), place, strict=True))


def _without_kind(record: Record) -> Row:
    left_out = ("tombstone", "key_version", "value_version")
    columns = {name: value for name, value in commit_columns(record).items() if name not in left_out}
    return {**columns, **record.position}
