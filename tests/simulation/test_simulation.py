"""Seeds of the simulation keep all rules, and a seed always gives the same run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from robustness.simulation import campaign, worker

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 30
MANY_SEEDS = 10_000


def simulate(*arguments: str, hash_seed: str = "random") -> str:
    """Returns what the command prints. Its process is another one: it has other clocks."""
    command = [sys.executable, "-m", "robustness.simulation", *arguments]
    environ = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def test_some_seeds_keep_all_rules(tmp_path: Path) -> None:
    simulate("--seeds", str(SEEDS), "--folder", str(tmp_path), "--again")


def test_a_campaign_that_begins_anywhere_leaves_out_no_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []

    def results(chunks: list[range], *_: object) -> Iterator[tuple[range, list[worker.Result]]]:
        for chunk in chunks:
            ran.extend(chunk)
            yield chunk, []

    monkeypatch.setattr(campaign, "_results", results)
    for seeds, expected in (
        (range(17, 117), range(17, 117)),
        (range(100), range(50)),
        (range(100), range(0)),
        (range(20, 80), range(20, 80)),
    ):
        ran.clear()
        assert campaign.run(seeds, tmp_path, campaign.Passed(tmp_path / "passed.json", tmp_path), print) == []
        assert ran == [*expected], seeds


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_many_seeds_keep_all_rules() -> None:
    """Chunks of seeds that passed with the same sources do not run again."""
    simulate("--seeds", str(MANY_SEEDS))


def test_a_seed_gives_the_same_run_in_each_process(tmp_path: Path) -> None:
    arguments = ["--traces", "--first", "1000", "--seeds", "10", "--folder", str(tmp_path)]
    assert simulate(*arguments, hash_seed="1") == simulate(*arguments, hash_seed="2")
