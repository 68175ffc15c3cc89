"""FindCoordinator (key 10), versions 0-6.

The first transactional ID creates `__transaction_state`, as in Kafka. v1 adds the key type (group or
transactional ID), v3 is flexible, v4 adds several keys per request (KIP-699), v6 share groups' keys
(KIP-932), which are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_GROUP: Final = 0
_TRANSACTION: Final = 1
_RESOURCES: Final = {
    _GROUP: (ResourceType.GROUP, ErrorCode.group_authorization_failed),
    _TRANSACTION: (ResourceType.TRANSACTIONAL_ID, ErrorCode.transactional_id_authorization_failed),
}
_SINGLE_KEY_UNTIL: Final = 3


def refuse(context: RequestContext, request: Any, error: ErrorCode, message: str | None = None) -> Any:
    """Every key with the error."""
    if context.api_version <= _SINGLE_KEY_UNTIL:
        return context.make(
            "FindCoordinatorResponse", error_code=error, error_message=message, node_id=-1, host="", port=-1
        )
    coordinators = tuple(
        context.make(
            "Coordinator", key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message
        )
        for key in request.coordinator_keys
    )
    return context.make("FindCoordinatorResponse", coordinators=coordinators)


@api(10, "FindCoordinator", (0, 6), refuse=refuse)
async def find_coordinator(context: RequestContext, request: Any) -> Any:
    """The broker that leads the key's partition of `__consumer_offsets` or `__transaction_state`."""
    key_type = getattr(request, "key_type", _GROUP)
    if key_type not in _RESOURCES:
        return refuse(
            context, request, ErrorCode.invalid_request, f"No coordinator here for keys of type {key_type}."
        )
    keys = (request.key,) if context.api_version <= _SINGLE_KEY_UNTIL else request.coordinator_keys
    resource, _ = _RESOURCES[key_type]
    if key_type == _TRANSACTION and any(context.may(Operation.DESCRIBE, resource, key) for key in keys):
        try:
            await context.services.transactions.make_topic()
        except StorageError:
            return refuse(context, request, ErrorCode.coordinator_not_available)
    if context.api_version <= _SINGLE_KEY_UNTIL:
        return context.make("FindCoordinatorResponse", **_where(context, key_type, request.key))
    coordinators = [
        context.make("Coordinator", key=key, **_where(context, key_type, key))
        async for key in sliced(dict.fromkeys(request.coordinator_keys))
    ]
    return context.make("FindCoordinatorResponse", coordinators=tuple(coordinators))


def _where(context: RequestContext, key_type: int, key: str) -> dict[str, Any]:
    resource, denied = _RESOURCES[key_type]
    if not context.may(Operation.DESCRIBE, resource, key):
        return _nowhere(denied, None)
    assignment = context.services.leadership.assignment
    services = context.services
    service = services.coordinator if key_type == _GROUP else services.transactions
    leader = assignment.leader(*service.partition_of(key))
    broker = assignment.broker(leader.node_id)
    if broker is None:
        return _nowhere(ErrorCode.coordinator_not_available, "Nobody may coordinate it now.")
    endpoint = broker.endpoint(context.client.listener)
    if endpoint is None:
        return _nowhere(ErrorCode.coordinator_not_available, "The coordinator has no listener of this name.")
    host, port = endpoint
    return {
        "node_id": broker.node_id,
        "host": host,
        "port": port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }


def _nowhere(error: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"node_id": -1, "host": "", "port": -1, "error_code": error, "error_message": message}
