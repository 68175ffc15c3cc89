"""FindCoordinator (key 10), versions 0-6.

v1 adds the key type, v3 is flexible, v4 asks for several keys at once (KIP-699), v6 adds share groups' keys
(KIP-932), which are refused like transactional ids: brokers coordinate consumer groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.coordinator.service import OFFSETS_PARTITIONS, OFFSETS_TOPIC
from korvet.offsets.partition import partition_for
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.context import RequestContext

_GROUP: Final = 0
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
    """The broker that leads the group's partition of `__consumer_offsets`."""
    key_type = getattr(request, "key_type", _GROUP)
    if key_type != _GROUP:
        return refuse(
            context, request, ErrorCode.invalid_request, f"No coordinator here for keys of type {key_type}."
        )
    if context.api_version <= _SINGLE_KEY_UNTIL:
        return context.make("FindCoordinatorResponse", **_where(context, request.key))
    coordinators = tuple(
        context.make("Coordinator", key=key, **_where(context, key)) for key in request.coordinator_keys
    )
    return context.make("FindCoordinatorResponse", coordinators=coordinators)


def _where(context: RequestContext, group_id: str) -> dict[str, Any]:
    if not context.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return _nowhere(ErrorCode.group_authorization_failed, None)
    assignment = context.services.membership.assignment
    leader = assignment.leader(OFFSETS_TOPIC, partition_for(group_id, OFFSETS_PARTITIONS))
    broker = assignment.broker(leader.node_id)
    assert broker is not None
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
