"""OffsetDelete (key 47), version 0 (KIP-496).

Deletes the committed offsets of topics that no member of the group subscribes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.groups.messages import FetchTopic, OffsetDeleteReply, OffsetDeleteRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no topics."""
    del request
    return context.make("OffsetDeleteResponse", error_code=error, topics=())


@api(47, "OffsetDelete", (0, 0), refuse=refuse)
async def offset_delete(context: RequestContext, request: Any) -> Any:
    """Delete committed offsets of topics that the group does not consume."""
    if not context.may(Operation.DELETE, ResourceType.GROUP, request.group_id):
        return refuse(context, request, ErrorCode.group_authorization_failed)
    # A partition that is repeated is answered once, as in Kafka.
    partitions: dict[str, dict[int, ErrorCode]] = {}
    for asked in request.topics:
        named = partitions.setdefault(asked.name, {})
        named.update(
            (each.partition_index, ErrorCode.unknown_topic_or_partition) for each in asked.partitions
        )
    known = []
    async for name, results in sliced(partitions.items()):
        if not context.may(Operation.READ, ResourceType.TOPIC, name):
            results.update(dict.fromkeys(results, ErrorCode.topic_authorization_failed))
            continue
        topic = context.services.topics.get(name)
        existing = tuple(index for index in results if topic is not None and 0 <= index < topic.partitions)
        if existing:
            known.append(FetchTopic(name, existing))
    reply: OffsetDeleteReply = await context.services.coordinator.call(
        request.group_id, GroupShard.delete_offsets, OffsetDeleteRequest(request.group_id, tuple(known))
    )
    if reply.error is not ErrorCode.none:
        return refuse(context, request, reply.error)
    for result in reply.topics:
        partitions[result.name].update((each.partition, each.error) for each in result.partitions)
    topics = [_topic(context, name, results) async for name, results in sliced(partitions.items())]
    return context.make("OffsetDeleteResponse", error_code=ErrorCode.none, topics=tuple(topics))


def _topic(context: RequestContext, name: str, results: dict[int, ErrorCode]) -> Any:
    partitions = tuple(
        context.make("OffsetDeleteResponsePartition", partition_index=partition, error_code=error)
        for partition, error in sorted(results.items())
    )
    return context.make("OffsetDeleteResponseTopic", name=name, partitions=partitions)
