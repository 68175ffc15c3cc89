"""JoinGroup (key 11), versions 0-9.

Responds when all members have joined. v1 adds the rebalance timeout (KIP-62), v4 MEMBER_ID_REQUIRED
(KIP-394), v5 static members (KIP-345), v6 is flexible, v7 adds the protocol type (KIP-559), v8 a reason
(KIP-800, not stored), v9 a leader that skips the assignment (KIP-814).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.groups.messages import JoinProtocol, JoinReply, JoinRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.durations import milliseconds
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_MEMBER_ID_REQUIRED_SINCE: Final = 4
_PROTOCOL_NAME_NULLABLE_SINCE: Final = 7
_SKIP_ASSIGNMENT_SINCE: Final = 9


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error for the member."""
    return _response(context, JoinReply(error, member_id=request.member_id))


def _rebalance_timeout_ms(request: Any) -> int:
    """How long the other members may take to join."""
    timeout = getattr(request, "rebalance_timeout", None)
    return milliseconds(request.session_timeout if timeout is None else timeout)


@api(11, "JoinGroup", (0, 9), refuse=refuse, waits=True, allowed_wait_ms=_rebalance_timeout_ms)
async def join_group(context: RequestContext, request: Any) -> Any:
    """Join and wait for the next generation."""
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return _response(context, JoinReply(ErrorCode.group_authorization_failed, member_id=""))
    session_timeout_ms = milliseconds(request.session_timeout)
    rebalance_timeout = getattr(request, "rebalance_timeout", None)
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        protocol_type=request.protocol_type,
        protocols=tuple(JoinProtocol(each.name, each.metadata) for each in request.protocols),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=-1 if rebalance_timeout is None else milliseconds(rebalance_timeout),
        group_instance_id=getattr(request, "group_instance_id", None),
        client_id=context.client_id,
        client_host=context.client_host,
        needs_member_id=context.api_version >= _MEMBER_ID_REQUIRED_SINCE,
        can_skip_assignment=context.api_version >= _SKIP_ASSIGNMENT_SINCE,
    )
    return _response(
        context, await context.services.coordinator.call(request.group_id, GroupShard.join, join)
    )


def _response(context: RequestContext, reply: JoinReply) -> Any:
    protocol_name = reply.protocol_name
    if protocol_name is None and context.api_version < _PROTOCOL_NAME_NULLABLE_SINCE:
        protocol_name = ""
    members = tuple(
        context.make(
            "JoinGroupResponseMember",
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.metadata,
        )
        for member in reply.members
    )
    return context.make(
        "JoinGroupResponse",
        error_code=reply.error,
        generation_id=reply.generation_id,
        protocol_type=reply.protocol_type,
        protocol_name=protocol_name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=members,
    )
