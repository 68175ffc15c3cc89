"""The command `korvet report`."""

# ruff: noqa: RUF009 (flag() makes fields of a dataclass)
from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from korvet.spark.cli.alert_options import PICTURES_STATUS, AlertOptions, exit_status, with_alert_options
from korvet.spark.cli.declared import flag, with_options
from korvet.spark.cli.options import (
    KafkaOptions,
    RedisOptions,
    absolute,
    check_folder,
    master_option,
    named,
    progress,
    spark_session,
    tell_all,
    user_errors,
    with_kafka,
    with_redis,
)
from korvet.spark.cli.stored_session import stored_session
from korvet.spark.report.comparison import parse_reference
from korvet.spark.report.kept import write_kept_report
from korvet.spark.report.pictures import BrowserError, find_browser, save_pictures
from korvet.spark.report.report import write_report
from korvet.spark.session.redaction import redacted
from korvet.spark.session.short_jvm import short_session
from korvet.spark.session.tuning import FEW_ROWS_SETTINGS
from korvet.spark.source.connection import connected
from korvet.spark.source.topics import check_keyspace
from korvet.spark.tables.readers import KafkaReader, RedisReader
from korvet.spark.tables.stored_tables import StoredTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.spark.report.report import Report

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a report is made of, and where it is written."""

    source: str | None = flag(
        "--source",
        type=click.Choice(["korvet", "kafka"]),
        help="Read from Redis, or with the Kafka protocol.  [default: kafka with --bootstrap, else korvet]",
    )
    stored_in: str | None = flag(
        "--from",
        callback=named,
        metavar="FOLDER",
        help="Report on the newest snapshot in a folder of `korvet tables refresh`, without Redis.",
    )
    out: Path = flag(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("korvet-report"),
        show_default=True,
        help="Folder for the page and the Parquet tables.",
    )
    png: bool = flag(
        "--png", is_flag=True, help="Also write pictures of page and charts. Needs Chromium or Chrome."
    )
    since_hours: int = flag(
        "--since-hours",
        type=click.IntRange(1, 24 * 366),
        default=24,
        show_default=True,
        help="Period of the charts; records of this period are read.",
    )
    compare_to: str | None = flag(
        "--compare-to",
        metavar="WHEN",
        help="Show what changed since then: the folder of an earlier report, a time (2026-01-31T08:00Z), or "
        "a duration before the report's time (24h). With --from, a time means the last snapshot until then.",
    )

    @property
    def history_ms(self) -> int:
        """The period of the charts."""
        return self.since_hours * HOUR_MS


@click.command()
@with_redis
@with_kafka
@with_options(ReportOptions, "options")
@with_alert_options
@master_option
def report(
    redis: RedisOptions, kafka: KafkaOptions, options: ReportOptions, alerting: AlertOptions, master: str
) -> None:
    """Report on consumer groups: one HTML page, Parquet tables, and alerts.

    \b
    The report shows lag in records and time, commits, rebalances and members of
    every group in __consumer_offsets. Groups that need attention come first.

    \b
    With --fail-on, the exit status tells a scheduler what was found:
    0 nothing that severe, 1 an error, 2 wrong options, 3 warnings, 4 critical alerts.
    It is 5 if there is a report, but not the pictures of --png.

    \b
    korvet report
    korvet report --redis redis://host:6379 --out report
    korvet report --compare-to 24h --max-wait 10m
    korvet report --thresholds thresholds.toml --fail-on warning --json
    korvet report --from /data/groups
    """
    with user_errors(), progress() as notify:
        if options.png and find_browser() is None:
            raise BrowserError("--png needs a browser: install Chromium or Chrome, or set KORVET_BROWSER")
        if options.stored_in is None:
            done = _report_now(redis, kafka, options, alerting, master, notify)
        elif not kafka.is_given and options.source is None:
            done = _report_stored(options.stored_in, options, alerting, master, notify)
        else:
            raise click.UsageError("--from reads stored tables: no --source and no --bootstrap")
        has_pictures = not options.png or _draw(done, notify)
    tell_all(done.alerts["findings"])
    click.echo(json.dumps(done.alerts, ensure_ascii=False) if alerting.as_json else _summary(done))
    status = exit_status(done.alerts["severity"], alerting.fail_on)
    if not has_pictures:
        status = status or PICTURES_STATUS
    if status:
        click.get_current_context().exit(status)


def _draw(done: Report, notify: Callable[[str], None]) -> bool:
    """Save the pictures; False if that fails: the report itself is complete."""
    notify("Drawing pictures")
    try:
        save_pictures(done.page)
    except (BrowserError, OSError) as error:
        click.echo(f"The report is written, but not its pictures (--png): {error}", err=True)
        return False
    return True


def _report_now(
    redis: RedisOptions,
    kafka: KafkaOptions,
    options: ReportOptions,
    alerting: AlertOptions,
    master: str,
    notify: Callable[[str], None],
) -> Report:
    """Report on the groups as of now."""
    thresholds = alerting.parsed_thresholds()
    now_ms = time.time_ns() // 1_000_000
    reference = None if options.compare_to is None else parse_reference(options.compare_to, now_ms)
    reader, jars = _reader(redis, kafka, options.source)
    check_folder(options.out, make=True)
    few = isinstance(reader, RedisReader) and reader.has_few_records()
    conf = {**short_session(master), **FEW_ROWS_SETTINGS} if few else {}
    notify("Starting Spark")
    with spark_session("korvet report", master, jars=jars, conf=conf) as spark:
        return write_report(
            spark,
            reader,
            options.out,
            time.time_ns() // 1_000_000,
            history_ms=options.history_ms,
            thresholds=thresholds,
            compare_to=reference,
            console=alerting.console_url,
            notify=notify,
        )


def _report_stored(
    stored_in: str,
    options: ReportOptions,
    alerting: AlertOptions,
    master: str,
    notify: Callable[[str], None],
) -> Report:
    """Report on the newest snapshot of stored tables."""
    thresholds = alerting.parsed_thresholds()
    if options.compare_to is not None:
        # Only the tables contain the time of the snapshot; a mistake is found before Spark starts.
        parse_reference(options.compare_to, time.time_ns() // 1_000_000)
    check_folder(options.out, make=True)
    folder = absolute(stored_in)
    jars, conf = stored_session(folder, master)
    notify("Starting Spark")
    with spark_session("korvet report", master, jars=jars, conf={**short_session(master), **conf}) as spark:
        notify("Writing the page")
        return write_kept_report(
            StoredTables(spark, folder),
            redacted(stored_in),
            options.out,
            history_ms=options.history_ms,
            thresholds=thresholds,
            compare_to=options.compare_to,
            console=alerting.console_url,
        )


def _summary(done: Report) -> str:
    needs = "needs" if done.troubled == 1 else "need"
    attention = f", {done.troubled} {needs} attention" if done.troubled else ""
    groups = "1 group" if done.groups == 1 else f"{done.groups} groups"
    return f"{groups}{attention}. Report: {done.page.resolve()}"


def _reader(
    redis: RedisOptions, kafka: KafkaOptions, source: str | None
) -> tuple[RedisReader | KafkaReader, list[Path]]:
    """The reader of the source, and the jars that it needs. Raises UsageError, SourceError, JarsMissing."""
    if (source or ("kafka" if kafka.is_given else "korvet")) == "kafka":
        return kafka.reader()
    if kafka.is_given:
        raise click.UsageError("--bootstrap is for --source kafka; use --redis URL")
    reader = RedisReader(redis.address())
    # Checked before the seconds that Spark takes to start.
    with connected(reader.address) as connection:
        check_keyspace(connection, reader.address)
    return reader, []
