"""What the commands share: the options of Redis and Spark, errors in one line, a line of progress."""

# ruff: noqa: RUF009 (flag() makes fields of a dataclass)
from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import click
from click.core import ParameterSource
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from korvet.spark.cli.declared import flag, flag_of, with_options
from korvet.spark.export.target import ExportError
from korvet.spark.report.alerts import OK, findings_as_json
from korvet.spark.report.pictures import BrowserError
from korvet.spark.report.thresholds import ThresholdError
from korvet.spark.session.command_config import read_command_config
from korvet.spark.session.connect import ConnectError
from korvet.spark.session.driver_calls import DriverError
from korvet.spark.session.failures import in_one_line
from korvet.spark.session.jars import JarsMissing, find_jars
from korvet.spark.session.kafka_probe import likely_cause
from korvet.spark.session.redaction import redacted
from korvet.spark.session.session import JavaMissing, build_session, is_submitted, submitted_session
from korvet.spark.source.address import DEFAULT_KEYSPACE, Address, Secret, Tls, split_url
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.readers import KafkaReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from korvet.spark.tables.kafka_offsets import Finding

# The embedded server's socket in its data folder; a symbolic link if that path is too long for a socket.
EMBEDDED_SOCKET = "server.sock"


def _unless_folder_is_named(ctx: click.Context, param: click.Parameter, url: str | None) -> str | None:
    """A flag precedes a variable. Click processes the options of the command line first."""
    named = ctx.get_parameter_source("data_dir") is ParameterSource.COMMANDLINE
    return None if named and ctx.get_parameter_source("redis_url") is ParameterSource.ENVIRONMENT else url


master_option = click.option(
    "--master",
    "--remote",
    "master",
    metavar="URL",
    default="local[*]",
    envvar="SPARK_REMOTE",
    show_default=True,
    help="Spark master: local or the URL of a cluster; sc://HOST:PORT for a Spark Connect server. "
    "Ignored with spark-submit.",
)


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """The options of Redis on the command line."""

    redis_url: str | None = flag_of("redis", callback=_unless_folder_is_named)
    data_dir: Path = flag(
        "--data-dir",
        type=click.Path(path_type=Path),
        default=Path("korvet-data"),
        envvar="KORVET_DATA_DIR",
        show_default=True,
        help="Data folder of the embedded server, which must be running. Given as an option, it precedes the "
        "variable KORVET_REDIS.",
    )
    keyspace: str = flag_of("keyspace", DEFAULT_KEYSPACE, show_default=True)
    redis_user: str | None = flag_of("redis.user")
    redis_password_file: str | None = flag_of("redis.passwordFile")
    redis_ca: str | None = flag_of("redis.ssl.ca")
    redis_cert: str | None = flag_of("redis.ssl.cert")
    redis_key: str | None = flag_of("redis.ssl.key")
    max_cpu: float | None = flag_of("maxRedisCpu", type=click.FloatRange(0, 1, min_open=True))

    def address(self) -> Address:
        """Return the address. Passwords are moved out of the URL, because plans and logs show the URL.

        Raises SourceError if there is neither a URL nor an embedded server, or if options contradict.
        """
        if self.redis_url:
            url, user, secret, sentinel_secret = _without_passwords(self.redis_url)
        else:
            socket = (self.data_dir / EMBEDDED_SOCKET).absolute()
            if not socket.exists():
                raise SourceError(
                    f"no embedded server in {self.data_dir}: start `korvet serve`, or use --redis URL"
                )
            path = socket.readlink() if socket.is_symlink() else socket
            url, user, secret, sentinel_secret = f"unix://{quote(str(path))}", None, None, None
        if secret is not None and self.redis_password_file is not None:
            raise SourceError("give the password in the redis URL or by --redis-password-file, not both")
        if secret is None and self.redis_password_file is None:
            secret = os.environ.get("KORVET_REDIS_PASSWORD")
        if sentinel_secret is None:
            sentinel_secret = os.environ.get("KORVET_REDIS_SENTINEL_PASSWORD")
        ca, cert, key = map(_absolute, (self.redis_ca, self.redis_cert, self.redis_key))
        return Address(
            url,
            self.keyspace,
            user=self.redis_user or user,
            password=Secret(value=secret, file=_absolute(self.redis_password_file)),
            tls=Tls(ca, cert, key) if ca or cert or key else None,
            sentinel_password=Secret("redis.sentinel.password", sentinel_secret),
            max_cpu=self.max_cpu,
        )


def _absolute(file: str | None) -> str | None:
    """The absolute path, because executors have another working folder."""
    return None if file is None else str(Path(file).absolute())


def _without_passwords(url: str) -> tuple[str, str | None, str | None, str | None]:
    """The URL without the servers' credentials in its query and without passwords; the query's user; the
    servers' password and the sentinels'.
    """
    try:
        parts, *others = split_url(url)
        password = None if parts.password is None else unquote(parts.password)
    except ValueError:
        raise SourceError("the redis URL can't be parsed") from None
    user, at, node = parts.netloc.rpartition("@")
    nodes = ",".join((node, *(other.netloc.rpartition("@")[2] for other in others)))
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    name, other = query.pop("username", None), query.pop("password", None)
    of_sentinels = query.pop("sentinel_password", None)
    named = user.partition(":")[0]
    netloc = named + at + nodes if named else nodes
    # urlunsplit would turn unix:///path into unix:/path.
    rest = f"{parts.scheme}://{netloc}{parts.path}" + (f"?{urlencode(query)}" if query else "")
    return rest, None if named else name, other if password is None else password, of_sentinels


