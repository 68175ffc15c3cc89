"""The commands report, export and jars of `korvet`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from korvet.spark.cli_options import (
    RedisOptions,
    master_option,
    progress,
    spark_session,
    user_errors,
    with_redis,
)
from korvet.spark.export.all_tables import keep_tables, kept_table, seconds_of
from korvet.spark.export.export import export_batch, export_stream
from korvet.spark.export.tables import batch_table, growing_table, stream_table, table_named
from korvet.spark.export.target import (
    BYTES_AS,
    DELTA,
    ERROR,
    FORMATS,
    HOW_TO_REPLACE,
    ICEBERG,
    JDBC,
    MODES,
    PARQUET,
    ExportError,
    Target,
)
from korvet.spark.export.topics import check_topics, read_topics, stream_topics
from korvet.spark.report.browser import BrowserError, find_browser, save_pictures
from korvet.spark.report.report import write_report
from korvet.spark.session import jars as jar_sets
from korvet.spark.session.jars import fetch_jars, fetch_package, find_jars, jars_folder
from korvet.spark.session.redaction import redacted
from korvet.spark.session.session import is_submitted
from korvet.spark.source.connection import connected
from korvet.spark.source.topics import OFFSETS_TOPIC, check_keyspace
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.readers import KafkaReader, RedisReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.address import Address

DEFAULT_EVERY = "10 seconds"
AWAIT_S = 1
HOUR_MS = 3_600_000
# A place for the password of a database where no list of processes shows it.
JDBC_PASSWORD = "KORVET_JDBC_PASSWORD"
# Parameters of an export that are not left to choose for all tables; nor is the format.
_NOT_KEPT = {"table", "mode", "partition_by", "bytes_as", "checkpoint", "options", "files", "packages"}


@click.command()
@with_redis
@click.option("--bootstrap", metavar="HOST:PORT", help="Kafka bootstrap servers, for --source kafka.")
@click.option(
    "--source",
    type=click.Choice(["korvet", "kafka"]),
    help="Read from Redis, or with the Kafka protocol.  [default: kafka with --bootstrap, else korvet]",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("korvet-report"),
    show_default=True,
    help="Folder for the page and the Parquet tables.",
)
@click.option("--png", is_flag=True, help="Also write pictures of page and charts. Needs Chromium or Chrome.")
@click.option(
    "--since-hours",
    type=click.IntRange(1, 24 * 366),
    default=24,
    show_default=True,
    help="Period of the charts; records of this period are read.",
)
@master_option
def report(
    redis: RedisOptions,
    bootstrap: str | None,
    source: str | None,
    out: Path,
    png: bool,
    since_hours: int,
    master: str,
) -> None:
    """Report on consumer groups: one HTML page and Parquet tables.

    \b
    The report shows lag in records and time, commits, rebalances and members of
    every group in __consumer_offsets. Groups that need attention come first.

    \b
    korvet report
    korvet report --redis redis://host:6379 --out report
    """
    source = source or ("kafka" if bootstrap else "korvet")
    reader: RedisReader | KafkaReader
    jars: list[Path] = []
    with user_errors(), progress() as notify:
        if png and find_browser() is None:
            raise BrowserError(
                "no browser for --png: install Chromium or Chrome, or name one in KORVET_BROWSER"
            )
        if source == "kafka":
            if bootstrap is None:
                raise click.UsageError("--source kafka needs --bootstrap HOST:PORT")
            reader, jars = KafkaReader(bootstrap), find_jars()
        else:
            if bootstrap is not None:
                raise click.UsageError("--bootstrap goes with --source kafka; give --redis URL")
            reader = RedisReader(redis.address())
            # Tried before Spark takes its seconds to start.
            with connected(reader.address) as connection:
                check_keyspace(connection, reader.address)
        _check_folder(out)
        notify("Starting Spark")
        with spark_session("korvet report", master, jars=jars) as spark:
            now_ms, history_ms = time.time_ns() // 1_000_000, since_hours * HOUR_MS
            done = write_report(spark, reader, out, now_ms, history_ms=history_ms, notify=notify)
        if png:
            notify("Drawing pictures")
            save_pictures(done.page)
    needs = "needs" if done.troubled == 1 else "need"
    attention = f", {done.troubled} {needs} attention" if done.troubled else ""
    groups = "1 group" if done.groups == 1 else f"{done.groups} groups"
    click.echo(f"{groups}{attention}. Report: {done.page.resolve()}")


def _pairs(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE words as a dictionary."""
    pairs = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE", context, option)
        pairs[name] = value
    return pairs


