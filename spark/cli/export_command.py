"""The command `korvet export`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.spark.cli.export_options import ExportOptions, with_export_options
from korvet.spark.cli.options import (
    KafkaOptions,
    RedisOptions,
    absolute,
    check_folder,
    interruptible,
    is_this_machine,
    master_option,
    progress,
    spark_session,
    tell,
    user_errors,
    with_kafka,
    with_redis,
)
from korvet.spark.cli.stored_session import stored_session
from korvet.spark.cli.tables_command import refresh_tables
from korvet.spark.export.all_tables import seconds_of, stored_table
from korvet.spark.export.export import export_batch, export_stream
from korvet.spark.export.tables import batch_table, growing_table, stream_table, table_named
from korvet.spark.export.target import (
    DELTA,
    ERROR,
    HOW_TO_REPLACE,
    ICEBERG,
    JDBC,
    PARQUET,
    ExportError,
    Target,
)
from korvet.spark.export.topics import check_topics, read_topics, stream_topics
from korvet.spark.session.delta import delta_session
from korvet.spark.session.jars import fetch_package
from korvet.spark.source.topics import OFFSETS_TOPIC
from korvet.spark.tables.questions import QUESTIONS
from korvet.spark.tables.readers import KafkaReader, RedisReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.address import Address

# Seconds between checks for Ctrl-C.
AWAIT_S = 1
# The password of a database. Unlike an option, no list of processes shows it.
JDBC_PASSWORD = "KORVET_JDBC_PASSWORD"


@click.command()
@with_export_options
@with_redis
@with_kafka
@master_option
def export(redis: RedisOptions, kafka: KafkaOptions, options: ExportOptions, master: str) -> None:
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
    options.check(of_kafka=kafka.is_given)
    with user_errors(), progress() as notify:
        if options.all_tables:
            every_s = None if options.interval is None else seconds_of(options.interval)
            refresh_tables(
                redis,
                kafka,
                options.location,
                master,
                notify,
                every_s=every_s,
                compact=options.compact,
                options=options.source_options,
            )
        else:
            _export(redis, kafka, options, master, notify)


def _export(
    redis: RedisOptions,
    kafka: KafkaOptions,
    options: ExportOptions,
    master: str,
    notify: Callable[[str], None],
) -> None:
    """Export topics or one table."""
    target = _target(options)
    _check_target(target, options, master)
    _check_table(options)
    place: Address | KafkaReader | None = None
    connector: list[Path] = []
    if kafka.is_given:
        place, connector = kafka.reader()
    elif options.stored_in is None:
        place, topics = redis.address(), options.topics or [OFFSETS_TOPIC]
        check_topics(place, topics, options.source_options, streaming=options.is_stream)
    jars, conf = _session_needs(options, master)
    notify("Starting Spark")
    with spark_session("korvet export", master, jars=[*connector, *jars], conf=conf) as spark:
        notify(f"Exporting {options.subject}")
        if place is None:
            folder = _absolute(str(options.stored_in), PARQUET)
            export_batch(stored_table(spark, folder, options.subject), target)
        elif options.is_stream:
            _follow(_Source(spark, place, options).stream(), target, options)
        else:
            export_batch(_Source(spark, place, options).batch(), target)
    click.echo(f"{options.subject}: in {target.name}")


def _target(options: ExportOptions) -> Target:
    written = options.options
    if options.form == JDBC and JDBC_PASSWORD in os.environ:
        written = {"password": os.environ[JDBC_PASSWORD], **written}
    return Target(
        _absolute(options.location, options.form),
        options.form,
        options.mode,
        options.table,
        options.partition_by,
        options.bytes_as,
        written,
    )


def _check_target(target: Target, options: ExportOptions, master: str) -> None:
    """Raises ExportError if the target is a folder of this machine that can't be filled."""
    if target.table is not None:
        return
    if not options.is_stream and target.mode == ERROR and Path(target.location).exists():
        raise ExportError(f"{target.location} exists; {HOW_TO_REPLACE}")
    if is_this_machine(master):
        check_folder(Path(target.location), make=False)


def _check_table(options: ExportOptions) -> None:
    """Raises ExportError if the table does not exist or can't be exported in this way."""
    if options.source_table is None:
        return
    if options.is_stream:
        growing_table(options.source_table)
        return
    if options.source_table in QUESTIONS:
        if options.stored_in is None:
            raise ExportError(f"{options.source_table} is about stored tables: give their folder by --from")
        return
    table_named(options.source_table)
    if options.source_options:
        raise ExportError("a table is made of all records: no --source-option")


@dataclass(frozen=True, slots=True)
class _Source:
    """The topics or the table that is exported, as a frame."""

    spark: SparkSession
    place: Address | KafkaReader
    options: ExportOptions

    def batch(self) -> DataFrame:
        """The records or rows as of now."""
        if isinstance(self.place, KafkaReader):
            return self._table(self.place)
        if self.options.source_table is None:
            return read_topics(self.spark, self.place, self.options.topics, self.options.source_options)
        return self._table(RedisReader(self.place))

    def _table(self, reader: RedisReader | KafkaReader) -> DataFrame:
        now_ms = time.time_ns() // 1_000_000
        return batch_table(self.spark, reader, self.options.subject, now_ms, tell)

    def stream(self) -> DataFrame:
        """The records or rows as they are added."""
        if isinstance(self.place, KafkaReader) or self.options.source_table is not None:
            return stream_table(self.spark, self.place, self.options.subject, self.options.source_options)
        return stream_topics(self.spark, self.place, self.options.topics, self.options.source_options)


def _absolute(location: str, form: str) -> str:
    """The location, a path of this machine made absolute."""
    return location if form in {ICEBERG, JDBC} else absolute(location)


def _session_needs(options: ExportOptions, master: str) -> tuple[list[Path], Mapping[str, str]]:
    """The jars and settings of the session. spark-submit has its own: --packages, --jars and --conf."""
    jars = [*options.files, *map(fetch_package, options.packages)]
    if options.stored_in is not None:
        needed, conf = stored_session(absolute(str(options.stored_in)), master)
    elif options.form == DELTA:
        needed, conf = delta_session(master)
    else:
        return jars, {}
    return [*jars, *needed], conf


def _follow(frame: DataFrame, target: Target, options: ExportOptions) -> None:
    """Run the query until it ends, fails or is interrupted."""
    trigger = {"availableNow": True} if options.interval is None else {"processingTime": options.interval}
    query = export_stream(frame, target, options.subject, checkpoint=options.checkpoint, trigger=trigger)
    with query as running, interruptible():
        while not running.awaitTermination(AWAIT_S):
            pass
