"""The groups of a report as its page shows them, read from the report's tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.spark.report import comparison
from korvet.spark.report.alerts import KINDS, OK, PastEnd, TopicState, severity_rank
from korvet.spark.report.page import series
from korvet.spark.report.service_levels import service_days
from korvet.spark.session.together import together
from korvet.spark.tables.anomalies import PAST_END
from korvet.spark.tables.catalog import ANSWERS, TABLES
from korvet.spark.tables.queues import SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from korvet.spark.report.alerts import Alert
    from korvet.spark.report.service_levels import ServiceDay
    from korvet.spark.report.thresholds import Thresholds
    from korvet.spark.tables import trends

# Rows of a group on the page. The Parquet tables contain all rows.
MAX_PARTITIONS, MAX_MEMBERS, MAX_REBALANCES, MAX_ANOMALIES = 200, 100, 100, 50
MAX_ALERTS, MAX_CHANGES, MAX_EXPIRING, MAX_OWNERS, MAX_DAYS = 20, 100, 20, 50, 14
# Groups without offsets or members now that the page names.
MAX_GONE = 100
Rows = Mapping[str, list[Any]]
_SCHEMAS = {
    **{name: table.schema for name, table in {**TABLES, **ANSWERS}.items()},
    comparison.CHANGES: comparison.CHANGES_SCHEMA,
}
_RANKS = {kind.upper(): rank for rank, kind in enumerate(KINDS)}


class ReportTables:
    """The tables of a report, read from its files so that each is computed once."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        """The session that reads the tables."""
        self._folder = folder

    def table(self, name: str) -> DataFrame:
        """Return a table of the catalogue, an answer, or the changes."""
        return self.spark.read.schema(_SCHEMAS[name]).parquet(str(self._folder / name))

    def newest(self, name: str, most: int, *order: Column) -> Rows:
        """Return at most `most` rows of every group, each with the group's number of rows, `total`."""
        return _newest(self.table(name), most, *order)

    def owners(self, most: int) -> Rows:
        """Return who read what when, newest first, with the partitions of one time in one row."""
        times = self.table("owners").groupBy(
            "group", "topic", "member_id", "client_id", "client_host", "from_ts", "until_ts"
        )
        summed = times.agg(
            sf.sort_array(sf.collect_set("partition")).alias("partitions"),
            sf.sum("commits").alias("commits"),
        )
        newest = (sf.col("until_ts").desc_nulls_first(), sf.col("from_ts").desc())
        return _newest(summed, most, *newest, sf.col("topic"), sf.col("member_id"))

    def topic_states(self) -> list[TopicState]:
        """Return the partitions' states, summed up by group, topic, status, and whether there is a commit."""
        worst = sf.max_by("partition", sf.struct("lag_ms", "record_lag"))
        is_committed = sf.col("committed_offset").isNotNull().alias("is_committed")
        summed = self.table("partition_status").groupBy("group", "topic", "status", is_committed)
        rows = summed.agg(
            worst.alias("partition"),
            sf.count("*").alias("partitions"),
            sf.sum("record_lag").alias("record_lag"),
            sf.max("lag_ms").alias("lag_ms"),
            sf.sum("lost_records").alias("lost_records"),
            sf.max("last_commit_ts").alias("last_commit_ts"),
        )
        return [
            TopicState(
                row["group"],
                row["topic"],
                row["status"],
                row["is_committed"],
                row["partition"],
                row["partitions"],
                row["record_lag"] or 0,
                row["lag_ms"],
                row["lost_records"],
                _ms(row["last_commit_ts"]),
            )
            for row in rows.collect()
        ]

    def past_ends(self, from_ms: int) -> list[PastEnd]:
        """Return the commits past the log end since a time, by group and topic."""
        past = self.table("anomalies").where((sf.col("kind") == PAST_END) & (sf.col("commit_ms") > from_ms))
        rows = past.groupBy("group", "topic").agg(
            sf.max_by("partition", "commit_ms").alias("partition"),
            sf.count("*").alias("commits"),
            sf.max("commit_ms").alias("at_ms"),
        )
        return [PastEnd(**row.asDict()) for row in rows.collect()]

    def groups(self) -> list[Row]:
        """Return the table group_status."""
        return self.table("group_status").collect()

    def queues(self) -> Rows:
        """Return the queues of each share group, the longest waiting first."""
        rows: dict[str, list[Row]] = defaultdict(list)
        for row in self.table("queues").collect():
            rows[row["group"]].append(row)
        for each in rows.values():
            each.sort(
                key=lambda row: (-(row["lag_ms"] or 0), -(row["depth"] or 0), row["topic"], row["partition"])
            )
        return rows

    def stale_groups(self) -> list[str]:
        """Return the names of stale groups."""
        return [row["group"] for row in self.table("stale_groups").select("group").collect()]


