"""Planted defects are found by a small run, or by a run with a plan; without a defect these pass."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from robustness.campaign import check_file
from robustness.defects import DEFECTS, LOSSY_FAILOVER
from robustness.run import run
from tests.robustness.small_run import small_run

if TYPE_CHECKING:
    from pathlib import Path


def test_the_defects_fit_the_sources() -> None:
    """Planting them in a process of its own, all at once, raises nothing."""
    plant_all = "\n".join(
        (
            "from korvet.redis.functions import library_source",
            "from robustness.defects import DEFECTS",
            "for defect in DEFECTS.values(): defect.plant()",
            "library_source()",
        )
    )
    subprocess.run((sys.executable, "-c", plant_all), check=True)


def test_a_small_run_has_no_violation(tmp_path: Path) -> None:
    checked = check_file(small_run(tmp_path), tmp_path)
    assert checked.has_passed, checked.text


def test_a_lossy_failover_has_no_violation(tmp_path: Path) -> None:
    checked = check_file(run(LOSSY_FAILOVER, tmp_path / "run"), tmp_path)
    assert checked.has_passed, checked.text


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, defect in DEFECTS.items() if not defect.is_simulated])
def test_a_planted_defect_is_found(name: str, tmp_path: Path) -> None:
    defect = DEFECTS[name]
    program = ("robustness.defects", name)
    if defect.plan is None:
        path = small_run(tmp_path, defect.stages, program)
    else:
        path = run(defect.plan, tmp_path / "run", program)
    checked = check_file(path, tmp_path)
    found = {violation.kind for violation in checked.violations if not violation.is_note}
    assert found & defect.kinds, checked.text
