"""The report from stored tables: the newest snapshot, charts of the snapshots before it, and what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.spark.report import comparison
from korvet.spark.report.comparison import CHANGES, STATUS_TABLE, ComparisonError, Earlier, parse_reference
from korvet.spark.report.groups import ReportTables
from korvet.spark.report.report import Report, Run, write_changes, write_page
from korvet.spark.report.thresholds import Thresholds
from korvet.spark.report.times import iso
from korvet.spark.session.tuning import tuned_for
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.batch_tables import shaped
from korvet.spark.tables.catalog import ANSWERS, TABLES
from korvet.spark.tables.questions import answer
from korvet.spark.tables.store import day_of
from korvet.spark.tables.trends import Span
from korvet.spark.tables.views import DAY_MS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, Row

    from korvet.spark.tables.stored_tables import StoredTables


class _KeptTables(ReportTables):
    """The tables of a report as of the newest snapshot. Only the changes are in the report's folder.

    The answers are computed from the commits of the report's period, and the states that groups had then.
    """

    def __init__(self, stored: StoredTables, folder: Path, as_of_ms: int, from_ms: int) -> None:
        super().__init__(stored.spark, folder)
        self._stored = stored
        self._as_of_ms = as_of_ms
        self._from_ms = from_ms

    def table(self, name: str) -> DataFrame:
        """Return a table of the catalogue, an answer, or the changes."""
        if name == CHANGES:
            return super().table(name)
        if name in ANSWERS:
            return shaped(answer(name, self._of_period), ANSWERS[name])
        of_snapshot = TABLES[name].kind == "snapshot"
        return self._stored.read(name, self._as_of_ms if of_snapshot else None)

    def _of_period(self, name: str) -> DataFrame:
        """The rows that an answer about the period needs."""
        rows, written_ms = self.table(name), sf.unix_millis("src_ts")
        if name == "offset_commits":
            return rows.where(
                (sf.col("src_date") >= sf.lit(day_of(self._from_ms))) & (written_ms >= self._from_ms)
            )
        if name != "group_generations":
            return rows
        replaced_ms = sf.lead(written_ms).over(Window.partitionBy("group").orderBy("src_offset"))
        return rows.withColumn("replaced_ms", replaced_ms).where(
            sf.col("replaced_ms").isNull() | (sf.col("replaced_ms") >= self._from_ms)
        )


def write_kept_report(
    stored: StoredTables,
    source: str,
    folder: Path,
    *,
    history_ms: int = DAY_MS,
    thresholds: Thresholds | None = None,
    compare_to: str | None = None,
    console: str | None = None,
) -> Report:
    """Write a report as of the newest snapshot of stored tables. Nothing else is read.

    source: its name in the report. compare_to: what the changes are relative to, as for parse_reference; for
    a time, the last snapshot until then. The other arguments are as for write_report. Raises SourceError if
    there is no snapshot with the status of groups, ComparisonError if there is nothing to compare with.
    """
    # Spark's driver may have another working folder.
    folder = folder.absolute()
    with tuned_for(stored.spark, 0):
        as_of_ms = stored.newest_snapshot()
        if as_of_ms is None:
            raise SourceError(f"{source} contains no status of groups: `korvet tables refresh` adds it")
        earlier = None if compare_to is None else _earlier(stored, source, compare_to, as_of_ms)
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(source, folder, as_of_ms, history_ms, earlier=earlier)
        tables = _KeptTables(stored, folder, as_of_ms, as_of_ms - history_ms)
        write_changes(run, tables, earlier, None)
        span, history = _history(stored, as_of_ms, history_ms)
        chosen = thresholds or Thresholds()
        return write_page(tables, run, span, history, chosen, console, lambda _: stored.findings(as_of_ms))


def _earlier(stored: StoredTables, source: str, compare_to: str, as_of_ms: int) -> Earlier:
    """The state that an earlier report kept, or that of the last snapshot until a time."""
    reference = parse_reference(compare_to, as_of_ms)
    if reference.at_ms is None:
        return comparison.kept_state(stored.spark, str(reference.folder), as_of_ms)
    at_ms = stored.newest_snapshot(reference.at_ms)
    if at_ms is None:
        raise ComparisonError(f"{source} has no snapshot until {iso(reference.at_ms)}")
    return comparison.state_of(stored.read(STATUS_TABLE, at_ms), at_ms)


def _history(stored: StoredTables, as_of_ms: int, history_ms: int) -> tuple[Span, list[Row]]:
    """The last snapshot of each group in each step of the charts, and the group's commits in the step."""
    rate = stored.read("commit_rate").withColumn("at_ms", sf.unix_millis("minute"))
    first_ms = rate.agg(sf.min("at_ms").alias("first")).collect()[0]["first"]
    span = Span.over(first_ms, as_of_ms, history_ms)
    at_ms = sf.unix_millis("as_of_ts")
    newest = sf.max_by(sf.struct("record_lag", sf.col("time_lag_ms").alias("lag_ms")), "as_of_ts")
    lags = (
        stored.read("group_status")
        .where(at_ms.between(span.from_ms, as_of_ms))
        .groupBy("group", span.step_of(at_ms).alias("step"))
        .agg(newest.alias("newest"))
        .groupBy("group")
        .agg(sf.collect_list(sf.struct("step", "newest.*")).alias("lag"))
    )
    made = (
        rate.where(sf.col("at_ms").between(span.from_ms, as_of_ms))
        .groupBy("group", span.step_of(sf.col("at_ms")).alias("step"))
        .agg(sf.sum("commits").alias("commits"))
        .groupBy("group")
        .agg(sf.collect_list(sf.struct("step", "commits")).alias("commits"))
    )
    return span, lags.join(made, on="group", how="full").collect()
