"""ShareGroupDescribe (key 77), version 1.

Describes share groups (KIP-932).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.operations import NOT_ASKED, operations_on
from korvet.config.features import SHARE_VERSION
from korvet.groups.shard import GroupShard
from korvet.groups.share.messages import (
    DescribedShareGroup,
    DescribedSharer,
    ShareDescribeReply,
    ShareDescribeRequest,
)
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every group with the error."""
    groups = tuple(
        _group(context, DescribedShareGroup(group_id, error), NOT_ASKED) for group_id in request.group_ids
    )
    return context.make("ShareGroupDescribeResponse", groups=groups)


@api(77, "ShareGroupDescribe", (1, 1), refuse=refuse)
async def share_group_describe(context: RequestContext, request: Any) -> Any:
    """State, epochs, members and assignments of the groups."""
    if not context.services.security.features.levels[SHARE_VERSION]:
        return refuse(context, request, ErrorCode.unsupported_version)
    groups = []
    async for group_id in sliced(dict.fromkeys(request.group_ids)):
        is_allowed = context.may(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        if not is_allowed or not group_id:
            error = ErrorCode.invalid_group_id if is_allowed else ErrorCode.group_authorization_failed
            groups.append(_group(context, DescribedShareGroup(group_id, error), NOT_ASKED))
            continue
        reply: ShareDescribeReply = await context.services.coordinator.call(
            group_id, GroupShard.describe_sharing, ShareDescribeRequest((group_id,))
        )
        asked = request.include_authorized_operations
        operations = operations_on(context, ResourceType.GROUP, group_id) if asked else NOT_ASKED
        groups += [_group(context, _visible(context, group), operations) for group in reply.groups]
    return context.make("ShareGroupDescribeResponse", groups=tuple(groups))


def _visible(context: RequestContext, group: DescribedShareGroup) -> DescribedShareGroup:
    """Nothing of a group with partitions of topics that the client may not describe."""
    names = {topic.name for member in group.members for topic in member.assignment}
    if all(context.may(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in names):
        return group
    return DescribedShareGroup(
        group.group_id,
        ErrorCode.topic_authorization_failed,
        "The group has described topic(s) that the client is not authorized to describe.",
    )


def _group(context: RequestContext, group: DescribedShareGroup, operations: int) -> Any:
    return context.make(
        "DescribedGroup",
        error_code=group.error,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=tuple(_member(context, member) for member in group.members),
        authorized_operations=operations if group.error is ErrorCode.none else NOT_ASKED,
    )


def _member(context: RequestContext, member: DescribedSharer) -> Any:
    partitions = tuple(
        context.make(
            "TopicPartitions",
            topic_id=uuid.UUID(bytes=topic.topic_id),
            topic_name=topic.name,
            partitions=topic.partitions,
        )
        for topic in member.assignment
    )
    return context.make(
        "Member",
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        assignment=context.make("Assignment", topic_partitions=partitions),
    )
