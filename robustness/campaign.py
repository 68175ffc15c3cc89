"""Runs many seeds, one after the other, and remembers which ones passed, so that it can be resumed."""

from __future__ import annotations

import faulthandler
import hashlib
import itertools
import json
import traceback
from typing import TYPE_CHECKING, Final, NamedTuple

from robustness import history, plan, report
from robustness.history import HISTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from robustness.checkers import Violation

    Run = Callable[[plan.Plan, Path], Path]
    """Carries out a plan with a folder for its files, and returns the history's path."""

# Files on which the result of a seed depends: after a change, all seeds run again.
SOURCES: Final = (
    "korvet/**/*.py",
    "korvet/**/*.lua",
    "korvet/**/*.c",
    "offsets/*.py",
    "robustness/**/*.py",
    "tests/support/**/*.py",
)


class Passed:
    """The seeds that passed with these sources, this duration and focus: a file in each one's folder, with
    counts.

    Several processes may run different seeds of one folder.
    """

    def __init__(
        self, folder: Path, sources: str, duration_ms: int, focus: plan.Focus = plan.EVERYTHING
    ) -> None:
        self._folder = folder
        self._key = f"{sources} {duration_ms} {focus}"

    def __contains__(self, seed: int) -> bool:
        return self.counts(seed) is not None

    def counts(self, seed: int) -> dict[str, int] | None:
        """Returns what happened in a seed's run; None if the seed has not passed."""
        file = self._file(seed)
        stored = json.loads(file.read_text()) if file.exists() else {"key": None}
        return stored["counts"] if stored["key"] == self._key else None

    def add(self, seed: int, counts: Mapping[str, int]) -> None:
        """Remember a seed. A crash leaves its file as it was before or after."""
        new = self._file(seed).with_suffix(".new")
        new.write_text(json.dumps({"key": self._key, "counts": counts}))
        new.replace(self._file(seed))

    def total(self, seeds: Iterable[int]) -> dict[str, int]:
        """Returns the sums of the counts of the seeds that passed, and their number."""
        passed = [found for seed in seeds if (found := self.counts(seed)) is not None]
        names = sorted({name for one in passed for name in one})
        return {
            "seeds without a violation": len(passed),
            **{name: sum(one.get(name, 0) for one in passed) for name in names},
        }

    def _file(self, seed: int) -> Path:
        return folder_of(self._folder, seed) / "passed.json"


def folder_of(folder: Path, seed: int) -> Path:
    """Returns the folder of a seed's files."""
    return folder / f"seed-{seed}"


def sources(root: Path) -> str:
    """Returns a hash of the files on which results depend."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(root.glob(pattern)):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class Checked(NamedTuple):
    """A checked history."""

    text: str
    """The report."""
    violations: list[Violation]
    counts: dict[str, int]
    has_ended: bool
    """Whether the run came to its final reads."""

    @property
    def has_passed(self) -> bool:
        """Whether a whole run has no violations; notes don't count."""
        return self.has_ended and all(violation.is_note for violation in self.violations)


def check_file(path: Path, folder: Path) -> Checked:
    """Check a history and write `report.html` into a folder. Raises HistoryError."""
    facts, violations = report.checked(history.load(path))
    has_ended = any(isinstance(event, history.ReadAll) for event in facts.history)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(report.as_html(facts, violations))
    text = report.as_text(facts, violations)
    if not has_ended:
        text += "the run ended before its final reads, so lost records are not found\n"
    return Checked(text, violations, report.counts(facts), has_ended)


def run_plans(
    plans: Iterable[plan.Plan], run: Run, folder: Path, passed: Passed, say: Callable[[str], None]
) -> list[int]:
    """Run the plans of seeds that have not passed. Returns the failed seeds, whose histories stay, also those
    of earlier campaigns: the next run of a seed may pass.
    """
    failed = []
    for made in plans:
        seed = made.seed
        if seed in passed:
            continue
        say(plan.describe(made))
        mine = folder_of(folder, seed)
        _keep_failure(mine)
        mine.mkdir(parents=True, exist_ok=True)
        try:
            path = run(made, mine)
        except AssertionError:
            # A server, broker or client that does not go on ends the run.
            say(f"seed {seed} did not end: {traceback.format_exc()}")
            failed.append(seed)
            continue
        checked = check_file(path, mine)
        say(checked.text)
        if checked.has_passed:
            path.unlink()
            passed.add(seed, checked.counts)
        else:
            failed.append(seed)
    return failed


def watched(run: Run, longest_s: float) -> Run:
    """Returns `run`, but it writes the stacks of all threads and ends the process if it takes longer than the
    plan's duration and `longest_s`.

    A client library that hangs may hold the interpreter's lock, so nothing else can end the run: librdkafka
    2.16 does that now and then if a consumer is closed during a rebalance.
    """

    def watch(made: plan.Plan, folder: Path) -> Path:
        faulthandler.dump_traceback_later(made.duration_ms / 1000 + longest_s, exit=True)
        try:
            return run(made, folder)
        finally:
            faulthandler.cancel_dump_traceback_later()

    return watch


def _keep_failure(folder: Path) -> None:
    """Give the folder of a seed that has failed before another name."""
    if (folder / HISTORY).exists():
        names = (folder.with_name(f"{folder.name}-failed-{number}") for number in itertools.count(1))
        folder.rename(next(name for name in names if not name.exists()))
