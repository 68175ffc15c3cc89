"""Runs the Spark tests with each version of Spark, and once more through Spark Connect.

    ./dev run python -m tools.spark_versions                        all of RUNS
    ./dev run python -m tools.spark_versions 4.0 connect            some of them
    ./dev run python -m tools.spark_versions 4.0 test_source        some files of tests/spark
    ./dev run python -m tools.spark_versions --named                only the tests that say what works

A version other than .venv's has an environment of its own in .cache/spark: its PySpark, before the packages
of .venv. A file of tests that has passed with the same sources does not run again, also if the run was
aborted later. Output and results are in build/spark-versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tools import dev
from tools.spark_capabilities import tests_named_in

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
TESTS: Final = ROOT / "tests" / "spark"
RESULTS: Final = ROOT / "build" / "spark-versions"
NAMED: Final = "--named"
# The first argument of the process that runs the tests.
INSIDE: Final = "--inside"
PASSED, FAILED, SKIPPED, REFUSED = "passed", "failed", "skipped", "refused"
# Exit statuses of a pytest that ran what was asked: all passed, some failed, there is no test.
COMPLETE: Final = frozenset({0, 1, 5})
# Korvet's part that runs in Spark. The results depend on it.
PRODUCT: Final = ("spark/**/*.py", "spark/**/*.java", "offsets/**/*.py", "pyspark_korvet.py")
_IMPORTED: Final = re.compile(r"^\s*from (tests\.[\w.]+) import ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Run:
    """The tests with one PySpark: with `release`, or with .venv's if it is None."""

    name: str
    release: str | None = None
    connect: bool = False


RUNS: Final = {
    run.name: run
    for run in (
        Run("4.0", "4.0.0"),
        Run("4.1", "4.1.4"),
        Run("4.2"),
        Run("4.3", "4.3.0"),
        Run("connect", connect=True),
    )
}


@dataclass(frozen=True, slots=True)
class Results:
    """The outcomes of the tests of a file with the present sources. whole: all its tests have run."""

    outcomes: dict[str, str]
    whole: bool

    @property
    def passed(self) -> bool:
        """Whether no test failed."""
        return FAILED not in self.outcomes.values()


def main(arguments: Sequence[str]) -> int:
    """Run the files of tests named, or all, in the runs named, or all. Returns the exit status."""
    if INSIDE in arguments:
        _, name, *chosen_there = [word for word in arguments if word != NAMED]
        return run_inside(RUNS[name], chosen_there, whole=NAMED not in arguments)
    known = set(suites())
    unknown = [word for word in arguments if word not in {NAMED, *RUNS, *known}]
    if unknown:
        sys.stderr.write(f"no run and no file of tests {', '.join(unknown)}; runs are {', '.join(RUNS)}\n")
        return 2
    dev.prepare({"spark", "dev"}, java=False)
    runs = [RUNS[word] for word in arguments if word in RUNS] or [*RUNS.values()]
    chosen = {word for word in arguments if word in known} or known
    whole = NAMED not in arguments
    failed = [run for run in runs if not passes(run, chosen, whole=whole)]
    return int(bool(failed))


def suites() -> tuple[str, ...]:
    """Return the names of the files of tests."""
    return tuple(sorted(path.stem for path in TESTS.glob("test_*.py")))


def passes(run: Run, chosen: Iterable[str], *, whole: bool) -> bool:
    """Run files of tests in one process, except those that have passed. Returns whether none failed.

    whole: all their tests, not only those that say what works.
    """
    pending = [suite for suite in sorted(chosen) if not has_passed(run, suite, whole=whole)]
    if not pending:
        return True
    folder = RESULTS / run.name
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"{pending[0]}.txt"
    python = environment(run.release) if run.release else Path(sys.executable)
    environ = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    if run.connect:
        environ["KORVET_TEST_CONNECT"] = "1"
    command = [str(python), "-m", "tools.spark_versions", INSIDE, run.name, *pending]
    with output.open("w") as file:
        done = subprocess.run(
            [*command, *([] if whole else [NAMED])],
            cwd=ROOT,
            env=environ,
            stdout=file,
            stderr=file,
            check=False,
        )
    ended = {0: "passed", 1: f"FAILED, see {output}"}
    dev.say(
        f"Spark {run.name}, {len(pending)} files: "
        f"{ended.get(done.returncode, f'pytest ended with status {done.returncode}, see {output}')}"
    )
    return done.returncode == 0


def run_inside(run: Run, chosen: Sequence[str], *, whole: bool) -> int:
    """Run files of tests in this process. Returns the exit status of pytest, 0 if there was no test."""
    status = pytest.main(pytest_arguments(run, chosen, whole=whole), [Notes(run, chosen, whole=whole)])
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else int(status)


