"""The families of transactions, from shards that the test drives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from korvet.observe import transactions
from korvet.transactions.config import TransactionConfig
from korvet.transactions.messages import AddRequest, EndRequest, InitRequest, Outcome
from korvet.transactions.shard import TransactionCounts, TransactionShard
from tests.unit.observe.pages import page_of

PARTITIONS = frozenset({("t", 0)})
TIMEOUT_MS = 60_000


class Shard:
    """A shard, with the producer ids and epochs that it has given out."""

    def __init__(self) -> None:
        self.counts = TransactionCounts()
        self.now_ms = 1_000_000
        ids = iter(range(100))
        self.shard = TransactionShard(TransactionConfig(), lambda: next(ids), counts=self.counts)
        self.replay(self.shard.loaded(self.now_ms))

    def replay(self, outcome: Outcome) -> Any:
        for name, value in outcome.records:
            self.shard.replay(name, value)
        for markers in outcome.markers:
            self.now_ms += 250
            self.replay(self.shard.markers_written(markers, self.now_ms))
        return outcome.replies[0][1] if outcome.replies else None

    def begin(self, name: str) -> tuple[int, int]:
        reply = self.replay(self.shard.init_producer(InitRequest(name, TIMEOUT_MS), 0, self.now_ms))
        if reply.error is ErrorCode.none:
            producer = reply.producer_id, reply.producer_epoch
            add = AddRequest(name, *producer, PARTITIONS)
            assert self.replay(self.shard.add_partitions(add, 0, self.now_ms)).error is ErrorCode.none
            assert self.replay(self.shard.add_partitions(add, 0, self.now_ms)).error is ErrorCode.none
            # A transaction is decided later than it began.
            self.now_ms += 1
            return producer
        return self.begin(name)

    def end(self, name: str, producer: tuple[int, int], *, committed: bool) -> None:
        reply = self.replay(self.shard.end(EndRequest(name, *producer, committed), 0, self.now_ms))
        assert reply.error is ErrorCode.none


def test_transactions_are_counted_by_outcome() -> None:
    shard = Shard()
    shard.end("a", shard.begin("a"), committed=True)
    shard.end("b", shard.begin("b"), committed=False)
    shard.begin("c")
    # Another producer takes the id over.
    shard.begin("c")
    shard.begin("d")
    shard.now_ms += TIMEOUT_MS - 10
    shard.replay(shard.shard.tick(shard.now_ms))
    assert shard.counts.timed_out == 0
    shard.now_ms += 1000
    shard.replay(shard.shard.tick(shard.now_ms))
    open_since_ms = shard.now_ms
    shard.begin("e")
    service: Any = SimpleNamespace(counts=shard.counts, shards=[shard.shard])
    page = page_of(transactions.collect(service, lambda: open_since_ms + 1500))
    ended = {
        outcome: page[f"korvet_transactions_ended_total{{outcome={outcome}}}"]
        for outcome in ("committed", "aborted", "fenced", "timed_out")
    }
    assert ended == {"committed": 1, "aborted": 1, "fenced": 1, "timed_out": 2}
    assert page["korvet_transactions_begun_total"] == 6
    assert page["korvet_transaction_seconds_count"] == 5
    assert page["korvet_transaction_markers_seconds_count"] == 5
    # The markers of the two that have timed out are written one after the other.
    assert page["korvet_transaction_markers_seconds_sum"] == 4 * 0.25 + 0.5
    states = {
        name: value for name, value in page.items() if name.startswith("korvet_transactions{") and value
    }
    assert states == {
        "korvet_transactions{state=CompleteCommit}": 1,
        "korvet_transactions{state=CompleteAbort}": 3,
        "korvet_transactions{state=Ongoing}": 1,
    }
    assert page["korvet_transaction_oldest_open_seconds"] == 1.5


def test_without_shards_nothing_is_open() -> None:
    service: Any = SimpleNamespace(counts=TransactionCounts(), shards=[])
    page = page_of(transactions.collect(service, lambda: 0))
    assert page["korvet_transaction_oldest_open_seconds"] == 0
    assert page["korvet_transactions{state=Ongoing}"] == 0
