"""ListGroups (key 16), versions 0-5.

v3 is flexible, v4 adds states (KIP-518), v5 types (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.groups.messages import ListRequest
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no groups."""
    del request
    return context.make("ListGroupsResponse", error_code=error, groups=())


@api(16, "ListGroups", (0, 5), refuse=refuse)
async def list_groups(context: RequestContext, request: Any) -> Any:
    """All groups in the states and of the types asked for."""
    listed = await context.services.coordinator.list_groups(
        ListRequest(tuple(getattr(request, "states_filter", ())), tuple(getattr(request, "types_filter", ())))
    )
    everything = context.may(Operation.DESCRIBE, ResourceType.CLUSTER)
    groups = [
        context.make(
            "ListedGroup",
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.group_type,
        )
        async for group in sliced(listed.groups)
        if everything or context.may(Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
    ]
    return context.make("ListGroupsResponse", error_code=ErrorCode.none, groups=tuple(groups))
