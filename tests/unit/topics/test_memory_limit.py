"""The cutoff of log.retention.memory.ratio: its states, and a server that takes more than it has room for."""

from __future__ import annotations

import pytest

from korvet.topics.memory_limit import next_cutoff

NOW_MS = 1_790_000_000_000
HOUR_MS = 3_600_000
OLDEST_MS = NOW_MS - HOUR_MS


@pytest.mark.parametrize(
    ("cutoff_ms", "used", "oldest_ms", "moves"),
    [
        pytest.param(None, 0.8, OLDEST_MS, False, id="at the ratio"),
        pytest.param(None, 0.81, OLDEST_MS, True, id="above"),
        pytest.param(None, 0.99, NOW_MS + 1, False, id="all records are of the future"),
        pytest.param(None, 0.81, None, False, id="nothing may go"),
        pytest.param(OLDEST_MS, 0.79, None, True, id="until 2 % below"),
        pytest.param(OLDEST_MS, 0.78, None, False, id="2 % below"),
        pytest.param(OLDEST_MS, 1.2, None, True, id="far above"),
        pytest.param(NOW_MS, 0.9, None, True, id="everything is gone"),
        pytest.param(NOW_MS + HOUR_MS, 0.9, None, False, id="the clock was set back"),
    ],
)
def test_states(cutoff_ms: int | None, used: float, oldest_ms: int | None, *, moves: bool) -> None:
    found = next_cutoff(cutoff_ms, used, 0.8, oldest_ms, 1_000, NOW_MS)
    assert (found is not None) is moves
    if found is not None:
        assert found >= (cutoff_ms or OLDEST_MS)


@pytest.mark.parametrize("filled_s", [20, 600, 6 * 3_600, 7 * 86_400])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_no_write_is_refused_at_a_higher_rate(filled_s: int, times: int) -> None:
    """A server fills at one rate up to the ratio; then producers write at another one for an hour."""
    ratio, rate = 0.8, 4.0
    maxmemory = filled_s * rate / ratio
    begins_ms = NOW_MS - filled_s * 1_000
    cutoff_ms, used, least = None, ratio, ratio
    for second in range(1, 3_600):
        now_ms = NOW_MS + second * 1_000
        used = held(begins_ms, now_ms, rate, times) / maxmemory
        assert used < 1
        cutoff_ms = next_cutoff(cutoff_ms, used, ratio, begins_ms, 1_000, now_ms)
        begins_ms = max(begins_ms, cutoff_ms or 0)
        least = min(least, held(begins_ms, now_ms, rate, times) / maxmemory)
    assert used > 0.4
    assert least > 0.4


def held(begins_ms: int, now_ms: int, rate: float, times: int) -> float:
    """What is there of what was written since `begins_ms`: at `rate` before NOW_MS, at `times` that after."""
    before_ms, after_ms = max(NOW_MS - begins_ms, 0), now_ms - max(begins_ms, NOW_MS)
    return rate * (before_ms + times * after_ms) / 1_000
