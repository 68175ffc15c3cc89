"""DeleteGroups (key 42), versions 0-3 (KIP-229).

Writes tombstones for the group and its offsets, and destroys the Redis groups. v2 is flexible, v3 adds error
messages: null, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every group with the error."""
    results = tuple(_result(context, group_id, error) for group_id in request.groups_names)
    return context.make("DeleteGroupsResponse", results=results)


@api(42, "DeleteGroups", (0, 3), refuse=refuse)
async def delete_groups(context: RequestContext, request: Any) -> Any:
    """Delete groups without members."""
    results: list[Any] = []
    async for group_id in sliced(dict.fromkeys(request.groups_names)):
        if not context.may(Operation.DELETE, ResourceType.GROUP, group_id):
            results.append(_result(context, group_id, ErrorCode.group_authorization_failed))
            continue
        error = await context.services.coordinator.delete_group(group_id)
        results.append(_result(context, group_id, error))
    return context.make("DeleteGroupsResponse", results=tuple(results))


def _result(context: RequestContext, group_id: str, error: ErrorCode) -> Any:
    return context.make("DeletableGroupResult", group_id=group_id, error_code=error, error_message=None)
