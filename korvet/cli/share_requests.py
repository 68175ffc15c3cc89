"""Requests about share groups: ShareGroupDescribe, DescribeShareGroupOffsets, AlterShareGroupOffsets,
DeleteShareGroupOffsets.
"""

from collections.abc import Mapping

from kio.schema.alter_share_group_offsets.v0.request import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from kio.schema.alter_share_group_offsets.v0.response import AlterShareGroupOffsetsResponse
from kio.schema.delete_share_group_offsets.v0.request import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from kio.schema.delete_share_group_offsets.v0.response import DeleteShareGroupOffsetsResponse
from kio.schema.describe_share_group_offsets.v1.request import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from kio.schema.describe_share_group_offsets.v1.response import (
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponsePartition,
)
from kio.schema.errors import ErrorCode
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from kio.schema.share_group_describe.v1.response import DescribedGroup, ShareGroupDescribeResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from korvet.cli.client import ClientError, Cluster, check, error_of


def describe(cluster: Cluster, group: str) -> DescribedGroup | None:
    """Returns state and members of a share group; None if the broker has no share group of that name."""
    coordinator = cluster.coordinator(group)
    if not cluster.offers(ShareGroupDescribeRequest, coordinator):
        return None
    request = ShareGroupDescribeRequest(group_ids=(GroupId(group),), include_authorized_operations=False)
    (described,) = cluster.ask(request, ShareGroupDescribeResponse, coordinator).groups
    if described.error_code in {ErrorCode.group_id_not_found, ErrorCode.unsupported_version}:
        return None
    check(described.error_code, f"group {group}", described.error_message)
    return described


def offsets(
    cluster: Cluster, group: str
) -> dict[tuple[str, int], DescribeShareGroupOffsetsResponsePartition]:
    """Returns start and lag of a share group, by topic and partition."""
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=GroupId(group), topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=(asked,))
    answer = cluster.ask(request, DescribeShareGroupOffsetsResponse, cluster.coordinator(group))
    (found,) = answer.groups
    check(found.error_code, f"group {group}", found.error_message)
    found_offsets = {}
    for topic in found.topics:
        for part in topic.partitions:
            place = str(topic.topic_name), int(part.partition_index)
            check(part.error_code, f"group {group}, {place[0]} partition {place[1]}", part.error_message)
            found_offsets[place] = part
    return dict(sorted(found_offsets.items()))


def alter_offsets(
    cluster: Cluster, group: str, offsets: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], ClientError]:
    """Let a share group without members begin with these offsets. Returns the errors, by topic and
    partition.
    """
    topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        part = AlterShareGroupOffsetsRequestPartition(partition_index=i32(index), start_offset=i64(offset))
        topics.setdefault(topic, []).append(part)
    request = AlterShareGroupOffsetsRequest(
        group_id=GroupId(group),
        topics=tuple(
            AlterShareGroupOffsetsRequestTopic(topic_name=TopicName(topic), partitions=tuple(parts))
            for topic, parts in topics.items()
        ),
    )
    answer = cluster.ask(request, AlterShareGroupOffsetsResponse, cluster.coordinator(group))
    check(answer.error_code, f"group {group}", answer.error_message)
    refused = {}
    for altered in answer.responses:
        for done in altered.partitions:
            place = str(altered.topic_name), int(done.partition_index)
            subject = f"group {group}, {place[0]} partition {place[1]}"
            error = error_of(done.error_code, subject, done.error_message)
            if error is not None:
                refused[place] = error
    return refused


def delete_offsets(cluster: Cluster, group: str, topic: str) -> None:
    """Let a share group without members forget a topic."""
    topics = (DeleteShareGroupOffsetsRequestTopic(topic_name=TopicName(topic)),)
    request = DeleteShareGroupOffsetsRequest(group_id=GroupId(group), topics=topics)
    answer = cluster.ask(request, DeleteShareGroupOffsetsResponse, cluster.coordinator(group))
    check(answer.error_code, f"group {group}", answer.error_message)
    for done in answer.responses:
        check(done.error_code, f"group {group}, {topic}", done.error_message)
