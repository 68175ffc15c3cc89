"""The benchmark of large numbers of commits: how they are spread, and what the log of events shows."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from benchmarks.rig.commits import evenly, one_group_has_half, one_partition_has_half
from benchmarks.scale import Tasks, tasks_of
from korvet.offsets.partition import partition_for

if TYPE_CHECKING:
    from pathlib import Path


def test_spreads_of_commits() -> None:
    even = evenly(100, 1_000_000)
    assert set(even.values()) == {10_000}
    hot = one_group_has_half(100, 1_000_000)
    assert hot.keys() == even.keys()
    assert max(hot.values()) == 500_000
    assert abs(sum(hot.values()) - 1_000_000) < 100
    crowded = one_partition_has_half(100, 1_000_000)
    assert len(crowded) == 100
    by_partition = Counter(partition_for(group) for group in crowded)
    assert max(by_partition.values()) == 50


def test_tasks_of_the_longest_stage(tmp_path: Path) -> None:
    def job(stages: list[int], text: str) -> dict[str, object]:
        properties = {"spark.job.description": text}
        return {"Event": "SparkListenerJobStart", "Stage IDs": stages, "Properties": properties}

    def task(stage: int, run_ms: int) -> dict[str, object]:
        metrics = {"Executor Run Time": run_ms}
        return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": metrics}

    events = [
        {"Event": "SparkListenerLogStart"},
        job([0, 1], "1000"),
        *(task(0, run_ms) for run_ms in (1000, 3000, 1500)),
        task(1, 2000),
        job([2], "2000"),
        task(2, 500),
    ]
    log = tmp_path / "log"
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    assert tasks_of(log) == {"1000": Tasks(3, 1.5, 3.0), "2000": Tasks(1, 0.5, 0.5)}
