"""The status of a partition from its last commits, by the rules of docs/explain/group-status.md."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STATUSES = (
    "OK",
    "UNKNOWN",
    "BEHIND",
    "UNCOMMITTED",
    "WARNING",
    "STOPPED",
    "STALLED",
    "REWIND",
    "AHEAD",
    "LOST",
)
WINDOW, KNOWN = 10, 3
MINUTE = 60_000
LONGER_SLOTS_MS = (5 * MINUTE, 20 * MINUTE, 60 * MINUTE)
REACTION_MS = BEHIND_MS = 5 * MINUTE
SILENCE_MS = MINUTE
FACTOR = 3


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, its time if it has one, and when its record was written."""

    offset: int
    at_ms: int | None
    written_ms: int


@dataclass(frozen=True, slots=True)
class Habits:
    """The window of a partition, newest commit last: all its commits, and those that end a burst.

    usual_ms: the usual interval between bursts; None for one burst. highest: the highest offset, also of
    commits before the window that are the last ones of slots of time.
    """

    window: Sequence[Commit]
    bursts: Sequence[Commit]
    usual_ms: int | None
    highest: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a partition at a time.

    behind: unread records at each commit of the window. waited_ms, lag_ms: of the first unread record since
    it was appended, and by its timestamp; None without one. group_last_ms: the group's newest commit.
    """

    now_ms: int
    habits: Habits
    behind: Sequence[int]
    unread: int
    waited_ms: int | None
    lag_ms: int | None
    lost: int | None
    log_end: int | None
    group_last_ms: int | None


def habits(life: Sequence[Commit]) -> Habits:
    """Returns the habits of the commits since the last tombstone. Earlier ones than needed may be missing."""
    newest, bursts = life[-WINDOW:], _ends(life, MINUTE)
    early = [commit for commit in bursts if not any(commit is one for one in newest)]
    usual = _lower_median([difference(after.at_ms, before.at_ms) for before, after in pairwise(bursts)])
    pauses = [_usual_pause(life, slot_ms) for slot_ms in LONGER_SLOTS_MS]
    kept = [*newest, *bursts, *(one for slot_ms in LONGER_SLOTS_MS for one in _ends(life, slot_ms))]
    return Habits(
        [*early, *newest],
        bursts,
        None if len(bursts) < 2 else max(usual or 0, *pauses),
        max(commit.offset for commit in kept),
    )


def _ends(life: Sequence[Commit], slot_ms: int) -> list[Commit]:
    """The last commits of the newest slots."""
    slots = [commit.written_ms // slot_ms for commit in life]
    return [commit for at, commit in enumerate(life) if at + 1 == len(life) or slots[at + 1] != slots[at]][
        -WINDOW:
    ]


def difference(later: int | None, earlier: int | None) -> int | None:
    """Returns the difference of two times; None if one is unknown."""
    return None if later is None or earlier is None else later - earlier


def _lower_median(numbers: Sequence[int | None]) -> int | None:
    known = sorted(number for number in numbers if number is not None)
    return known[(len(known) - 1) // 2] if known else None


def _usual_pause(life: Sequence[Commit], slot_ms: int) -> int:
    """The longest pause such that a third of the time passes in pauses as long or longer."""
    slots = sorted(commit.written_ms // slot_ms for commit in _ends(life, slot_ms))
    steps = [after - before for before, after in pairwise(slots)]
    usual = [step for step in steps if 3 * sum(one for one in steps if one >= step) >= sum(steps)]
    return max((max(usual, default=0) - 1) * slot_ms, 0)


def status(facts: Facts) -> str:
    """Returns the status of a committed partition."""
    window, bursts = facts.habits.window, facts.habits.bursts
    offsets = [commit.offset for commit in window]
    if (facts.lost or 0) > 0:
        return "LOST"
    if facts.log_end is not None and offsets[-1] > facts.log_end:
        return "AHEAD"
    if facts.unread == 0:
        return "OK"
    if offsets[-1] < facts.habits.highest:
        return "REWIND"
    patience_ms = FACTOR * (facts.habits.usual_ms or 0)
    may_react = facts.waited_ms is None or facts.waited_ms <= max(patience_ms, REACTION_MS)
    late = facts.lag_ms is not None and facts.lag_ms > BEHIND_MS
    if len(bursts) < KNOWN or may_react:
        return "BEHIND" if late else "UNKNOWN" if len(bursts) < KNOWN else "OK"
    longest_ms = max(difference(bursts[-1].at_ms, bursts[0].at_ms) or 0, patience_ms, SILENCE_MS)
    silent_ms = difference(facts.now_ms, bursts[-1].at_ms)
    group_silent_ms = difference(facts.now_ms, facts.group_last_ms)
    if silent_ms is not None and group_silent_ms is not None and silent_ms > longest_ms:
        return "STOPPED" if group_silent_ms > longest_ms else "STALLED"
    if min(facts.behind) > 0:
        if min(offsets) == max(offsets):
            return "STALLED"
        if all(later >= earlier for earlier, later in pairwise(facts.behind)):
            return "WARNING"
    return "BEHIND" if late else "OK"
