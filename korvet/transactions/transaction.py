"""One transactional id in memory: its newest record, and state that records omit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from korvet.groups.timers import Deadline
from korvet.offsets.transaction_log import TopicPartitions, TransactionLogValue
from korvet.transactions.messages import NO_EPOCH, NO_PRODUCER_ID, Markers, TopicPartition
from korvet.transactions.state import PREDECESSORS, PREPARED, IllegalTransition, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MAX_EPOCH: Final = 32_767
# The coordinator must always be able to fence with one epoch more, so clients never get the largest epoch.
LAST_CLIENT_EPOCH: Final = MAX_EPOCH - 1
NO_TIME_MS: Final = -1


class Transaction:
    """A transactional id. Only `take` changes lasting state."""

    __slots__ = ("deadline", "partitions", "retry_epoch", "state", "transactional_id", "unmarked", "value")

    def __init__(
        self, transactional_id: str, value: TransactionLogValue, time_out: Callable[[Transaction], None]
    ) -> None:
        self.transactional_id = transactional_id
        self.value = value
        self.state = TransactionState(value.transaction_status)
        self.partitions: frozenset[TopicPartition] = frozenset()
        self.unmarked: frozenset[TopicPartition] = frozenset()
        """Partitions of a decided transaction that are not known to have a marker."""
        self.retry_epoch = NO_EPOCH
        """The epoch before the newest one, if its owner may get the newest one by InitProducerId or
        repeat the request that bumped it; does not outlive a restart.
        """
        self.deadline = Deadline(lambda: time_out(self))
        self.take(value)

    def take(self, value: TransactionLogValue) -> None:
        """Apply the newest record."""
        self.value = value
        self.state = TransactionState(value.transaction_status)
        self.partitions = frozenset(
            (topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        )
        self.unmarked = self.partitions if self.state in PREPARED else frozenset()

    def due_ms(self, now_ms: int) -> int:
        """The time at which the open transaction is aborted. If its begin is in the future, the clock has
        been set back since, and the time begins now.
        """
        began_ms = min(self.value.transaction_start_timestamp_ms, now_ms)
        return began_ms + self.value.transaction_timeout_ms

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for clients after the current one."""
        return self.value.producer_epoch >= LAST_CLIENT_EPOCH

    @property
    def markers(self) -> Markers:
        """The missing markers of a decided transaction."""
        committed = self.state is TransactionState.PREPARE_COMMIT
        value = self.value
        return Markers(
            self.transactional_id,
            value.producer_id,
            value.producer_epoch,
            committed,
            self.unmarked,
            value.transaction_last_update_timestamp_ms,
        )

    # Possible next records

    def initialised(
        self, producer_id: int, epoch: int, timeout_ms: int, now_ms: int, previous_id: int
    ) -> TransactionLogValue:
        """A producer begins with this id and epoch."""
        return self._next(
            TransactionState.EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_timeout_ms=timeout_ms,
            transaction_partitions=None,
            transaction_start_timestamp_ms=NO_TIME_MS,
            previous_producer_id=previous_id,
        )

    def with_partitions(
        self, partitions: Iterable[TopicPartition], protocol: int, now_ms: int
    ) -> TransactionLogValue:
        """Partitions are added; this begins the transaction if none is open."""
        is_open = self.state is TransactionState.ONGOING
        return self._next(
            TransactionState.ONGOING,
            now_ms,
            transaction_partitions=by_topic(self.partitions.union(partitions)),
            transaction_start_timestamp_ms=self.value.transaction_start_timestamp_ms if is_open else now_ms,
            client_transaction_version=protocol,
        )

    def decided(
        self, epoch: int, next_id: int, now_ms: int, *, committed: bool, protocol: int
    ) -> TransactionLogValue:
        """The outcome; the markers carry this epoch. `next_id` is the producer id of the next transaction
        if this one's is exhausted, else -1.
        """
        is_open = self.state is TransactionState.ONGOING
        return self._next(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            # The time distinguishes the markers from delayed ones of the transaction before.
            max(now_ms, self.value.transaction_last_update_timestamp_ms + 1),
            producer_epoch=epoch,
            next_producer_id=next_id,
            transaction_partitions=by_topic(self.partitions if is_open else ()),
            transaction_start_timestamp_ms=self.value.transaction_start_timestamp_ms if is_open else now_ms,
            client_transaction_version=protocol,
        )

    def _next(self, state: TransactionState, now_ms: int, **fields: Any) -> TransactionLogValue:
        if self.state not in PREDECESSORS[state]:
            raise IllegalTransition(f"{self.transactional_id}: {self.state.title} to {state.title}")
        return _following(self.value, state, now_ms, **fields)


def completed(decided: TransactionLogValue, now_ms: int) -> TransactionLogValue:
    """The completion of a decided transaction, once all markers are written: the next producer id, if
    there is one, replaces this one.
    """
    prepared = TransactionState(decided.transaction_status)
    if prepared not in PREPARED:
        raise IllegalTransition(f"{prepared.title} is no decision")
    fields: dict[str, Any] = {"transaction_partitions": ()}
    if decided.next_producer_id != NO_PRODUCER_ID:
        fields |= {
            "producer_id": decided.next_producer_id,
            "producer_epoch": 0,
            "previous_producer_id": decided.producer_id,
            "next_producer_id": NO_PRODUCER_ID,
        }
    is_commit = prepared is TransactionState.PREPARE_COMMIT
    state = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    return _following(decided, state, now_ms, **fields)


def _following(
    value: TransactionLogValue, state: TransactionState, now_ms: int, **fields: Any
) -> TransactionLogValue:
    return replace(
        value,
        transaction_status=int(state),
        transaction_last_update_timestamp_ms=max(now_ms, value.transaction_last_update_timestamp_ms),
        version=1,
        unknown_tags=(),
        **fields,
    )


def by_topic(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    """Partitions in the log's order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return tuple(TopicPartitions(topic, tuple(ids)) for topic, ids in topics.items())
