"""What clients noticed while brokers changed: delays of records, commits and transactions, and rebalances."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from robustness.history import Admin, Assign, Commit, Fault, Send, Txn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from robustness.history import Event

NS_PER_MS: Final = 1_000_000


class Service(NamedTuple):
    """What happened during the changes: the longest delays in ms, rebalances, and clients that gave up."""

    records: dict[tuple[str, int], float]
    """By partition: until a record that was sent to it was acknowledged."""
    commits: dict[str, float]
    """By group: until a commit was acknowledged."""
    transactions: float
    """Until the end of a transaction was acknowledged."""
    rebalances: dict[str, int]
    """By group: how often members got other partitions."""
    abandoned: tuple[str, ...]
    """Producers that were replaced, each with the reason."""

    @property
    def longest_ms(self) -> float:
        """The longest delay of a record."""
        return max(self.records.values())


def service_of(history: Iterable[Event]) -> Service:
    """Evaluate a history from the first change of a broker to the last."""
    events = list(history)
    changes = [event.at for event in events if isinstance(event, Fault)]
    begin, end = changes[0], changes[-1]
    asked: dict[tuple[Any, ...], int] = {}
    records: dict[tuple[str, int], float] = {}
    commits: dict[str, float] = {}
    abandoned: list[str] = []
    transactions = 0.0
    for event in events:
        if not begin <= event.at <= end:
            continue
        if isinstance(event, Admin) and event.action == "abandon":
            abandoned.append(f"{event.process}: {event.error}")
        key = _operation(event)
        if key is None:
            continue
        if event.type == "invoke":
            asked[key] = event.at
            continue
        delay_ms = (event.at - asked.pop(key, event.at)) / NS_PER_MS
        if isinstance(event, Send) and event.txn is None:
            place = event.topic, event.partition
            records[place] = max(records.get(place, 0.0), delay_ms)
        elif isinstance(event, Commit):
            commits[event.group] = max(commits.get(event.group, 0.0), delay_ms)
        elif isinstance(event, Txn):
            transactions = max(transactions, delay_ms)
    return Service(records, commits, transactions, _rebalances(events, begin, end), tuple(abandoned))


def _rebalances(events: Iterable[Event], begin: int, end: int) -> dict[str, int]:
    """By group: the assignments during the changes, without those of a client that gives up: its member
    leaves, and the member of its successor joins.
    """
    members: dict[str, list[Assign]] = {}
    for event in events:
        if isinstance(event, Assign) and event.group is not None and event.why == "rebalance":
            members.setdefault(event.process, []).append(event)
    counted: Counter[str] = Counter()
    for process, assigned in members.items():
        worker, _, number = process.rpartition(".")
        first = 1 if int(number) > 1 else 0
        leaves = not assigned[-1].places and f"{worker}.{int(number) + 1}" in members
        stayed = assigned[first : -1 if leaves else None]
        counted.update(str(each.group) for each in stayed if begin <= each.at <= end)
    return dict(counted)


def _operation(event: Event) -> tuple[Any, ...] | None:
    """What the invocation and the completion of an operation have in common."""
    if isinstance(event, Send):
        return "send", event.value
    if isinstance(event, Commit):
        return "commit", event.process
    if isinstance(event, Txn) and event.action in {"commit", "abort"}:
        return "end", event.txn
    return None
