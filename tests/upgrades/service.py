"""What clients noticed while brokers changed: delays of records, commits and transactions, and rebalances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from robustness.history import Assign, Commit, Fault, Send, Txn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from robustness.history import Event

NS_PER_MS: Final = 1_000_000


class Service(NamedTuple):
    """The longest delays in ms, and how often members got partitions during the changes."""

    records: dict[tuple[str, int], float]
    """By partition: until a record that was sent to it was acknowledged."""
    commits: dict[str, float]
    """By group: until a commit was acknowledged."""
    transactions: float
    """Until the end of a transaction was acknowledged."""
    rebalances: dict[str, int]
    """By group."""

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
    rebalances: dict[str, int] = {}
    transactions = 0.0
    for event in events:
        if not begin <= event.at <= end:
            continue
        if isinstance(event, Assign) and event.group is not None and event.why == "rebalance":
            rebalances[event.group] = rebalances.get(event.group, 0) + 1
            continue
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
    return Service(records, commits, transactions, rebalances)


def _operation(event: Event) -> tuple[Any, ...] | None:
    """What the invocation and the completion of an operation have in common."""
    if isinstance(event, Send):
        return "send", event.value
    if isinstance(event, Commit):
        return "commit", event.process
    if isinstance(event, Txn) and event.action in {"commit", "abort"}:
        return "end", event.txn
    return None
