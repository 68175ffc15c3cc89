"""The options of `korvet export`, and which of them exclude or need each other."""

# ruff: noqa: RUF009 (flag() makes fields of a dataclass)
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from korvet.spark.cli.declared import argument, flag, with_options
from korvet.spark.cli.options import named
from korvet.spark.export.all_tables import seconds_of
from korvet.spark.export.target import BYTES_AS, ERROR, FORMATS, MODES, PARQUET, ExportError
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.questions import QUESTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_EVERY = "10 seconds"
# Parameters that --all-tables does not accept, in addition to --format.
_NOT_WITH_ALL_TABLES = {
    "table",
    "mode",
    "partition_by",
    "bytes_as",
    "checkpoint",
    "options",
    "files",
    "packages",
}


def _pairs(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """The words NAME=VALUE as a dictionary."""
    pairs = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{word!r} is not NAME=VALUE", context, option)
        pairs[name] = value
    return pairs


def _interval(context: click.Context, option: click.Parameter, given: str) -> str:
    try:
        seconds_of(given)
    except ExportError as error:
        raise click.BadParameter(str(error), context, option) from error
    return given


def _columns(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (given or "").split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The command line of an export, without the options of Redis and Spark."""

    topics: tuple[str, ...] = argument((), nargs=-1, metavar="[TOPIC]...")
    source_table: str | None = flag(
        "--table",
        metavar="NAME",
        help=f"Export a table instead of topics: {', '.join(TABLES)}.",
    )
    all_tables: bool = flag(
        "--all-tables",
        is_flag=True,
        help="Export all these tables to a folder, which each run brings up to date.",
    )
    compact: bool = flag(
        "--compact",
        is_flag=True,
        help="With --all-tables: also merge the files that updates wrote for earlier days.",
    )
    stored_in: str | None = flag(
        "--from",
        callback=named,
        metavar="FOLDER",
        help="With --table: read the table from such a folder, without Redis. Also answers "
        f"{', '.join(QUESTIONS)}.",
    )
    location: str = flag(
        "--to",
        required=True,
        callback=named,
        metavar="PLACE",
        help="Target folder or URI; for jdbc the database's URL, "
        "for iceberg the name of a PyIceberg catalog.",
    )
    form: str = flag("--format", type=click.Choice(FORMATS), default="parquet", show_default=True)
    table: str | None = flag("--into", metavar="TABLE", help="Target table, for jdbc and iceberg.")
    mode: str = flag(
        "--mode",
        type=click.Choice(MODES),
        default=ERROR,
        show_default=True,
        help="What to do if the target exists. A continuous export always continues its own target.",
    )
    partition_by: tuple[str, ...] = flag(
        "--partition-by",
        metavar="COLUMN,...",
        callback=_columns,
        help="Columns that partition the target into folders.",
    )
    bytes_as: str = flag(
        "--bytes",
        type=click.Choice(BYTES_AS),
        default="base64",
        show_default=True,
        help="Encoding of bytes in CSV and JSON; text is UTF-8, with U+FFFD for invalid bytes.",
    )
    continuous: bool = flag("--continuous", is_flag=True, help="Export new records until stopped.")
    available_now: bool = flag(
        "--available-now",
        is_flag=True,
        help="Export records that are new since the checkpoint, then end.",
    )
    every: str = flag(
        "--every",
        default=DEFAULT_EVERY,
        callback=_interval,
        show_default=True,
        metavar="INTERVAL",
        help="With --continuous: the interval between batches.",
    )
    checkpoint: str | None = flag(
        "--checkpoint",
        callback=named,
        metavar="FOLDER",
        help="Folder of the checkpoint.  [default: _checkpoint in the target folder]",
    )
    options: dict[str, str] = flag(
        "--option",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_pairs,
        help="Option of Spark's writer (compression=zstd), "
        "for iceberg a property of the catalog. Repeatable.",
    )
    source_options: dict[str, str] = flag(
        "--source-option",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_pairs,
        help="Option of the data source, for example isolationLevel=read_uncommitted. Repeatable.",
    )
    files: tuple[Path, ...] = flag(
        "--jar",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A jar that Spark needs, for example a JDBC driver. Repeatable.",
    )
    packages: tuple[str, ...] = flag(
        "--package",
        multiple=True,
        metavar="GROUP:ARTIFACT:VERSION",
        help="The same, downloaded once from a Maven repository. Repeatable.",
    )

    @property
    def is_stream(self) -> bool:
        """Whether the export keeps a checkpoint and continues from it."""
        return self.continuous or self.available_now

    @property
    def interval(self) -> str | None:
        """The interval between batches; None to export once what exists now."""
        return self.every if self.continuous else None

    @property
    def subject(self) -> str:
        """The exported table or topics, for messages."""
        return self.source_table or ",".join(self.topics)

    def check(self, *, of_kafka: bool) -> None:
        """Raises UsageError for options that exclude each other, or need another one.

        of_kafka: whether tables are made of a Kafka cluster.
        """
        if [bool(self.topics), self.source_table is not None, self.all_tables].count(True) != 1:
            raise click.UsageError("give topics, --table NAME or --all-tables")
        if self.every != DEFAULT_EVERY and not self.continuous:
            raise click.UsageError("--every needs --continuous")
        if self.continuous and self.available_now:
            raise click.UsageError("use either --continuous or --available-now")
        if self.compact and not self.all_tables:
            raise click.UsageError("--compact needs --all-tables")
        if self.stored_in is not None and (self.source_table is None or self.is_stream):
            raise click.UsageError(
                "--from FOLDER needs --table NAME, and neither --continuous nor --available-now"
            )
        if self.stored_in is not None and self.source_options:
            raise click.UsageError("--from FOLDER reads files: no --source-option")
        if of_kafka and (self.topics or self.stored_in is not None or self.source_options):
            raise click.UsageError("--bootstrap is for tables: no topics, no --from and no --source-option")
        if self.checkpoint and not self.is_stream:
            raise click.UsageError("--checkpoint needs --continuous or --available-now")
        if self.all_tables:
            self._check_all_tables()

    def _check_all_tables(self) -> None:
        context = click.get_current_context()
        given = {
            name
            for name in _NOT_WITH_ALL_TABLES
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        if self.form != PARQUET:
            given.add("form")
        for option in context.command.params:
            if option.name in given:
                raise click.UsageError(
                    f"--all-tables has its own files, folders and checkpoint: no {option.opts[0]}"
                )


with_export_options = with_options(ExportOptions, "options")
"""Adds the topics and the options of an export. The command gets them as one parameter, ExportOptions."""
