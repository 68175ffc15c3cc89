"""DescribeGroups (key 15), versions 0-6.

v3 adds authorized operations (KIP-430), v4 static members (KIP-345), v5 is flexible, v6 returns
GROUP_ID_NOT_FOUND instead of a Dead group (KIP-1043).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.operations import NOT_ASKED, operations_on
from korvet.groups.messages import DescribedGroup, DescribeReply, DescribeRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_GROUP_ID_NOT_FOUND_SINCE: Final = 6


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every group with the error."""
    groups = tuple(
        _group(context, DescribedGroup(group_id, error, None, "", "", "", ()), NOT_ASKED)
        for group_id in request.groups
    )
    return context.make("DescribeGroupsResponse", groups=groups)


@api(15, "DescribeGroups", (0, 6), refuse=refuse)
async def describe_groups(context: RequestContext, request: Any) -> Any:
    """State, protocol and members of the groups."""
    asked = getattr(request, "include_authorized_operations", False)
    knows = context.api_version >= _GROUP_ID_NOT_FOUND_SINCE
    groups: list[Any] = []
    async for group_id in sliced(dict.fromkeys(request.groups)):
        if not context.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            denied = DescribedGroup(group_id, ErrorCode.group_authorization_failed, None, "", "", "", ())
            groups.append(_group(context, denied, NOT_ASKED))
            continue
        operations = operations_on(context, ResourceType.GROUP, group_id) if asked else NOT_ASKED
        reply: DescribeReply = await context.services.coordinator.call(
            group_id, GroupShard.describe, DescribeRequest((group_id,), knows)
        )
        groups.extend(_group(context, group, operations) for group in reply.groups)
    return context.make("DescribeGroupsResponse", groups=tuple(groups))


def _group(context: RequestContext, group: DescribedGroup, operations: int) -> Any:
    members = tuple(
        context.make(
            "DescribedGroupMember",
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in group.members
    )
    return context.make(
        "DescribedGroup",
        error_code=group.error,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_data,
        members=members,
        authorized_operations=operations if group.error is ErrorCode.none else NOT_ASKED,
    )
