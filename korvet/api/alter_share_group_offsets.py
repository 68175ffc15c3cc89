"""AlterShareGroupOffsets (key 91), version 0.

Lets a share group without members, also a new one, begin with other offsets (KIP-932): all locks end, also
those of native consumers. A negative offset means the first record; the log need not have the offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.sharing.offsets import group_error, place_of, readable_topic
from korvet.api.sharing.requests import BATCHES, OK, Outcome
from korvet.protocol.registry import api
from korvet.security.acls import Operation
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from korvet.api.common.context import RequestContext
    from korvet.cluster.topic import Topic
    from korvet.groups.share.messages import SharePartition


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no topics."""
    del request
    return _response(context, Outcome(error))


@api(91, "AlterShareGroupOffsets", (0, 0), refuse=refuse)
async def alter_share_group_offsets(context: RequestContext, request: Any) -> Any:
    """Let the group begin with these offsets: in all partitions that exist, or in none."""
    group_id = request.group_id
    error = group_error(context, Operation.READ, group_id)
    if error is not ErrorCode.none:
        return refuse(context, request, error)
    offsets: dict[SharePartition, int] = {}
    topics = []
    async for asked in sliced(request.topics):
        topic = readable_topic(context, asked.topic_name)
        outcomes = {each.partition_index: _outcome(topic, each.partition_index) for each in asked.partitions}
        if not isinstance(topic, ErrorCode):
            for each in asked.partitions:
                if outcomes[each.partition_index] is OK:
                    offsets[place_of(group_id, topic, each.partition_index)] = each.start_offset
        topic_id = None if isinstance(topic, ErrorCode) else topic.topic_id
        topics.append(_topic(context, asked.topic_name, topic_id, outcomes))
    reply = await context.services.coordinator.sharing.restart(group_id, offsets)
    if reply.error is not ErrorCode.none:
        return _response(context, Outcome(reply.error, reply.error_message))
    return _response(context, OK, topics)


def _outcome(topic: Topic | ErrorCode, index: int) -> Outcome:
    if isinstance(topic, ErrorCode):
        return Outcome(topic)
    if not 0 <= index < topic.partitions:
        return Outcome(ErrorCode.unknown_topic_or_partition)
    return Outcome(ErrorCode.invalid_request, BATCHES) if topic.storage_layout == "batch" else OK


def _topic(context: RequestContext, name: str, topic_id: UUID | None, outcomes: dict[int, Outcome]) -> Any:
    partitions = tuple(
        context.make(
            "AlterShareGroupOffsetsResponsePartition",
            partition_index=index,
            error_code=outcome.error,
            error_message=outcome.message,
        )
        for index, outcome in outcomes.items()
    )
    return context.make(
        "AlterShareGroupOffsetsResponseTopic", topic_name=name, topic_id=topic_id, partitions=partitions
    )


def _response(context: RequestContext, outcome: Outcome, topics: Iterable[Any] = ()) -> Any:
    return context.make(
        "AlterShareGroupOffsetsResponse",
        error_code=outcome.error,
        error_message=outcome.message,
        responses=tuple(topics),
    )
