"""The command `demo`."""

import importlib.util
import shutil
import signal
import tempfile
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from korvet.demo.failure import DemoFailed
from korvet.demo.screen import Screen
from korvet.demo.server import DemoServer

# Modules that the extras install. Without them the steps can't be imported.
_NEEDED = {"confluent_kafka": "demo", "pyspark": "spark", "pyarrow": "spark"}
_INTERRUPTED_STATUS = 130


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="New or empty folder for the broker's data.  [default: a temporary one]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("korvet-report"),
    show_default=True,
    help="Folder of the report.",
)
@click.option("--stay", is_flag=True, help="Keep the broker running after the report, until Ctrl-C.")
def demo(data_dir: Path | None, out: Path, stay: bool) -> None:
    """Watch Kafka clients, Redis and Spark work together on this machine.

    \b
    The demo starts a broker with an embedded server on a free port. Real Kafka
    clients create topics, produce, and read in groups that keep up, lag, stop and
    rebalance; Redis clients write and read the same data; Spark reports on the
    groups. The demo checks every number that it shows, and ends with status 1 if
    one is wrong.
    """
    _check_extras()
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        raise click.ClickException(f"{data_dir} is not empty; name a new folder")
    interrupted = _notice_interrupts()
    scratch = Path(tempfile.mkdtemp(prefix="korvet-demo-"))
    data = (data_dir or scratch / "data").absolute()
    try:
        with DemoServer(data, scratch / "serve.log") as server:
            screen = Screen()
            screen.title("korvet demo")
            _play(server, screen, out.absolute())
            if stay:
                click.echo(f"\nThe broker runs on {server.bootstrap} until Ctrl-C.")
                signal.pause()
    except BaseException:
        # An interrupted client library may raise its own error instead of KeyboardInterrupt.
        if not interrupted:
            raise
        shutil.rmtree(scratch)
        # The report's progress display was interrupted while the cursor was hidden.
        Console().show_cursor(True)
        click.echo("\nStopped; nothing is left running.", err=True)
        raise SystemExit(_INTERRUPTED_STATUS) from None
    if data_dir is not None:
        shutil.rmtree(scratch)


def _play(server: DemoServer, screen: Screen, out: Path) -> None:
    """Run all steps. Any failure ends in one message."""
    # Imported here, so that the command can report missing packages.
    import redis  # noqa: PLC0415
    from confluent_kafka import KafkaException  # noqa: PLC0415

    from korvet.demo.report import check_report, write_report  # noqa: PLC0415
    from korvet.demo.scenario import Scenario  # noqa: PLC0415

    try:
        with screen.step("`korvet serve` starts, with a private Valkey") as step:
            server.start()
            step.say(f"Kafka clients connect to {server.bootstrap}")
        scenario = Scenario(server, screen)
        try:
            scenario.run()
            with screen.step("Spark reports on the groups: `korvet report`", spinner=False) as step:
                page = write_report(server, out)
                rows = check_report(out, scenario.claims)
                step.table(
                    ("group", "status", "members", "unread", "waiting"),
                    [(*row[:4], f"{row[4] / 60_000:.0f} min" if row[3] else "-") for row in rows],
                )
                step.say("the report has the same numbers as the clients and Redis")
        finally:
            scenario.close()
    except (DemoFailed, KafkaException, redis.RedisError) as error:
        # If the broker is gone, that is the reason for its clients' errors.
        raise click.ClickException(f"{server.fault() or error}\nThe broker's log is {server.log}") from error
    _print_next_steps(server, screen, page)


def _print_next_steps(server: DemoServer, screen: Screen, page: Path) -> None:
    screen.blank()
    screen.title(f"Done in {screen.elapsed_s:.0f} s. Report: {page}")
    screen.line("A group's status follows from its last commits: see docs/explain/group-status.md.")
    screen.blank()
    screen.line("To continue with this data:")
    screen.line(f"  korvet serve --data-dir {server.data_dir}")
    screen.line("Then connect any Kafka client (bootstrap.servers=127.0.0.1:9092), or look around:")
    screen.line("  korvet topics list")
    screen.line("  korvet groups describe audit")
    screen.line("  korvet offsets tail --follow")
    screen.line(f"  redis-cli -s {server.redis_socket} XRANGE korvet:orders:0 - + COUNT 1")
    screen.line("In a checkout, run ./dev run korvet instead of korvet.")


def _check_extras() -> None:
    missing = {extra for module, extra in _NEEDED.items() if importlib.util.find_spec(module) is None}
    if missing:
        extras = ",".join(sorted(missing))
        raise click.ClickException(
            f"the demo needs: pip install 'korvet[{extras}]', or ./dev demo in a checkout"
        )


def _notice_interrupts() -> list[int]:
    """Handle SIGTERM like Ctrl-C, with a clean end. Appends received signals to the list."""
    came: list[int] = []

    def interrupt(number: int, _: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    return came
