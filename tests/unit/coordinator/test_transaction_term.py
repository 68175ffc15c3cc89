"""A term of `__transaction_state` whose records wait for replicas, without Redis."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.coordinator.served import Claim
from korvet.coordinator.transaction_term import TransactionTerm
from korvet.offsets.transaction_log import TopicPartitions, TransactionLogValue
from korvet.redis.errors import HistoryChanged, NotEnoughReplicasAfterAppend
from korvet.transactions.config import TransactionConfig
from korvet.transactions.messages import AddRequest
from korvet.transactions.shard import TransactionShard
from korvet.transactions.state import TransactionState

if TYPE_CHECKING:
    from korvet.transactions.messages import Markers

NAME = "payments"
LOADED_END = 7
DECIDED = TransactionLogValue(
    producer_id=5,
    producer_epoch=1,
    transaction_timeout_ms=60_000,
    transaction_status=TransactionState.PREPARE_COMMIT,
    transaction_partitions=(TopicPartitions("t", (0,)),),
    transaction_last_update_timestamp_ms=0,
    transaction_start_timestamp_ms=0,
)


class Loaded:
    """A term that has loaded a decision; its log keeps what waits for replicas."""

    topic = SimpleNamespace(name="__transaction_state", configs={})
    closed = False
    waits_for_replicas = True
    missing_replicas = writes_refused = None
    leader_epoch = 3

    def __init__(self, timeout_ms: int | None = 1000, value: TransactionLogValue = DECIDED) -> None:
        self.waiting: list[tuple[int, Any]] = []
        self.markers: list[Markers] = []
        self.failures: list[Exception] = []
        shard = TransactionShard(TransactionConfig(), lambda: None)
        shard.replay(NAME, value)
        log: Any = self
        claim = Claim(
            log, 1, LOADED_END, lambda: 0, lambda _: None, self.failures.append, lambda: 1000, timeout_ms
        )
        self.term = TransactionTerm(shard, claim, lambda _, markers: self.markers.append(markers))
        self.term.begin()

    def await_released(self, end: int, timeout_ms: int, done: Any) -> None:
        self.waiting.append((end, done))

    def answer(self, error: Exception | None = None) -> None:
        """Answer the oldest wait for replicas."""
        end, done = self.waiting.pop(0)
        assert end == LOADED_END
        done(error)


def test_the_markers_of_a_loaded_decision_wait_for_replicas() -> None:
    loaded = Loaded()
    assert not loaded.markers
    loaded.answer(NotEnoughReplicasAfterAppend("late"))
    assert not loaded.markers
    loaded.answer()
    assert [(each.transactional_id, each.committed) for each in loaded.markers] == [(NAME, True)]
    assert not loaded.waiting
    assert not loaded.failures


@pytest.mark.parametrize("closed", [False, True])
def test_a_loaded_decision_that_may_be_lost_has_no_markers(closed: bool) -> None:
    loaded = Loaded()
    loaded.closed = closed
    loaded.answer(NotEnoughReplicasAfterAppend("closed") if closed else HistoryChanged("another server"))
    assert len(loaded.failures) == 1
    assert not loaded.markers
    assert not loaded.waiting


def test_a_term_that_has_ended_begins_no_markers() -> None:
    loaded = Loaded()
    loaded.term.close(ErrorCode.not_coordinator)
    loaded.answer()
    assert not loaded.markers


def test_a_repeated_request_is_answered_when_replicas_have_what_was_loaded() -> None:
    """The first request has added the partition, and its answer was lost with the term before."""
    loaded = Loaded(value=replace(DECIDED, transaction_status=TransactionState.ONGOING))
    answers: list[Any] = []

    def ask() -> None:
        request = AddRequest(NAME, 5, 1, frozenset({("t", 0)}))
        loaded.term.submit(TransactionShard.add_partitions, request, answers.append)

    ask()
    assert not answers
    loaded.answer(NotEnoughReplicasAfterAppend("late"))
    assert [each.error for each in answers] == [ErrorCode.coordinator_not_available]
    ask()
    loaded.answer()
    assert [each.error for each in answers[1:]] == [ErrorCode.none]
    ask()
    assert len(answers) == 3


def test_markers_are_begun_at_once_if_nothing_waits_for_replicas() -> None:
    assert len(Loaded(None).markers) == 1
