"""The report on consumer groups: Parquet tables and one HTML page, by Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.spark.report.page import render, series
from korvet.spark.report.times import clock
from korvet.spark.source.source import SCHEMA
from korvet.spark.tables import decode, health, trends
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.readers import smallest_offsets

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from korvet.spark.tables.readers import TopicReader

PAGE_NAME = "report.html"
DAY_MS = 86_400_000
# Statuses of the page: those of group_status, but in place of OK also `BEHIND` if a record has been waiting
# for BEHIND_MS, or `STALE` for a stale group that has read everything.
BEHIND, STALE = "BEHIND", "STALE"
# Order of the page, worst first.
SEVERITY = {
    "LOST": 0,
    "AHEAD": 0,
    "REWIND": 0,
    "STALLED": 0,
    "STOPPED": 0,
    "WARNING": 1,
    BEHIND: 1,
    STALE: 2,
    "OK": 3,
}
BEHIND_MS = 300_000
# Rows on the page. The Parquet tables contain all rows.
MAX_GROUPS = 2000
MAX_PARTITIONS, MAX_MEMBERS, MAX_REBALANCES, MAX_ANOMALIES = 200, 100, 100, 50
# Spark's setting that compiles queries, and the number of rows up to which compiling takes longer than it
# saves.
COMPILING, FEW_ROWS = "spark.sql.codegen.wholeStage", 200_000
Notify = Callable[[str], None]
Rows = Mapping[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Report:
    """The written report: the page, its number of groups, and the number that needs attention."""

    page: Path
    groups: int
    troubled: int


def write_report(
    spark: SparkSession,
    reader: TopicReader,
    folder: Path,
    as_of_ms: int,
    *,
    history_ms: int = DAY_MS,
    rules: health.Rules | None = None,
    notify: Notify = lambda step: None,
) -> Report:
    """Read, compute and write a report. Replaces the Parquet tables of an earlier report in the folder.

    as_of_ms: the moment of ages and lags. Records appended later are left out, so that commits and records
    are of one moment although they are read one after the other. history_ms: period of the charts; records
    are read from the offsets that were committed then. notify: called with the name of each step when it
    starts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    notify("Reading __consumer_offsets")
    source = reader.offsets_topic(spark)
    if source is None:
        _write_empty(spark, folder)
        span, history = trends.Span.over(None, as_of_ms, history_ms), None
    else:
        _keep(folder, "offsets_topic", source.where(_not_after(as_of_ms)))
        kept = spark.read.schema(source.schema).parquet(str(folder / "offsets_topic"))
        with _uncompiled_if_few(spark, kept.count()):
            span, history = _write_tables(kept, reader, folder, as_of_ms, history_ms, rules, notify)
    notify("Writing the page")
    tables = _Reader(spark, folder)
    groups = _groups(tables, history, span)
    document = {
        "title": f"Consumer groups, {clock(as_of_ms)} UTC",
        "source": reader.name,
        "as_of": as_of_ms,
        "from": span.from_ms,
        "step": span.step_ms,
        "buckets": span.steps,
        "commits": tables.table("offset_commits").where(~sf.col("tombstone")).count(),
        "unreadable": tables.table("quarantine").count(),
        "total": len(groups),
        "groups": groups[:MAX_GROUPS],
    }
    page = folder / PAGE_NAME
    page.write_text(render(document), encoding="utf-8")
    return Report(page, len(groups), sum(group["status"] != "OK" for group in groups))


