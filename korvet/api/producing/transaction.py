"""Whether the partition of a transactional batch belongs to the transaction: the question and the reply."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.producing.response import Refused
from korvet.transactions.messages import BUMPING_PROTOCOL, AddRequest

if TYPE_CHECKING:
    from korvet.log.partition_log import PartitionLog
    from korvet.records.batch import BatchHeader

_ABORTABLE_SINCE: Final = 11
_ADDS_SINCE: Final = 12
# Errors that end soon: the coordinator, or another one, will answer.
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


def add_request(
    transactional_id: str | None, log: PartitionLog, header: BatchHeader, version: int
) -> AddRequest:
    """What the coordinator is asked: whether the partition is in the transaction, from v12 on to add it
    (KIP-890). Raises Refused for a batch that cannot be part of a transaction.
    """
    if transactional_id is None:
        raise Refused(
            ErrorCode.transactional_id_authorization_failed, "the batch is of no transactional producer"
        )
    if header.producer_id < 0:
        raise Refused(ErrorCode.invalid_record, "a transaction needs a producer id")
    adds = version >= _ADDS_SINCE
    return AddRequest(
        transactional_id,
        header.producer_id,
        header.producer_epoch,
        frozenset({(log.topic.name, log.partition)}),
        BUMPING_PROTOCOL if adds else 0,
        verify_only=not adds,
    )


def check_reply(reply: Any, version: int) -> None:
    """Raises Refused if the coordinator replied that the partition is not in the transaction."""
    error = reply.error
    if error is ErrorCode.none and reply.absent:
        error = ErrorCode.transaction_abortable
    if error is not ErrorCode.none:
        raise Refused(_error(error, version), "the partition is in no transaction of this producer")


def _error(error: ErrorCode, version: int) -> ErrorCode:
    """The error that makes producers of a version do the right thing, as in Kafka: those before v12 retry
    after NOT_ENOUGH_REPLICAS.
    """
    if error in _RETRIABLE or (error is ErrorCode.concurrent_transactions and version < _ADDS_SINCE):
        return ErrorCode.not_enough_replicas
    if error is ErrorCode.transaction_abortable and version < _ABORTABLE_SINCE:
        return ErrorCode.invalid_txn_state
    return ErrorCode.invalid_producer_epoch if error is ErrorCode.producer_fenced else error
