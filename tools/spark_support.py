"""The table of docs/reference/spark-versions.md that says what works in which Spark.

    ./dev run python -m tools.spark_support

notes the results of tools.spark_versions in tools/spark_support.json. tools.reference writes the table from
them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools import spark_versions
from tools.spark_capabilities import CAPABILITIES, Capability, named_tests
from tools.spark_versions import FAILED, PASSED, REFUSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tools.spark_versions import Run

NOTED: Final = Path(__file__).with_suffix(".json")
TITLES: Final = {"connect": "4.2 with Connect"}
DIGEST_DIGITS: Final = 12
NOT_RUN: Final = "not run"

Outcomes = dict[str, str]


def main() -> int:
    """Note the results. Returns the exit status: 1 if a named test has not passed with these sources."""
    runs = spark_versions.RUNS
    noted = {"sources": spark_versions.digest_of(spark_versions.product())[:DIGEST_DIGITS]}
    NOTED.write_text(
        json.dumps({**noted, "runs": {name: summary(runs[name]) for name in runs}}, indent=1) + "\n"
    )
    missing = [
        f"{run.name} {suite}"
        for run in runs.values()
        for suite in spark_versions.suites()
        if not spark_versions.has_passed(run, suite, whole=False)
    ]
    if missing:
        sys.stderr.write(f"not passed with these sources: {', '.join(missing)}\n")
    return int(bool(missing))


def summary(run: Run) -> dict[str, Any]:
    """The version of PySpark, and the outcomes of the tests that say what works."""
    results = [spark_versions.results_of(run, suite) for suite in spark_versions.suites()]
    outcomes = {test: outcome for found in results if found for test, outcome in found.outcomes.items()}
    named = {*named_tests()}
    tests = {test: outcomes[test] for test in sorted(outcomes) if {test, without_case(test)} & named}
    return {"pyspark": spark_versions.installed(run), "tests": tests}


def without_case(test: str) -> str:
    """A test without its case: `a::b` for `a::b[c]`."""
    return re.sub(r"\[.*\]$", "", test)


def verdict(capability: Capability, outcomes: Outcomes) -> str:
    """`yes`, or why not: REFUSED or SKIPPED with a text, FAILED, or NOT_RUN."""
    found = [outcome for test in capability.tests for outcome in _of((test,), outcomes)]
    refusals = list(_of(capability.refusals, outcomes))
    if FAILED in (*found, *refusals):
        return FAILED
    refused = next((outcome for outcome in refusals if outcome.startswith(REFUSED)), None)
    if refused:
        return refused
    if not capability.tests or not all(any(_of((test,), outcomes)) for test in capability.tests):
        return NOT_RUN
    return next((outcome for outcome in found if outcome != PASSED), "yes")


def _of(tests: Iterable[str], outcomes: Outcomes) -> Iterator[str]:
    return (
        outcome for name, outcome in outcomes.items() for test in tests if test in {name, without_case(name)}
    )


def table() -> str:
    """The table of the noted results as Markdown."""
    return render(json.loads(NOTED.read_text()))


def render(noted: Mapping[str, Any]) -> str:
    """A table with a row for each capability whose tests have run with any Spark, and notes below it."""
    runs: dict[str, Any] = noted["runs"]
    notes: list[str] = []
    verdicts = {one.what: [verdict(one, run["tests"]) for run in runs.values()] for one in CAPABILITIES}
    known = {what: found for what, found in verdicts.items() if {*found} != {NOT_RUN}}
    rows = [
        ["", *(TITLES.get(name, name) for name in runs)],
        ["---"] * (len(runs) + 1),
        ["PySpark", *(run["pyspark"] for run in runs.values())],
        *([what, *(cell(one, notes) for one in found)] for what, found in known.items()),
    ]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    about = f"From test runs of the sources whose SHA-256 begins with `{noted['sources']}`."
    left_out = len(verdicts) - len(known)
    if left_out:
        about += f" The table leaves out {left_out} rows, because their tests have not run with any Spark."
    listed = [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join([*lines, "", about, "", *listed])


def cell(found: str, notes: list[str]) -> str:
    """A cell of the table. Adds the text of a verdict to the notes, unless they have it."""
    kind, _, text = found.partition(": ")
    if not text:
        return kind
    note = f"refused: {text}" if kind == REFUSED else f"not tested: {text}"
    if note not in notes:
        notes.append(note)
    return f"no ({notes.index(note) + 1})" if kind == REFUSED else f"not tested ({notes.index(note) + 1})"


if __name__ == "__main__":
    sys.exit(main())
