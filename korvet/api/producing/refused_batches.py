"""Idempotent producers' batches that one connection's client has to send again, and the batches after them.

A client sends batches before earlier ones are answered. If one of them is refused for a passing reason, those
after it do not follow the producer's last batch in the log, even if the reason has passed. Kafka's error for
that is OUT_OF_ORDER_SEQUENCE_NUMBER. After that error librdkafka takes a new producer epoch for all
partitions, and sends again what may be in their logs already: no broker recognises these batches as
duplicates. So the batches after a refused one are refused with its error, until the client begins again with
an earlier batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.offsets.record_batch import MAX_PRODUCER_SEQUENCE

if TYPE_CHECKING:
    from korvet.records.batch import BatchHeader

SENT_AGAIN: Final = frozenset(
    (
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
        ErrorCode.concurrent_transactions,
    )
)
"""After these errors clients send a batch again, and those after it, with the same sequences. The batch was
not appended, or may not have been.
"""
# A client that names more producers and logs than this loses the oldest.
_MOST: Final = 1000


class _Refused(NamedTuple):
    """The newest of a producer's refused batches."""

    epoch: int
    next_sequence: int
    """The sequence of the batch after it."""
    error: ErrorCode


class RefusedBatches:
    """The refused batches of one connection, by log and producer."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[str, int], _Refused] = {}

    def note(self, log: str, header: BatchHeader, error: ErrorCode) -> None:
        """A batch of an idempotent producer was refused with one of SENT_AGAIN."""
        next_sequence = (header.base_sequence + header.record_count) & MAX_PRODUCER_SEQUENCE
        refused = self._refused
        refused[log, header.producer_id] = _Refused(header.producer_epoch, next_sequence, error)
        if len(refused) > _MOST:
            del refused[next(iter(refused))]

    def error_before(self, log: str, header: BatchHeader) -> ErrorCode | None:
        """The error of the batch directly before this one; None if that was not refused."""
        refused = self._refused.get((log, header.producer_id))
        if refused is None or refused.epoch != header.producer_epoch:
            return None
        return refused.error if refused.next_sequence == header.base_sequence else None

    def begins(self, log: str, header: BatchHeader) -> None:
        """A batch is about to be appended. If the client has begun again, what was refused is forgotten."""
        refused = self._refused.get((log, header.producer_id))
        if refused is None:
            return
        ahead = (header.base_sequence - refused.next_sequence) & MAX_PRODUCER_SEQUENCE
        if refused.epoch != header.producer_epoch or ahead > MAX_PRODUCER_SEQUENCE // 2:
            del self._refused[log, header.producer_id]