def _named(context: click.Context, option: click.Parameter, given: str) -> str:
    if not given.strip():
        raise click.BadParameter("names no place", context, option)
    return given


def _interval(context: click.Context, option: click.Parameter, given: str) -> str:
    try:
        seconds_of(given)
    except ExportError as error:
        raise click.BadParameter(str(error), context, option) from error
    return given


def _columns(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (given or "").split(",") if name.strip())


@click.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option(
    "--table", "source_table", metavar="NAME", help=f"Export a table instead of topics: {', '.join(TABLES)}."
)
@click.option(
    "--all-tables",
    is_flag=True,
    help="Export all these tables to a folder, which each run brings up to date.",
)
@click.option(
    "--from",
    "kept",
    metavar="FOLDER",
    help="With --table: read the table from such a folder, without Redis.",
)
@with_redis
@click.option(
    "--to",
    "location",
    required=True,
    callback=_named,
    metavar="PLACE",
    help="Target folder or URI; for jdbc the database's URL, for iceberg the name of a PyIceberg catalog.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="parquet", show_default=True)
@click.option("--into", "table", metavar="TABLE", help="Target table, for jdbc and iceberg.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default=ERROR,
    show_default=True,
    help="What to do if the target exists. A continuous export always continues its own target.",
)
@click.option(
    "--partition-by",
    metavar="COLUMN,...",
    callback=_columns,
    help="Columns that partition the target into folders.",
)
@click.option(
    "--bytes",
    "bytes_as",
    type=click.Choice(BYTES_AS),
    default="base64",
    show_default=True,
    help="Encoding of bytes in CSV and JSON; text is UTF-8, with U+FFFD for invalid bytes.",
)
@click.option("--continuous", is_flag=True, help="Export new records until stopped.")
@click.option(
    "--available-now",
    is_flag=True,
    help="Export records that are new since the checkpoint, then end.",
)
@click.option(
    "--every",
    default=DEFAULT_EVERY,
    callback=_interval,
    show_default=True,
    metavar="INTERVAL",
    help="With --continuous: the interval between batches.",
)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Folder of the checkpoint.  [default: _checkpoint in the target folder]",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_pairs,
    help="Option of Spark's writer (compression=zstd), for iceberg a property of the catalog. Repeatable.",
)
@click.option(
    "--source-option",
    "source_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_pairs,
    help="Option of the data source, for example isolationLevel=read_uncommitted. Repeatable.",
)
@click.option(
    "--jar",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A jar that Spark needs, for example a JDBC driver. Repeatable.",
)
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="GROUP:ARTIFACT:VERSION",
    help="The same, downloaded once from a Maven repository. Repeatable.",
)
@master_option
def export(
    topics: tuple[str, ...],
    source_table: str | None,
    all_tables: bool,
    kept: str | None,
    redis: RedisOptions,
    location: str,
    form: str,
    table: str | None,
    mode: str,
    partition_by: tuple[str, ...],
    bytes_as: str,
    continuous: bool,
    available_now: bool,
    every: str,
    checkpoint: str | None,
    options: dict[str, str],
    source_options: dict[str, str],
    files: tuple[Path, ...],
    packages: tuple[str, ...],
    master: str,
) -> None:
    """Write topics, or a table about groups, to Parquet, Delta, Iceberg, CSV or JSON files, or a database.

    \b
    Without --continuous or --available-now, the export runs once. With one of them,
    it keeps a checkpoint and exports every record exactly once, even after a crash.

    \b
    korvet export orders --to orders.parquet
    korvet export --table group_status --to status.csv --format csv
    korvet export --all-tables --to lake/groups --continuous --every "1 minute"
    korvet export orders --to lake/orders --format delta --available-now
    korvet export orders --to jdbc:postgresql://db/shop --format jdbc --into orders \\
        --package org.postgresql:postgresql:42.7.4 --option user=ada
    """
    if [bool(topics), source_table is not None, all_tables].count(True) != 1:
        raise click.UsageError("say which topics, or --table NAME, or --all-tables")
    if every != DEFAULT_EVERY and not continuous:
        raise click.UsageError("--every goes with --continuous")
    _check_times(
        source_table, kept, checkpoint, source_options, continuous=continuous, available_now=available_now
    )
    if all_tables:
        _check_kept(form)
        _keep(redis, location, source_options, every if continuous else None, master)
        return
    streams, what = continuous or available_now, source_table or ",".join(topics)
    with user_errors(), progress() as notify:
        if form == JDBC and JDBC_PASSWORD in os.environ:
            options = {"password": os.environ[JDBC_PASSWORD], **options}
        target = Target(_place(location, form), form, mode, table, partition_by, bytes_as, options)
        _check_target(target, master, streams=streams)
        if source_table is not None:
            _check_table(source_table, source_options, streams=streams)
        address = None if kept is not None else redis.address()
        if address is not None:
            check_topics(address, topics or [OFFSETS_TOPIC], source_options, streaming=streams)
        jars, conf = _session_needs(form, files, packages)
        notify("Starting Spark")
        with spark_session("korvet export", master, jars=jars, conf=conf) as spark:
            notify(f"Exporting {what}")
            if address is None:
                export_batch(kept_table(spark, _place(str(kept), PARQUET), what), target)
            elif streams:
                stream = _Origin(spark, address, topics, source_table, source_options).stream()
                _follow(stream, target, what, checkpoint, every if continuous else None)
            else:
                export_batch(_Origin(spark, address, topics, source_table, source_options).batch(), target)
    click.echo(f"{what}: in {target.name}")


