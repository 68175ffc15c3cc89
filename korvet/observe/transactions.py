"""The transactions that a broker coordinates."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from korvet.metrics.families import transactions
from korvet.metrics.family import Samples
from korvet.transactions.state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.coordinator.transactions import TransactionService
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
    yield transactions.OLDEST_SECONDS.single(age_s)
    yield transactions.BEGUN.single(counts.begun)
    outcomes = ("committed", "aborted", "fenced", "timed_out")
    ended = [(transactions.ENDED.text(name), getattr(counts, name)) for name in outcomes]
    yield Samples(transactions.ENDED, ended)
    yield transactions.EXPIRED_IDS.single(counts.expired_ids)
    yield transactions.DURATION.single(counts.duration)
    yield transactions.MARKING.single(counts.marking)
    yield transactions.DUPLICATES.single(logs.duplicates)
    yield transactions.MARKERS.single(logs.markers)
