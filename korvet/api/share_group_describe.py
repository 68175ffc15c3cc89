"""ShareGroupDescribe (key 77), version 1.

Describes share groups (KIP-932).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.described_groups import assignment, described_groups, refused_groups
from korvet.config.features import SHARE_VERSION
from korvet.groups.shard import GroupShard
from korvet.groups.share.messages import ShareDescribeRequest
from korvet.protocol.registry import api

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.groups.share.messages import DescribedSharer


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every group with the error."""
    return context.make(
        "ShareGroupDescribeResponse", groups=refused_groups(context, request.group_ids, error)
    )


@api(77, "ShareGroupDescribe", (1, 1), refuse=refuse)
async def share_group_describe(context: RequestContext, request: Any) -> Any:
    """State, epochs, members and assignments of the groups."""
    if not context.services.security.features.levels[SHARE_VERSION]:
        return refuse(context, request, ErrorCode.unsupported_version)
    groups = await described_groups(
        context, request, GroupShard.describe_sharing, ShareDescribeRequest, _member
    )
    return context.make("ShareGroupDescribeResponse", groups=groups)


def _member(context: RequestContext, member: DescribedSharer) -> Any:
    return context.make(
        "Member",
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        assignment=assignment(context, member.assignment),
    )
