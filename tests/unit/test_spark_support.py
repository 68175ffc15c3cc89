"""The table of what works in which Spark: from outcomes of tests to cells, and the noted results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools import spark_support, spark_versions
from tools.spark_capabilities import CAPABILITIES, Capability, named_tests
from tools.spark_support import cell, verdict, without_case
from tools.spark_versions import read_outcomes

SUITES = Path(__file__).resolve().parents[1] / "spark"
NOTED = json.loads(spark_support.NOTED.read_text())

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.spark.test_a" name="test_x[1]"/>
<testcase classname="tests.spark.test_a" name="test_x[2]"><skipped message="no server"/></testcase>
<testcase classname="tests.spark.test_a" name="test_no"><properties>
<property name="refused" value="needs Spark 4.2"/></properties></testcase>
<testcase classname="tests.spark.test_a" name="test_jar"><skipped message="no jar"/><properties>
<property name="refused" value="no release"/></properties></testcase>
<testcase classname="tests.spark.test_a" name="test_bad"><failure message="assert"/></testcase>
<testcase classname="" name="tests.spark.test_b"><skipped message="a whole file"/></testcase>
</testsuite></testsuites>"""


def test_outcomes() -> None:
    assert read_outcomes(JUNIT) == {
        "test_a::test_x[1]": "passed",
        "test_a::test_x[2]": "skipped: no server",
        "test_a::test_no": "refused: needs Spark 4.2",
        "test_a::test_jar": "refused: no release",
        "test_a::test_bad": "failed",
    }


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
    assert verdict(Capability("x", tests, refusals), read_outcomes(JUNIT)) == expected


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