def is_queue(row: Row) -> bool:
    """Return whether a row of group_status is of a share group."""
    return bool(row["protocol_type"] == SHARE)


def queue_states(queues: Rows) -> list[TopicState]:
    """Return what decides on the alerts of share groups, summed up by group and topic."""
    topics: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for group, rows in queues.items():
        for row in rows:
            topics[group, row["topic"]].append(row)
    return [
        TopicState(
            group,
            topic,
            OK.upper(),
            is_committed=True,
            partition=rows[0]["partition"],
            partitions=len(rows),
            unread_records=sum(row["depth"] or 0 for row in rows),
            wait_ms=rows[0]["lag_ms"],
            lost_records=None,
            last_commit_ms=None,
            is_queue=True,
        )
        for (group, topic), rows in topics.items()
    ]


def _newest(frame: DataFrame, most: int, *order: Column) -> Rows:
    of_group = Window.partitionBy("group")
    numbered = frame.withColumns(
        {
            "row": sf.row_number().over(of_group.orderBy(*order)),
            "total": sf.count("*").over(of_group),
        }
    )
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in numbered.where(sf.col("row") <= most).orderBy("group", "row").collect():
        rows[row["group"]].append(row)
    return rows


def wait_limits(states: Iterable[TopicState], thresholds: Thresholds) -> dict[str, int]:
    """Return the shortest limit of waiting of each group's topics, in ms, of groups that have one."""
    found: dict[str, int] = {}
    for group, topic in {(state.group, state.topic) for state in states}:
        limits = thresholds.limits(group, topic)
        limit_ms = limits.max_wait.value
        if limit_ms is not None and not limits.ignored:
            found[group] = min(limit_ms, found.get(group, limit_ms))
    return found


def service_levels(
    history: Iterable[Row], span: trends.Span, limits_ms: Mapping[str, int], thresholds: Thresholds
) -> dict[str, list[ServiceDay]]:
    """Return the days of each group that has a limit of waiting.

    history: rows of trends.group_trends. limits_ms: of wait_limits.
    """
    levels = {}
    for row in history:
        name = row["group"]
        limit_ms = limits_ms.get(name)
        if limit_ms is not None:
            waits = [(one["step"], one["lag_ms"]) for one in row["lag"] or () if one["lag_ms"] is not None]
            levels[name] = service_days(name, waits, span, limit_ms, thresholds.slo_target(name))
    return levels


def page_groups(
    tables: ReportTables,
    statuses: Sequence[Row],
    queues: Rows,
    history: list[Row] | None,
    span: trends.Span,
    alerts: Sequence[Alert],
    limits_ms: Mapping[str, int],
    levels: Mapping[str, Sequence[ServiceDay]],
    *,
    compared: bool,
) -> list[dict[str, Any]]:
    """Return the groups as the page shows them, worst first.

    statuses, queues: the rows of group_status, and of queues by group.
    limits_ms: of wait_limits. levels: of service_levels. compared: there is a table of changes.
    """
    worst_first = (sf.col("lag_ms").desc_nulls_last(), sf.col("topic"), sf.col("partition"))
    listed = (sf.col("active").desc(), sf.col("last_seen_ts").desc(), sf.col("member_id"))
    newest = sf.col("src_offset").desc()
    soonest = (sf.col("expires_in_ms"), sf.col("topic"), sf.col("partition"))
    offsets, members, rebalances, anomalies, expiring, owners = together(
        tables.spark,
        [
            partial(tables.newest, "partition_status", MAX_PARTITIONS, *worst_first),
            partial(tables.newest, "members", MAX_MEMBERS, *listed),
            partial(tables.newest, "rebalance_costs", MAX_REBALANCES, newest),
            partial(tables.newest, "anomalies", MAX_ANOMALIES, newest),
            partial(tables.newest, "expiring_offsets", MAX_EXPIRING, *soonest),
            partial(tables.owners, MAX_OWNERS),
        ],
    )
    charts = {row["group"]: _history(row, span) for row in history or ()}
    alerts_of = _by_group(alerts)
    before = _Changes(tables) if compared else None
    groups = []
    for row in statuses:
        name = row["group"]
        group = {
            **_summary(row, alerts_of.get(name, [])),
            "history": charts.get(name) or _history(None, span),
            "slo": _service(levels.get(name, ())),
            **_expiring(expiring.get(name, [])),
            **_owners(owners.get(name, [])),
            **_offsets(offsets.get(name, [])),
            **_queues(queues.get(name, []), of_share_group=is_queue(row)),
            **_members(members.get(name, [])),
            **_rebalances(rebalances.get(name, [])),
            **_anomalies(anomalies.get(name, [])),
            **(before.of(name) if before else {"before": None, "changes_total": 0, "changes": []}),
            "limit_ms": limits_ms.get(name),
        }
        groups.append(group)
    return sorted(groups, key=urgency)


