"""The answers to questions: who owned which partition when, and what rebalances cost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.spark.reckoning.groups import id_text
from tests.spark.reckoning.records import place_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.spark.reckoning.commits import Commits
    from tests.spark.reckoning.groups import Groups, State
    from tests.spark.reckoning.records import Record, Row

Owner = tuple[str, int, str]
"""Topic, partition and member."""


@dataclass(slots=True)
class Tenure:
    """The states in a row in which a member had a partition: the first, the last, and the next one."""

    first: State
    last: State
    following: State | None = None


def owners(groups: Groups, commits: Commits) -> list[Row]:
    """Returns one row for each time that a member had a partition."""
    names: dict[str, str] = {}
    for record in commits.records:
        if record.value is not None and record.value.topic_id is not None:
            topic, identity = place_of(record)[1], id_text(record.value.topic_id)
            names[identity] = max(topic, names.get(identity, ""))
    return [
        row
        for group, states in groups.states.items()
        for owner, tenure in _tenures(states, {**names, **groups.names})
        for row in [_owner(group, owner, tenure, commits)]
    ]


def _tenures(states: Sequence[State], names: Mapping[str, str]) -> list[tuple[Owner, Tenure]]:
    found: list[tuple[Owner, Tenure]] = []
    had: dict[Owner, Tenure] = {}
    for state in states:
        has = _owned(state, names)
        for owner in set(had) - has:
            tenure = had.pop(owner)
            tenure.following = state
            found.append((owner, tenure))
        for owner in has:
            had.setdefault(owner, Tenure(state, state)).last = state
    return [*found, *had.items()]


def _owned(state: State, names: Mapping[str, str]) -> set[Owner]:
    named = {} if state.kind == "classic" else names
    return {
        (named.get(part["topic"], part["topic"]), number, member)
        for member, row in state.members.items()
        for part in row["assigned"] or ()
        for number in part["partitions"]
    }


def _owner(group: str, owner: Owner, tenure: Tenure, commits: Commits) -> Row:
    topic, partition, member = owner
    end = float("inf") if tenure.following is None else tenure.following.record.offset
    history = commits.by_place.get((group, topic, partition), [])
    made = [
        at
        for at, record in enumerate(history)
        if record.value is not None and tenure.first.record.offset < record.offset < end
    ]
    last = history[made[-1]] if made else None
    before = history[made[0] - 1].value if made and made[0] else None
    return {
        "group": group,
        "topic": topic,
        "partition": partition,
        "member_id": member,
        "client_id": tenure.last.members[member]["client_id"],
        "client_host": tenure.last.members[member]["client_host"],
        "from_ts": tenure.first.at_ms,
        "until_ts": None if tenure.following is None else tenure.following.at_ms,
        "generation": tenure.first.generation,
        "last_generation": tenure.last.generation,
        "commits": len(made),
        "from_offset": None if before is None else before.offset,
        "to_offset": None if last is None else last.value.offset,
        "last_commit_ts": None if last is None else last.timestamp_ms,
    }


def rebalance_costs(groups: Groups, commits: Commits) -> list[Row]:
    """Returns the rebalances, with the bounds of the time without owners."""
    made: dict[str, list[Record]] = defaultdict(list)
    for record in commits.records:
        if record.value is not None:
            made[place_of(record)[0]].append(record)
    of_group: dict[str, list[Row]] = defaultdict(list)
    for row in groups.rebalances():
        of_group[row["group"]].append(row)
    costs = []
    for group, rows in of_group.items():
        rows.sort(key=lambda row: row["src_offset"])
        for previous, row in zip([None, *rows], rows, strict=False):
            since_ms, surely_since_ms = _unowned(previous, row, made[group])
            costs.append(
                {
                    **{name: row[name] for name in _KEPT},
                    "unowned_at_least_ms": _length(surely_since_ms, row["src_ts"]),
                    "unowned_at_most_ms": _length(since_ms, row["src_ts"]),
                }
            )
    return costs


_KEPT = (
    "group",
    "group_type",
    "kind",
    "generation",
    "protocol",
    "member_count",
    "joined",
    "left",
    "at_ts",
    "previous_lasted_ms",
    "src_offset",
)


def _unowned(previous: Row | None, row: Row, made: Sequence[Record]) -> tuple[int | None, int | None]:
    """The earliest and the latest beginning of the time without owners."""
    if row["kind"] == "formed":
        was_empty = previous is not None and previous["kind"] == "emptied"
        # After a removal of the group, its previous generation is unknown.
        if previous is None or not was_empty or row["previous_generation"] is None:
            return None, None
        return previous["src_ts"], previous["src_ts"]
    if row["kind"] != "rebalanced" or row["group_type"] != "classic":
        return None, None
    begun = -1 if previous is None else previous["src_offset"]
    since = [one.timestamp_ms for one in made if begun < one.offset < row["src_offset"]]
    keeps = "cooperative" in (row["protocol"] or "")
    known = previous is not None and bool(since)
    return since[-1] if known else None, row["src_ts"] if keeps else row["at_ts"]


def _length(since_ms: int | None, until_ms: int) -> int | None:
    return None if since_ms is None else max(0, until_ms - since_ms)
