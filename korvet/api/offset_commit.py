"""OffsetCommit (key 8), versions 2-10.

v2 to v4 carry a retention time, v6 leader epochs, v7 static members (KIP-345), v8 is flexible, v9 allows
member epochs (KIP-848; there are only generations here), v10 names topics by id. A commit becomes a record of
`__consumer_offsets`, which decides its success, and an acknowledgement in the Redis group of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.durations import milliseconds
from korvet.groups.messages import CommitPartition, CommitReply, CommitRequest, CommitTopic
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api

if TYPE_CHECKING:
    from korvet.api.context import RequestContext

_GROUP_ID_NOT_FOUND_SINCE: Final = 9
_TOPIC_IDS_SINCE: Final = 10


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = tuple(
        _topic(
            context,
            getattr(topic, "name", ""),
            getattr(topic, "topic_id", None),
            [(each.partition_index, error) for each in topic.partitions],
        )
        for topic in request.topics
    )
    return context.make("OffsetCommitResponse", topics=topics)


@api(8, "OffsetCommit", (2, 10), refuse=refuse)
async def offset_commit(context: RequestContext, request: Any) -> Any:
    """Commit the offsets of partitions that exist."""
    retention = getattr(request, "retention_time", None)
    commit = CommitRequest(
        group_id=request.group_id,
        topics=tuple(_commit_topic(context, topic) for topic in request.topics),
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        retention_time_ms=-1 if retention is None else milliseconds(retention),
        knows_group_id_not_found=context.api_version >= _GROUP_ID_NOT_FOUND_SINCE,
    )
    reply: CommitReply = await context.services.coordinator.call(request.group_id, GroupShard.commit, commit)
    topics = tuple(
        _topic(
            context,
            result.name,
            getattr(asked, "topic_id", None),
            [(each.partition, each.error) for each in result.partitions],
        )
        for asked, result in zip(request.topics, reply.topics, strict=True)
    )
    return context.make("OffsetCommitResponse", topics=topics)


def _commit_topic(context: RequestContext, asked: Any) -> CommitTopic:
    directory = context.services.topics
    if context.api_version >= _TOPIC_IDS_SINCE:
        topic = None if asked.topic_id is None else directory.by_id(asked.topic_id)
        unknown = ErrorCode.unknown_topic_id
    else:
        topic = directory.get(asked.name)
        unknown = ErrorCode.unknown_topic_or_partition
    partitions = []
    for each in asked.partitions:
        refusal = ErrorCode.none
        if topic is None:
            refusal = unknown
        elif not 0 <= each.partition_index < topic.partitions:
            refusal = ErrorCode.unknown_topic_or_partition
        partitions.append(
            CommitPartition(
                partition=each.partition_index,
                offset=each.committed_offset,
                leader_epoch=getattr(each, "committed_leader_epoch", -1),
                metadata=each.committed_metadata,
                refusal=refusal,
            )
        )
    name = getattr(asked, "name", "") if topic is None else topic.name
    return CommitTopic(name, tuple(partitions), None if topic is None else topic.topic_id.bytes)


def _topic(context: RequestContext, name: str, topic_id: Any, partitions: list[tuple[int, ErrorCode]]) -> Any:
    results = tuple(
        context.make("OffsetCommitResponsePartition", partition_index=partition, error_code=error)
        for partition, error in partitions
    )
    return context.make("OffsetCommitResponseTopic", name=name, topic_id=topic_id, partitions=results)
