"""Heartbeat (key 12), versions 0-4.

v3 adds static members (KIP-345), v4 is flexible.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.groups.messages import HeartbeatRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import Respond, submit_api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.protocol.messages import ResponseSchema


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error."""
    del request
    return context.make("HeartbeatResponse", error_code=error)


@cache
def _encoded(schema: ResponseSchema, error: ErrorCode) -> bytes:
    """The response body, which holds the error only: there are few bodies, and thousands of responses per
    second.
    """
    return schema.encode(schema.make("HeartbeatResponse", error_code=error))


@submit_api(12, "Heartbeat", (0, 4), refuse=refuse)
def heartbeat(context: RequestContext, request: Any, respond: Respond) -> None:
    """Keep a member's session alive and learn of a rebalance."""
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        context.failed(ErrorCode.group_authorization_failed)
        respond([_encoded(context.schema, ErrorCode.group_authorization_failed)])
        return

    def done(reply: Any) -> None:
        # As in Kafka: no error while the group is being loaded, because clients take that error for a defect.
        loading = reply.error is ErrorCode.coordinator_load_in_progress
        error = ErrorCode.none if loading else reply.error
        context.failed(error)
        respond([_encoded(context.schema, error)])

    beat = HeartbeatRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
    )
    context.services.coordinator.submit(request.group_id, GroupShard.heartbeat, beat, done)
