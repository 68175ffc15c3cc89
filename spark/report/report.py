"""The report on consumer groups: Parquet tables, one HTML page and its alerts as JSON, by Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import functions as sf

from korvet.spark.report import comparison
from korvet.spark.report.alerts import alerts_document, find_alerts, findings_as_json
from korvet.spark.report.comparison import CHANGES, STATUS_TABLE, Earlier, Reference
from korvet.spark.report.groups import (
    MAX_GONE,
    ReportTables,
    gone_groups,
    is_queue,
    page_groups,
    queue_states,
    service_levels,
    wait_limits,
)
from korvet.spark.report.page import render
from korvet.spark.report.thresholds import MAX_WAIT, Thresholds
from korvet.spark.report.times import clock
from korvet.spark.session.together import together
from korvet.spark.session.tuning import gathered, keeping, tuned_for
from korvet.spark.source.source import SCHEMA
from korvet.spark.tables import decode, health, membership, queues, trends
from korvet.spark.tables.batch_tables import DecodedTables, shaped
from korvet.spark.tables.catalog import ANSWERS, TABLES
from korvet.spark.tables.questions import answer
from korvet.spark.tables.views import DAY_MS
from korvet.spark.versions import arrow_schema

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from korvet.spark.report.alerts import Alert
    from korvet.spark.report.service_levels import ServiceDay
    from korvet.spark.tables.catalog import Table
    from korvet.spark.tables.kafka_offsets import Finding
    from korvet.spark.tables.readers import TopicReader

PAGE_NAME, ALERTS_NAME = "report.html", "alerts.json"
# Groups on the page. The Parquet tables contain all groups.
MAX_GROUPS = 2000
# The state to compare with, while the tables are written: the folder of the report may have it, too.
_EARLIER = "earlier_status"
# What several tables are computed from, while they are written.
_SHARED = "shared"
# The answers that are about one moment; slo_days is computed from the charts.
_ASKED = ("owners", "rebalance_costs")
_SLO_DAYS = "slo_days"
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Report:
    """The written report: the page, its number of groups, the number that needs attention, and the alerts.

    alerts: the JSON document of the alerts (assets/alerts.schema.json). service: the days of all groups.
    """

    page: Path
    groups: int
    troubled: int
    alerts: Mapping[str, Any]
    service: Sequence[ServiceDay] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """What a report is made of and for.

    source: its name in the report. earlier: the state to compare with, None if it isn't known yet.
    """

    source: str
    folder: Path
    as_of_ms: int
    history_ms: int
    compare_to: Reference | None = None
    earlier: Earlier | None = None
    notify: Notify = lambda step: None

    @property
    def compared_to_ms(self) -> int | None:
        """The time that the report is compared with."""
        if self.earlier is not None:
            return self.earlier.at_ms
        return None if self.compare_to is None else self.compare_to.at_ms


def write_report(
    spark: SparkSession,
    reader: TopicReader,
    folder: Path,
    as_of_ms: int,
    *,
    history_ms: int = DAY_MS,
    rules: health.Rules | None = None,
    thresholds: Thresholds | None = None,
    compare_to: Reference | None = None,
    console: str | None = None,
    notify: Notify = lambda step: None,
) -> Report:
    """Read, compute and write a report. Replaces the Parquet tables of an earlier report in the folder.

    as_of_ms: the moment of ages and lags. Records appended later are left out, so that commits and records
    are of one moment although they are read one after the other. history_ms: period of the charts; records
    are read from the offsets that were committed then. thresholds: when a group needs attention; the default
    of their max_wait is also that of the status BEHIND in the tables. compare_to:
    what the changes are relative to; the folder itself may be the earlier report. console: template of a
    console's page of a group. notify: called with the name of each step when it starts.

    Raises ComparisonError if there is nothing to compare with.
    """
    # Spark's driver may have another working folder.
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    earlier = _kept(spark, folder, compare_to, as_of_ms)
    run = Run(reader.name, folder, as_of_ms, history_ms, compare_to, earlier, notify)
    with reader.connected(spark):
        notify("Reading __consumer_offsets")
        source = reader.offsets_topic(spark)
        kept, records = None, 0
        if source is not None:
            _keep(folder, "offsets_topic", source.where(decode.not_after(as_of_ms)))
            kept = spark.read.schema(source.schema).parquet(str(folder / "offsets_topic"))
            records = kept.count()
        with tuned_for(spark, records):
            if kept is None:
                _write_empty(spark, run)
                span, history = trends.Span.over(None, as_of_ms, history_ms), None
            else:
                waits = (thresholds or Thresholds()).defaults[MAX_WAIT].value
                chosen = replace(rules or health.Rules(), behind_ms=waits)
                span, history = _write_tables(kept, run, reader, chosen)
            remove(folder / _EARLIER)
            tables = ReportTables(spark, folder)
            notify("Writing the page")
            done = write_page(
                tables,
                run,
                span,
                history,
                thresholds or Thresholds(),
                console,
                lambda topics: reader.findings(spark, topics, as_of_ms),
            )
            days = [astuple(day) for day in done.service]
            _keep(folder, _SLO_DAYS, spark.createDataFrame(days, ANSWERS[_SLO_DAYS].schema))
    return done


def write_page(
    tables: ReportTables,
    run: Run,
    span: trends.Span,
    history: list[Row] | None,
    thresholds: Thresholds,
    console: str | None,
    find: Callable[[Collection[str]], Sequence[Finding]],
) -> Report:
    """Write the page and the alerts. history: rows of trends.group_trends; None without any.

    find: returns the findings about the cluster and these topics.
    """
    questions: list[Callable[[], Any]] = [
        tables.topic_states,
        partial(tables.past_ends, run.as_of_ms - run.history_ms),
        tables.stale_groups,
        tables.groups,
        tables.table("offset_commits").where(~sf.col("tombstone")).count,
        tables.table("quarantine").count,
    ]
    states, past_ends, stale, rows, commits, unreadable = together(tables.spark, questions)
    waiting = tables.queues() if any(map(is_queue, rows)) else {}
    states += queue_states(waiting)
    findings = find({*(state.topic for state in states), *([queues.SHARE_STATE_TOPIC] if waiting else [])})
    alerts = find_alerts(states, past_ends, stale, thresholds, run.as_of_ms)
    compared = (run.folder / CHANGES).exists()
    limits_ms = wait_limits(states, thresholds)
    levels = service_levels(history or (), span, limits_ms, thresholds)
    groups = page_groups(tables, rows, waiting, history, span, alerts, limits_ms, levels, compared=compared)
    gone = gone_groups(tables, groups) if compared else []
    document = {
        "title": f"Consumer groups, {clock(run.as_of_ms)} UTC",
        "source": run.source,
        "as_of": run.as_of_ms,
        "from": span.from_ms,
        "step": span.step_ms,
        "buckets": span.steps,
        "commits": commits,
        "unreadable": unreadable,
        "compared_to": run.compared_to_ms,
        "gone_total": len(gone),
        "gone": gone[:MAX_GONE],
        "console": console,
        "findings": findings_as_json(findings),
        "total": len(groups),
        "groups": groups[:MAX_GROUPS],
    }
    page = run.folder / PAGE_NAME
    page.write_text(render(document), encoding="utf-8")
    found = _write_alerts(run, alerts, len(groups), console, findings)
    service = [day for days in levels.values() for day in days]
    return Report(page, len(groups), sum(group["status"] != "OK" for group in groups), found, service)


def _write_alerts(
    run: Run, alerts: Sequence[Alert], groups: int, console: str | None, findings: Sequence[Finding]
) -> Mapping[str, Any]:
    """Write the alerts as JSON, and return the document. groups: their number."""
    document = alerts_document(
        alerts,
        source=run.source,
        as_of_ms=run.as_of_ms,
        history_ms=run.history_ms,
        groups=groups,
        compared_to_ms=run.compared_to_ms,
        console=console,
        findings=findings,
    )
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (run.folder / ALERTS_NAME).write_text(f"{text}\n", encoding="utf-8")
    return document


def _kept(spark: SparkSession, folder: Path, compare_to: Reference | None, as_of_ms: int) -> Earlier | None:
    """The state of an earlier report, copied before its tables are replaced; None for other references."""
    if compare_to is None or compare_to.folder is None:
        return None
    state = comparison.kept_state(spark, compare_to.folder, as_of_ms)
    _keep(folder, _EARLIER, state.positions)
    copied = spark.read.schema(state.positions.schema).parquet(str(folder / _EARLIER))
    return Earlier(state.at_ms, copied)


def _write_tables(
    source: DataFrame, run: Run, reader: TopicReader, rules: health.Rules
) -> tuple[trends.Span, list[Row]]:
    """Write all tables of the catalogue, and the changes. Returns the groups' history and its period."""
    as_of_ms, spark = run.as_of_ms, source.sparkSession
    with keeping(run.folder / _SHARED) as keep:
        rows = keep(gathered(decode.decoded(source)))
        commits = decode.decoded_commits(rows)
        seen = rows.agg(sf.min("commit_ms"), membership.topic_ids(), queues.are_there())
        ((first_ms, topic_ids, has_queues),) = seen.collect()
        names = reader.topic_names(spark, topic_ids)
        span = trends.Span.over(first_ms, as_of_ms, run.history_ms)
        run.notify("Reading the topics' logs")
        waiting = None
        if has_queues:
            records = membership.with_topic_names(decode.decoded_groups(rows), names)
            waiting = reader.queues(spark, queues.places(records), as_of_ms)
        positions = keep(trends.positions_over_time(commits, span))
        counted = DecodedTables(
            rows,
            None,
            as_of_ms,
            rules=rules,
            pending=reader.open_transactions(spark),
            sizes=reader.sizes(spark),
            names=names,
            share_queues=waiting,
        )
        earlier = run.earlier or _state_then(commits, run.compare_to)
        counted.share(keep)
        needs = counted.needs().with_lags(trends.at_steps(positions, span))
        if earlier is not None:
            needs = needs.with_state(earlier.positions, (earlier.at_ms, as_of_ms))
        log = keep(reader.logs(spark, needs, as_of_ms))
        tables = counted.with_logs(log, reader.ends(spark, needs.starts))
        run.notify("Computing the tables")
        tables.share(keep)
        known = [name for name in TABLES if name not in tables.empty]
        for name in tables.empty:
            _keep_nothing(spark, run.folder, name, TABLES[name])
        together(spark, [partial(_keep, run.folder, name, tables.view(name)) for name in known])
        written = ReportTables(spark, run.folder)
        answers = {name: shaped(answer(name, written.table), ANSWERS[name]) for name in _ASKED}
        together(spark, [partial(_keep, run.folder, name, frame) for name, frame in answers.items()])
        write_changes(run, written, earlier, log)
        run.notify("Computing lag over time")
        history = trends.group_trends(trends.lag_over_time(positions, log, span), commits, span).collect()
    return span, history


