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


def prepare() -> None:
    """Make this process simulate. Called once, before anything of korvet is imported."""
    virtual_time.install()
    from robustness.simulation import brokers  # noqa: PLC0415 - imports korvet

    brokers.prepare()
    # What brokers log after faults is expected.
    logging.disable(logging.CRITICAL)
    gc.disable()


def run(seed: int, folder: Path | None = None) -> Result:
    """Run one seed. The history of a bad run is written to the folder."""
    from robustness.simulation import plan, world  # noqa: PLC0415 - imports korvet

    planned = plan.make(seed)
    outcome = world.run(planned)
    if outcome.is_good:
        return Result(seed, outcome.trace, len(outcome.events), "")
    facts, violations = report.checked(outcome.events)
    text = "\n".join([report.as_text(facts, violations), *outcome.problems])
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
