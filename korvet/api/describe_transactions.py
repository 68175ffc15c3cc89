"""DescribeTransactions (key 65), version 0 (KIP-664).

Returns the coordinator's state of transactional IDs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.transactions.messages import DescribedTransaction, DescribeReply, DescribeRequest
from korvet.transactions.shard import TransactionShard
from korvet.transactions.transaction import by_topic

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every id with the error."""
    states = (_state(context, DescribedTransaction(name, error)) for name in request.transactional_ids)
    return context.make("DescribeTransactionsResponse", transaction_states=tuple(states))


@api(65, "DescribeTransactions", (0, 0), refuse=refuse)
async def describe_transactions(context: RequestContext, request: Any) -> Any:
    """Each id as its coordinator describes it."""
    states = []
    async for name in sliced(dict.fromkeys(request.transactional_ids)):
        if not context.may(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
            error = ErrorCode.transactional_id_authorization_failed
            states.append(_state(context, DescribedTransaction(name, error)))
            continue
        try:
            reply: DescribeReply = await context.services.transactions.call(
                name, TransactionShard.describe, DescribeRequest((name,))
            )
        except StorageError as failed:
            states.append(
                _state(context, DescribedTransaction(name, error_code_of(failed, Asked.COORDINATOR)))
            )
        else:
            states += [_state(context, each) for each in reply.transactions]
    return context.make("DescribeTransactionsResponse", transaction_states=tuple(states))


def _state(context: RequestContext, described: DescribedTransaction) -> Any:
    return context.make(
        "TransactionState",
        error_code=described.error,
        transactional_id=described.transactional_id,
        transaction_state=described.state,
        transaction_timeout=timedelta(milliseconds=described.timeout_ms),
        transaction_start_time=_EPOCH + timedelta(milliseconds=described.start_ms),
        producer_id=described.producer_id,
        producer_epoch=described.producer_epoch,
        topics=tuple(
            context.make("TopicData", topic=each.topic, partitions=each.partition_ids)
            for each in by_topic(described.partitions)
            if context.may(Operation.DESCRIBE, ResourceType.TOPIC, each.topic)
        ),
    )
