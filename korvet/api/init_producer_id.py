"""InitProducerId (key 22), versions 0-5.

Idempotent producers (KIP-98) get a fresh producer id with epoch 0 each time they ask, also when they name the
id they had (KIP-360), as Kafka answers it. Transactional ids are refused: there are no transactions yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.context import RequestContext


# No producer id, no epoch: the client has not had one yet.
_NONE: Final = -1


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no producer id."""
    del request
    return context.make("InitProducerIdResponse", error_code=error, producer_id=-1, producer_epoch=-1)


@api(22, "InitProducerId", (0, 5), refuse=refuse)
async def init_producer_id(context: RequestContext, request: Any) -> Any:
    """A new producer id, epoch 0."""
    if request.transactional_id is not None:
        # Whether or not the client may use the id: there are no transactions.
        return refuse(context, request, ErrorCode.transactional_id_authorization_failed)
    if not _may_produce(context):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    known = (getattr(request, "producer_id", _NONE), getattr(request, "producer_epoch", _NONE))
    if (known[0] == _NONE) != (known[1] == _NONE):
        return refuse(context, request, ErrorCode.invalid_request)
    producer_id = await context.services.new_producer_id()
    return context.make(
        "InitProducerIdResponse", error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0
    )


def _may_produce(context: RequestContext) -> bool:
    """Kafka asks for IdempotentWrite on the cluster, or Write on any topic (KIP-679)."""
    access = context.client.access
    return (
        access is None
        or access.allows(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
        or access.allows_any(Operation.WRITE, ResourceType.TOPIC)
    )