def _write_tables(
    source: DataFrame,
    reader: TopicReader,
    folder: Path,
    as_of_ms: int,
    history_ms: int,
    rules: health.Rules | None,
    notify: Notify,
) -> tuple[trends.Span, list[Row]]:
    """Write all tables of the catalogue. Returns the groups' history and its period."""
    rules = rules or health.Rules()
    commits = decode.offset_commits(source).persist()
    first_ms = commits.agg(sf.min("commit_ms").alias("first")).collect()[0]["first"]
    span = trends.Span.over(first_ms, as_of_ms, history_ms)
    notify("Reading the topics' records")
    positions = trends.positions_over_time(commits, span).persist()
    recent = health.recent_commits(commits, rules.window_commits)
    columns = ("topic", "partition", "committed_offset")
    needed = positions.select(*columns).union(recent.select(*columns))
    starts = smallest_offsets(needed)
    records = reader.records(source.sparkSession, starts).persist()
    ends = reader.ends(source.sparkSession, starts).persist()
    pending, sizes = reader.open_transactions(source.sparkSession), reader.sizes(source.sparkSession)
    tables = Tables(source, records, as_of_ms, ends=ends, rules=rules, pending=pending, sizes=sizes)
    with tables.shared():
        for name in TABLES:
            notify(f"Computing {name}")
            _keep(folder, name, tables.view(name))
    notify("Computing lag over time")
    history = trends.group_trends(trends.lag_over_time(positions, records), commits, span).collect()
    for frame in (commits, positions, records, ends):
        frame.unpersist()
    return span, history


@contextmanager
def _uncompiled_if_few(spark: SparkSession, rows: int) -> Iterator[None]:
    """Run queries uncompiled until the end of the block if there are few rows."""
    before = str(spark.conf.get(COMPILING))
    spark.conf.set(COMPILING, before if rows > FEW_ROWS else "false")
    try:
        yield
    finally:
        spark.conf.set(COMPILING, before)


def _write_empty(spark: SparkSession, folder: Path) -> None:
    _keep(folder, "offsets_topic", spark.createDataFrame([], SCHEMA))
    for name, table in TABLES.items():
        _keep(folder, name, spark.createDataFrame([], table.schema))


def _keep(folder: Path, name: str, frame: DataFrame) -> None:
    frame.write.mode("overwrite").parquet(str(folder / name))


def _not_after(as_of_ms: int) -> Column:
    return sf.coalesce(sf.unix_millis("timestamp") <= as_of_ms, sf.lit(True))


class _Reader:
    """The tables of a report, read from its files so that each is computed once."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder

    def table(self, name: str) -> DataFrame:
        return self._spark.read.schema(TABLES[name].schema).parquet(str(self._folder / name))

    def newest(self, name: str, most: int, *order: Column) -> Rows:
        """Return at most `most` rows of every group, each with the group's number of rows, `total`."""
        of_group = Window.partitionBy("group")
        frame = self.table(name).withColumns(
            {
                "row": sf.row_number().over(of_group.orderBy(*order)),
                "total": sf.count("*").over(of_group),
            }
        )
        rows: dict[str, list[Row]] = defaultdict(list)
        for row in frame.where(sf.col("row") <= most).orderBy("group", "row").collect():
            rows[row["group"]].append(row)
        return rows


def _groups(tables: _Reader, history: list[Row] | None, span: trends.Span) -> list[dict[str, Any]]:
    """The groups as the page shows them, worst first."""
    worst_first = sf.col("lag_ms").desc_nulls_last()
    offsets = tables.newest(
        "partition_status", MAX_PARTITIONS, worst_first, sf.col("topic"), sf.col("partition")
    )
    listed = sf.col("last_seen_ts").desc()
    members = tables.newest("members", MAX_MEMBERS, sf.col("active").desc(), listed, sf.col("member_id"))
    newest = sf.col("src_offset").desc()
    rebalances = tables.newest("rebalances", MAX_REBALANCES, newest)
    anomalies = tables.newest("anomalies", MAX_ANOMALIES, newest)
    expiring = tables.newest("expiring_offsets", 1, sf.col("expires_in_ms"))
    stale = {row["group"] for row in tables.table("stale_groups").select("group").collect()}
    charts = {row["group"]: _history(row, span) for row in history or ()}
    groups = []
    for row in tables.table("group_status").collect():
        name = row["group"]
        group = {
            **_summary(row, _status(row, stale=name in stale)),
            "expiring": _total(expiring[name]) if name in expiring else 0,
            "history": charts.get(name) or _history(None, span),
            **_offsets(offsets.get(name, [])),
            **_members(members.get(name, [])),
            **_rebalances(rebalances.get(name, [])),
            **_anomalies(anomalies.get(name, [])),
        }
        groups.append(group)
    return sorted(groups, key=urgency)


