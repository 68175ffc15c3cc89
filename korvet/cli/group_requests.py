"""Requests about groups: ListGroups, DescribeGroups, ConsumerGroupDescribe, OffsetFetch, OffsetCommit,
OffsetDelete, DeleteGroups.
"""

from collections.abc import Mapping, Sequence

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v1.response import (
    ConsumerGroupDescribeResponse,
)
from kio.schema.consumer_group_describe.v1.response import DescribedGroup as DescribedConsumerGroup
from kio.schema.consumer_group_describe.v1.response import Member as ConsumerMember
from kio.schema.delete_groups.v2.request import DeleteGroupsRequest
from kio.schema.delete_groups.v2.response import DeleteGroupsResponse
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.describe_groups.v5.response import DescribedGroup, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.list_groups.v4.response import ListedGroup, ListGroupsResponse
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_commit.v8.response import OffsetCommitResponse
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest
from kio.schema.offset_fetch.v7.response import OffsetFetchResponse, OffsetFetchResponsePartition
from kio.schema.share_group_describe.v1.response import Member as ShareMember
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from korvet.cli.client import ClientError, Cluster, check, error_of


def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """Returns the groups of all brokers, sorted by name."""
    groups: dict[str, ListedGroup] = {}
    for broker in cluster.brokers():
        answer = cluster.ask(ListGroupsRequest(), ListGroupsResponse, broker)
        check(answer.error_code, f"groups of {broker}")
        groups.update((group.group_id, group) for group in answer.groups)
    return [groups[name] for name in sorted(groups)]


def describe_group(cluster: Cluster, group: str) -> DescribedGroup | DescribedConsumerGroup:
    """Returns state, protocol or assignor, and members of a group; the state is `Dead` if the group doesn't
    exist.
    """
    names, coordinator = (GroupId(group),), cluster.coordinator(group)
    described: DescribedGroup | DescribedConsumerGroup
    # Finds only groups of the consumer protocol (KIP-848).
    newer = ConsumerGroupDescribeRequest(group_ids=names, include_authorized_operations=False)
    (described,) = cluster.ask(newer, ConsumerGroupDescribeResponse, coordinator).groups
    if described.error_code is ErrorCode.group_id_not_found:
        classic = DescribeGroupsRequest(groups=names, include_authorized_operations=False)
        (described,) = cluster.ask(classic, DescribeGroupsResponse, coordinator).groups
    check(described.error_code, f"group {group}")
    return described


def assigned(member: ConsumerMember | ShareMember) -> list[str]:
    """Returns the partitions of a member of the newer protocols, each as TOPIC-PARTITION."""
    topics = member.assignment.topic_partitions
    return [f"{topic.topic_name}-{index}" for topic in topics for index in topic.partitions]


def committed_offsets(cluster: Cluster, group: str) -> dict[tuple[str, int], OffsetFetchResponsePartition]:
    """Returns the committed offsets of a group, by topic and partition."""
    request = OffsetFetchRequest(group_id=GroupId(group), topics=None, require_stable=False)
    answer = cluster.ask(request, OffsetFetchResponse, cluster.coordinator(group))
    check(answer.error_code, f"group {group}")
    committed = {}
    for topic in answer.topics:
        for part in topic.partitions:
            check(part.error_code, f"group {group}, {topic.name} partition {part.partition_index}")
            committed[topic.name, int(part.partition_index)] = part
    return dict(sorted(committed.items()))


def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], ClientError]:
    """Commit offsets for a group without members. Returns the errors, by topic and partition."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, index), offset in offsets.items():
        part = OffsetCommitRequestPartition(
            partition_index=i32(index), committed_offset=i64(offset), committed_metadata=""
        )
        topics.setdefault(topic, []).append(part)
    request = OffsetCommitRequest(
        group_id=GroupId(group),
        member_id="",
        topics=tuple(
            OffsetCommitRequestTopic(name=TopicName(topic), partitions=tuple(parts))
            for topic, parts in topics.items()
        ),
    )
    answer = cluster.ask(request, OffsetCommitResponse, cluster.coordinator(group))
    refused = {}
    for topic_answer in answer.topics:
        for done in topic_answer.partitions:
            place = str(topic_answer.name), int(done.partition_index)
            error = error_of(done.error_code, f"group {group}, {place[0]} partition {place[1]}")
            if error is not None:
                refused[place] = error
    return refused


def delete_group(cluster: Cluster, group: str) -> None:
    """Delete an empty group and all its offsets."""
    request = DeleteGroupsRequest(groups_names=(GroupId(group),))
    for result in cluster.ask(request, DeleteGroupsResponse, cluster.coordinator(group)).results:
        check(result.error_code, f"group {group}")


def delete_offsets(cluster: Cluster, group: str, partitions: Mapping[str, Sequence[int]]) -> None:
    """Delete a group's offsets of a topic to which no member is subscribed."""
    topics = tuple(
        OffsetDeleteRequestTopic(
            name=TopicName(topic),
            partitions=tuple(OffsetDeleteRequestPartition(partition_index=i32(index)) for index in indexes),
        )
        for topic, indexes in partitions.items()
    )
    request = OffsetDeleteRequest(group_id=GroupId(group), topics=topics)
    answer = cluster.ask(request, OffsetDeleteResponse, cluster.coordinator(group))
    check(answer.error_code, f"group {group}")
    for topic in answer.topics:
        for part in topic.partitions:
            check(part.error_code, f"group {group}, {topic.name} partition {part.partition_index}")
