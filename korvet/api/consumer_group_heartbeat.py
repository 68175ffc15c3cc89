"""ConsumerGroupHeartbeat (key 68), versions 0-1.

The consumer group protocol (KIP-848). With `group.version` 0 it is refused (KIP-584). v1 adds member IDs
made by clients, and regular expressions that the broker evaluates.
"""

from __future__ import annotations

import datetime
import uuid
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.config.features import GROUP_VERSION
from korvet.groups.consumer.automaton import InvalidRegex
from korvet.groups.consumer.membership import invalid_regex
from korvet.groups.consumer.messages import ConsumerHeartbeatReply, ConsumerHeartbeatRequest, OwnedTopic
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
    return _response(context, ConsumerHeartbeatReply(error))


@submit_api(68, "ConsumerGroupHeartbeat", (0, 1), refuse=refuse)
def consumer_group_heartbeat(context: RequestContext, request: Any, respond: Respond) -> None:
    """Join, leave, or stay in a group, and learn what to read."""
    denial = _denial(context, request)
    if denial is not None:
        respond([context.encode(refuse(context, request, denial))])
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
            done(ConsumerHeartbeatReply(ErrorCode.invalid_regular_expression, invalid_regex(pattern, error)))
        except Exception:
            respond([context.encode(refuse(context, request, ErrorCode.unknown_server_error))])
            raise

    coordinator = context.services.coordinator
    pattern = getattr(request, "subscribed_topic_regex", None)
    if pattern:
        once("ConsumerGroupHeartbeat", submit_with(pattern))
    else:
        submit()


def _denial(context: RequestContext, request: Any) -> ErrorCode | None:
    if not context.services.security.features.levels[GROUP_VERSION]:
        return ErrorCode.unsupported_version
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return ErrorCode.group_authorization_failed
    for name in request.subscribed_topic_names or ():
        if not _may_describe(context, name):
            return ErrorCode.topic_authorization_failed
    return None


def _may_describe(context: RequestContext, name: str) -> bool:
    return context.may(Operation.DESCRIBE, ResourceType.TOPIC, name)


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
        may_describe=lambda name: _may_describe(context, name),
    )


def _owned(topic: Any) -> OwnedTopic:
    topic_id = _NO_TOPIC_ID if topic.topic_id is None else topic.topic_id.bytes
    return OwnedTopic(topic_id, tuple(topic.partitions))


def _response(context: RequestContext, reply: ConsumerHeartbeatReply) -> Any:
    assignment = None
    if reply.assignment is not None:
        topics = tuple(
            context.make(
                "TopicPartitions",
                topic_id=uuid.UUID(bytes=topic.topic_id),
                partitions=topic.partitions,
            )
            for topic in reply.assignment
        )
        assignment = context.make("Assignment", topic_partitions=topics)
    return context.make(
        "ConsumerGroupHeartbeatResponse",
        error_code=reply.error,
        error_message=reply.error_message,
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval=datetime.timedelta(milliseconds=reply.heartbeat_interval_ms),
        assignment=assignment,
    )
