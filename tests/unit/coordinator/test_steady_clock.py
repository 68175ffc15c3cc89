"""The clock of coordinators when the wall clock is set."""

from __future__ import annotations

from korvet.coordinator.steady_clock import SteadyClock


def test_the_wall_clock_counts_from_the_next_correction_on() -> None:
    wall_ms, monotonic_ms = 1_700_000_000_000, 50
    clock = SteadyClock(lambda: wall_ms * 1_000_000, lambda: monotonic_ms * 1_000_000)
    assert clock() == 1_700_000_000_000
    wall_ms, monotonic_ms = wall_ms + 3_600_010, monotonic_ms + 10
    assert clock() == 1_700_000_000_010
    assert clock.correct() == 3_600_000
    assert clock() == wall_ms
    wall_ms -= 7_200_000
    assert clock.correct() == -7_200_000
    assert clock() == wall_ms
    assert clock.correct() == 0
