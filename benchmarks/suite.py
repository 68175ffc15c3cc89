"""Runs all benchmarks and their references: tables, a JSON file and a picture.

    ./dev bench [--quick] [--only produce,fetch] [--goals] [--seconds 3] [--repeat 3] [--json FILE]

Every figure comes from rounds that measure all sides one after the other on the same machine: korvet, Redis
with a C client, and Apache Kafka if Java and Maven are installed. Compare the ratios, because the speed of a
machine changes from one run to the next.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import platform
import re
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from benchmarks.rig.goals import Goal, reached
from benchmarks.rig.kafka import Kafka, KafkaMissing
from benchmarks.rig.output import goal_table, table, write_json
from benchmarks.rig.picture import write_picture
from benchmarks.rig.programs import BUILD
from benchmarks.rig.rig import Rig
from benchmarks.rig.servers import Cluster, Korvet, Store
from korvet.records import kernel
from korvet.redis.module import find_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from benchmarks.rig.measuring import Row

CASES = tuple(sorted(path.stem for path in (Path(__file__).parent / "cases").glob("[a-z]*.py")))
# Needed open files: a thousand consumers or five thousand connections, on both sides of a socket.
OPEN_FILES = 16_384


def cases_of(text: str | None) -> tuple[str, ...]:
    """Returns the benchmarks named in a comma-separated list; all without a list."""
    names = tuple(name.strip() for name in text.split(",")) if text else CASES
    unknown = set(names) - set(CASES)
    if unknown:
        raise click.BadParameter(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    return names


def goals_of(names: tuple[str, ...]) -> list[Goal]:
    """Returns the goals of these benchmarks."""
    return [goal for name in names for goal in getattr(case_module(name), "GOALS", ())]


def case_module(name: str) -> ModuleType:
    """Returns the module of a benchmark. Its `measure` returns rows; it may have GOALS."""
    return importlib.import_module(f"benchmarks.cases.{name}")


def allow_open_files() -> None:
    """Raise the soft limit of open files, for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        raise click.ClickException(f"{OPEN_FILES} open files are needed, the hard limit is {hard}")
    if soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))


def machine(store: Store) -> dict[str, object]:
    """Describes the machine and the programs of the measurement."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "store": store.version,
        "kernel": "compiled" if kernel.ACCELERATED else "uncompiled",
        "module": "not built" if find_module() is None else "loaded",
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }


def measure(names: tuple[str, ...], rig: Rig, say: Console) -> list[Row]:
    """Returns all rows. Reports and skips a failed benchmark."""
    rows: list[Row] = []
    for name in names:
        began = time.monotonic()
        try:
            rows += case_module(name).measure(rig)
        except Exception:  # noqa: BLE001  # a failed benchmark must not discard the other figures
            say.print_exception()
        say.print(f"{name}: {time.monotonic() - began:.0f} s", style="dim", highlight=False)
    return rows


def korvets(
    stack: contextlib.ExitStack, server: str | None, profile: Path | None
) -> tuple[Store, Cluster, Cluster | None]:
    """Start a Redis with the server module and a korvet on it, and a korvet on a Redis without the module.

    If the module is not built, there is only one, without it.
    """
    module = find_module()
    store = stack.enter_context(contextlib.closing(Store(server, module)))
    korvet = stack.enter_context(contextlib.closing(Korvet(store, profile=profile)))
    if module is None:
        return store, korvet.cluster, None
    plain_store = stack.enter_context(contextlib.closing(Store(server)))
    plain = stack.enter_context(contextlib.closing(Korvet(plain_store)))
    return store, korvet.cluster, plain.cluster


def started_kafka(stack: contextlib.ExitStack, note: Callable[[str], None], *, quick: bool) -> Kafka | None:
    """Start Apache Kafka. If it can't run here, prints the reason and returns None."""
    try:
        return stack.enter_context(contextlib.closing(Kafka(1) if quick else Kafka()))
    except KafkaMissing as reason:
        note(f"without Apache Kafka: {reason}")
        return None


@click.command()
@click.option(
    "--only", metavar="NAMES", help=f"Run only these benchmarks, comma-separated: {', '.join(CASES)}."
)
@click.option("--match", default="", metavar="REGEX", help="Run only rows whose benchmark's name matches.")
@click.option("--goals", "only_goals", is_flag=True, help="Run only what is compared with a goal.")
@click.option("--quick", is_flag=True, help="Run one short round of each, to see that it works.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of one measurement.")
@click.option("--repeat", default=3, show_default=True, help="Number of rounds; the median counts.")
@click.option(
    "--json", "path", default=BUILD / "results.json", type=click.Path(dir_okay=False, path_type=Path)
)
@click.option("--server", metavar="PROGRAM", help="Redis or Valkey program instead of korvet's.")
@click.option(
    "--profile", type=click.Path(path_type=Path), help="Write korvet's CPU profile, as folded stacks."
)
@click.option("--kafka/--no-kafka", default=True, help="Measure Apache Kafka too, if it can run.")
def main(
    only: str | None,
    match: str,
    only_goals: bool,
    quick: bool,
    seconds: float,
    repeat: int,
    path: Path,
    server: str | None,
    profile: Path | None,
    kafka: bool,
) -> None:
    """Measure korvet, Redis and Apache Kafka."""
    names = cases_of(only)
    goals = goals_of(names)
    if only_goals:
        names = tuple(name for name in names if goals_of((name,)))
    bounded = {goal.benchmark for goal in goals}

    def wanted(benchmark: str) -> bool:
        return re.search(match, benchmark) is not None and (benchmark in bounded or not only_goals)

    allow_open_files()
    say = Console(stderr=True)
    note = functools.partial(say.print, markup=False)
    if quick:
        seconds, repeat = min(seconds, 0.5), 1
    with contextlib.ExitStack() as stack:
        store, korvet, plain = korvets(stack, server, profile)
        reference = started_kafka(stack, note, quick=quick) if kafka else None
        scale = 0.1 if quick else 1.0
        rig = Rig(store, korvet, plain, reference, seconds, repeat, scale, wanted, note)
        rows = measure(names, rig, say)
        about = machine(store)
    compared = list(reached(goals, rows))
    write_json(path, rows, compared, about)
    picture = path.with_suffix(".svg")
    write_picture(picture, rows)
    out = Console(width=None if sys.stdout.isatty() else 200)
    where = f"Python {about['python']}, {about['store']}, {about['cores']} cores"
    out.print(table(rows, f"korvet on {where}, {about['time']}"))
    if compared:
        out.print(goal_table(compared))
    out.print(f"samples: {path}, picture: {picture}", highlight=False)


if __name__ == "__main__":
    main()
