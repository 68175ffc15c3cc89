"""The transactions that a broker coordinates."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from korvet.metrics.families import transactions
from korvet.metrics.family import NO_LABELS, Samples
from korvet.transactions.state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.coordinator.transactions import TransactionService
    from korvet.metrics.family import Family, Value
    from korvet.storage.log.counts import LogCounts


def collect(service: TransactionService, logs: LogCounts, now_ms: Callable[[], int]) -> Iterator[Samples]:
    """See Collector. `now_ms`: since the epoch."""
    counts = service.counts
    states: Counter[TransactionState] = Counter()
    oldest_ms: list[int] = []
    for shard in service.shards:
        states.update(shard.states())
        if shard.oldest_open_ms is not None:
            oldest_ms.append(shard.oldest_open_ms)
    family = transactions.STATES
    present = [state for state in TransactionState if state is not TransactionState.DEAD]
    yield Samples(family, [(family.text(state.title), states[state]) for state in present])
    age_s = max(now_ms() - min(oldest_ms), 0) / 1000 if oldest_ms else 0
    yield _one(transactions.OLDEST_SECONDS, age_s)
    yield _one(transactions.BEGUN, counts.begun)
    outcomes = ("committed", "aborted", "fenced", "timed_out")
    ended = [(transactions.ENDED.text(name), getattr(counts, name)) for name in outcomes]
    yield Samples(transactions.ENDED, ended)
    yield _one(transactions.EXPIRED_IDS, counts.expired_ids)
    yield _one(transactions.DURATION, counts.duration)
    yield _one(transactions.MARKING, counts.marking)
    yield _one(transactions.DUPLICATES, logs.duplicates)
    yield _one(transactions.MARKERS, logs.markers)


def _one(family: Family, value: Value) -> Samples:
    return Samples(family, [(NO_LABELS, value)])
