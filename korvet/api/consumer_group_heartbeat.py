"""ConsumerGroupHeartbeat (key 68), versions 0-1.

The consumer group protocol (KIP-848). With `group.version` 0 it is refused (KIP-584). v1 adds member IDs
made by clients, and regular expressions that the broker evaluates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.heartbeats import heartbeat_error, heartbeat_response
from korvet.config.features import GROUP_VERSION
from korvet.groups.consumer.automaton import InvalidRegex
from korvet.groups.consumer.membership import invalid_regex
from korvet.groups.consumer.messages import ConsumerHeartbeatRequest, MemberHeartbeatReply, OwnedTopic
from korvet.groups.shard import GroupShard
from korvet.protocol.durations import milliseconds
from korvet.protocol.registry import Respond, submit_api
from korvet.security.acls import Operation, ResourceType
from korvet.supervisor import once

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_CLIENT_MEMBER_IDS_SINCE: Final = 1
_NO_TOPIC_ID: Final = b"\x00" * 16


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error."""
    del request
    return _response(context, MemberHeartbeatReply(error))


@submit_api(68, "ConsumerGroupHeartbeat", (0, 1), refuse=refuse)
def consumer_group_heartbeat(context: RequestContext, request: Any, respond: Respond) -> None:
    """Join, leave, or stay in a group, and learn what to read."""
    error = heartbeat_error(context, request, GROUP_VERSION)
    if error is not ErrorCode.none:
        respond([context.encode(refuse(context, request, error))])
        return

    def done(reply: Any) -> None:
        respond([context.encode(_response(context, reply))])

    def submit() -> None:
        coordinator.submit(
            request.group_id, GroupShard.consumer_heartbeat, _heartbeat(context, request), done
        )

    async def submit_with(pattern: str) -> None:
        try:
            await coordinator.look_for_topics(pattern)
            submit()
        except InvalidRegex as error:
            done(MemberHeartbeatReply(ErrorCode.invalid_regular_expression, invalid_regex(pattern, error)))
        except Exception:
            respond([context.encode(refuse(context, request, ErrorCode.unknown_server_error))])
            raise

    coordinator = context.services.coordinator
    pattern = getattr(request, "subscribed_topic_regex", None)
    if pattern:
        once("ConsumerGroupHeartbeat", submit_with(pattern))
    else:
        submit()


def _heartbeat(context: RequestContext, request: Any) -> ConsumerHeartbeatRequest:
    names, owned = request.subscribed_topic_names, request.topic_partitions
    return ConsumerHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=getattr(request, "subscribed_topic_regex", None),
        server_assignor=request.server_assignor,
        owned=None if owned is None else tuple(_owned(topic) for topic in owned),
        client_id=context.client_id,
        client_host=context.client_host,
        gives_member_id=context.api_version < _CLIENT_MEMBER_IDS_SINCE,
        may_describe=lambda name: context.may(Operation.DESCRIBE, ResourceType.TOPIC, name),
    )


def _owned(topic: Any) -> OwnedTopic:
    topic_id = _NO_TOPIC_ID if topic.topic_id is None else topic.topic_id.bytes
    return OwnedTopic(topic_id, tuple(topic.partitions))


def _response(context: RequestContext, reply: MemberHeartbeatReply) -> Any:
    return heartbeat_response(context, "ConsumerGroupHeartbeatResponse", reply)
