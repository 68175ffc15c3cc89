"""What a report says about groups, from given rows of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.spark.report import groups
from korvet.spark.report.alerts import find_alerts
from korvet.spark.report.groups import ReportTables, page_groups, service_levels, wait_limits
from korvet.spark.report.thresholds import MAX_WAIT, Limit, Rule, Thresholds
from korvet.spark.tables.catalog import ANSWERS, TABLES
from korvet.spark.tables.trends import Span

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_rows")]

NOW = 1_790_000_000_000
MINUTE = 60_000
Rows = list[dict[str, Any]]


class Given(ReportTables):
    """Tables with these rows; columns that a row lacks are null, and other tables empty."""

    def __init__(self, spark: SparkSession, folder: Path, rows: Mapping[str, Rows]) -> None:
        super().__init__(spark, folder)
        self._rows = rows

    def table(self, name: str) -> DataFrame:
        return self.spark.createDataFrame(self._rows.get(name, []), {**TABLES, **ANSWERS}[name].schema)


def partitions(topic: str, count: int, **columns: Any) -> Rows:
    usual = {"group": "g", "topic": topic, "status": "OK", "record_lag": 0, "lag_ms": 0}
    return [{**usual, "partition": number, **columns} for number in range(count)]


def test_no_limit_counts_the_log_of_a_partition_without_a_commit(spark: SparkSession, tmp_path: Path) -> None:
    """Its consumer decides where it begins; in its first minutes the status is UNKNOWN."""
    rows = [
        *partitions("orders", 2, status="UNKNOWN", record_lag=5000, lag_ms=None),
        *partitions("refunds", 1, status="UNCOMMITTED", record_lag=5000, lag_ms=None),
        *partitions("ledger", 1, status="UNKNOWN", record_lag=5000, committed_offset=7),
    ]
    states = Given(spark, tmp_path, {"partition_status": rows}).topic_states()
    alerts = find_alerts(states, [], [], Thresholds().with_defaults(max_unread=1000), NOW)
    assert [(alert.kind, alert.topic) for alert in alerts] == [
        ("uncommitted", "refunds"),
        ("unread", "ledger"),
        ("unknown", "orders"),
    ]


def test_the_limit_of_a_group_is_that_of_all_its_topics(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names only the first partitions of a group, and states the limit that its days have."""
    monkeypatch.setattr(groups, "MAX_PARTITIONS", 1)
    rows = {
        "partition_status": [*partitions("orders", 2, lag_ms=MINUTE), *partitions("refunds", 1)],
        "group_status": [{"group": "g", "status": "OK", "record_lag": 0, "member_count": 0}],
    }
    tables = Given(spark, tmp_path, rows)
    rules = [
        Rule(topic="refunds", limits={MAX_WAIT: Limit(MINUTE)}),
        Rule(topic="orders", limits={MAX_WAIT: Limit(9 * MINUTE)}),
    ]
    thresholds = Thresholds(rules)
    span = Span(NOW - MINUTE, NOW, MINUTE)
    waits = spark.createDataFrame(
        [("g", [(0, 2 * MINUTE)])], "group string, lag array<struct<step int, lag_ms bigint>>"
    )
    limits_ms = wait_limits(tables.topic_states(), thresholds)
    levels = service_levels(waits.collect(), span, limits_ms, thresholds)
    (group,) = page_groups(tables, tables.groups(), {}, None, span, [], limits_ms, levels, compared=False)
    assert [row["topic"] for row in group["offsets"]] == ["orders"]
    assert group["limit_ms"] == MINUTE
    # The wait of two minutes is too long.
    assert {day["attained"] for day in group["slo"]} == {0.0}
