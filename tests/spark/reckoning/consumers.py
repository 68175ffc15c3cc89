"""Simulated consumers of one partition each: what is appended, and what they commit, on days of one clock.

Offsets are dense: record i has offset i. Times are in ms.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.spark.reckoning.status import LONGER_SLOTS_MS, MINUTE, WINDOW, Commit, Facts, habits, status

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

SECOND, HOUR = 1_000, 60 * MINUTE
DAY = 24 * HOUR
BEGIN = 1_699_833_600_000
DAYS = 10
END = BEGIN + DAYS * DAY


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer of a partition. Record i was appended at appended[i]; commit j, of positions[j], was made at
    times[j]. log_start: the first record that retention has left. mate: another partition of its group.
    """

    name: str
    appended: Sequence[int]
    times: Sequence[int]
    positions: Sequence[int]
    log_start: int = 0
    mate: Consumer | None = None

    def facts(self, now_ms: int) -> Facts | None:
        """Returns what is known at a time; None before the first commit."""
        kept = self.kept(now_ms)
        if not kept:
            return None
        known = habits(kept)
        committed, end = known.window[-1].offset, bisect_right(self.appended, now_ms)
        unread = max(0, end - max(committed, self.log_start))
        first_ms = self.appended[max(committed, self.log_start)] if unread else None
        waited_ms = None if first_ms is None else now_ms - first_ms
        last_ms = [known.bursts[-1].at_ms]
        if self.mate is not None:
            last_ms.append(self.mate.times[bisect_right(self.mate.times, now_ms) - 1])
        return Facts(
            now_ms,
            known,
            [max(0, bisect_right(self.appended, one.at_ms) - one.offset) for one in known.window],
            unread,
            waited_ms,
            waited_ms or 0,
            max(0, self.log_start - committed),
            end,
            max(last_ms),
        )

    def kept(self, now_ms: int) -> list[Commit]:
        """Returns the commits that the state of a table keeps."""
        count = bisect_right(self.times, now_ms)
        chosen = set(range(max(0, count - WINDOW), count))
        for slot_ms in (MINUTE, *LONGER_SLOTS_MS):
            last = count - 1
            for _ in range(WINDOW):
                if last < 0:
                    break
                chosen.add(last)
                last = bisect_left(self.times, self.times[last] // slot_ms * slot_ms) - 1
        return [Commit(self.positions[at], self.times[at], self.times[at]) for at in sorted(chosen)]

    def status(self, now_ms: int) -> str:
        """Returns the status at a time, OK before the first commit."""
        facts = self.facts(now_ms)
        return "OK" if facts is None else status(facts)


def arrivals(
    chance: random.Random, rate: float, from_ms: int = END - 4 * DAY, until_ms: int = END
) -> list[int]:
    """Returns the times of records that come at random, `rate` in a second."""
    found, at_ms = [], float(from_ms)
    while True:
        at_ms += chance.expovariate(rate) * SECOND + 1
        if at_ms >= until_ms:
            return found
        found.append(int(at_ms))


def reading(appended: Sequence[int], times: Sequence[int], late_ms: int = 0) -> list[int]:
    """Returns the positions of a consumer that has read what came until `late_ms` before each commit."""
    return [bisect_right(appended, at_ms - late_ms) for at_ms in times]


def moving(times: Sequence[int], positions: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns only the commits that change the position."""
    chosen = [at for at in range(len(times)) if not at or positions[at] != positions[at - 1]]
    return [times[at] for at in chosen], [positions[at] for at in chosen]


def every(chance: random.Random, interval_ms: int, from_ms: int, until_ms: int) -> list[int]:
    """Returns times about `interval_ms` apart."""
    times, at_ms = [], from_ms + chance.randrange(interval_ms)
    while at_ms < until_ms:
        times.append(at_ms)
        at_ms += int(interval_ms * chance.uniform(0.8, 1.2)) + 1
    return times


def steady(chance: random.Random, name: str) -> Consumer:
    """Commits at an interval, all the time or only what has changed."""
    appended = arrivals(chance, chance.choice((0.001, 0.01, 0.05)))
    times = every(chance, chance.choice((5, 10, 30, 60)) * SECOND, END - 36 * HOUR, END)
    positions = reading(appended, times, chance.choice((0, 500, 5_000)))
    return Consumer(
        name, appended, *(moving(times, positions) if chance.random() < 0.5 else (times, positions))
    )


def bursty(chance: random.Random, name: str) -> Consumer:
    """Commits many times within two seconds, then nothing for seconds or hours."""
    appended = arrivals(chance, 0.02)
    pause_ms = chance.choice((4 * SECOND, 20 * SECOND, 2 * MINUTE, 11 * MINUTE, 35 * MINUTE, 3 * HOUR))
    times = [
        begin_ms + number * 2_000 // size
        for begin_ms in every(chance, pause_ms, END - max(36 * HOUR, 20 * pause_ms), END)
        for size in (chance.choice((1, 5, 20)),)
        for number in range(size)
    ]
    return Consumer(name, appended, times, reading(appended, times))


def runs(chance: random.Random, begins: Sequence[int], length_ms: int, interval_ms: int) -> list[int]:
    """Returns the times of commits of a job that begins at these times."""
    return [
        at_ms
        for begin_ms in begins
        for at_ms in every(
            chance, interval_ms, begin_ms, begin_ms + int(length_ms * chance.uniform(0.7, 1.3))
        )
    ]


def daily(chance: random.Random, name: str) -> Consumer:
    """A job of seconds or hours, once a day."""
    appended = arrivals(chance, 0.005, BEGIN)
    hour_ms = chance.randrange(24 * HOUR)
    begins = [BEGIN + day * DAY + hour_ms + chance.randrange(10 * MINUTE) for day in range(DAYS)]
    length_ms = chance.choice((30 * SECOND, 5 * MINUTE, 30 * MINUTE, 3 * HOUR))
    times = [
        at_ms for at_ms in runs(chance, begins, length_ms, min(length_ms // 4, 20 * SECOND)) if at_ms < END
    ]
    return Consumer(name, appended, times, reading(appended, times))


def batch(chance: random.Random, name: str) -> Consumer:
    """A job every few minutes or hours, which pauses for longer than it runs."""
    appended = arrivals(chance, 0.02)
    period_ms = chance.choice((15, 20, 30, 60, 120, 360)) * MINUTE
    first_ms = END - max(2 * DAY, 12 * period_ms) + chance.randrange(HOUR)
    begins = [at_ms + chance.randrange(MINUTE) for at_ms in range(first_ms, END, period_ms)]
    length_ms = int(period_ms * chance.uniform(0.05, 0.4))
    times = [at_ms for at_ms in runs(chance, begins, length_ms, 15 * SECOND) if at_ms < END]
    return Consumer(name, appended, times, reading(appended, times))


def slow(chance: random.Random, name: str) -> Consumer:
    """Commits after every record, and needs up to twenty minutes for one. Some never catch up."""
    work_ms = chance.choice((10 * SECOND, MINUTE, 5 * MINUTE, 20 * MINUTE))
    appended = arrivals(chance, chance.choice((0.5, 0.9, 1.5)) * SECOND / work_ms)
    times, positions, free_ms = [], [], 0
    for number, at_ms in enumerate(appended):
        free_ms = max(free_ms, at_ms) + int(work_ms * chance.uniform(0.5, 1.5))
        times.append(free_ms)
        positions.append(number + 1)
    return Consumer(name, appended, times, positions)


def restarting(chance: random.Random, name: str) -> Consumer:
    """Steady, but away for up to four minutes a few times a day."""
    appended = arrivals(chance, chance.choice((0.05, 0.2)), END - 36 * HOUR)
    times = every(chance, 5 * SECOND, END - 36 * HOUR, END)
    for _ in range(chance.randrange(2, 12)):
        away_ms = chance.randrange(END - 36 * HOUR, END)
        back_ms = away_ms + chance.randrange(10 * SECOND, 4 * MINUTE)
        times = times[: bisect_left(times, away_ms)] + times[bisect_left(times, back_ms) :]
    return Consumer(name, appended, times, reading(appended, times))


def quiet(chance: random.Random, name: str) -> Consumer:
    """Commits only after records, which come in some hours of the day; one poll of it may take minutes."""
    appended = [
        at_ms
        for day in range(DAYS)
        for at_ms in arrivals(
            chance, chance.choice((0.0005, 0.02)), BEGIN + day * DAY + 8 * HOUR, BEGIN + day * DAY + 12 * HOUR
        )
    ]
    poll_ms = chance.choice((SECOND, 30 * SECOND, 4 * MINUTE))
    polls = sorted({at_ms + chance.randrange(poll_ms) for at_ms in appended})
    return Consumer(name, appended, *moving(polls, reading(appended, polls)))


def new(chance: random.Random, name: str) -> Consumer:
    """Steady, since some minutes or hours of the last day; it reads the log from its start."""
    appended = arrivals(chance, 0.01)
    begin_ms = END - chance.randrange(HOUR, DAY)
    times = every(chance, chance.choice((5, 60)) * SECOND, begin_ms, END)
    ends = reading(appended, times)
    return Consumer(name, appended, times, [min(end, 300 * (at + 1)) for at, end in enumerate(ends)])


LIVE: Sequence[Callable[[random.Random, str], Consumer]] = (
    steady,
    bursty,
    daily,
    batch,
    slow,
    restarting,
    quiet,
    new,
)


def stopped(consumer: Consumer, at_ms: int) -> Consumer:
    """Returns the consumer without its commits from a time on."""
    count = bisect_left(consumer.times, at_ms)
    return Consumer(consumer.name, consumer.appended, consumer.times[:count], consumer.positions[:count])


def rewound(consumer: Consumer, at_ms: int, back: int, *, goes_on: bool) -> Consumer:
    """Returns the consumer gone back by some records. If it goes on, it reads no faster than they come."""
    count = bisect_left(consumer.times, at_ms)
    later = consumer.positions[count:] if goes_on else consumer.positions[count : count + 1]
    positions = [*consumer.positions[:count], *(max(0, position - back) for position in later)]
    return Consumer(consumer.name, consumer.appended, consumer.times[: len(positions)], positions)


def stuck(consumer: Consumer, at_ms: int) -> Consumer:
    """Returns the consumer that commits one position again and again from a time on."""
    count = bisect_left(consumer.times, at_ms)
    held = consumer.positions[count]
    positions = [*consumer.positions[:count], *(held for _ in consumer.positions[count:])]
    return Consumer(consumer.name, consumer.appended, consumer.times, positions)
