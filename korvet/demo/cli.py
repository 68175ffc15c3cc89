"""The command `korvet demo`."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.demo import processes
from korvet.demo.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.demo.scenario import Scenario

_TRICKLE_PAUSE_S = 1.0
_NEEDED = {"confluent_kafka": "demo", "pyspark": "spark"}


@click.command(short_help="Watch Kafka clients, Redis and Spark work together, on this machine.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data here, for `korvet serve` afterwards.  [default: a temporary folder]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("korvet-report"),
    show_default=True,
    help="Folder of the report.",
)
def demo(data_dir: Path | None, out: Path) -> None:
    """Watch Kafka clients, Redis and Spark work together, on this machine.

    \b
    Starts a broker with a private server on a free port, lets consumer groups behave
    and misbehave, and has Spark report on them. Takes about a minute; nothing is left
    running.
    """
    _check_packages()
    steps = Steps()
    began = time.monotonic()
    with (
        _folder(data_dir) as folder,
        tempfile.TemporaryDirectory(prefix="korvet-demo-log-") as logs,
        ExitStack() as running,
    ):
        with steps.step("korvet serve, with a Valkey of its own") as step:
            bootstrap = running.enter_context(processes.broker(folder, Path(logs, "korvet.log")))
            step.result = f"Kafka clients connect to {bootstrap}"
        line = _play(steps, bootstrap, folder, out)
    steps.console.print(f"\nDone in {time.monotonic() - began:.0f} s. {line}", markup=False)
    steps.console.print(f"Tables (Parquet): {out.resolve()}", markup=False)
    if data_dir is not None:
        steps.console.print(f"Look around: korvet serve --data-dir {data_dir}", markup=False)


def _check_packages() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise click.ClickException(
            f"the demonstration needs {' and '.join(missing)}: pip install 'korvet[demo,spark]', "
            "or ./dev demo in a checkout."
        )


@contextmanager
def _folder(data_dir: Path | None) -> Iterator[Path]:
    if data_dir is not None:
        yield data_dir
        return
    made = Path(tempfile.mkdtemp(prefix="korvet-demo-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _play(steps: Steps, bootstrap: str, folder: Path, out: Path) -> str:
    """The scenario, and the report while its clients go on; the report's last line."""
    from korvet.demo.scenario import Scenario  # noqa: PLC0415 - needs a package of an extra

    scenario = Scenario(steps, bootstrap, folder)
    try:
        scenario.run()
        with _trickle(scenario), steps.step("Spark reads __consumer_offsets and reports") as step:
            return processes.report(folder, out, step.note)
    finally:
        scenario.close()


@contextmanager
def _trickle(scenario: Scenario) -> Iterator[None]:
    """Go on with a few orders a second."""
    closing = threading.Event()

    def work() -> None:
        while not closing.wait(_TRICKLE_PAUSE_S):
            scenario.trickle()

    thread = threading.Thread(target=work, name="trickle", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join()
