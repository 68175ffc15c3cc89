"""How long processes took for something on a machine that others use too."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from statistics import mean
from typing import Final

_EVERY_S: Final = 0.02
_ROUNDS: Final = 10_000
# What they take on a core of usual speed.
_USUAL_S: Final = 0.00075


class Pace:
    """Measures how fast a core computes, from `start` to `close`: beside other virtual machines, the same
    work takes two to three times as long.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._compute, daemon=True)
        self.needed_s: list[float] = []
        """The seconds on a core that each computation so far has needed."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _compute(self) -> None:
        while not self._over.wait(_EVERY_S):
            began_s = time.thread_time()
            for number in range(_ROUNDS):
                number * number
            self.needed_s.append(time.thread_time() - began_s)


class Stopwatch:
    """Seconds without those in which this thread or the main thread of a process waited for a core (Linux;
    elsewhere these count). What a process computes or sleeps counts in full; with a pace, as much as on a
    core of usual speed.
    """

    def __init__(self, *pids: int, pace: Pace | None = None) -> None:
        self._paths = ["/proc/thread-self/schedstat", *(f"/proc/{pid}/schedstat" for pid in pids)]
        self._pace = pace
        self._computed = len(pace.needed_s) if pace else 0
        self._began_s = self._now_s()

    @property
    def elapsed_s(self) -> float:
        elapsed_s = self._now_s() - self._began_s
        needed_s = self._pace.needed_s[self._computed :] if self._pace else []
        return elapsed_s / max(1.0, mean(needed_s) / _USUAL_S) if needed_s else elapsed_s

    def _now_s(self) -> float:
        return time.monotonic() - sum(map(_ready_s, self._paths))


def _ready_s(path: str) -> float:
    """Seconds so far that a thread has waited for a core."""
    try:
        return int(Path(path).read_text().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0
