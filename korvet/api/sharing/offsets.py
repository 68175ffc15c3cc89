"""What the APIs about offsets of share groups have in common: rights and places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.config.features import SHARE_VERSION
from korvet.groups.share.messages import SharePartition
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.cluster.topic import Topic


def group_error(context: RequestContext, operation: Operation, group_id: str) -> ErrorCode:
    """Why a request about a group is refused, if it is."""
    if not context.services.security.features.levels[SHARE_VERSION]:
        return ErrorCode.unsupported_version
    if not context.may(operation, ResourceType.GROUP, group_id):
        return ErrorCode.group_authorization_failed
    return ErrorCode.none if group_id else ErrorCode.invalid_group_id


def readable_topic(context: RequestContext, name: str) -> Topic | ErrorCode:
    """A topic whose offsets the client may change, or the error."""
    if not context.may(Operation.READ, ResourceType.TOPIC, name):
        return ErrorCode.topic_authorization_failed
    return context.services.topics.get(name) or ErrorCode.unknown_topic_or_partition


def place_of(group_id: str, topic: Topic, index: int) -> SharePartition:
    """A partition of a share group."""
    return SharePartition(group_id, topic.topic_id.bytes, topic.name, index)
