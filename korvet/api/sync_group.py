"""SyncGroup (key 14), versions 0-5.

Responds when the leader has sent its assignment. v3 adds static members (KIP-345), v4 is flexible, v5 adds
protocol type and name (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.groups.messages import SyncAssignment, SyncReply, SyncRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_PROTOCOL_SINCE: Final = 5


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no assignment."""
    del request
    return _response(context, SyncReply(error))


@api(14, "SyncGroup", (0, 5), refuse=refuse, waits=True)
async def sync_group(context: RequestContext, request: Any) -> Any:
    """Hand in the assignments (the leader) and get one's own."""
    protocol = (getattr(request, "protocol_type", None), getattr(request, "protocol_name", None))
    if context.api_version >= _PROTOCOL_SINCE and None in protocol:
        return refuse(context, request, ErrorCode.inconsistent_group_protocol)
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return refuse(context, request, ErrorCode.group_authorization_failed)
    sync = SyncRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol_type=protocol[0],
        protocol_name=protocol[1],
        assignments=tuple(SyncAssignment(each.member_id, each.assignment) for each in request.assignments),
    )
    return _response(
        context, await context.services.coordinator.call(request.group_id, GroupShard.sync, sync)
    )


def _response(context: RequestContext, reply: SyncReply) -> Any:
    return context.make(
        "SyncGroupResponse",
        error_code=reply.error,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )
