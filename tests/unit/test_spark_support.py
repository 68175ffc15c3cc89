"""The table of what works in which Spark: from outcomes of tests to cells, and the noted results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import spark_support, spark_versions
from tools.spark_capabilities import CAPABILITIES, Capability, named_tests
from tools.spark_support import cell, verdict, without_case

SUITES = Path(__file__).resolve().parents[1] / "spark"
NOTED = json.loads(spark_support.NOTED.read_text())

OUTCOMES = {
    "test_a::test_x[1]": "passed",
    "test_a::test_x[2]": "skipped: no server",
    "test_a::test_no": "refused: needs Spark 4.2",
    "test_a::test_jar": "refused: no release",
    "test_a::test_bad": "failed",
    "test_a::test_teardown": "failed",
}
# Files of tests with these outcomes: the third one aborts the run.
SUITES_TO_RUN = {
    "test_a": """
import pytest
@pytest.fixture
def broken():
    yield
    raise OSError
@pytest.mark.parametrize("case", [1, 2])
def test_x(case):
    if case == 2:
        pytest.skip("no server")
def test_no(record_property):
    record_property("refused", "needs Spark 4.2")
def test_jar(record_property):
    record_property("refused", "no release")
    pytest.skip("no jar")
def test_bad():
    assert False
def test_teardown(broken):
    pass
""",
    "test_b": "import pytest; pytest.importorskip('a_whole_file')",
    "test_c": "import os\ndef test_first():\n    pass\ndef test_abort():\n    os._exit(3)",
}
RUN = """
import sys
from pathlib import Path
from tools import spark_versions
spark_versions.RESULTS = Path.cwd()
sys.exit(spark_versions.run_inside(spark_versions.RUNS["4.2"], sys.argv[1:], whole=True))
"""


def run_suites(folder: Path, *chosen: str) -> tuple[int, dict[str, Any]]:
    """Run files of SUITES_TO_RUN. Returns the exit status, and the outcomes noted for each file."""
    (folder / "tests" / "spark").mkdir(parents=True, exist_ok=True)
    (folder / "4.2").mkdir(exist_ok=True)
    for name in chosen:
        (folder / "tests" / "spark" / f"{name}.py").write_text(SUITES_TO_RUN[name])
    environ = {**os.environ, "PYTHONPATH": str(SUITES.parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *chosen], cwd=folder, env=environ, capture_output=True, check=False
    )
    notes = {path.stem: json.loads(path.read_text()) for path in (folder / "4.2").iterdir()}
    return done.returncode, {suite: note["outcomes"] for suite, note in notes.items()}


def test_outcomes(tmp_path: Path) -> None:
    assert run_suites(tmp_path, "test_a", "test_b") == (1, {"test_a": OUTCOMES, "test_b": {}})


def test_an_aborted_run_keeps_the_outcomes_of_whole_files(tmp_path: Path) -> None:
    assert run_suites(tmp_path, "test_a", "test_c") == (3, {"test_a": OUTCOMES})


@pytest.mark.parametrize(
    ("tests", "refusals", "expected"),
    [
        (("test_a::test_x[1]",), (), "yes"),
        (("test_a::test_x",), (), "skipped: no server"),
        (("test_a::test_jar",), (), "refused: no release"),
        (("test_a::test_x[1]",), ("test_a::test_no",), "refused: needs Spark 4.2"),
        (("test_a::test_x[1]",), ("test_a::test_x[2]",), "yes"),
        (("test_a::test_x[1]", "test_a::test_bad"), (), "failed"),
        (("test_a::test_x[1]",), ("test_a::test_bad",), "failed"),
        (("test_a::test_x[1]", "test_c::test_y"), (), "not run"),
        ((), ("test_a::test_no",), "refused: needs Spark 4.2"),
        ((), ("test_a::test_x[1]",), "not run"),
    ],
)
def test_verdicts(tests: tuple[str, ...], refusals: tuple[str, ...], expected: str) -> None:
    assert verdict(Capability("x", tests, refusals), OUTCOMES) == expected


def test_cells_share_notes() -> None:
    notes: list[str] = []
    assert [cell(found, notes) for found in ("yes", "refused: a", "skipped: b", "refused: a")] == [
        "yes",
        "no (1)",
        "not tested (2)",
        "no (1)",
    ]
    assert notes == ["refused: a", "not tested: b"]


def test_rows_that_have_run_with_no_spark_are_left_out() -> None:
    both, one, with_one, neither = CAPABILITIES[:4]
    assert with_one.tests == one.tests
    tests = dict.fromkeys((*both.tests, *one.tests), "passed")
    known = {"pyspark": "4.0.0", "tests": tests}
    partly = {"pyspark": "4.2.0", "tests": dict.fromkeys(both.tests, "passed")}
    text = spark_support.render({"sources": "ab12", "runs": {"4.0": known, "4.2": partly}})
    assert f"| {both.what} | yes | yes |" in text
    assert f"| {one.what} | yes | not run |" in text
    assert neither.what not in text
    assert f"leaves out {len(CAPABILITIES) - 3} rows" in text


def test_every_named_test_exists() -> None:
    for name in named_tests():
        file, _, test = without_case(name).partition("::")
        assert re.search(rf"^def {test}\(", (SUITES / f"{file}.py").read_text(), re.MULTILINE), name


def test_the_noted_results_have_no_failure() -> None:
    assert [*NOTED["runs"]] == [*spark_versions.RUNS]
    for name, run in NOTED["runs"].items():
        assert {one.what for one in CAPABILITIES if verdict(one, run["tests"]) == "failed"} == set(), name


def test_other_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert spark_versions.main(["4.0", "test_nothing"]) == 2
    assert "no run and no file of tests test_nothing; runs are 4.0, 4.1" in capsys.readouterr().err
