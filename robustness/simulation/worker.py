"""Runs seeds in a process of its own, whose clocks are virtual."""

from __future__ import annotations

import gc
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from robustness import history, report
from robustness.simulation import virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


# Seeds between two garbage collections: a collection takes as long as a seed.
_COLLECT_AFTER: Final = 10


class Result(NamedTuple):
    """What a seed has shown."""

    seed: int
    trace: str
    events: int
    failure: str
    """The report; empty if the run was good."""


class _Assertions(logging.Handler):
    """Keeps what assertions of korvet have found: brokers log it, and go on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if AssertionError.__name__ in text:
            self.found.append(f"  failed assertion  violation\n{text}")


_assertions: Final = _Assertions()


def prepare() -> None:
    """Make this process simulate. Called once, before anything of korvet is imported."""
    virtual_time.install()
    from korvet.logs import TextFormatter  # noqa: PLC0415 - virtual clocks come first
    from robustness.simulation import brokers  # noqa: PLC0415 - imports korvet

    brokers.prepare()
    # What else brokers log after faults is expected.
    logging.disable(logging.WARNING)
    _assertions.setFormatter(TextFormatter())
    logging.basicConfig(handlers=[_assertions], force=True)
    gc.disable()


def run(seed: int, folder: Path | None = None) -> Result:
    """Run one seed. The history of a bad run is written to the folder."""
    from robustness.simulation import plan, world  # noqa: PLC0415 - imports korvet

    planned = plan.make(seed)
    _assertions.found.clear()
    outcome = world.run(planned)
    if outcome.is_good and not _assertions.found:
        return Result(seed, outcome.trace, len(outcome.events), "")
    facts, violations = report.checked(outcome.events)
    text = "\n".join([report.as_text(facts, violations), *outcome.problems, *_assertions.found])
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        history.write(folder / f"seed-{seed}.jsonl", outcome.events)
        (folder / f"seed-{seed}.txt").write_text(f"{facts.run.plan}\n\n{text}")
    return Result(seed, outcome.trace, len(outcome.events), text)


def run_some(seeds: Sequence[int], folder: Path) -> list[Result]:
    """Run seeds one after the other."""
    found = []
    for number, seed in enumerate(seeds):
        found.append(run(seed, folder))
        if number == 0:
            # What the first run has imported and cached stays.
            gc.collect()
            gc.freeze()
        elif number % _COLLECT_AFTER == 0:
            gc.collect()
    return found
