"""The command `korvet report`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from korvet.spark.cli.options import (
    RedisOptions,
    check_folder,
    master_option,
    progress,
    spark_session,
    user_errors,
    with_redis,
)
from korvet.spark.report.browser import BrowserError, find_browser, save_pictures
from korvet.spark.report.report import write_report
from korvet.spark.session.jars import find_jars
from korvet.spark.source.connection import connected
from korvet.spark.source.topics import check_keyspace
from korvet.spark.tables.readers import KafkaReader, RedisReader

HOUR_MS = 3_600_000


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
    with user_errors(), progress() as notify:
        if png and find_browser() is None:
            raise BrowserError("--png needs a browser: install Chromium or Chrome, or set KORVET_BROWSER")
        reader, jars = _reader(redis, bootstrap, source or ("kafka" if bootstrap else "korvet"))
        check_folder(out, make=True)
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


def _reader(
    redis: RedisOptions, bootstrap: str | None, source: str
) -> tuple[RedisReader | KafkaReader, list[Path]]:
    """The reader of `source`, and the jars that it needs. Raises UsageError, SourceError, JarsMissing."""
    if source == "kafka":
        if bootstrap is None:
            raise click.UsageError("--source kafka needs --bootstrap HOST:PORT")
        return KafkaReader(bootstrap), find_jars()
    if bootstrap is not None:
        raise click.UsageError("--bootstrap is for --source kafka; use --redis URL")
    reader = RedisReader(redis.address())
    # Checked before the seconds that Spark takes to start.
    with connected(reader.address) as connection:
        check_keyspace(connection, reader.address)
    return reader, []
