"""The transactions that a broker coordinates."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from korvet.metrics.declared import declare
from korvet.metrics.family import Samples
from korvet.transactions.state import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.coordinator.transactions import TransactionService

_STATES: Final = declare(
    "korvet_transactions", "Transactional ids that the broker coordinates, by state.", "state"
)
_OLDEST_SECONDS: Final = declare(
    "korvet_transaction_oldest_open_seconds",
    "Age in seconds of the oldest open transaction that the broker coordinates; 0 if none is open.",
)


def collect(service: TransactionService, now_ms: Callable[[], int]) -> Iterator[Samples]:
    """See Collector. `now_ms`: since the epoch."""
    states: Counter[TransactionState] = Counter()
    oldest_ms: list[int] = []
    for shard in service.shards:
        states.update(shard.states())
        if shard.oldest_open_ms is not None:
            oldest_ms.append(shard.oldest_open_ms)
    family = _STATES
    present = [state for state in TransactionState if state is not TransactionState.DEAD]
    yield Samples(family, [(family.text(state.title), states[state]) for state in present])
    age_s = max(now_ms() - min(oldest_ms), 0) / 1000 if oldest_ms else 0
    yield _OLDEST_SECONDS.single(age_s)
    yield from service.counts.samples()
