"""The command line of `./dev robustness`."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from robustness import plan, report
from robustness.campaign import Passed, check_file, run_plans, sources
from robustness.history import HistoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from robustness.campaign import Run

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "build" / "robustness"
MS_PER_MINUTE: Final = 60_000


def main(arguments: Sequence[str], run: Run | None = None, folder: Path = FOLDER) -> int:
    """Check histories, print plans, or run seeds with `run`. Returns 1 if there are violations."""
    parser = _parser(can_run=run is not None)
    chosen = parser.parse_args(arguments)
    if chosen.check:
        return _check(chosen.check, folder)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    duration_ms = int(chosen.minutes * MS_PER_MINUTE)
    try:
        focus = plan.Focus(chosen.topology, tuple(chosen.faults), chosen.replica_lag)
    except ValueError as error:
        parser.error(str(error))
    plans = (plan.make(seed, duration_ms, focus) for seed in seeds)
    if chosen.plan_only or run is None:
        for made in plans:
            say(plan.describe(made))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    passed = Passed(folder, sources(ROOT), duration_ms, focus)
    failed = run_plans(plans, run, folder, passed, say)
    say("\n".join(report.table((name, count, "") for name, count in passed.total(seeds).items())))
    if failed:
        say(f"failed seeds: {', '.join(map(str, failed))}; histories and reports are in {folder}")
    return int(bool(failed))


def _parser(*, can_run: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "./dev robustness", description="Faults, clients, and checked histories."
    )
    what = parser.add_mutually_exclusive_group(required=not can_run)
    what.add_argument("--plan-only", action="store_true", help="print the plans of the seeds")
    what.add_argument("--check", type=Path, nargs="+", metavar="FILE", help="check histories again")
    parser.add_argument("--seeds", type=number, default=1, metavar="N", help="number of seeds (1)")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="first seed (1)")
    parser.add_argument("--minutes", type=_minutes, default=1.0, metavar="M", help="duration of each run (1)")
    parser.add_argument("--topology", choices=plan.TOPOLOGIES, help="only this kind of servers")
    kinds, names = sorted(plan.KINDS), "faults of these kinds only"
    parser.add_argument("--faults", choices=kinds, nargs="+", default=(), metavar="KIND", help=names)
    lag = "how late all replicas are, in ms"
    parser.add_argument("--replica-lag", type=_lag_ms, metavar="MS", help=lag)
    return parser


def number(text: str) -> int:
    """The type of an option that counts something: 1 or more. Raises ArgumentTypeError."""
    return _at_least(int(text), 1)


def _lag_ms(text: str) -> int:
    return _at_least(int(text), 0)


def _at_least(value: int, least: int) -> int:
    if value < least:
        raise argparse.ArgumentTypeError(f"{value} is less than {least}")
    return value


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no duration")
    return minutes


def _check(paths: Sequence[Path], folder: Path) -> int:
    has_violations = False
    for path in paths:
        mine = folder / "checked" / path.stem
        try:
            checked = check_file(path, mine)
        except (HistoryError, OSError) as error:
            say(f"{path} can't be checked: {error}")
            has_violations = True
            continue
        say(f"{checked.text}{mine / 'report.html'}")
        has_violations |= not checked.has_passed
    return int(has_violations)


def say(text: str) -> None:
    """Write a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
