"""./dev test: what --all runs with and without the server module."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "tools" / "dev.py"


@pytest.fixture(scope="module")
def dev() -> Any:
    spec = importlib.util.spec_from_file_location("dev", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.parametrize(
    ("arguments", "without_module"),
    [
        (["--all"], ["--all", "storage", "faults"]),
        (["--all", "-k", "append"], ["--all", "-k", "append", "storage", "faults"]),
        (["--full", "--all"], ["--full", "--all", "storage", "faults"]),
        (["--all", "unit", "faults"], ["--all", "faults"]),
        (
            ["--all", "tests/storage/test_link.py::test_x"],
            ["--all", "tests/storage/test_link.py::test_x"],
        ),
    ],
)
def test_all_runs_some_suites_again(dev: Any, arguments: list[str], without_module: list[str]) -> None:
    assert dev.test_runs(arguments, None) == [("all", arguments), ("none", without_module)]


def test_other_runs_are_single(dev: Any) -> None:
    assert dev.test_runs(["--all", "unit"], None) == [("all", ["--all", "unit"])]
    assert dev.test_runs(["storage"], None) == [(None, ["storage"])]
    assert dev.test_runs(["--full"], None) == [(None, ["--full"])]
    assert dev.test_runs(["--all"], "none") == [("none", ["--all"])]


def test_all_runs_the_spark_tests_with_each_spark(dev: Any) -> None:
    assert all(
        map(
            dev.runs_other_sparks,
            (["--all"], ["--all", "--full"], ["--all", "spark"], ["unit", "spark", "--all"]),
        )
    )
    assert not any(
        map(dev.runs_other_sparks, ([], ["--full"], ["spark"], ["--all", "unit"], ["--all", "-k", "x"]))
    )