def _check_times(
    source_table: str | None,
    kept: str | None,
    checkpoint: str | None,
    source_options: dict[str, str],
    *,
    continuous: bool,
    available_now: bool,
) -> None:
    """What goes on, and what is done once. Raises UsageError."""
    if continuous and available_now:
        raise click.UsageError("--continuous goes on, --available-now ends: choose one")
    if kept is not None and (source_table is None or continuous or available_now):
        raise click.UsageError("--from FOLDER goes with --table NAME, once")
    if kept is not None and source_options:
        raise click.UsageError("--from FOLDER reads files: no --source-option")
    if checkpoint and not (continuous or available_now):
        raise click.UsageError("--checkpoint goes with --continuous or --available-now")


def _check_target(target: Target, master: str, *, streams: bool) -> None:
    """A folder of this machine can be filled. Raises ExportError."""
    if target.table is not None:
        return
    if not streams and target.mode == ERROR and Path(target.location).exists():
        raise ExportError(f"{target.location} exists; {HOW_TO_REPLACE}")
    if _fills_this_machine(master):
        _check_folder(Path(target.location), make=False)


def _fills_this_machine(master: str) -> bool:
    """Whether a folder without a scheme is one of ours: a cluster may have file systems of its own."""
    return master.startswith("local") and not is_submitted()


def _check_table(name: str, source_options: dict[str, str], *, streams: bool) -> None:
    """A table can be had so. Raises ExportError."""
    if streams:
        growing_table(name)
        return
    table_named(name)
    if source_options:
        raise ExportError("a table is made of all records: no --source-option")


