"""InitProducerId (key 22), versions 0-5.

An idempotent producer (KIP-98) receives a new producer ID with epoch 0 for every request, even if it names
its present ID (KIP-360), as in Kafka. A transactional ID receives the next epoch from its coordinator, which
fences the previous producer and aborts its open transaction. v2 is flexible, v3 names the continuing
producer, v4 may return PRODUCER_FENCED (KIP-588), v5 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.common.fencing import fencing_error
from korvet.protocol.durations import milliseconds
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.transactions.messages import InitRequest
from korvet.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.transactions.messages import InitReply


# No producer id, no epoch: the client has not had one yet.
_NONE: Final = -1
_FENCED_SINCE: Final = 4


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no producer id."""
    del request
    return context.make("InitProducerIdResponse", error_code=error, producer_id=-1, producer_epoch=-1)


@api(22, "InitProducerId", (0, 5), refuse=refuse)
async def init_producer_id(context: RequestContext, request: Any) -> Any:
    """A new producer id, epoch 0."""
    if request.transactional_id is not None:
        if not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            return refuse(context, request, ErrorCode.transactional_id_authorization_failed)
    elif not _may_produce(context):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    known = (getattr(request, "producer_id", _NONE), getattr(request, "producer_epoch", _NONE))
    # Kafka refuses an empty ID before it looks for the coordinator, which may be loading.
    if (known[0] == _NONE) != (known[1] == _NONE) or request.transactional_id == "":
        return refuse(context, request, ErrorCode.invalid_request)
    if request.transactional_id is not None:
        return await _of_transactions(context, request, known)
    producer_id = await context.services.new_producer_id()
    return context.make(
        "InitProducerIdResponse", error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0
    )


def _may_produce(context: RequestContext) -> bool:
    """Kafka asks for IdempotentWrite on the cluster, or Write on any topic (KIP-679)."""
    access = context.client.session.access
    return (
        access is None
        or access.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
        or access.allows_any(Operation.WRITE, ResourceType.TOPIC)
    )


async def _of_transactions(context: RequestContext, request: Any, known: tuple[int, int]) -> Any:
    asked = InitRequest(request.transactional_id, milliseconds(request.transaction_timeout), *known)
    transactions = context.services.transactions
    try:
        await transactions.make_topic()
        reply: InitReply = await transactions.call(
            asked.transactional_id, TransactionShard.init_producer, asked
        )
    except StorageError as error:
        return refuse(context, request, error_code_of(error, Asked.COORDINATOR))
    return context.make(
        "InitProducerIdResponse",
        error_code=fencing_error(reply.error, context.api_version, _FENCED_SINCE),
        producer_id=reply.producer_id,
        producer_epoch=reply.producer_epoch,
    )
