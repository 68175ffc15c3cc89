"""What the commands share: where Redis is, errors in one line, a line of progress."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import click
from pyspark.errors import AnalysisException, StreamingQueryException
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from korvet.spark.browser import BrowserError
from korvet.spark.jars import JarsMissing
from korvet.spark.session import JavaMissing, build_session, is_submitted, submitted_session
from korvet.spark.store import DEFAULT_KEYSPACE, Address, SourceError, connected
from korvet.spark.target import ExportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

# Where the embedded server listens, in its data folder.
EMBEDDED_SOCKET = "server.sock"

_REDIS_OPTIONS = [
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
    "--master",
    default="local[*]",
    show_default=True,
    help="Where Spark runs; a cluster's URL works too. With spark-submit, its own holds.",
)


def with_redis(command: Any) -> Any:
    """Add the options that say where Redis is."""
    for option in reversed(_REDIS_OPTIONS):
        command = option(command)
    return command


def address_of(url: str | None, data_dir: Path, keyspace: str) -> Address:
    """The address with the password taken out of the URL, where plans and logs would show it.

    It is tried before Spark takes its seconds to start. Raises SourceError when there is neither a URL nor an
    embedded server, or no Redis answers.
    """
    address = parse_address(url, data_dir, keyspace)
    with connected(address):
        return address


def parse_address(url: str | None, data_dir: Path, keyspace: str) -> Address:
    """As address_of, without trying it."""
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


@contextmanager
def spark_session(
    app: str, master: str, *, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session until the end of the block: a new one, or that of spark-submit."""
    spark = submitted_session(app) if is_submitted() else build_session(app, master, jars=jars, conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def user_errors() -> Iterator[None]:
    """What a user can mend ends in one line."""
    try:
        yield
    except (SourceError, JarsMissing, JavaMissing, ExportError, BrowserError) as error:
        raise click.ClickException(str(error)) from error
    except (AnalysisException, StreamingQueryException) as error:
        raise click.ClickException(_first_line(str(error))) from error


def _first_line(text: str) -> str:
    """Spark's messages go on with plans and Java's stack."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "Spark failed without a word")


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr that shows the present step and how long it takes; plain lines without a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: click.echo(f"{step} ...", err=True)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as shown:
        tasks: list[Any] = []

        def notify(step: str) -> None:
            if tasks:
                shown.update(tasks[-1], total=1, completed=1)
            tasks.append(shown.add_task(step, total=None))

        yield notify
        if tasks:
            shown.update(tasks[-1], total=1, completed=1)
