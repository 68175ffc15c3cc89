"""FindCoordinator (key 10), versions 0-6.

v1 adds the key type, v3 is flexible, v4 asks for several keys at once (KIP-699), v6 adds share groups' keys
(KIP-932), which are refused like transactional ids: this broker coordinates consumer groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api

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
    """This broker for every group."""
    key_type = getattr(request, "key_type", _GROUP)
    if key_type != _GROUP:
        return refuse(
            context, request, ErrorCode.invalid_request, f"No coordinator here for keys of type {key_type}."
        )
    services = context.services
    where = {
        "node_id": services.config.node_id,
        "host": services.endpoint.host,
        "port": services.endpoint.port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    if context.api_version <= _SINGLE_KEY_UNTIL:
        return context.make("FindCoordinatorResponse", **where)
    coordinators = tuple(context.make("Coordinator", key=key, **where) for key in request.coordinator_keys)
    return context.make("FindCoordinatorResponse", coordinators=coordinators)
