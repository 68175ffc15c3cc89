"""A share group in the form of ShareGroupDescribe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.groups.consumer.describe import named
from korvet.groups.share.assignor import NAME
from korvet.groups.share.messages import DescribedShareGroup, DescribedSharer

if TYPE_CHECKING:
    from korvet.groups.consumer.topics import Topics
    from korvet.groups.share.group import Member, ShareGroup


def describe(group: ShareGroup, topics: Topics) -> DescribedShareGroup:
    """The described group, without partitions of deleted topics."""
    return DescribedShareGroup(
        group.group_id,
        ErrorCode.none,
        None,
        group.state_name,
        group.epoch,
        group.target_epoch,
        NAME,
        tuple(_member(member, topics) for member in group.members.values()),
    )


def _member(member: Member, topics: Topics) -> DescribedSharer:
    known = member.subscription
    return DescribedSharer(
        member.member_id,
        known.rack_id,
        member.epoch,
        known.client_id,
        known.client_host,
        known.subscribed_topic_names,
        named(member.assigned, topics),
    )
