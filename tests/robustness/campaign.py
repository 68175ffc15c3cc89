"""Runs many seeds, one after the other, and remembers which ones passed, so that it can be resumed."""

from __future__ import annotations

import hashlib
import traceback
from typing import TYPE_CHECKING, Final

from tests.robustness import history, plan, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.robustness.checkers import Violation

    Run = Callable[[plan.Plan, Path], Path]
    """Carries out a plan with a folder for its files, and returns the history's path."""

# Files on which the result of a seed depends: after a change, all seeds run again.
SOURCES: Final = (
    "korvet/**/*.py",
    "korvet/**/*.lua",
    "korvet/**/*.c",
    "offsets/*.py",
    "tests/robustness/**/*.py",
)


class Passed:
    """The seeds that passed with these sources and this duration: a file in each one's folder.

    Several processes may run different seeds of one folder.
    """

    def __init__(self, folder: Path, sources: str, duration_ms: int) -> None:
        self._folder = folder
        self._key = f"{sources} {duration_ms}"

    def __contains__(self, seed: int) -> bool:
        file = self._file(seed)
        return file.exists() and file.read_text() == self._key

    def add(self, seed: int) -> None:
        """Remember a seed."""
        self._file(seed).write_text(self._key)

    def _file(self, seed: int) -> Path:
        return folder_of(self._folder, seed) / "passed"


def folder_of(folder: Path, seed: int) -> Path:
    """Returns the folder of a seed's files."""
    return folder / f"seed-{seed}"


def sources(root: Path, patterns: Sequence[str] = SOURCES) -> str:
    """Returns a hash of the files on which results depend."""
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def check_file(path: Path, folder: Path) -> tuple[str, list[Violation]]:
    """Check a history and write `report.html` into a folder. Returns the report as text, and what was found.

    Raises HistoryError.
    """
    facts, violations = report.checked(history.load(path))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(report.as_html(facts, violations))
    return report.as_text(facts, violations), violations


def run_seeds(
    seeds: Iterable[int], duration_ms: int, run: Run, folder: Path, passed: Passed, say: Callable[[str], None]
) -> list[int]:
    """Run all seeds that have not passed. Returns the failed ones, whose histories stay in `folder`."""
    failed = []
    for seed in seeds:
        if seed in passed:
            continue
        made = plan.make(seed, duration_ms)
        say(plan.describe(made))
        mine = folder_of(folder, seed)
        mine.mkdir(parents=True, exist_ok=True)
        try:
            path = run(made, mine)
        except AssertionError:
            # A server, broker or client that does not go on ends the run.
            say(f"seed {seed} did not end: {traceback.format_exc()}")
            failed.append(seed)
            continue
        text, violations = check_file(path, mine)
        say(text)
        if any(not violation.is_note for violation in violations):
            failed.append(seed)
        else:
            path.unlink()
            passed.add(seed)
    return failed
