"""What needs attention in a report: the worst alert of each topic in a group, for the page and schedulers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from korvet.spark.report.thresholds import CRITICAL, NOTICE, WARNING
from korvet.spark.report.times import clock, duration, iso
from korvet.spark.tables.kafka_offsets import HANGING, HIDDEN, NOT_READ, ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from korvet.spark.report.thresholds import Limits, Thresholds
    from korvet.spark.tables.kafka_offsets import Finding

# Version of the JSON document: a field that is removed or gets another meaning increases it.
JSON_VERSION = 2
OK = "ok"
# Severities, worst first.
SEVERITIES = (CRITICAL, WARNING, NOTICE, OK)
GROUP_PLACEHOLDER = "{group}"
# Kinds of alerts, worst first, and their severity. BEHIND, UNREAD and SILENT have the severity of the limit
# that is exceeded.
BEHIND, UNREAD, SILENT, PAST_END, STALE = "behind", "unread", "silent", "past_end", "stale"
UNCOMMITTED = "uncommitted"
KINDS = {
    "lost": CRITICAL,
    "ahead": CRITICAL,
    "rewind": CRITICAL,
    "stalled": CRITICAL,
    "stopped": CRITICAL,
    "warning": WARNING,
    UNCOMMITTED: WARNING,
    BEHIND: WARNING,
    UNREAD: WARNING,
    SILENT: WARNING,
    PAST_END: WARNING,
    "unknown": NOTICE,
    STALE: NOTICE,
}
# Findings about the cluster, worst first.
FINDINGS = {HANGING: CRITICAL, NOT_READ: NOTICE, HIDDEN: NOTICE, ORIGIN: OK}
# Statuses that are no alerts by themselves: the limits of a report decide who is behind.
_QUIET = ("OK", BEHIND.upper())
_RANKS = {kind: rank for rank, kind in enumerate(KINDS)}
_MEANING = {
    "lost": "missed records that were deleted before it read them",
    "ahead": "committed an offset past the log end",
    "rewind": "went back to an earlier offset",
    "stalled": "is alive, but makes no progress on unread records",
    "stopped": "has unread records and has stopped committing",
    "warning": "commits, but its unread records never become fewer",
    UNCOMMITTED: "has members, but no committed offset",
    "unknown": "has unread records, and too few commits to judge it by",
}


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that needs attention. Durations are in ms.

    topic, partition: where, with the worst partition; None for the group as a whole. partitions: the number
    of partitions. limit: the exceeded limit, in ms or records.
    """

    kind: str
    severity: str
    group: str
    topic: str | None
    partition: int | None
    message: str
    partitions: int | None = None
    unread_records: int | None = None
    wait_ms: int | None = None
    lost_records: int | None = None
    commit_age_ms: int | None = None
    limit_records: int | None = None
    limit_ms: int | None = None

    @property
    def rank(self) -> tuple[int, int, int, str, str]:
        """The sort key: worst first."""
        wait_ms = -(self.wait_ms or 0)
        return severity_rank(self.severity), _RANKS[self.kind], wait_ms, self.group, self.topic or ""


@dataclass(frozen=True, slots=True)
class TopicState:
    """The partitions of a group and topic that have one status. partition: the worst of them.

    is_committed: whether they have a commit; without one, the lag is that of the log start. is_queue: whether
    they are of a share group; its depth and its oldest record are those that it has yet to read.
    """

    group: str
    topic: str
    status: str
    is_committed: bool
    partition: int
    partitions: int
    unread_records: int
    wait_ms: int | None
    lost_records: int | None
    last_commit_ms: int | None
    is_queue: bool = False


@dataclass(frozen=True, slots=True)
class PastEnd:
    """Commits past the log end in the period of the report. partition, at_ms: of the newest."""

    group: str
    topic: str
    partition: int
    commits: int
    at_ms: int


def severity_rank(severity: str) -> int:
    """Return the position of a severity, 0 for the worst."""
    return SEVERITIES.index(severity)


def find_alerts(
    states: Sequence[TopicState],
    past_ends: Iterable[PastEnd],
    stale_groups: Iterable[str],
    thresholds: Thresholds,
    as_of_ms: int,
) -> list[Alert]:
    """Return the worst alert of each topic in a group, and those of groups as a whole, worst first."""
    topics: dict[tuple[str, str], list[TopicState]] = {}
    for state in states:
        topics.setdefault((state.group, state.topic), []).append(state)
    # Those of topics without a state are not used: the group's offsets there were removed since.
    came_back = {(past.group, past.topic): past for past in past_ends}
    found: list[Alert] = []
    for (group, topic), parts in topics.items():
        limits = thresholds.limits(group, topic)
        if limits.ignored:
            continue
        of_topic = [_of_status(part) for part in parts if part.status not in _QUIET]
        of_topic += _of_limits([part for part in parts if part.is_committed], limits, as_of_ms)
        past = came_back.get((group, topic))
        of_topic += [] if past is None else [_of_past_end(past)]
        if of_topic:
            found.append(min(of_topic, key=lambda alert: alert.rank))
    for group in stale_groups:
        if not thresholds.limits(group).ignored:
            message = "has no members and no recent commit"
            found.append(Alert(STALE, KINDS[STALE], group, None, None, message))
    return sorted(found, key=lambda alert: alert.rank)


def _of_status(state: TopicState) -> Alert:
    kind = state.status.lower()
    message = _MEANING[kind]
    if kind == "lost" and state.lost_records:
        message = f"missed {_records(state.lost_records)} that were deleted before it read them"
    return Alert(
        kind,
        KINDS[kind],
        state.group,
        state.topic,
        state.partition,
        f"{message}{_where(state.topic, state.partition, state.partitions)}",
        partitions=state.partitions,
        unread_records=state.unread_records,
        wait_ms=state.wait_ms,
        lost_records=state.lost_records,
    )