def urgency(group: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return the sort key of a group on the page: severity of the status, then the longest wait."""
    return SEVERITY[group["status"]], -(group["lag_ms"] or 0), group["name"]


def _status(row: Row, *, stale: bool) -> str:
    if row["status"] != "OK":
        return str(row["status"])
    if (row["time_lag_ms"] or 0) > BEHIND_MS:
        return BEHIND
    return STALE if stale else "OK"


def _summary(row: Row, status: str) -> dict[str, Any]:
    worst = "" if status in (STALE, "OK") else f"{row['worst_topic']} {row['worst_partition']}"
    return {
        "name": row["group"],
        "status": status,
        "worst": worst if row["partitions"] > 1 else "",
        "record_lag": row["record_lag"],
        "lost": row["lost_records"],
        "lag_ms": row["time_lag_ms"],
        "age": None if row["commit_age_ms"] is None else max(0, row["commit_age_ms"]),
        "members": row["member_count"],
        "partitions": row["partitions"],
        "generation": row["generation"],
        "protocol": row["protocol"],
    }


def _history(row: Row | None, span: trends.Span) -> list[str]:
    """The series of unread records, waiting time in ms, and commits, one number per step."""
    lag: list[int | None] = [None] * span.steps
    wait: list[int | None] = [None] * span.steps
    commits: list[int | None] = [0] * span.steps
    for entry in (row["lag"] if row is not None else None) or ():
        lag[entry["step"]], wait[entry["step"]] = entry["record_lag"], entry["lag_ms"]
    for entry in (row["commits"] if row is not None else None) or ():
        commits[entry["step"]] = entry["commits"]
    return [series(lag), series(wait), series(commits)]


def _offsets(rows: list[Row]) -> dict[str, Any]:
    return {
        "topics": sorted({row["topic"] for row in rows}),
        "offsets": [
            {
                "topic": row["topic"],
                "partition": row["partition"],
                "status": row["status"],
                # A string, because offsets exceed the exact numbers of JavaScript.
                "committed": str(row["committed_offset"]),
                "record_lag": row["record_lag"],
                "lag_ms": row["lag_ms"],
                "commit": _ms(row["last_commit_ts"]),
            }
            for row in rows
        ],
    }


def _members(rows: list[Row]) -> dict[str, Any]:
    return {
        "clients": sorted({row[name] for row in rows for name in ("client_id", "client_host") if row[name]}),
        "inventory_total": _total(rows),
        "inventory": [
            {
                "member": row["member_id"],
                "client": row["client_id"] or "",
                "host": (row["client_host"] or "").lstrip("/"),
                "instance": row["instance_id"],
                "assigned": _assigned(row["assigned"]) if row["active"] else "",
                "first": _ms(row["first_seen_ts"]),
                "last": _ms(row["last_seen_ts"]),
                "active": row["active"],
            }
            for row in rows
        ],
    }


def _rebalances(rows: list[Row]) -> dict[str, Any]:
    """The rebalances, oldest first, as the page draws them."""
    return {
        "rebalances_total": _total(rows),
        "rebalances": [
            {
                "at": _ms(row["at_ts"]),
                "kind": row["kind"],
                "generation": row["generation"],
                "members": row["member_count"],
                "joined": row["joined"],
                "left": row["left"],
                "lasted": row["previous_lasted_ms"],
            }
            for row in reversed(rows)
        ],
    }


def _anomalies(rows: list[Row]) -> dict[str, Any]:
    return {
        "anomalies_total": _total(rows),
        "anomalies": [
            {
                "at": row["commit_ms"],
                "kind": row["kind"],
                "topic": row["topic"],
                "partition": row["partition"],
                "lost": row["lost_records"],
                "committed": str(row["committed_offset"]),
                "previous": None if row["previous_offset"] is None else str(row["previous_offset"]),
            }
            for row in rows
        ],
    }


def _total(rows: list[Row]) -> int:
    return int(rows[0]["total"]) if rows else 0


def _assigned(assigned: list[Row] | None) -> str:
    return "; ".join(
        f"{part['topic']} {', '.join(map(str, sorted(part['partitions'] or ())))}" for part in assigned or ()
    )


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)
