"""AddOffsetsToTxn (key 25), versions 0-4 (KIP-98).

Adds the group's partition of `__consumer_offsets` to the transaction. Producers of protocol version 2 use
TxnOffsetCommit instead. v2 may return PRODUCER_FENCED (KIP-588), v3 is flexible, v4 may return
TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.common.fencing import fencing_error
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.transactions.messages import AddReply, AddRequest
from korvet.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_FENCED_SINCE: Final = 2


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error."""
    del request
    return context.make("AddOffsetsToTxnResponse", error_code=error)


@api(25, "AddOffsetsToTxn", (0, 4), refuse=refuse)
async def add_offsets_to_txn(context: RequestContext, request: Any) -> Any:
    """Add the partition of a group's offsets to a transaction."""
    if not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return refuse(context, request, ErrorCode.transactional_id_authorization_failed)
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return refuse(context, request, ErrorCode.group_authorization_failed)
    partition = context.services.coordinator.partition_of(request.group_id)
    asked = AddRequest(
        request.transactional_id, request.producer_id, request.producer_epoch, frozenset({partition})
    )
    try:
        reply: AddReply = await context.services.transactions.call(
            asked.transactional_id, TransactionShard.add_partitions, asked
        )
    except StorageError as error:
        return refuse(context, request, error_code_of(error, Asked.COORDINATOR))
    return refuse(context, request, fencing_error(reply.error, context.api_version, _FENCED_SINCE))
