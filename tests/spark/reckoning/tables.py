"""All tables of a history, by name: rows with a value for each column."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.spark.reckoning.commits import Commits
from tests.spark.reckoning.groups import Groups, id_text
from tests.spark.reckoning.questions import owners, rebalance_costs
from tests.spark.reckoning.queues import queues
from tests.spark.reckoning.records import commit_ms, moment, read
from tests.spark.reckoning.status import STATUSES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from tests.spark.reckoning.groups import State
    from tests.spark.reckoning.history import History
    from tests.spark.reckoning.logs import Log
    from tests.spark.reckoning.records import Record, Row

STALE_MS = EXPIRING_MS = 86_400_000
RETENTION_MS = 7 * 86_400_000


def reckoned(
    history: History, as_of_ms: int, names: Mapping[str, str] | None = None
) -> Mapping[str, list[Row]]:
    """Returns the rows of every table as of a time, and of answers that need no other time.

    names: those of topics by ID; without them, those of existing topics.
    """
    found = read(history.offsets, as_of_ms)
    pending = read(history.offsets, as_of_ms, pending=True)
    if names is None:
        names = {id_text(topic_id): topic for topic, topic_id in history.ids.items()}
    groups = Groups(found.groups, names, as_of_ms)
    commits = Commits(found.commits, pending.commits, history.logs, as_of_ms, groups.assigned())
    waiting = queues(history.queues, commits, history.logs)
    return {
        "offset_commits": commits.offset_commits(),
        "current_offsets": commits.current_offsets(),
        "pending_offsets": commits.pending_offsets(),
        "record_lag": commits.record_lag(),
        "time_lag": commits.time_lag(),
        "commit_rate": commits.commit_rate(),
        "group_records": groups.group_records(),
        "group_generations": groups.group_generations(),
        "rebalances": groups.rebalances(),
        "members": groups.members(),
        "partition_status": commits.partition_status(),
        "group_status": group_status(commits, groups, waiting),
        "queues": waiting,
        "stale_groups": stale_groups(commits, groups),
        "expiring_offsets": expiring_offsets(commits, groups),
        "topic_consumers": groups.topic_consumers(commits.current),
        "anomalies": commits.anomalies(),
        "topic_sizes": topic_sizes(history, as_of_ms),
        "quarantine": found.refused,
        "owners": owners(groups, commits),
        "rebalance_costs": rebalance_costs(groups, commits),
    }


def group_status(commits: Commits, groups: Groups, waiting: Sequence[Row]) -> list[Row]:
    partitions: dict[str, list[Row]] = defaultdict(list)
    absent = dict.fromkeys(("lost_records", "drain_ms", "consumed_per_s", "complete"))
    for row in (
        *commits.partition_status(),
        *({**row, **absent, "record_lag": row["depth"]} for row in waiting),
    ):
        partitions[row["group"]].append(row)
    rows = []
    for group in {*partitions, *groups.current}:
        mine, state = partitions[group], groups.current.get(group)
        complete = [row["complete"] for row in mine if row["complete"] is not None]
        times = [commits.last_ms((group, row["topic"], row["partition"])) for row in mine]
        last_ms = max((at_ms for at_ms in times if at_ms is not None), default=None)
        worst = max(mine, key=_urgency, default=None)
        lost = [row["lost_records"] for row in mine if row["lost_records"] is not None]
        rows.append(
            {
                "group": group,
                "status": worst["status"] if worst else "OK",
                **{
                    f"partitions_{status.lower()}": sum(row["status"] == status for row in mine)
                    for status in STATUSES
                },
                "topics": len({row["topic"] for row in mine}),
                "partitions": len(mine),
                "record_lag": sum(row["record_lag"] or 0 for row in mine),
                "exact": True,
                "lost_records": sum(lost) if lost else None,
                "time_lag_ms": max(
                    (row["lag_ms"] for row in mine if row["lag_ms"] is not None), default=None
                ),
                "drain_ms": _longest_drain(mine),
                "partitions_not_draining": sum(
                    row["drain_ms"] is None and row["consumed_per_s"] is not None for row in mine
                ),
                "worst_topic": worst["topic"] if worst else None,
                "worst_partition": worst["partition"] if worst else None,
                "complete": min(complete, default=None),
                "last_commit_ts": None if last_ms is None else moment(last_ms),
                "commit_age_ms": None if last_ms is None else commits.as_of_ms - last_ms,
                "member_count": len(state.members) if state else 0,
                "generation": state.generation if state else None,
                "protocol_type": state.protocol_type if state else None,
                "protocol": state.protocol if state else None,
                "as_of_ts": commits.as_of_ms,
            }
        )
    return rows


def _longest_drain(partitions: Sequence[Row]) -> int | None:
    """None if a partition never has everything read, or if that is unknown."""
    times = [row["drain_ms"] for row in partitions]
    return None if None in times else max(times, default=None)


def _urgency(row: Row) -> tuple[Any, ...]:
    """The order of partitions; the last of equal ones by name is the worst."""
    rank = STATUSES.index(row["status"])
    # An unknown wait comes before all others.
    lag_ms = -1 if row["lag_ms"] is None else row["lag_ms"]
    return (
        rank,
        lag_ms,
        -1 if row["record_lag"] is None else row["record_lag"],
        row["topic"],
        row["partition"],
    )


def stale_groups(commits: Commits, groups: Groups) -> list[Row]:
    current: dict[str, list[Record]] = defaultdict(list)
    for (group, _, _), record in commits.current.items():
        current[group].append(record)
    rows = []
    for group in {*current, *groups.current}:
        made, state = current[group], groups.current.get(group)
        times = [commit_ms(record.value) for record in made]
        last_ms = max((at_ms for at_ms in times if at_ms is not None), default=None)
        since_ms = last_ms if last_ms is not None else state.at_ms if state else commits.as_of_ms
        if state and (state.members or state.protocol_type == "share"):
            continue
        if commits.as_of_ms - since_ms <= STALE_MS:
            continue
        rows.append(
            {
                "group": group,
                "idle_ms": commits.as_of_ms - since_ms,
                "last_commit_ts": None if last_ms is None else moment(last_ms),
                "topics": len({record.key.topic for record in made}),  # type: ignore[union-attr]
                "partitions": len(made),
                "generation": state.generation if state else None,
                "protocol_type": state.protocol_type if state else None,
                "as_of_ts": commits.as_of_ms,
            }
        )
    return rows


def expiring_offsets(commits: Commits, groups: Groups) -> list[Row]:
    rows = []
    for (group, topic, partition), record in commits.current.items():
        value = record.value
        expires_ms = _expires_ms(groups.current.get(group), topic, value)
        if expires_ms is None or expires_ms > commits.as_of_ms + EXPIRING_MS:
            continue
        rows.append(
            {
                "group": group,
                "topic": topic,
                "partition": partition,
                "committed_offset": value.offset,
                "commit_ts": moment(value.commit_timestamp_ms),
                "expires_ts": moment(expires_ms),
                "expires_in_ms": expires_ms - commits.as_of_ms,
                "as_of_ts": commits.as_of_ms,
            }
        )
    return rows


def _expires_ms(state: State | None, topic: str, value: Any) -> int | None:
    """When the coordinator may remove an offset (KIP-211); None if a member may read the topic."""
    members = list(state.members.values()) if state else []
    if any(row["topics"] is None or topic in row["topics"] for row in members):
        return None
    if value.expire_timestamp_ms >= 0:
        return int(value.expire_timestamp_ms)
    since_ms = commit_ms(value)
    # A classic group with a protocol: since it has been empty.
    if state and not members and state.protocol_type and state.entered_ms is not None:
        since_ms = state.entered_ms
    return None if since_ms is None else since_ms + RETENTION_MS


def topic_sizes(history: History, as_of_ms: int) -> list[Row]:
    return [_size(history, log, as_of_ms) for log in _all_logs(history)]


def _all_logs(history: History) -> Iterable[Log]:
    return (*history.offsets, *history.logs.values(), history.transactions)


def _size(history: History, log: Log, as_of_ms: int) -> Row:
    return {
        "topic": log.topic,
        "partition": log.partition,
        "start_offset": log.start,
        "end_offset": log.end,
        "entries": len(log.entries),
        "appended_entries": log.added,
        "memory_bytes": history.keyspace.client.memory_usage(log.stream) or 0,
        "as_of_ts": as_of_ms,
    }
