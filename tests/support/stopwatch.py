"""How long processes took for something on a machine that others use too."""

from __future__ import annotations

import time
from pathlib import Path


class Stopwatch:
    """Seconds without those in which this thread or the main thread of a process waited for a core (Linux;
    elsewhere these count). What a process computes or sleeps counts in full.
    """

    def __init__(self, *pids: int) -> None:
        self._paths = ["/proc/thread-self/schedstat", *(f"/proc/{pid}/schedstat" for pid in pids)]
        self._began_s = self._now_s()

    @property
    def elapsed_s(self) -> float:
        return self._now_s() - self._began_s

    def _now_s(self) -> float:
        return time.monotonic() - sum(map(_ready_s, self._paths))


def _ready_s(path: str) -> float:
    """Seconds so far that a thread has waited for a core."""
    try:
        return int(Path(path).read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


# Rounds of a loop, and the seconds that they take on a core of usual speed.
_ROUNDS = 400_000
_ROUNDS_S = 0.03


def slowness() -> float:
    """By what factor a computation takes longer now than on a core of usual speed; at least 1."""
    watch = Stopwatch()
    for number in range(_ROUNDS):
        number * number
    return max(1.0, watch.elapsed_s / _ROUNDS_S)