def gone_groups(tables: ReportTables, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups that only the earlier state has, those with most unread records first."""
    names = {group["name"] for group in groups}
    rows = comparison.group_changes(tables.table(comparison.CHANGES)).collect()
    gone = [row for row in rows if row["group"] not in names]
    gone.sort(key=lambda row: (-(row["record_lag_before"] or 0), row["group"]))
    return [
        {
            "name": row["group"],
            "record_lag": row["record_lag_before"],
            "lag_ms": row["lag_ms_before"],
            "partitions": row["partitions"],
        }
        for row in gone
    ]


def urgency(group: Mapping[str, Any]) -> tuple[int, int, int, str]:
    """Return the sort key of a group on the page: severity, status, then the longest wait."""
    rank = _RANKS.get(group["status"], len(_RANKS))
    return severity_rank(group["severity"]), rank, -(group["lag_ms"] or 0), group["name"]


def _by_group(alerts: Sequence[Alert]) -> dict[str, list[Alert]]:
    found: dict[str, list[Alert]] = defaultdict(list)
    for alert in alerts:
        found[alert.group].append(alert)
    return found


def _summary(row: Row, alerts: Sequence[Alert]) -> dict[str, Any]:
    """A group's numbers. Its status is the kind of its worst alert, with which they are sorted."""
    return {
        "name": row["group"],
        "status": alerts[0].kind.upper() if alerts else "OK",
        "severity": alerts[0].severity if alerts else OK,
        "alerts_total": len(alerts),
        "alerts": [
            {"severity": alert.severity, "kind": alert.kind, "message": alert.message}
            for alert in alerts[:MAX_ALERTS]
        ],
        "record_lag": row["record_lag"],
        # Snapshots of earlier releases don't tell.
        "exact": row["exact"] is not False,
        "lost": row["lost_records"],
        "lag_ms": row["time_lag_ms"],
        "drain_ms": row["drain_ms"],
        "not_draining": row["partitions_not_draining"],
        "age": None if row["commit_age_ms"] is None else max(0, row["commit_age_ms"]),
        "members": row["member_count"],
        "partitions": row["partitions"],
        "generation": row["generation"],
        "protocol": row["protocol"],
    }


class _Changes:
    """What changed in each group."""

    def __init__(self, tables: ReportTables) -> None:
        grew = sf.abs(sf.coalesce("record_lag", sf.lit(0)) - sf.coalesce("record_lag_before", sf.lit(0)))
        order = (grew.desc(), sf.col("topic"), sf.col("partition"))
        self._rows = tables.newest(comparison.CHANGES, MAX_CHANGES, *order)
        groups = comparison.group_changes(tables.table(comparison.CHANGES)).collect()
        self._groups = {row["group"]: row for row in groups}

    def of(self, name: str) -> dict[str, Any]:
        """Return the totals of then, None for a new group, and the changes of partitions."""
        group, rows = self._groups.get(name), self._rows.get(name, [])
        existed = group is not None and group["new_partitions"] < group["partitions"]
        return {
            "before": {
                "record_lag": group["record_lag_before"],
                "lag_ms": group["lag_ms_before"],
                "read": group["read_records"],
                "new": group["new_partitions"],
                "gone": group["gone_partitions"],
            }
            if group is not None and existed
            else None,
            "changes_total": _total(rows),
            "changes": [
                {
                    "topic": row["topic"],
                    "partition": row["partition"],
                    "change": row["change"],
                    "status_before": row["status_before"],
                    "status": row["status"],
                    "record_lag_before": row["record_lag_before"],
                    "record_lag": row["record_lag"],
                    "lag_ms_before": row["lag_ms_before"],
                    "lag_ms": row["lag_ms"],
                    "read": row["read_records"],
                    "committed_before": _text(row["committed_before"]),
                    "committed": _text(row["committed_offset"]),
                }
                for row in rows
            ],
        }


def _text(offset: int | None) -> str | None:
    """A string, because offsets exceed the exact numbers of JavaScript."""
    return None if offset is None else str(offset)


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
                "committed": _text(row["committed_offset"]),
                "record_lag": row["record_lag"],
                "exact": row["exact"] is not False,
                "lag_ms": row["lag_ms"],
                "consumed": row["consumed_per_s"],
                "produced": row["produced_per_s"],
                "drain_ms": row["drain_ms"],
                "not_draining": int(row["drain_ms"] is None and row["consumed_per_s"] is not None),
                "commit": _ms(row["last_commit_ts"]),
            }
            for row in rows
        ],
    }