def _state_then(commits: DataFrame, compare_to: Reference | None) -> Earlier | None:
    if compare_to is None or compare_to.at_ms is None:
        return None
    return comparison.state_at(commits, compare_to.at_ms)


def write_changes(run: Run, tables: ReportTables, earlier: Earlier | None, log: DataFrame | None) -> None:
    """Write the changes since the earlier state; without one, remove those of an earlier report.

    log: as for comparison.changes.
    """
    if earlier is None:
        remove(run.folder / CHANGES)
        return
    run.notify("Comparing")
    found = comparison.changes(earlier, tables.table(STATUS_TABLE), log, run.as_of_ms)
    _keep(run.folder, CHANGES, found)


def _write_empty(spark: SparkSession, run: Run) -> None:
    _keep(run.folder, "offsets_topic", spark.createDataFrame([], SCHEMA))
    tables = {**TABLES, **{name: ANSWERS[name] for name in _ASKED}}
    for name, table in tables.items():
        _keep_nothing(spark, run.folder, name, table)
    write_changes(run, ReportTables(spark, run.folder), run.earlier, None)


def remove(folder: Path) -> None:
    """Delete a folder if it exists."""
    if folder.exists():
        shutil.rmtree(folder)


def _keep_nothing(spark: SparkSession, folder: Path, name: str, table: Table) -> None:
    """Write a table without rows, as _keep does, but without a job of Spark."""
    remove(folder / name)
    (folder / name).mkdir()
    empty = arrow_schema(spark.createDataFrame([], table.schema).schema).empty_table()
    pq.write_table(empty, folder / name / "part-00000.parquet")


def _keep(folder: Path, name: str, frame: DataFrame) -> None:
    frame.write.mode("overwrite").parquet(str(folder / name))
