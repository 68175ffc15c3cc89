"""The requests of one poll. Each asks a broker about all of its partitions or groups at once."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_describe.v1.response import ConsumerGroupDescribeResponse
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.describe_groups.v5.response import DescribeGroupsResponse
from kio.schema.describe_log_dirs.v2.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v2.response import DescribeLogDirsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_groups.v4.request import ListGroupsRequest
from kio.schema.list_groups.v4.response import ListGroupsResponse
from kio.schema.list_offsets.v7.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v7.response import ListOffsetsResponse
from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from korvet.cli.client import check
from korvet.cli.top.facts import Group, Partition, Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kio.schema.metadata.v12.response import MetadataResponse

    from korvet.cli.client import Cluster
    from korvet.config.address import Address

# The earliest time of ListOffsets that is a time: the answer is the oldest record, with its timestamp.
OLDEST = 0
# What DescribeGroups reports of groups that it doesn't know, and of those of the consumer protocol.
_DEAD = "Dead"


class Offset(NamedTuple):
    """An answer of ListOffsets. -1 if there is none."""

    offset: int
    timestamp_ms: int


def partitions_of(answer: MetadataResponse) -> dict[Place, Partition]:
    """Returns the partitions of all topics that the client may see."""
    found: dict[Place, Partition] = {}
    for topic in answer.topics:
        for each in topic.partitions:
            leader = int(each.leader_id)
            found[Place(str(topic.name), int(each.partition_index))] = Partition(
                None if leader < 0 else leader,
                len(each.replica_nodes),
                len(each.isr_nodes),
                topic.is_internal,
            )
    return found


def offsets_at(
    cluster: Cluster, address: Address, places: Iterable[Place], timestamp: int
) -> dict[Place, Offset]:
    """Returns the offset for a time (or LATEST) of partitions that this broker leads. Those for which it
    refuses the request are left out: their leadership has just moved. Raises ClientError.
    """
    topics: dict[str, list[int]] = defaultdict(list)
    for place in places:
        topics[place.topic].append(place.partition)
    asked = tuple(
        ListOffsetsTopic(
            name=TopicName(topic),
            partitions=tuple(
                ListOffsetsPartition(
                    partition_index=i32(index), current_leader_epoch=i32(-1), timestamp=i64(timestamp)
                )
                for index in indexes
            ),
        )
        for topic, indexes in topics.items()
    )
    if not asked:
        return {}
    request = ListOffsetsRequest(replica_id=BrokerId(-1), isolation_level=i8(0), topics=asked)
    return {
        Place(str(topic.name), int(part.partition_index)): Offset(int(part.offset), int(part.timestamp))
        for topic in cluster.ask(request, ListOffsetsResponse, address).topics
        for part in topic.partitions
        if part.error_code is ErrorCode.none
    }


def sizes(cluster: Cluster, address: Address) -> dict[Place, int]:
    """Returns the size in bytes of each partition that a broker has. Raises ClientError."""
    found: dict[Place, int] = {}
    for folder in cluster.ask(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, address).results:
        check(folder.error_code, "sizes")
        for topic in folder.topics:
            for part in topic.partitions:
                found[Place(str(topic.name), int(part.partition_index))] = int(part.partition_size)
    return found


def groups(cluster: Cluster, node_id: int, address: Address) -> dict[str, Group]:
    """Returns the groups that a broker coordinates, with their committed offsets. Raises ClientError."""
    listed = cluster.ask(ListGroupsRequest(), ListGroupsResponse, address)
    check(listed.error_code, "groups")
    names = [str(group.group_id) for group in listed.groups]
    if not names:
        return {}
    members, commits = _members(cluster, address, names), _commits(cluster, address, names)
    return {
        str(each.group_id): Group(
            each.group_state,
            each.protocol_type,
            members.get(each.group_id),
            node_id,
            commits.get(each.group_id, {}),
        )
        for each in listed.groups
    }


def _members(cluster: Cluster, address: Address, names: list[str]) -> dict[str, int]:
    """Returns the number of members of each group that the client may describe."""
    asked = tuple(map(GroupId, names))
    request = DescribeGroupsRequest(groups=asked, include_authorized_operations=False)
    answer = cluster.ask(request, DescribeGroupsResponse, address).groups
    seen = [each for each in answer if each.error_code is ErrorCode.none]
    found = {str(each.group_id): len(each.members) for each in seen if each.group_state != _DEAD}
    consumers = tuple(each.group_id for each in answer if each.group_id not in found)
    if consumers and cluster.offers(ConsumerGroupDescribeRequest, address):
        more = ConsumerGroupDescribeRequest(group_ids=consumers, include_authorized_operations=False)
        for described in cluster.ask(more, ConsumerGroupDescribeResponse, address).groups:
            if described.error_code is ErrorCode.none:
                found[str(described.group_id)] = len(described.members)
    return found


def _commits(cluster: Cluster, address: Address, names: list[str]) -> dict[str, dict[Place, int]]:
    asked = tuple(OffsetFetchRequestGroup(group_id=GroupId(name), topics=None) for name in names)
    answer = cluster.ask(OffsetFetchRequest(groups=asked, require_stable=False), OffsetFetchResponse, address)
    return {
        str(group.group_id): {
            Place(str(topic.name), int(part.partition_index)): int(part.committed_offset)
            for topic in group.topics
            for part in topic.partitions
            if part.error_code is ErrorCode.none and part.committed_offset >= 0
        }
        for group in answer.groups
    }
