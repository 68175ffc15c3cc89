"""Heartbeat (key 12), versions 0-4. v3 adds static members (KIP-345), v4 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from korvet.groups.messages import HeartbeatRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import Respond, submit_api

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

    from korvet.api.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error."""
    del request
    return context.make("HeartbeatResponse", error_code=error)


@submit_api(12, "Heartbeat", (0, 4), refuse=refuse)
def heartbeat(context: RequestContext, request: Any, respond: Respond) -> None:
    """Keep a member's session alive and learn of a rebalance."""

    def done(reply: Any) -> None:
        respond([context.schema.encode(context.make("HeartbeatResponse", error_code=reply.error))])

    beat = HeartbeatRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
    )
    context.services.coordinator.submit(request.group_id, GroupShard.heartbeat, beat, done)
