"""Robustness runs. Seeds that have passed with the same sources do not run again."""

from __future__ import annotations

import pytest

from robustness.campaign import Passed, run_plans, sources
from robustness.command import FOLDER, ROOT, say
from robustness.plan import make
from robustness.run import run

SEEDS = 40
CHUNK = 20
DURATION_MS = 15_000
# Limits a run with its start and its last reads.
RUN_TIMEOUT_S = 240


@pytest.mark.long
@pytest.mark.timeout(CHUNK * RUN_TIMEOUT_S)
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_runs_have_no_violation(first: int) -> None:
    folder = FOLDER / "tests"
    passed = Passed(folder, sources(ROOT), DURATION_MS)
    plans = (make(seed, DURATION_MS) for seed in range(first, first + CHUNK))
    assert run_plans(plans, run, folder, passed, say) == []