with_redis = with_options(RedisOptions, "redis")
"""Adds the options of Redis. The command gets them as one parameter `redis`, RedisOptions."""


@contextmanager
def spark_session(
    app: str, master: str, *, jars: Sequence[Path] = (), conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session until the end of the block: a new one, or the session of spark-submit."""
    with warnings.catch_warnings():
        # The commands use Arrow. What PySpark says of the installed pandas is for programs that use pandas.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        spark = submitted_session(app) if is_submitted() else build_session(app, master, jars=jars, conf=conf)
        try:
            yield spark
        finally:
            spark.stop()


def named(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    """Return the value of an option that names a place. Raises BadParameter if it is empty."""
    if given is not None and not given.strip():
        raise click.BadParameter("must not be empty", context, option)
    return given


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of a Kafka cluster on the command line."""

    bootstrap: str | None = flag(
        "--bootstrap",
        metavar="HOST:PORT,...",
        callback=named,
        help="Read with the Kafka protocol from these bootstrap servers, not from Redis.",
    )
    command_config: Path | None = flag(
        "--command-config",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="KORVET_COMMAND_CONFIG",
        help="Properties of Kafka's Java clients (TLS, SASL), as Kafka's tools take them. With --bootstrap.",
    )
    exact: bool = flag(
        "--exact",
        is_flag=True,
        help="With --bootstrap, read all unread records to count them, although it may take long. "
        "Otherwise lags are differences of offsets, which may be upper bounds.",
    )

    @property
    def is_given(self) -> bool:
        """Whether Kafka is read. Raises UsageError for the option of a file without servers."""
        source = click.get_current_context().get_parameter_source("command_config")
        if self.bootstrap is None and source is ParameterSource.COMMANDLINE:
            raise click.UsageError("--command-config needs --bootstrap HOST:PORT")
        return self.bootstrap is not None

    def reader(self) -> tuple[KafkaReader, list[Path]]:
        """Return the reader and the jars that it needs, after checks that need no Spark.

        Raises UsageError without servers, SourceError if the file can't be used or no server can, and
        JarsMissing.
        """
        if not self.is_given or self.bootstrap is None:
            raise click.UsageError("--source kafka needs --bootstrap HOST:PORT")
        properties = {} if self.command_config is None else read_command_config(self.command_config)
        jars = find_jars()
        cause = likely_cause(self.bootstrap, properties)
        if cause is not None:
            raise SourceError(f"no usable Kafka at {self.bootstrap}: {cause}")
        return KafkaReader(self.bootstrap, properties, self.exact), jars


def tell(finding: Finding) -> None:
    """Print a finding about a cluster as `tell_all` does."""
    tell_all(findings_as_json([finding]))


def tell_all(findings: Iterable[Mapping[str, Any]]) -> None:
    """Print findings about a cluster, except those that only say where numbers are from.

    findings: of findings_as_json.
    """
    for each in findings:
        if each["severity"] != OK:
            click.echo(f"{each['severity']}: {each['message']}", err=True)


with_kafka = with_options(KafkaOptions, "kafka")
"""Adds the options of a Kafka cluster. The command gets them as one parameter `kafka`, KafkaOptions."""


def check_folder(folder: Path, *, make: bool) -> None:
    """Check, before the seconds that Spark takes to start, that a folder of this machine can be written to.

    make: create the folder. Raises ExportError. A URI is left to Spark.
    """
    if "://" in str(folder) or str(folder).startswith("file:"):
        return
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not existing.is_dir():
        raise ExportError(f"{existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ExportError(f"{folder} can't be written: no permission to write in {existing}")
    if make:
        folder.mkdir(parents=True, exist_ok=True)


def absolute(location: str) -> str:
    """Return a folder with an absolute path; a URI as it is. Spark's working folder may be another one."""
    return location if "://" in location or location.startswith("file:") else str(Path(location).absolute())


def is_this_machine(master: str) -> bool:
    """Return whether a folder without a scheme is on this machine. A cluster may have its own file system."""
    return master.startswith("local") and not is_submitted()


@contextmanager
def interruptible() -> Iterator[None]:
    """End the block on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("Stopping. The same command continues from here.", err=True)


# Exceptions with a message for the user.
_PLAIN = (
    SourceError,
    JarsMissing,
    JavaMissing,
    ConnectError,
    DriverError,
    ExportError,
    BrowserError,
    ThresholdError,
)


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors that a user can fix into one line (ClickException)."""
    try:
        yield
    except _PLAIN as error:
        raise click.ClickException(redacted(str(error))) from error
    except (PySparkException, Py4JJavaError) as error:
        raise click.ClickException(in_one_line(error)) from error
    except RedisError as error:
        raise click.ClickException(redacted(f"Redis refuses: {error}")) from error
    except OSError as error:
        raise click.ClickException(redacted(_os_words(error))) from error


def _os_words(error: OSError) -> str:
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on stderr with the current step and its duration; without a terminal, a plain line per step."""
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
