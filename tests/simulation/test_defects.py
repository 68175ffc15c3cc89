"""Planted defects that the simulation finds, most of them within seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_SEEDS = 500


@pytest.mark.parametrize(
    "name",
    [
        "drop_a_marker",
        "answer_a_commit_before_its_append",
        "forget_an_aborted_transaction",
        "read_past_the_last_stable_offset",
        "forget_a_producers_sequences",
        "refuse_all_batches",
        "name_another_offset",
        "accept_nothing",
        "take_a_record_for_a_marker",
        pytest.param("end_all_locks_with_the_first", marks=pytest.mark.long),
        pytest.param("answer_with_the_first_commit", marks=pytest.mark.long),
        pytest.param("give_partitions_away_early", marks=pytest.mark.long),
        pytest.param("delete_no_records", marks=pytest.mark.long),
        pytest.param("keep_the_offsets_of_an_aborted_transaction", marks=pytest.mark.long),
        pytest.param("release_before_the_barrier", marks=pytest.mark.long),
        pytest.param("serve_beyond_the_high_watermark", marks=pytest.mark.long),
    ],
)
def test_a_planted_defect_is_found(name: str) -> None:
    command = [sys.executable, "-m", "robustness.simulation.defects", name, str(MOST_SEEDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{MOST_SEEDS} seeds do not show it: {done.stderr[-4000:]}"
