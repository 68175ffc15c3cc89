"""OffsetDelete (key 47), version 0 (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.groups.messages import FetchTopic, OffsetDeleteReply, OffsetDeleteRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no topics."""
    del request
    return context.make("OffsetDeleteResponse", error_code=error, topics=())


@api(47, "OffsetDelete", (0, 0), refuse=refuse)
async def offset_delete(context: RequestContext, request: Any) -> Any:
    """Delete committed offsets of topics that the group does not consume."""
    if not context.may(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return refuse(context, request, ErrorCode.group_authorization_failed)
    results: dict[str, list[tuple[int, ErrorCode]]] = {topic.name: [] for topic in request.topics}
    known = []
    for asked in request.topics:
        if not context.may(Operation.READ, ResourceType.TOPIC, asked.name):
            results[asked.name].extend(
                (each.partition_index, ErrorCode.topic_authorization_failed) for each in asked.partitions
            )
            continue
        topic = context.services.topics.get(asked.name)
        indexes = [each.partition_index for each in asked.partitions]
        existing = tuple(index for index in indexes if topic is not None and 0 <= index < topic.partitions)
        results[asked.name].extend(
            (index, ErrorCode.unknown_topic_or_partition) for index in indexes if index not in existing
        )
        if existing:
            known.append(FetchTopic(asked.name, existing))
    reply: OffsetDeleteReply = await context.services.coordinator.call(
        request.group_id, GroupShard.delete_offsets, OffsetDeleteRequest(request.group_id, tuple(known))
    )
    if reply.error is not ErrorCode.none:
        return refuse(context, request, reply.error)
    for result in reply.topics:
        results[result.name].extend((each.partition, each.error) for each in result.partitions)
    topics = tuple(_topic(context, name, partitions) for name, partitions in results.items())
    return context.make("OffsetDeleteResponse", error_code=ErrorCode.none, topics=topics)


def _topic(context: RequestContext, name: str, partitions: list[tuple[int, ErrorCode]]) -> Any:
    results = tuple(
        context.make("OffsetDeleteResponsePartition", partition_index=partition, error_code=error)
        for partition, error in sorted(partitions)
    )
    return context.make("OffsetDeleteResponseTopic", name=name, partitions=results)
