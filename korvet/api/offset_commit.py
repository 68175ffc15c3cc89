"""OffsetCommit (key 8), versions 2-10.

A commit becomes a record of `__consumer_offsets`, which decides its success, and an acknowledgement in the
Redis group of the same name. v2 to v4 carry a retention time, v6 adds leader epochs, v7 static members
(KIP-345), v8 is flexible, v9 allows member epochs (KIP-848), v10 names topics by ID.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.commit_topics import commit_topic
from korvet.groups.messages import NO_RETENTION, CommitReply, CommitRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.durations import milliseconds
from korvet.protocol.primitives import length, topic_head
from korvet.protocol.registry import Respond, submit_api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_RETENTION_UNTIL: Final = 4
_THROTTLE_SINCE: Final = 3
_INSTANCES_SINCE: Final = 7
_FLEXIBLE_SINCE: Final = 8
_MEMBER_EPOCHS_SINCE: Final = 9
_TOPIC_IDS_SINCE: Final = 10
# Commits of one connection in progress. They keep their order, as they go through one coordinator.
_IN_FLIGHT: Final = 64
_NO_THROTTLE: Final = b"\x00" * 4
_PARTITION: Final = struct.Struct(">ih")


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = tuple(
        context.make(
            "OffsetCommitResponseTopic",
            name=getattr(topic, "name", ""),
            topic_id=getattr(topic, "topic_id", None),
            partitions=tuple(
                context.make(
                    "OffsetCommitResponsePartition", partition_index=each.partition_index, error_code=error
                )
                for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return context.make("OffsetCommitResponse", topics=topics)


@submit_api(8, "OffsetCommit", (2, 10), refuse=refuse, in_flight_max=_IN_FLIGHT)
def offset_commit(context: RequestContext, request: Any, respond: Respond) -> None:
    """Commit the offsets of partitions that exist."""
    version = context.api_version
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        respond([context.encode(refuse(context, request, ErrorCode.group_authorization_failed))])
        return
    by_id = version >= _TOPIC_IDS_SINCE
    commit = CommitRequest(
        group_id=request.group_id,
        topics=tuple([commit_topic(context, topic, by_id=by_id) for topic in request.topics]),
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id if version >= _INSTANCES_SINCE else None,
        retention_time_ms=_retention_ms(version, request),
        knows_member_epochs=version >= _MEMBER_EPOCHS_SINCE,
    )

    def done(reply: CommitReply) -> None:
        for topic in reply.topics:
            for each in topic.partitions:
                if each.error:
                    context.failed(each.error, topic.name)
        respond([_encode(version, request, reply)])

    context.services.coordinator.submit(request.group_id, GroupShard.commit, commit, done)


def _retention_ms(version: int, request: Any) -> int:
    return milliseconds(request.retention_time) if version <= _RETENTION_UNTIL else NO_RETENTION


def _encode(version: int, request: Any, reply: CommitReply) -> bytes:
    """The response body (OffsetCommitResponse.json). Written by hand: kio's writer takes 2 us more, and a
    busy broker answers thousands of commits per second.
    """
    flexible, by_id = version >= _FLEXIBLE_SINCE, version >= _TOPIC_IDS_SINCE
    tags = b"\x00" if flexible else b""
    parts = [_NO_THROTTLE if version >= _THROTTLE_SINCE else b"", length(len(reply.topics), flexible)]
    for topic, result in zip(request.topics, reply.topics, strict=True):
        topic_id = topic.topic_id if by_id else None
        parts.append(topic_head(result.name, topic_id, len(result.partitions), by_id, flexible))
        parts += [_PARTITION.pack(each.partition, each.error) + tags for each in result.partitions]
        parts.append(tags)
    parts.append(tags)
    return b"".join(parts)
