"""`python -m robustness.simulation`: the command line of `./dev simulate`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from robustness.command import number
from robustness.simulation import campaign, worker

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "simulation"


def main(arguments: list[str]) -> int:
    """Run seeds. Returns 1 if a rule was broken."""
    chosen = _parser().parse_args(arguments)
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    folder: Path = chosen.folder
    folder.mkdir(parents=True, exist_ok=True)
    if chosen.traces:
        worker.prepare()
        results = [_traced(worker.run(seed, folder)) for seed in seeds]
        return int(any(result.failure for result in results))
    passed = None if chosen.again else campaign.Passed(folder / "passed.json", ROOT)
    failed = campaign.run(seeds, folder, passed, _say, chosen.processes)
    if failed:
        numbers = ", ".join(str(result.seed) for result in failed)
        _say(f"violations with seeds {numbers}; histories and reports are in {folder}")
    else:
        _say(f"{len(seeds)} seeds without a violation")
    return int(bool(failed))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("./dev simulate", description="Faults and clients on simulated servers.")
    parser.add_argument("--seeds", type=number, default=1000, metavar="N", help="number of seeds (1000)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="first seed (0)")
    parser.add_argument("--again", action="store_true", help="also run seeds that have passed before")
    parser.add_argument("--processes", type=number, metavar="N", help="processes (as many as cores)")
    parser.add_argument("--traces", action="store_true", help="print a hash of what happened in each seed")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of histories (build/simulation)")
    return parser


def _traced(result: worker.Result) -> worker.Result:
    _say(f"{result.seed} {result.trace} {result.events} {'bad' if result.failure else 'good'}")
    return result


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
