"""Heartbeats of the newer protocols: what ConsumerGroupHeartbeat and ShareGroupHeartbeat have in common."""

from __future__ import annotations

import datetime
import uuid
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.groups.consumer.messages import MemberHeartbeatReply


def heartbeat_error(context: RequestContext, request: Any, feature: str) -> ErrorCode:
    """Why a heartbeat is refused before the coordinator sees it: the level of the protocol's feature is 0
    (KIP-584), or the client lacks a right.
    """
    if not context.services.security.features.levels[feature]:
        return ErrorCode.unsupported_version
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return ErrorCode.group_authorization_failed
    for name in request.subscribed_topic_names or ():
        if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            return ErrorCode.topic_authorization_failed
    return ErrorCode.none


def heartbeat_response(context: RequestContext, name: str, reply: MemberHeartbeatReply) -> Any:
    """The response of that schema name."""
    assignment = None
    if reply.assignment is not None:
        topics = tuple(
            context.make(
                "TopicPartitions", topic_id=uuid.UUID(bytes=topic.topic_id), partitions=topic.partitions
            )
            for topic in reply.assignment
        )
        assignment = context.make("Assignment", topic_partitions=topics)
    return context.make(
        name,
        error_code=reply.error,
        error_message=reply.error_message,
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval=datetime.timedelta(milliseconds=reply.heartbeat_interval_ms),
        assignment=assignment,
    )