class Notes:
    """A plugin of pytest that notes the results of a file of tests when its last test has ended."""

    def __init__(self, run: Run, chosen: Iterable[str], *, whole: bool) -> None:
        self._run, self._whole = run, whole
        self._digests = {suite: digest_of(sources_of(suite)) for suite in chosen}
        self.outcomes: dict[str, dict[str, str]] = {suite: {} for suite in chosen}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the outcome of a test, which the reports of its setup and its teardown can change."""
        file, _, test = report.nodeid.partition("::")
        suite = Path(file).stem
        outcomes, name = self.outcomes[suite], f"{suite}::{test}"
        outcomes[name] = _outcome(report, outcomes.get(name, PASSED))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Note the results of a file after its last test."""
        done = yield
        if nextitem is None or nextitem.path != item.path:
            self._write(item.path.stem)
        return done

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Note the files without a test that runs."""
        if exitstatus in COMPLETE:
            for suite in self._digests:
                self._write(suite)

    def _write(self, suite: str) -> None:
        before = results_of(self._run, suite)
        found = {**(before.outcomes if before else {}), **self.outcomes[suite]}
        whole = self._whole or bool(before and before.whole)
        note = {"sources": self._digests[suite], "whole": whole, "outcomes": found}
        _note(self._run, suite).write_text(json.dumps(note, indent=1))


def has_passed(run: Run, suite: str, *, whole: bool) -> bool:
    """Whether a file of tests, or what it has of those that say what works, has passed with these sources."""
    if not whole and not tests_named_in(suite):
        return True
    results = results_of(run, suite)
    return results is not None and results.passed and (results.whole or not whole)


def results_of(run: Run, suite: str) -> Results | None:
    """The results of a file of tests, if it has run with these sources."""
    path = _note(run, suite)
    noted = json.loads(path.read_text()) if path.exists() else {}
    if noted.get("sources") != digest_of(sources_of(suite)):
        return None
    return Results(noted["outcomes"], noted["whole"])


def _note(run: Run, suite: str) -> Path:
    return RESULTS / run.name / f"{suite}.json"


def _outcome(report: pytest.TestReport, before: str) -> str:
    """The outcome of a test with one more report: PASSED, FAILED, or SKIPPED or REFUSED with `: ` and a text.

    A refusal is a message that the test recorded as the property `refused`, even if it was skipped then.
    """
    if report.failed or before == FAILED:
        return FAILED
    for name, value in report.user_properties:
        if name == REFUSED:
            return f"{REFUSED}: {value}"
    if report.skipped and isinstance(report.longrepr, tuple):
        return f"{SKIPPED}: {report.longrepr[2].removeprefix('Skipped: ')}"
    return before


def pytest_arguments(run: Run, chosen: Iterable[str], *, whole: bool) -> list[str]:
    """The arguments of pytest. Of the long tests, only those that say what works run."""
    arguments = ["-p", "no:cacheprovider"]
    for suite in chosen:
        path = f"tests/spark/{suite}.py"
        arguments += [*([path] if whole else []), *(f"{path}::{test}" for test in tests_named_in(suite))]
    if run.release:
        # PySpark 4.0 and 4.1 leave sockets to the garbage collector.
        arguments += [
            "-W",
            "ignore::pytest.PytestUnraisableExceptionWarning",
            "-W",
            "ignore::ResourceWarning",
        ]
    return arguments


def installed(run: Run) -> str:
    """Return the version of a run's PySpark."""
    return run.release or version("pyspark")


def environment(release: str) -> Path:
    """Return the Python of a PySpark's environment, created if it is missing. Raises SetupError."""
    folder = ROOT / ".cache" / "spark" / release
    python, made = folder / "bin" / "python", folder / "made"
    packages = sysconfig.get_path("purelib")
    if made.exists() and made.read_text() == packages:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    base, uv = dev.base_python(), shutil.which("uv")
    if uv:
        create = [uv, "venv", "--quiet", "--python", base]
        pip = [uv, "pip", "install", "--python", str(python)]
    else:
        create, pip = [base, "-m", "venv"], [str(python), "-m", "pip", "install"]
    dev.install(f"creating {folder}", [*create, str(folder)])
    dev.install(f"installing pyspark {release}", [*pip, "--quiet", f"pyspark=={release}"])
    own = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # After its own packages, with the .pth files there.
    (own / "korvet_packages.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    made.write_text(packages)
    return python


def product() -> list[Path]:
    """The files of PRODUCT."""
    return sorted(path for pattern in PRODUCT for path in ROOT.glob(pattern))


def sources_of(suite: str) -> list[Path]:
    """The files that the results of a file of tests depend on: the product, and the modules of tests/ that it
    imports, also indirectly.
    """
    found: set[Path] = set()
    waiting = [TESTS / f"{suite}.py", TESTS / "conftest.py"]
    while waiting:
        path = waiting.pop()
        if path not in found and path.is_file():
            found.add(path)
            modules = _IMPORTED.findall(path.read_text("utf-8"))
            waiting += [ROOT.joinpath(*module.split(".")).with_suffix(".py") for module in modules]
    return [*product(), ROOT / "pyproject.toml", *sorted(found)]


def digest_of(files: Iterable[Path]) -> str:
    """Return a hash of files with their names."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
