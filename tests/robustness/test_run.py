"""Short runs of real servers, brokers and clients with faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from robustness import plan
from robustness.campaign import check_file
from robustness.run import run

if TYPE_CHECKING:
    from pathlib import Path

DURATION_MS = 10_000


def seed_of(topology: str) -> int:
    """The first seed with an arrangement of servers."""
    return next(seed for seed in range(1_000) if plan.make(seed, DURATION_MS).topology == topology)


# Clients that a fault leaves in a state in which they can't be closed leave connections behind.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("topology", ["alone"])
def test_a_short_run_has_no_violation(topology: str, tmp_path: Path) -> None:
    history = run(plan.make(seed_of(topology), DURATION_MS), tmp_path / "run")
    checked = check_file(history, tmp_path)
    assert checked.has_passed, checked.text
