"""EndTxn (key 26), versions 0-5 (KIP-98).

Responds when the outcome is in the log; the markers follow. v2 may return PRODUCER_FENCED (KIP-588), v3 is
flexible, v4 may return TRANSACTION_ABORTABLE, v5 returns the epoch of the producer's next transaction
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
from korvet.transactions.messages import BUMPING_PROTOCOL, EndReply, EndRequest
from korvet.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_FENCED_SINCE: Final = 2
_BUMPS_SINCE: Final = 5


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error."""
    del request
    return _response(context, EndReply(error))


@api(26, "EndTxn", (0, 5), refuse=refuse)
async def end_txn(context: RequestContext, request: Any) -> Any:
    """Commit or abort a transaction."""
    if not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return refuse(context, request, ErrorCode.transactional_id_authorization_failed)
    asked = EndRequest(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.committed,
        BUMPING_PROTOCOL if context.api_version >= _BUMPS_SINCE else 0,
    )
    try:
        reply: EndReply = await context.services.transactions.call(
            asked.transactional_id, TransactionShard.end, asked
        )
    except StorageError as error:
        return refuse(context, request, error_code_of(error, Asked.COORDINATOR))
    return _response(context, reply)


def _response(context: RequestContext, reply: EndReply) -> Any:
    producer = {}
    if context.api_version >= _BUMPS_SINCE:
        producer = {"producer_id": reply.producer_id, "producer_epoch": reply.producer_epoch}
    error = fencing_error(reply.error, context.api_version, _FENCED_SINCE)
    return context.make("EndTxnResponse", error_code=error, **producer)
