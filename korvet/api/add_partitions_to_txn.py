"""AddPartitionsToTxn (key 24), versions 0-5 (KIP-98).

Adds all requested partitions to a transaction, or none. v2 may return PRODUCER_FENCED (KIP-588), v3 is
flexible, v4 is for brokers: several transactions, and verification, which may return TRANSACTION_ABORTABLE
(KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.common.fencing import fencing_error
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import gathered, sliced
from korvet.transactions.messages import BUMPING_PROTOCOL, AddReply, AddRequest
from korvet.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.api.common.context import RequestContext
    from korvet.transactions.messages import TopicPartition

    ErrorOf = Callable[[TopicPartition], ErrorCode]

_FENCED_SINCE: Final = 2
_SEVERAL_SINCE: Final = 4


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    if context.api_version >= _SEVERAL_SINCE:
        return context.make("AddPartitionsToTxnResponse", error_code=error, results_by_transaction=())
    results = tuple(_result(context, topic, lambda _: error) for topic in request.v3_and_below_topics)
    return context.make("AddPartitionsToTxnResponse", results_by_topic_v3_and_below=results)


@api(24, "AddPartitionsToTxn", (0, 5), refuse=refuse)
async def add_partitions_to_txn(context: RequestContext, request: Any) -> Any:
    """Add partitions to transactions, or verify that they are there."""
    if context.api_version < _SEVERAL_SINCE:
        if not context.may(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id
        ):
            return refuse(context, request, ErrorCode.transactional_id_authorization_failed)
        topics = request.v3_and_below_topics
        asked = AddRequest(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            _partitions(topics),
        )
        results = await _results(context, topics, await _add(context, asked))
        return context.make("AddPartitionsToTxnResponse", results_by_topic_v3_and_below=results)
    if not context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    transactions = await gathered(_one(context, each) for each in request.transactions)
    return context.make(
        "AddPartitionsToTxnResponse",
        error_code=ErrorCode.none,
        results_by_transaction=tuple(transactions),
    )


async def _one(context: RequestContext, transaction: Any) -> Any:
    asked = AddRequest(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        _partitions(transaction.topics),
        BUMPING_PROTOCOL,
        transaction.verify_only,
    )
    return context.make(
        "AddPartitionsToTxnResult",
        transactional_id=transaction.transactional_id,
        topic_results=await _results(context, transaction.topics, await _add(context, asked)),
    )


async def _add(context: RequestContext, asked: AddRequest) -> ErrorOf:
    """What each partition is answered."""
    services, version = context.services, context.api_version
    refused = {each: error async for each in sliced(asked.partitions) if (error := _refusal(context, *each))}
    if refused:
        return lambda each: refused.get(each, ErrorCode.operation_not_attempted)
    try:
        reply: AddReply = await services.transactions.call(
            asked.transactional_id, TransactionShard.add_partitions, asked
        )
    except StorageError as failed:
        code = error_code_of(failed, Asked.COORDINATOR)
        return lambda _: code
    error = fencing_error(reply.error, version, _FENCED_SINCE)
    return lambda each: ErrorCode.transaction_abortable if each in reply.absent else error


def _refusal(context: RequestContext, name: str, partition: int) -> ErrorCode:
    """Why a partition can't be added. What brokers ask for has been allowed. Clients add no internal topics:
    AddOffsetsToTxn adds the partition of a group.
    """
    topics = context.services.topics
    if context.api_version < _SEVERAL_SINCE:
        topic = topics.get(name)
        is_internal = topic is not None and topic.internal
        if is_internal or not context.may(Operation.WRITE, ResourceType.TOPIC, name):
            return ErrorCode.topic_authorization_failed
    is_there = topics.log(name, partition) is not None
    return ErrorCode.none if is_there else ErrorCode.unknown_topic_or_partition


def _partitions(topics: Any) -> frozenset[TopicPartition]:
    return frozenset((topic.name, partition) for topic in topics for partition in topic.partitions)


async def _results(context: RequestContext, topics: Any, error_of: ErrorOf) -> tuple[Any, ...]:
    return tuple([_result(context, topic, error_of) async for topic in sliced(topics)])


def _result(context: RequestContext, topic: Any, error_of: ErrorOf) -> Any:
    partitions = tuple(
        context.make(
            "AddPartitionsToTxnPartitionResult",
            partition_index=partition,
            partition_error_code=error_of((topic.name, partition)),
        )
        for partition in topic.partitions
    )
    return context.make("AddPartitionsToTxnTopicResult", name=topic.name, results_by_partition=partitions)
