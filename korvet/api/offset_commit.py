"""OffsetCommit (key 8), versions 2-10.

v2 to v4 carry a retention time, v6 leader epochs, v7 static members (KIP-345), v8 is flexible, v9 allows
member epochs (KIP-848; there are only generations here), v10 names topics by id. A commit becomes a record of
`__consumer_offsets`, which decides its success, and an acknowledgement in the Redis group of the same name.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.durations import milliseconds
from korvet.groups.messages import CommitPartition, CommitReply, CommitRequest, CommitTopic
from korvet.groups.shard import GroupShard
from korvet.protocol.primitives import length, string
from korvet.protocol.registry import Respond, submit_api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.context import RequestContext

_THROTTLE_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 8
_GROUP_ID_NOT_FOUND_SINCE: Final = 9
_TOPIC_IDS_SINCE: Final = 10
_NO_THROTTLE: Final = b"\x00" * 4
_NO_TOPIC_ID: Final = b"\x00" * 16
_PARTITION: Final = struct.Struct(">ih")


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


@submit_api(8, "OffsetCommit", (2, 10), refuse=refuse)
def offset_commit(context: RequestContext, request: Any, respond: Respond) -> None:
    """Commit the offsets of partitions that exist."""
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        respond([context.schema.encode(refuse(context, request, ErrorCode.group_authorization_failed))])
        return
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

    def done(reply: Any) -> None:
        respond([_encode(context.api_version, request, reply)])

    context.services.coordinator.submit(request.group_id, GroupShard.commit, commit, done)


def _encode(version: int, request: Any, reply: CommitReply) -> bytes:
    """The response (OffsetCommitResponse.json) written by hand: thousands a second say next to nothing."""
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    parts = [_NO_THROTTLE if version >= _THROTTLE_SINCE else b"", length(len(reply.topics), flexible)]
    for asked, result in zip(request.topics, reply.topics, strict=True):
        if version >= _TOPIC_IDS_SINCE:
            parts.append(_NO_TOPIC_ID if asked.topic_id is None else asked.topic_id.bytes)
        else:
            parts.append(string(result.name, flexible))
        parts.append(length(len(result.partitions), flexible))
        parts += [_PARTITION.pack(each.partition, each.error) + tags for each in result.partitions]
        parts.append(tags)
    parts.append(tags)
    return b"".join(parts)


def _commit_topic(context: RequestContext, asked: Any) -> CommitTopic:
    directory = context.services.topics
    if context.api_version >= _TOPIC_IDS_SINCE:
        topic = None if asked.topic_id is None else directory.by_id(asked.topic_id)
        unknown = ErrorCode.unknown_topic_id
    else:
        topic = directory.get(asked.name)
        unknown = ErrorCode.unknown_topic_or_partition
    partitions = []
    named = getattr(asked, "name", "") if topic is None else topic.name
    denied = bool(named) and not context.may(Operation.READ, ResourceType.TOPIC, named)
    for each in asked.partitions:
        refusal = ErrorCode.none
        if denied:
            refusal = ErrorCode.topic_authorization_failed
        elif topic is None:
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
    return CommitTopic(named, tuple(partitions), None if topic is None else topic.topic_id.bytes)


def _topic(context: RequestContext, name: str, topic_id: Any, partitions: list[tuple[int, ErrorCode]]) -> Any:
    results = tuple(
        context.make("OffsetCommitResponsePartition", partition_index=partition, error_code=error)
        for partition, error in partitions
    )
    return context.make("OffsetCommitResponseTopic", name=name, topic_id=topic_id, partitions=results)