def _check_folder(folder: Path, *, make: bool = True) -> None:
    """A folder of this machine can be written to, before Spark takes its seconds to start; `make` it.

    Raises ExportError. Those of other machines are for Spark to find out about.
    """
    if "://" in str(folder) or str(folder).startswith("file:"):
        return
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not place.is_dir():
        raise ExportError(f"{place} is a file, no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ExportError(f"{folder} can't be written: no right to write in {place}")
    if make:
        folder.mkdir(parents=True, exist_ok=True)


def _check_kept(form: str) -> None:
    """--all-tables says itself how and where tables are written. Raises UsageError."""
    context = click.get_current_context()
    given = {name for name in _NOT_KEPT if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    if form != PARQUET:
        given.add("form")
    for option in context.command.params:
        if option.name in given:
            raise click.UsageError(
                f"--all-tables has its own files, folders and checkpoint: no {option.opts[0]}"
            )


@dataclass(frozen=True, slots=True)
class _Origin:
    """What is exported: topics, or a table."""

    spark: SparkSession
    address: Address
    topics: tuple[str, ...]
    table: str | None
    options: dict[str, str]

    def batch(self) -> DataFrame:
        """As it is now."""
        if self.table is None:
            return read_topics(self.spark, self.address, self.topics, self.options)
        now_ms = time.time_ns() // 1_000_000
        return batch_table(self.spark, RedisReader(self.address), self.table, now_ms)

    def stream(self) -> DataFrame:
        """As it grows."""
        if self.table is None:
            return stream_topics(self.spark, self.address, self.topics, self.options)
        return stream_table(self.spark, self.address, self.table, self.options)


def _keep(
    redis: RedisOptions, location: str, options: dict[str, str], every: str | None, master: str
) -> None:
    """All tables, once or until interrupted."""
    with user_errors(), progress() as notify:
        every_s = None if every is None else seconds_of(every)
        if _fills_this_machine(master):
            _check_folder(Path(_place(location, PARQUET)), make=False)
        address = redis.address()
        check_topics(address, [OFFSETS_TOPIC], options, streaming=True)
        notify("Starting Spark")
        with spark_session("korvet export", master) as spark:
            notify("Updating the tables")
            try:
                keep_tables(spark, address, _place(location, PARQUET), every_s=every_s, options=options)
            except KeyboardInterrupt:
                click.echo("Stopping; the same command goes on from here.", err=True)
    click.echo(f"all tables: in {redacted(location)}")


def _place(location: str, form: str) -> str:
    """Spark's folder of work may be another one than ours: paths of this machine are made absolute."""
    if form in {ICEBERG, JDBC} or "://" in location or location.startswith("file:"):
        return location
    return str(Path(location).absolute())


def _session_needs(
    form: str, files: Sequence[Path], packages: Sequence[str]
) -> tuple[list[Path], dict[str, str]]:
    """Jars and settings. With spark-submit they are its affair: --packages, --jars and --conf."""
    jars = [*files, *map(fetch_package, packages)]
    if form != DELTA:
        return jars, {}
    return [*jars, *find_jars(name=jar_sets.DELTA)], jar_sets.SETTINGS[jar_sets.DELTA]


def _follow(frame: DataFrame, target: Target, what: str, checkpoint: str | None, every: str | None) -> None:
    """Until the query ends by itself, fails, or is interrupted (which ends it in good order).

    every: an interval; None takes what there is now.
    """
    trigger = {"availableNow": True} if every is None else {"processingTime": every}
    with export_stream(frame, target, what, checkpoint=checkpoint, trigger=trigger) as query:
        try:
            while not query.awaitTermination(AWAIT_S):
                pass
        except KeyboardInterrupt:
            click.echo("Stopping; the same command goes on from here.", err=True)


@click.command()
@click.argument("names", nargs=-1, metavar="[kafka|delta]...")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the jars.  [default: KORVET_JARS_DIR, else the user's cache]",
)
def jars(names: tuple[str, ...], folder: Path | None) -> None:
    """Download jars for Spark, pinned and verified.

    \b
    kafka (default): Spark's Kafka connector, for report --source kafka.
    delta: for export --format delta.

    Existing jars are verified and kept.
    """
    unknown = [name for name in names if name not in jar_sets.JARS]
    if unknown:
        raise click.UsageError(f"no jars {', '.join(unknown)}; there are {', '.join(jar_sets.JARS)}")
    with user_errors(), progress() as notify:
        for name in names or (jar_sets.KAFKA,):
            notify(f"Fetching jars: {name}")
            for jar, outcome in fetch_jars(folder, name):
                click.echo(f"{outcome:8} {jar.file_name}")
    click.echo(f"Verified by SHA-256, in {folder or jars_folder()}")
