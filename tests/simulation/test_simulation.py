"""Seeds of the simulation keep all rules, and a seed always gives the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 60
MANY_SEEDS = 10_000


def simulate(*arguments: str, hash_seed: str = "random") -> str:
    """Returns what the command prints. Its process is another one: it has other clocks."""
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def test_some_seeds_keep_all_rules(tmp_path: Path) -> None:
    simulate("--seeds", str(SEEDS), "--folder", str(tmp_path), "--again")


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_many_seeds_keep_all_rules() -> None:
    """Chunks of seeds that passed with the same sources do not run again."""
    simulate("--seeds", str(MANY_SEEDS))


def test_a_seed_gives_the_same_run_in_each_process(tmp_path: Path) -> None:
    arguments = ["--traces", "--first", "1000", "--seeds", "10", "--folder", str(tmp_path)]
    assert simulate(*arguments, hash_seed="1") == simulate(*arguments, hash_seed="2")
