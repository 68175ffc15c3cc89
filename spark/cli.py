"""The commands report, export and jars of `korvet`."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from korvet.spark.export import FORMATS, MODES, export_batch
from korvet.spark.jars import JarsMissing, fetch_jars, find_jars, jars_folder
from korvet.spark.report import write_report
from korvet.spark.session import JavaMissing, build_session
from korvet.spark.store import DEFAULT_KEYSPACE, Address, SourceError, connected
from korvet.spark.tables import KafkaReader, RedisReader

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where the embedded server listens, in its data folder.
EMBEDDED_SOCKET = "server.sock"

redis_options = [
    click.option(
        "--redis",
        "redis_url",
        metavar="URL",
        envvar="KORVET_REDIS",
        help="The Redis that holds the data.  [default: the embedded server's, in --data-dir]",
    ),
    click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        default=Path("korvet-data"),
        envvar="KORVET_DATA_DIR",
        show_default=True,
        help="Folder of the embedded server, which must be running.",
    ),
    click.option("--keyspace", default=DEFAULT_KEYSPACE, envvar="KORVET_KEYSPACE", show_default=True),
]
master_option = click.option(
    "--master", default="local[*]", show_default=True, help="Where Spark runs; a cluster's URL works too."
)


def _with_redis(command: Any) -> Any:
    for option in reversed(redis_options):
        command = option(command)
    return command


@click.command()
@_with_redis
@click.option("--bootstrap", metavar="HOST:PORT", help="Kafka bootstrap servers, for --source kafka.")
@click.option(
    "--source",
    type=click.Choice(["korvet", "kafka"]),
    help="From Redis, or through the Kafka protocol.  [default: kafka with --bootstrap, else korvet]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("korvet-report"),
    show_default=True,
    help="Folder for the page and the Parquet tables.",
)
@master_option
def report(
    redis_url: str | None,
    data_dir: Path,
    keyspace: str,
    bootstrap: str | None,
    source: str | None,
    out: Path,
    master: str,
) -> None:
    """Report on consumer groups: one HTML page and Parquet tables.

    \b
    Lag in records and time, commits per minute, members and generations of every
    group in __consumer_offsets, worst first.
    """
    source = source or ("kafka" if bootstrap else "korvet")
    reader: RedisReader | KafkaReader
    jars: list[Path] = []
    with _user_errors(), _progress() as notify:
        if source == "kafka":
            if bootstrap is None:
                raise click.UsageError("--source kafka needs --bootstrap HOST:PORT")
            reader, jars = KafkaReader(bootstrap), find_jars()
        else:
            if bootstrap is not None:
                raise click.UsageError("--bootstrap goes with --source kafka; give --redis URL")
            reader = RedisReader(_checked(_address(redis_url, data_dir, keyspace)))
        notify("Starting Spark")
        spark = build_session("korvet report", master, jars=jars)
        try:
            done = write_report(spark, reader, out, time.time_ns() // 1_000_000, notify=notify)
        finally:
            spark.stop()
    attention = f", {done.troubled} need attention" if done.troubled else ""
    click.echo(f"{done.groups} groups{attention}. Report: {done.page.resolve()}")


@click.command()
@click.argument("topic")
@_with_redis
@click.option(
    "--to", "target", type=click.Path(path_type=Path), required=True, help="Folder to write; Spark makes it."
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="error",
    show_default=True,
    help="What to do when the folder exists.",
)
@master_option
def export(
    topic: str,
    redis_url: str | None,
    data_dir: Path,
    keyspace: str,
    target: Path,
    form: str,
    mode: str,
    master: str,
) -> None:
    """Write all records of TOPIC to Parquet, JSON lines or CSV files.

    \b
    JSON and CSV hold key and value in base64.
    """
    if mode == "error" and target.exists():
        raise click.ClickException(
            f"{target} exists; say --mode append or --mode overwrite, or choose another"
        )
    with _user_errors(), _progress() as notify:
        address = _checked(_address(redis_url, data_dir, keyspace))
        notify("Starting Spark")
        spark = build_session("korvet export", master)
        try:
            notify(f"Exporting {topic}")
            export_batch(RedisReader(address).topic(spark, topic), str(target.resolve()), form, mode)
        finally:
            spark.stop()
    click.echo(f"{topic} is in {target.resolve()}")


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep them.  [default: KORVET_JARS_DIR, else the user's cache]",
)
def jars(folder: Path | None) -> None:
    """Fetch Spark's Kafka connector, pinned and verified.

    \b
    Only --source kafka needs it. What is there already is checked and kept.
    """
    with _user_errors(), _progress() as notify:
        notify("Fetching jars")
        for jar, outcome in fetch_jars(folder):
            click.echo(f"{outcome:8} {jar.file_name}")
    click.echo(f"Verified by SHA-256, in {folder or jars_folder()}")


def _address(url: str | None, data_dir: Path, keyspace: str) -> Address:
    """The address with the password taken out of the URL, where plans and logs would show it.

    Raises SourceError when there is neither a URL nor an embedded server.
    """
    password = os.environ.get("KORVET_REDIS_PASSWORD")
    if not url:
        socket = (data_dir / EMBEDDED_SOCKET).absolute()
        if not socket.exists():
            raise SourceError(f"no embedded server in {data_dir}: start `korvet serve`, or give --redis URL")
        return Address(f"unix://{quote(str(socket))}", None, keyspace)
    parts = urlsplit(url)
    if parts.password is not None:
        password = unquote(parts.password)
        user, _, place = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        parts = parts._replace(netloc=f"{name}@{place}" if name else place)
        url = urlunsplit(parts)
    return Address(url, password, keyspace)


def _checked(address: Address) -> Address:
    """The address, tried before Spark takes its seconds to start."""
    with connected(address):
        return address


@contextmanager
def _user_errors() -> Iterator[None]:
    """What a user can mend ends in one line."""
    try:
        yield
    except (SourceError, JarsMissing, JavaMissing) as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _progress() -> Iterator[Any]:
    """A line on stderr that shows the present step and how long it takes; plain lines without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: click.echo(f"{step} ...", err=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        tasks: list[Any] = []

        def notify(step: str) -> None:
            if tasks:
                progress.update(tasks[-1], total=1, completed=1)
            tasks.append(progress.add_task(step, total=None))

        yield notify
        if tasks:
            progress.update(tasks[-1], total=1, completed=1)
