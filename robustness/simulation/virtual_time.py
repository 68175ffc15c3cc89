"""Replaces the clocks and the randomness of the standard library by those of the simulation in progress.

`install` is called before korvet is imported, because some modules bind a clock at their import. Outside a
simulation the functions do what they did before.
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH_S: Final = 1_700_000_000
"""The time of the wall clock at which each simulation begins."""
# The time of monotonic clocks at which each simulation begins.
_MONOTONIC_S: Final = 1000.0


class Clock(Protocol):
    """The clock of a simulation."""

    def time(self) -> float:
        """Seconds since the simulation began."""

    def clock_offset_s(self) -> float:
        """The error of the wall clock of the process in progress."""


class _Current:
    clock: Clock | None = None
    randomness: random.Random | None = None


_current: Final = _Current()


def begin(clock: Clock, seed: int) -> None:
    """Use the clock of a simulation, and random bytes that follow from the seed."""
    _current.clock, _current.randomness = clock, random.Random(seed)
    random.seed(seed)


def end() -> None:
    """Use the machine's clocks and random bytes again."""
    _current.clock = _current.randomness = None


def install() -> None:
    """Replace the functions of `time` and `os`."""
    time.monotonic = _monotonic(time.monotonic)
    time.monotonic_ns = _monotonic_ns(time.monotonic_ns)
    time.perf_counter = _monotonic(time.perf_counter)
    time.clock_gettime = _of_clock(time.clock_gettime)  # type: ignore[assignment]
    time.time = _wall(time.time)
    time.time_ns = _wall_ns(time.time_ns)
    os.urandom = _random_bytes(os.urandom)
    random._urandom = os.urandom  # type: ignore[attr-defined]  # what `secrets` uses


def _monotonic(real: Callable[[], float]) -> Callable[[], float]:
    def read() -> float:
        clock = _current.clock
        return real() if clock is None else _MONOTONIC_S + clock.time()

    return read


def _monotonic_ns(real: Callable[[], int]) -> Callable[[], int]:
    def read() -> int:
        clock = _current.clock
        return real() if clock is None else int((_MONOTONIC_S + clock.time()) * 1e9)

    return read


def _of_clock(real: Callable[[int], float]) -> Callable[[int], float]:
    def read(kind: int) -> float:
        clock = _current.clock
        return real(kind) if clock is None else _MONOTONIC_S + clock.time()

    return read


def _wall(real: Callable[[], float]) -> Callable[[], float]:
    def read() -> float:
        clock = _current.clock
        return real() if clock is None else EPOCH_S + clock.time() + clock.clock_offset_s()

    return read


def _wall_ns(real: Callable[[], int]) -> Callable[[], int]:
    def read() -> int:
        clock = _current.clock
        if clock is None:
            return real()
        return EPOCH_S * 10**9 + round((clock.time() + clock.clock_offset_s()) * 1e9)

    return read


def _random_bytes(real: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        randomness = _current.randomness
        return real(size) if randomness is None else randomness.randbytes(size)

    return read
