"""DescribeTopicPartitions (key 75), version 0 (KIP-966).

Returns topics in the order of their names, page by page. Replicas are shown as in Metadata. There are no
eligible leader replicas, because hashing selects the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.operations import NOT_ASKED, operations_on
from korvet.api.common.replicas import copies_of, replicas_of
from korvet.cluster.assignment import NO_NODE
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.topics.errors import TopicError
from korvet.topics.internal import INTERNAL_TOPICS

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.cluster.assignment import Leader
    from korvet.cluster.topic import Topic
    from korvet.outlook.copies import Copies

# As Kafka's max.request.partition.size.limit.
_MOST_PARTITIONS: Final = 2_000


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every topic with the error."""
    topics = tuple(_failed(context, each.name, error) for each in request.topics)
    return context.make("DescribeTopicPartitionsResponse", topics=topics, next_cursor=None)


@api(75, "DescribeTopicPartitions", (0, 0), refuse=refuse)
async def describe_topic_partitions(context: RequestContext, request: Any) -> Any:
    """A page of partitions, and the cursor of the next page."""
    directory, cursor = context.services.topics, request.cursor
    if request.topics:
        names = sorted({each.name for each in request.topics})
    else:
        names = sorted(topic.name for topic in directory.listed())
    if cursor is not None:
        is_listed = not request.topics or cursor.topic_name in names
        if cursor.partition_index < 0 or not is_listed:
            return refuse(context, request, ErrorCode.invalid_request)
        names = [name for name in names if name >= cursor.topic_name]
    room = min(max(request.response_partition_limit, 1), _MOST_PARTITIONS)
    topics = []
    next_cursor = None
    async for name in sliced(names):
        if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
            if request.topics:
                topics.append(_failed(context, name, ErrorCode.topic_authorization_failed))
            continue
        topic = directory.get(name)
        if topic is None:
            if request.topics:
                topics.append(_failed(context, name, _why_missing(context, name)))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if room == 0:
            next_cursor = context.make("Cursor", topic_name=name, partition_index=first)
            break
        end = min(first + room, topic.partitions)
        topics.append(_found(context, topic, first, end))
        room -= max(end - first, 0)
        if end < topic.partitions:
            next_cursor = context.make("Cursor", topic_name=name, partition_index=end)
            break
    return context.make("DescribeTopicPartitionsResponse", topics=tuple(topics), next_cursor=next_cursor)


def _why_missing(context: RequestContext, name: str) -> ErrorCode:
    try:
        context.services.topics.check_name(name)
    except TopicError:
        return ErrorCode.invalid_topic_exception
    return ErrorCode.unknown_topic_or_partition


def _found(context: RequestContext, topic: Topic, first: int, end: int) -> Any:
    led = context.services.topics.target(topic).name
    leaders = context.services.leadership.assignment.leaders(led, topic.partitions)
    copies = copies_of(context, topic)
    of_each = copies if isinstance(copies, list) else [copies] * topic.partitions
    return context.make(
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=tuple(
            _partition(context, index, leaders[index], of_each[index]) for index in range(first, end)
        ),
        topic_authorized_operations=operations_on(context, ResourceType.TOPIC, topic.name),
    )


def _partition(context: RequestContext, index: int, leader: Leader, copies: Copies) -> Any:
    is_led = leader.node_id != NO_NODE
    replicas = replicas_of(leader.node_id, copies)
    return context.make(
        "DescribeTopicPartitionsResponsePartition",
        error_code=ErrorCode.none if is_led else ErrorCode.leader_not_available,
        partition_index=index,
        leader_id=leader.node_id,
        leader_epoch=leader.epoch,
        replica_nodes=replicas.all,
        isr_nodes=replicas.in_sync,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=replicas.offline,
    )


def _failed(context: RequestContext, name: str, error: ErrorCode) -> Any:
    return context.make(
        "DescribeTopicPartitionsResponseTopic",
        error_code=error,
        name=name,
        topic_id=None,
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
        topic_authorized_operations=NOT_ASKED,
    )
