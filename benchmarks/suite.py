"""All benchmarks beside their references: one table, a JSON file and a picture.

    ./dev bench [--quick] [--only produce,fetch] [--seconds 3] [--repeat 3] [--json FILE]

Every figure comes from rounds in which all sides are measured one after the other on the same machine: a
side is korvet, Redis itself under a C client, and Apache Kafka where Java and Maven are at hand. Compare the
ratios; how fast a machine is changes from one run to the next.
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
# A thousand consumers, or five thousand connections, on each of two sides of a socket.
OPEN_FILES = 16_384


def cases_of(text: str | None) -> tuple[str, ...]:
    """The benchmarks named in a comma-separated list; all when there is none."""
    names = tuple(name.strip() for name in text.split(",")) if text else CASES
    unknown = set(names) - set(CASES)
    if unknown:
        raise click.BadParameter(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    return names


def allow_open_files() -> None:
    """Raise the soft limit of open files, for this process and all that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        raise click.ClickException(f"{OPEN_FILES} open files are needed, the hard limit is {hard}")
    if soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))


def machine(store: Store) -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "store": store.version,
        "kernel": "compiled" if kernel.ACCELERATED else "uncompiled",
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }


def measure(names: tuple[str, ...], rig: Rig, say: Console) -> list[Row]:
    """All rows; a benchmark that fails is reported and left out."""
    rows: list[Row] = []
    for name in names:
        began = time.monotonic()
        module = importlib.import_module(f"benchmarks.cases.{name}")
        try:
            rows += module.measure(rig)
        except Exception:  # noqa: BLE001  # one that fails must not cost the figures of all others
            say.print_exception()
        say.print(f"{name}: {time.monotonic() - began:.0f} s", style="dim", highlight=False)
    return rows


@click.command()
@click.option("--only", metavar="NAMES", help=f"Some of them, comma-separated: {', '.join(CASES)}.")
@click.option("--quick", is_flag=True, help="One short round of each: to see that it works.")
@click.option("--seconds", default=2.0, show_default=True, help="Length of one measurement.")
@click.option("--repeat", default=3, show_default=True, help="Rounds, of which the median counts.")
@click.option(
    "--json", "path", default=BUILD / "results.json", type=click.Path(dir_okay=False, path_type=Path)
)
@click.option("--server", metavar="PROGRAM", help="Another Redis or Valkey than korvet's own.")
@click.option(
    "--profile", type=click.Path(path_type=Path), help="Where korvet's CPU time went, as folded stacks."
)
@click.option("--kafka/--no-kafka", default=True, help="Measure Apache Kafka too, where it can be run.")
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
    """Measure korvet beside Redis and Apache Kafka."""
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
