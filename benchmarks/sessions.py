"""How long commands take that start Spark for few records: CPU time of all their processes, and seconds.

    ./dev bench sessions [--rounds 5] [--commits 2000] [--beside CHECKOUT]

With `--beside`, the environment of another checkout (`CHECKOUT/.venv`) is measured in the same rounds, for
example that of the release before. Each round takes the sides in turn. Compare ratios: the same machine can
be half as fast a minute later. Starts Redis on loopback.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Final

import click
import redis
from rich.console import Console
from rich.table import Table

from benchmarks.cases.refresh import EMPTY_SESSION, KEYSPACE, KORVET_MAIN, Commits
from tests.support.redis_server import Server, server_programs

ROOT: Final = Path(__file__).resolve().parents[1]
_TIMEOUT_S: Final = 3_600
EMPTY, READ, REPORT = "empty session", "read of a topic", "report"
REFRESH, STORED = "refresh of tables", "report from the tables"
CPU, ELAPSED = "CPU s", "s"
_READ: Final = """
import sys
from korvet.spark.session import build_session
url, keyspace = sys.argv[1:]
options = {"redis": url, "keyspace": keyspace, "topic": "topic-0"}
assert build_session().read.format("korvet").options(**options).load().count()
"""
# Runs a command, adopts the processes that outlive their parents (a JVM's workers), and prints the seconds
# that all together have used, and those that passed.
_METER: Final = """
import ctypes, os, resource, subprocess, sys, time
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=sys.stderr, check=False)
took = time.perf_counter() - began
try:
    while True:
        os.wait()
except ChildProcessError:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, took)
sys.exit(done.returncode)
"""


class Side:
    """A checkout with its environment, and the figures of its commands by round."""

    def __init__(self, name: str, checkout: Path, folder: Path) -> None:
        self.name = name
        self.figures: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        self.folder = folder / name
        self.folder.mkdir()
        self._checkout = checkout
        self._python = str(checkout / ".venv" / "bin" / "python")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("KORVET_", "PYTHON"))}
        jars = os.environ.get("KORVET_JARS_DIR")
        self._environ = {**kept, **({"KORVET_JARS_DIR": jars} if jars else {})}

    def run(self, figure: str | None, *words: str) -> None:
        """Run Python with these arguments; note its figures under a name. Raises CalledProcessError."""
        done = subprocess.run(
            [sys.executable, "-c", _METER, self._python, *words],
            env=self._environ,
            cwd=self._checkout,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            sys.stderr.write(done.stderr)
            done.check_returncode()
        if figure is not None:
            for unit, value in zip((CPU, ELAPSED), done.stdout.split(), strict=True):
                self.figures[figure, unit].append(float(value))

    def korvet(self, figure: str | None, *words: str) -> None:
        """Run a command of korvet."""
        self.run(figure, "-c", KORVET_MAIN, *words)


def measure(side: Side, url: str, *, noted: bool) -> None:
    """Run each command once; with `noted`, note the figures."""
    redis_options = ("--redis", url, "--keyspace", KEYSPACE)
    tables = str(side.folder / "tables")

    def figure(name: str) -> str | None:
        return name if noted else None

    side.run(figure(EMPTY), "-c", EMPTY_SESSION)
    side.run(figure(READ), "-c", _READ, url, KEYSPACE)
    side.korvet(figure(REPORT), "report", "--out", str(side.folder / "report"), *redis_options)
    side.korvet(figure(REFRESH), "tables", "refresh", "--to", tables, *redis_options)
    side.korvet(figure(STORED), "report", "--from", tables, "--out", str(side.folder / "stored"))


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--commits", default=2_000, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--beside", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout."
)
def main(rounds: int, commits: int, beside: Path | None) -> None:
    """Print the medians of each command, and the medians of the rounds' ratios."""
    folder = Path(tempfile.mkdtemp(prefix="korvet-bench-sessions-"))
    server = Server(server_programs()[0], folder)
    try:
        with redis.Redis.from_url(server.url, protocol=2) as client:
            sides = [Side("this", ROOT, folder)]
            if beside is not None:
                sides.append(Side("beside", beside.absolute(), folder))
            work = Commits(client)
            work.add(commits)
            # The first commands create the tables, and write the archives of classes.
            for number in range(rounds + 1):
                for side in sides:
                    measure(side, server.url, noted=number > 0)
                work.add(max(1, commits // 100))
    finally:
        server.stop()
        shutil.rmtree(folder)
    _print(sides)


def _print(sides: list[Side]) -> None:
    ratio = ["ratio"] if len(sides) > 1 else []
    table = Table(*["median", "", *(side.name for side in sides), *ratio])
    for name, unit in sides[0].figures:
        values = [side.figures[name, unit] for side in sides]
        ratios = [ours / theirs for ours, theirs in zip(values[0], values[-1], strict=True)]
        shown = [f"{statistics.median(each):.1f}" for each in values]
        table.add_row(name, unit, *shown, *([f"{statistics.median(ratios):.2f}"] if ratio else []))
    Console().print(table)


if __name__ == "__main__":
    main()
