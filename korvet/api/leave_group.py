"""LeaveGroup (key 13), versions 0-5.

v3 names several members, by ID or by instance ID (KIP-345), v4 is flexible, v5 adds a reason (KIP-800, not
stored).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.groups.messages import LeaveReply, LeaveRequest, LeavingMember
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_SEVERAL_SINCE: Final = 3


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no members."""
    del request
    return context.make("LeaveGroupResponse", error_code=error, members=())


@api(13, "LeaveGroup", (0, 5), refuse=refuse)
async def leave_group(context: RequestContext, request: Any) -> Any:
    """Take members out of their group."""
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return refuse(context, request, ErrorCode.group_authorization_failed)
    several = context.api_version >= _SEVERAL_SINCE
    if several:
        members = [
            LeavingMember(each.member_id, each.group_instance_id) async for each in sliced(request.members)
        ]
    else:
        members = [LeavingMember(request.member_id)]
    reply: LeaveReply = await context.services.coordinator.call(
        request.group_id, GroupShard.leave, LeaveRequest(request.group_id, tuple(members))
    )
    if not several:
        return context.make("LeaveGroupResponse", error_code=reply.first_error)
    left_members = [
        context.make(
            "MemberResponse",
            member_id=left.member_id,
            group_instance_id=left.group_instance_id,
            error_code=left.error,
        )
        async for left in sliced(reply.members)
    ]
    return context.make("LeaveGroupResponse", error_code=reply.error, members=tuple(left_members))
