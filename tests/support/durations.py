"""Wall and CPU seconds of every test, kept over runs in `.cache/test-durations.json`.

CPU seconds count this process and its descendants, so they mean the same on a busy machine. A test that first
uses a shared server or session also pays for its start.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import children, tree_cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Generator

STORED = Path(".cache", "test-durations.json")
# Number of files in the summary.
SHOWN = 5


def cpu_s() -> float:
    """CPU seconds so far of this process, its ended children, and on Linux its live descendants."""
    return sum(os.times()[:4]) + sum(map(tree_cpu_seconds, children(os.getpid())))


class Durations:
    """Measures tests where they run, and adds up the reports where the summary is shown."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._began_s = 0.0
        # Seconds by test ID.
        self._wall_s: Counter[str] = Counter()
        self._cpu_s: Counter[str] = Counter()

    def pytest_runtestloop(self) -> None:
        self._began_s = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now_s = cpu_s()
            report.cpu_s, self._began_s = max(0.0, now_s - self._began_s), now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._wall_s[report.nodeid] += report.duration
        self._cpu_s[report.nodeid] += getattr(report, "cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the sums and the slowest files, and store all durations."""
        if not self._wall_s:
            return
        wall_s, used_s = Counter[str](), Counter[str]()
        for test, seconds in self._wall_s.items():
            wall_s[file_of(test)] += seconds
            used_s[file_of(test)] += self._cpu_s[test]
        terminalreporter.section("durations")
        terminalreporter.line(f"{used_s.total():8.1f} s of CPU, {wall_s.total():.1f} s  all; the most:")
        for name, seconds in used_s.most_common(SHOWN):
            terminalreporter.line(f"{seconds:8.1f} s of CPU, {wall_s[name]:.1f} s  {name}")
        try:
            self._store()
        except OSError as error:
            terminalreporter.line(f"the durations are not stored: {error}")

    def _store(self) -> None:
        """Replace what is stored of these tests, and forget tests of files that are gone."""
        path = self._root / STORED
        try:
            known = json.loads(path.read_text())
        except (FileNotFoundError, ValueError):  # a damaged file is replaced
            known = {}
        known = {test: value for test, value in known.items() if (self._root / file_of(test)).exists()}
        known |= {
            test: {"wall_s": round(wall_s, 4), "cpu_s": round(self._cpu_s[test], 4)}
            for test, wall_s in self._wall_s.items()
        }
        path.parent.mkdir(exist_ok=True)
        # Other runs may write at the same time.
        written = path.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(known, indent=0, sort_keys=True))
        written.replace(path)


def file_of(test: str) -> str:
    """Returns the file of a test ID."""
    return test.partition("::")[0]
