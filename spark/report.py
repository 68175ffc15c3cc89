"""The report on consumer groups: Parquet tables and one HTML page, by Spark on this machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf

from korvet.spark import views
from korvet.spark.decode import group_metadata, offset_commits, quarantine
from korvet.spark.loading import smallest_offsets
from korvet.spark.page import (
    STATUSES,
    GenerationRow,
    GroupPage,
    MemberRow,
    PartitionRow,
    ReportPage,
    render,
)
from korvet.spark.source import SCHEMA

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from korvet.spark.tables import TopicReader

PAGE_NAME = "report.html"
# A page of more rows than this is of no use to anybody; the Parquet tables hold everything.
MAX_ROWS = 200_000
RATE_MINUTES = 24 * 60
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """What was written: the page, and how many groups need attention."""

    page: Path
    groups: int
    troubled: int


class _Tables:
    """Writes tables below a folder and gives them back as read from there: each is computed once."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def keep(self, name: str, frame: DataFrame) -> DataFrame:
        path = str(self._folder / name)
        frame.write.mode("overwrite").parquet(path)
        return self._spark.read.schema(frame.schema).parquet(path)


def write_report(
    spark: SparkSession,
    reader: TopicReader,
    folder: Path,
    as_of_ms: int,
    *,
    thresholds: views.Thresholds | None = None,
    notify: Notify = lambda step: None,
) -> Report:
    """Read, compute and write; `notify` is told each step as it begins.

    `as_of_ms` is the time that ages and lags are reckoned at; what was appended later is left out, so that
    commits and records are of one moment although they are read one after the other. Parquet tables of an
    earlier report in the folder are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tables = _Tables(spark, folder)
    notify("Reading __consumer_offsets")
    source = reader.offsets_topic(spark)
    if source is None:
        source = spark.createDataFrame([], SCHEMA)
    source = tables.keep("offsets_topic", source.where(sf.unix_millis("timestamp") <= as_of_ms))
    notify("Decoding commits and groups")
    commits = tables.keep("offset_commits", offset_commits(source))
    groups = tables.keep("group_metadata", group_metadata(source))
    refused = tables.keep("quarantine", quarantine(source))
    notify("Counting unread records")
    current = views.current_offsets(commits)
    records = views.appended_until(reader.records(spark, smallest_offsets(current)), as_of_ms)
    lag = tables.keep("current_offsets", views.record_lag(current, records, as_of_ms))
    notify("Computing history, rates, generations and members")
    summary = tables.keep("groups", views.group_summary(lag, groups, as_of_ms, thresholds))
    tables.keep("commit_history", views.commit_history(commits))
    rate = tables.keep("commit_rate", views.commit_rate(commits))
    states = tables.keep("group_generations", views.generations(groups))
    tables.keep("group_members", views.members_over_time(groups))
    notify("Writing the page")
    pages = _group_pages(summary, lag, groups, rate, states, as_of_ms)
    report = ReportPage(reader.name, as_of_ms, commits.count(), refused.count(), pages)
    page = folder / PAGE_NAME
    page.write_text(render(report), encoding="utf-8")
    return Report(page, len(pages), sum(group.status != "ok" for group in pages))


def _group_pages(
    summary: DataFrame, lag: DataFrame, groups: DataFrame, rate: DataFrame, states: DataFrame, as_of_ms: int
) -> list[GroupPage]:
    partitions = _by_group(lag.orderBy("topic", "partition"), _partition_row)
    generations = _by_group(states.orderBy("group", "src_offset"), _generation_row)
    members = {
        row["group"]: [_member_row(member) for member in row["members"]]
        for row in views.current_groups(groups).collect()
    }
    recent = rate.where(sf.unix_millis("minute") >= as_of_ms - RATE_MINUTES * 60_000)
    rates: dict[str, dict[int, int]] = defaultdict(dict)
    for row in (
        recent.select("group", sf.unix_millis("minute").alias("at"), "commits").limit(MAX_ROWS).collect()
    ):
        rates[row["group"]][row["at"]] = row["commits"]
    pages = [
        GroupPage(
            name=row["group"],
            status=row["status"],
            record_lag=row["record_lag"],
            lag_ms=row["lag_ms"],
            commit_age_ms=None if row["commit_age_ms"] is None else max(0, row["commit_age_ms"]),
            member_count=row["member_count"],
            partitions=partitions.get(row["group"], []),
            members=members.get(row["group"], []),
            generations=generations.get(row["group"], []),
            commits_per_minute=rates.get(row["group"], {}),
        )
        for row in summary.collect()
    ]
    order = list(STATUSES)
    return sorted(pages, key=lambda page: (order.index(page.status), -(page.lag_ms or 0), page.name))


def _by_group(frame: DataFrame, convert: Callable[[Row], Any]) -> dict[str, list[Any]]:
    rows: dict[str, list[Any]] = defaultdict(list)
    for row in frame.limit(MAX_ROWS).collect():
        rows[row["group"]].append(convert(row))
    return rows


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _partition_row(row: Row) -> PartitionRow:
    return PartitionRow(
        row["topic"],
        row["partition"],
        row["committed_offset"],
        row["record_lag"],
        row["lag_ms"],
        row["commit_ms"],
    )


def _generation_row(row: Row) -> GenerationRow:
    return GenerationRow(
        _ms(row["at"]), row["generation"], row["member_count"], row["joined"], row["left"], row["protocol"]
    )


def _member_row(member: Row) -> MemberRow:
    assigned = ", ".join(
        f"{part['topic']} {', '.join(map(str, sorted(part['partitions'])))}"
        for part in member["assigned"] or ()
    )
    return MemberRow(
        member["member_id"],
        member["client_id"],
        member["client_host"],
        member["instance_id"],
        assigned or "\u2013",
    )
