"""ConsumerGroupDescribe (key 69), versions 0-1.

Describes groups of the consumer protocol (KIP-848). v1 adds the protocol of each member (KIP-1099).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.described_groups import assignment, described_groups, refused_groups
from korvet.config.features import GROUP_VERSION
from korvet.groups.consumer.messages import ConsumerDescribeRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.groups.consumer.messages import DescribedConsumer


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every group with the error."""
    return context.make(
        "ConsumerGroupDescribeResponse", groups=refused_groups(context, request.group_ids, error)
    )


@api(69, "ConsumerGroupDescribe", (0, 1), refuse=refuse)
async def consumer_group_describe(context: RequestContext, request: Any) -> Any:
    """State, epochs, members and assignments of the groups."""
    if not context.services.security.features.levels[GROUP_VERSION]:
        return refuse(context, request, ErrorCode.unsupported_version)
    groups = await described_groups(
        context, request, GroupShard.describe_consumers, ConsumerDescribeRequest, _member
    )
    return context.make("ConsumerGroupDescribeResponse", groups=groups)


def _member(context: RequestContext, member: DescribedConsumer) -> Any:
    return context.make(
        "Member",
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=assignment(context, member.assignment),
        target_assignment=assignment(context, member.target),
        member_type=0 if member.is_classic else 1,
    )
