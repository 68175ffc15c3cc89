"""Runs the Spark tests with each version of Spark that korvet works with, and records what works where.

    ./dev run python -m tools.spark_versions 3.5 4.0    all tests with these versions
    ./dev run python -m tools.spark_versions            the tests of the table; then docs/spark_versions.json

Each version has an environment of its own in .cache/spark: its PySpark, before the packages of .venv. A file
of tests that has passed with the same sources does not run again. `tools.reference` writes the record as a
table.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tools import dev

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "spark_versions.json"
RESULTS = ROOT / "build" / "spark-versions"
EXPRESSIONS_ONLY = "3.5"
EXPRESSIONS = "test_expressions"
# Exit status of pytest without tests.
NO_TESTS = 5
# The newest releases that were obtainable when the table was made; `None` is the PySpark of .venv.
RELEASES: dict[str, str | None] = {EXPRESSIONS_ONLY: "3.5.9", "4.0": "4.0.0", "4.1": "4.1.4", "4.2": None}
YES, NO = "yes", "no"
# What the results depend on.
SOURCES = ("spark/**/*.py", "offsets/**/*.py", "tests/spark/*.py", "pyspark_korvet.py", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Feature:
    """A row of the table: it works where all of these tests (files, or functions) pass."""

    name: str
    tests: tuple[str, ...]


FEATURES = (
    Feature(
        '`format("korvet")` in batches',
        ("test_source_range", "test_source::test_schema_is_that_of_the_kafka_source"),
    ),
    Feature("streams", ("test_source_stream", "test_source::test_stream_gives_every_record_once")),
    Feature("`maxRecordsPerTrigger`, `minRecordsPerTrigger`", ("test_stream_limits",)),
    Feature("`pushdown=true`", ("test_pushdown",)),
    Feature("found by its name; `CREATE TEMPORARY VIEW`", ("test_registration",)),
    Feature("tables", ("test_tables", "test_decode::test_all_golden_records")),
    Feature("tables that are kept", ("test_all_tables",)),
    Feature("`korvet report`", ("test_report::test_lag_over_time_is_what_was_worked_out_by_hand",)),
    Feature("exports, once and continuously", ("test_export",)),
    Feature("Spark's Kafka connector", ("test_golden::test_by_the_official_connector",)),
    Feature("`korvet.spark.expressions`", ("test_expressions",)),
)
# A test's outcome by file and function: passed, skipped or failed.
Outcomes = dict[str, list[str]]


def main(arguments: Sequence[str]) -> int:
    """Run all Spark tests with the versions named, or record what works where. Returns the exit status."""
    unknown = [version for version in arguments if version not in RELEASES]
    if unknown:
        sys.stderr.write(f"no version {', '.join(unknown)}; there are {', '.join(RELEASES)}\n")
        return 2
    if not arguments:
        return record({version: run(version, "table", table_tests(version)) for version in RELEASES})
    results = [run(version, name, [name]) for version in arguments for name in suites(version)]
    return int(not all(map(passed, results)))


def suites(version: str) -> list[str]:
    """The names of the files of tests for a version."""
    if version == EXPRESSIONS_ONLY:
        return [EXPRESSIONS]
    return sorted(path.stem for path in (ROOT / "tests" / "spark").glob("test_*.py"))


def table_tests(version: str) -> list[str]:
    """The tests of the table for a version."""
    if version == EXPRESSIONS_ONLY:
        return [EXPRESSIONS]
    return [test for feature in FEATURES for test in feature.tests]


def run(version: str, suite: str, tests: Sequence[str]) -> Outcomes:
    """Run a suite, unless it has passed with these sources before. Returns the outcomes.

    tests: files, or functions in files, of tests/spark.
    """
    folder, digest = RESULTS / version, digest_of(sources())
    folder.mkdir(parents=True, exist_ok=True)
    known = folder / f"{suite}.json"
    document = json.loads(known.read_text()) if known.exists() else {}
    if document.get("digest") == digest:
        outcomes: Outcomes = document["outcomes"]
        return outcomes
    report, output = folder / f"{suite}.xml", folder / f"{suite}.txt"
    report.unlink(missing_ok=True)
    python = environment(version)
    environ = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    with output.open("w") as file:
        done = subprocess.run(
            [*pytest_of(version, python), f"--junitxml={report}", *map(path_of, tests)],
            cwd=ROOT,
            env=environ,
            stdout=file,
            stderr=file,
            check=False,
        )
    found = outcomes_of(report) if report.exists() else {}
    # A file that is skipped as a whole has no test.
    if done.returncode not in {0, NO_TESTS} and passed(found):
        found[f"{suite}::pytest"] = ["failed"]
    dev.say(f"Spark {version}, {suite}: {'passed' if passed(found) else f'FAILED, see {output}'}")
    if passed(found):
        known.write_text(json.dumps({"digest": digest, "outcomes": found}))
    return found


def pytest_of(version: str, python: Path) -> list[str]:
    """The command of pytest for a version."""
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider"]
    if version == EXPRESSIONS_ONLY:
        # The conftest.py files need data sources in Python. This Spark warns about itself with recent
        # versions of Python's libraries.
        return [*command, "--noconftest", "-p", "tests.spark.plain_session", "-W", "ignore"]
    if RELEASES[version]:
        # PySpark 4.0 and 4.1 leave sockets to the garbage collector.
        command += ["-W", "ignore::pytest.PytestUnraisableExceptionWarning", "-W", "ignore::ResourceWarning"]
    return command


def path_of(test: str) -> str:
    """The argument of pytest for a file or function."""
    name, colons, function = test.partition("::")
    return f"tests/spark/{name}.py{colons}{function}"


def environment(version: str) -> Path:
    """Return the Python of a version's environment, created if it is missing. Raises SetupError."""
    release = RELEASES[version]
    if release is None:
        return Path(sys.executable)
    folder = ROOT / ".cache" / "spark" / release
    python, made = folder / "bin" / "python", folder / "made"
    packages = sysconfig.get_path("purelib")
    if made.exists() and made.read_text() == packages:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    base, uv = dev.base_python(), shutil.which("uv")
    if uv:
        create, pip = (
            [uv, "venv", "--quiet", "--python", base],
            [uv, "pip", "install", "--python", str(python)],
        )
    else:
        create, pip = [base, "-m", "venv"], [str(python), "-m", "pip", "install"]
    dev.install(f"creating {folder}", [*create, str(folder)])
    dev.install(f"installing pyspark {release}", [*pip, "--quiet", f"pyspark=={release}"])
    own = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # After its own packages, with the .pth files there.
    (own / "korvet_packages.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    made.write_text(packages)
    return python


def sources() -> list[Path]:
    """The files that the results depend on."""
    return sorted(path for pattern in SOURCES for path in ROOT.glob(pattern))


def digest_of(files: Iterable[Path]) -> str:
    """Return a hash of files with their names."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def outcomes_of(report: Path) -> Outcomes:
    """Return the outcomes in a JUnit report."""
    outcomes: Outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        # A file that is skipped as a whole has an empty class name.
        module = (case.get("classname") or case.get("name") or "").rpartition(".")[2]
        function = (case.get("name") or "").partition("[")[0]
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        outcomes.setdefault(f"{module}::{function}", []).append(outcome)
    return outcomes


def passed(outcomes: Outcomes) -> bool:
    """Whether no test failed."""
    return not any("failed" in found for found in outcomes.values())


def cell(feature: Feature, outcomes: Outcomes) -> str:
    """Whether a feature works, by the outcomes of a version in which no test failed."""
    found = [
        outcome
        for name, some in outcomes.items()
        for outcome in some
        if any(name == test or name.startswith(f"{test}::") for test in feature.tests)
    ]
    return YES if "passed" in found else NO


def record(results: Mapping[str, Outcomes]) -> int:
    """Write what works where, if no test failed. Returns the exit status."""
    if not all(map(passed, results.values())):
        return 1
    document = {
        feature.name: {version: cell(feature, outcomes) for version, outcomes in results.items()}
        for feature in FEATURES
    }
    RECORD.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