def _queues(rows: list[Row], *, of_share_group: bool) -> dict[str, Any]:
    """The queues of a share group with their totals, and who works on them; for another group, none."""
    if not of_share_group:
        return {"queue": None, "queues": [], "workers": []}
    workers = _workers(rows)
    is_told = any(row["workers"] is not None for row in rows)
    return {
        "topics": sorted({row["topic"] for row in rows}),
        "queue": {
            "partitions": len(rows),
            "depth": _over(sum, rows, "depth"),
            "in_flight": _over(sum, rows, "in_flight"),
            "again": _over(sum, rows, "waiting_again"),
            "deliveries": _over(max, rows, "deliveries"),
            "dead": _over(sum, rows, "dead"),
            "workers": len(workers),
            "natives": sum(not worker["is_member"] for worker in workers) if is_told else None,
        },
        "queues": [
            {
                "topic": row["topic"],
                "partition": row["partition"],
                "status": row["status"],
                "start": _text(row["start_offset"]),
                "depth": row["depth"],
                "exact": row["exact"],
                "in_flight": row["in_flight"],
                "again": row["waiting_again"],
                "deliveries": row["deliveries"],
                "dead": row["dead"],
                "lag_ms": row["lag_ms"],
            }
            for row in rows[:MAX_PARTITIONS]
        ],
        "workers": workers[:MAX_MEMBERS],
    }


def _workers(rows: list[Row]) -> list[dict[str, Any]]:
    """The members and Redis workers of all partitions, those with most records first."""
    found: dict[tuple[str, bool], list[Any]] = defaultdict(list)
    for row in rows:
        for worker in row["workers"] or ():
            found[worker["name"], worker["is_member"]].append(worker)
    workers = [
        {
            "name": name,
            "is_member": is_member,
            "in_flight": sum(each["in_flight"] for each in some),
            "idle": min(each["idle_ms"] for each in some),
        }
        for (name, is_member), some in found.items()
    ]
    return sorted(workers, key=lambda worker: (-worker["in_flight"], worker["idle"], worker["name"]))


def _over(total: Callable[[list[int]], int], rows: list[Row], column: str) -> int | None:
    """A total of what is known of a column; None if nothing is."""
    known = [row[column] for row in rows if row[column] is not None]
    return total(known) if known else None


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
                "least": row["unowned_at_least_ms"],
                "most": row["unowned_at_most_ms"],
            }
            for row in reversed(rows)
        ],
    }


def _service(days: Sequence[ServiceDay]) -> list[dict[str, Any]]:
    """The newest days, newest first."""
    return [
        {
            "day": day.day.isoformat(),
            "attained": day.attained,
            "over": day.over_ms,
            "left": day.budget_left_ms,
            "worst": day.worst_lag_ms,
            "measured": day.measured_ms,
            "target": day.target,
        }
        for day in reversed(days[-MAX_DAYS:])
    ]


def _expiring(rows: list[Row]) -> dict[str, Any]:
    return {
        "expiring_total": _total(rows),
        "expiring": [
            {
                "topic": row["topic"],
                "partition": row["partition"],
                "committed": _text(row["committed_offset"]),
                "at": _ms(row["expires_ts"]),
                "in": row["expires_in_ms"],
            }
            for row in rows
        ],
    }


def _owners(rows: list[Row]) -> dict[str, Any]:
    return {
        "owners_total": _total(rows),
        "owners": [
            {
                "topic": row["topic"],
                "partitions": _ranges(row["partitions"]),
                "client": row["client_id"] or "",
                "host": (row["client_host"] or "").lstrip("/"),
                "member": row["member_id"],
                "from": _ms(row["from_ts"]),
                "until": _ms(row["until_ts"]),
                "commits": row["commits"],
            }
            for row in rows
        ],
    }


def _ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers as text, with ranges in place of neighbours: `0-3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


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
                "committed": _text(row["committed_offset"]),
                "previous": _text(row["previous_offset"]),
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