def _of_limits(parts: Sequence[TopicState], limits: Limits, as_of_ms: int) -> list[Alert]:
    """The limits that a topic exceeds: by its worst partition, its unread records, or its newest commit."""
    if not parts:
        return []
    worst = max(parts, key=lambda part: (part.wait_ms or 0, part.unread_records))
    unread = sum(part.unread_records for part in parts)
    newest_ms = max((part.last_commit_ms for part in parts if part.last_commit_ms is not None), default=None)
    age_ms = None if newest_ms is None else max(0, as_of_ms - newest_ms)
    found = []
    waited, left = ("oldest record", "left") if worst.is_queue else ("first unread record", "unread")
    for kind, limit, value, text, shown in (
        (BEHIND, limits.max_wait, worst.wait_ms, f"{waited} has waited for {{}}", duration),
        (UNREAD, limits.max_unread, unread, f"has {{}} {left}", _records),
        (SILENT, limits.max_commit_age, age_ms, "last commit was {} ago", duration),
    ):
        if value is None or limit.value is None or value <= limit.value:
            continue
        partition = worst.partition if kind == BEHIND else None
        message = f"{text.format(shown(value))}, limit {shown(limit.value)}{_where(worst.topic, partition)}"
        alert = Alert(
            kind,
            limit.severity,
            worst.group,
            worst.topic,
            partition,
            message,
            unread_records=unread,
            wait_ms=worst.wait_ms,
            commit_age_ms=age_ms,
            limit_records=limit.value if kind == UNREAD else None,
            limit_ms=None if kind == UNREAD else limit.value,
        )
        found.append(alert)
    return found


def _of_past_end(past: PastEnd) -> Alert:
    times = "" if past.commits == 1 else f" {past.commits:,} times, last"
    message = f"committed past the log end{times} at {clock(past.at_ms)} UTC"
    message += _where(past.topic, past.partition)
    return Alert(PAST_END, KINDS[PAST_END], past.group, past.topic, past.partition, message)


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _where(topic: str, partition: int | None = None, partitions: int = 1) -> str:
    """The place, with isolates around the topic: a name must not change the direction of the text."""
    isolated = f"\u2068{topic}\u2069"
    if partition is None:
        return f" ({isolated})"
    more = f" and {partitions - 1:,} more" if partitions > 1 else ""
    return f" ({isolated} {partition}{more})"


def check_console_url(template: str) -> str:
    """Return the template of a console's group page. Raises ValueError if it isn't one."""
    if not template.startswith(("https://", "http://")):
        raise ValueError(f"{template!r} is not an http or https URL")
    if GROUP_PLACEHOLDER not in template:
        raise ValueError(f"{template!r} has no {GROUP_PLACEHOLDER}")
    return template


def console_url(template: str, group: str) -> str:
    """Return the address of the group's page in a console."""
    return template.replace(GROUP_PLACEHOLDER, quote(group, safe=""))


def alerts_document(
    alerts: Sequence[Alert],
    *,
    source: str,
    as_of_ms: int,
    history_ms: int,
    groups: int,
    compared_to_ms: int | None,
    console: str | None,
    findings: Iterable[Finding] = (),
) -> dict[str, Any]:
    """Return the alerts and findings as JSON values; assets/alerts.schema.json describes them."""
    about_cluster = findings_as_json(findings)
    severities = [alert.severity for alert in alerts] + [each["severity"] for each in about_cluster]
    worst: dict[str, int] = {}
    for alert in alerts:
        rank = severity_rank(alert.severity)
        worst[alert.group] = min(rank, worst.get(alert.group, rank))
    counts = {name: sum(rank == severity_rank(name) for rank in worst.values()) for name in SEVERITIES[:-1]}
    return {
        "version": JSON_VERSION,
        "source": source,
        "as_of_ms": as_of_ms,
        "as_of": iso(as_of_ms),
        "history_ms": history_ms,
        "compared_to_ms": compared_to_ms,
        "severity": min(severities, key=severity_rank, default=OK),
        "groups": groups,
        "groups_by_severity": {**counts, OK: groups - len(worst)},
        "alerts": [_as_json(alert, console) for alert in alerts],
        "findings": about_cluster,
    }


def findings_as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return findings about the cluster as JSON values, worst first."""
    kinds = [*FINDINGS]
    return [
        {
            "severity": FINDINGS[each.kind],
            "kind": each.kind,
            "topic": each.topic,
            "partition": each.partition,
            "message": each.message
            if each.age_ms is None
            else f"{each.message}; open for {duration(each.age_ms)}",
            "age_ms": each.age_ms,
        }
        for each in sorted(findings, key=lambda each: kinds.index(each.kind))
    ]


def _as_json(alert: Alert, console: str | None) -> Mapping[str, Any]:
    return {
        "severity": alert.severity,
        "kind": alert.kind,
        "group": alert.group,
        "topic": alert.topic,
        "partition": alert.partition,
        "partitions": alert.partitions,
        # The isolates around names are for people's eyes.
        "message": alert.message.replace("\u2068", "").replace("\u2069", ""),
        "unread_records": alert.unread_records,
        "wait_ms": alert.wait_ms,
        "lost_records": alert.lost_records,
        "commit_age_ms": alert.commit_age_ms,
        "limit_records": alert.limit_records,
        "limit_ms": alert.limit_ms,
        "console_url": None if console is None else console_url(console, alert.group),
    }
