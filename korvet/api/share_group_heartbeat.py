"""ShareGroupHeartbeat (key 76), version 1.

Membership of share groups (KIP-932). With `share.version` 0 it is refused (KIP-584), and so are topics with
`storage.layout=batch`: INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.heartbeats import heartbeat_error, heartbeat_response
from korvet.api.sharing.requests import BATCHES
from korvet.config.features import SHARE_VERSION
from korvet.groups.consumer.messages import MemberHeartbeatReply
from korvet.groups.shard import GroupShard
from korvet.groups.share.messages import ShareHeartbeatRequest
from korvet.protocol.registry import Respond, submit_api

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error."""
    del request
    return _response(context, MemberHeartbeatReply(error))


@submit_api(76, "ShareGroupHeartbeat", (1, 1), refuse=refuse)
def share_group_heartbeat(context: RequestContext, request: Any, respond: Respond) -> None:
    """Join, leave, or stay in a group, and learn from where to take records."""
    refusal = _refusal(context, request)
    if refusal is not None:
        respond([context.encode(_response(context, refusal))])
        return
    names = request.subscribed_topic_names
    heartbeat = ShareHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        subscribed_topic_names=None if names is None else tuple(names),
        client_id=context.client_id,
        client_host=context.client_host,
    )
    context.services.coordinator.submit(
        request.group_id,
        GroupShard.share_heartbeat,
        heartbeat,
        lambda reply: respond([context.encode(_response(context, reply))]),
    )


def _refusal(context: RequestContext, request: Any) -> MemberHeartbeatReply | None:
    error = heartbeat_error(context, request, SHARE_VERSION)
    if error is not ErrorCode.none:
        return MemberHeartbeatReply(error)
    for name in request.subscribed_topic_names or ():
        topic = context.services.topics.get(name)
        if topic is not None and topic.storage_layout == "batch":
            return MemberHeartbeatReply(ErrorCode.invalid_request, f"{name}: {BATCHES}.")
    return None


def _response(context: RequestContext, reply: MemberHeartbeatReply) -> Any:
    return heartbeat_response(context, "ShareGroupHeartbeatResponse", reply)
