"""Runs all benchmarks and their references: one table, a JSON file and a picture.

    ./dev bench [--quick] [--only produce,fetch] [--seconds 3] [--repeat 3] [--json FILE]

Every figure comes from rounds that measure all sides one after the other on the same machine: korvet, Redis
with a C client, and Apache Kafka if Java and Maven are installed. Compare the ratios, because the speed of a
machine changes from one run to the next.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from benchmarks.rig.kafka import Kafka, KafkaMissing
from benchmarks.rig.output import table, write_json, write_picture
from benchmarks.rig.programs import BUILD
from benchmarks.rig.rig import Rig
from benchmarks.rig.servers import Korvet, Store
from korvet.records import kernel

if TYPE_CHECKING:
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
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }


def measure(names: tuple[str, ...], rig: Rig, say: Console) -> list[Row]:
    """Returns all rows. Reports and skips a failed benchmark."""
    rows: list[Row] = []
    for name in names:
        began = time.monotonic()
        module = importlib.import_module(f"benchmarks.cases.{name}")
        try:
            rows += module.measure(rig)
        except Exception:  # noqa: BLE001  # a failed benchmark must not discard the other figures
            say.print_exception()
        say.print(f"{name}: {time.monotonic() - began:.0f} s", style="dim", highlight=False)
    return rows


@click.command()
@click.option(
    "--only", metavar="NAMES", help=f"Run only these benchmarks, comma-separated: {', '.join(CASES)}."
)
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
    allow_open_files()
    say = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        store = Store(server)
        stack.callback(store.close)
        korvet = Korvet(store, profile=profile)
        stack.callback(korvet.close)
        reference = None
        if kafka:
            try:
                reference = Kafka(1) if quick else Kafka()
                stack.callback(reference.close)
            except KafkaMissing as reason:
                say.print(f"without Apache Kafka: {reason}", markup=False)
        if quick:
            seconds, repeat = min(seconds, 0.5), 1
        rig = Rig(store, korvet.cluster, reference, seconds, repeat, 0.1 if quick else 1.0)
        rows = measure(names, rig, say)
        about = machine(store)
    write_json(path, rows, about)
    picture = path.with_suffix(".svg")
    write_picture(picture, rows)
    out = Console(width=None if sys.stdout.isatty() else 200)
    where = f"Python {about['python']}, {about['store']}, {about['cores']} cores"
    out.print(table(rows, f"korvet on {where}, {about['time']}"))
    out.print(f"samples: {path}, picture: {picture}", highlight=False)


if __name__ == "__main__":
    main()
