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
from korvet.api.common.offset_commit_form import AskedCommit
from korvet.groups.messages import CommitReply, CommitRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.primitives import length, string
from korvet.protocol.registry import Respond, submit_api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.api.common.offset_commit_form import AskedTopic

_THROTTLE_SINCE: Final = 3
_FLEXIBLE_SINCE: Final = 8
_MEMBER_EPOCHS_SINCE: Final = 9
_TOPIC_IDS_SINCE: Final = 10
_NO_THROTTLE: Final = b"\x00" * 4
_NO_TOPIC_ID: Final = b"\x00" * 16
_PARTITION: Final = struct.Struct(">ih")


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = tuple(
        _topic(context, topic, [(each.partition, error) for each in topic.partitions])
        for topic in _asked(request).topics
    )
    return context.make("OffsetCommitResponse", topics=topics)


@submit_api(8, "OffsetCommit", (2, 10), refuse=refuse)
def offset_commit(context: RequestContext, request: Any, respond: Respond) -> None:
    """Commit the offsets of partitions that exist."""
    asked = _asked(request)
    if not context.may(Operation.READ, ResourceType.GROUP, asked.group_id):
        respond([context.schema.encode(refuse(context, asked, ErrorCode.group_authorization_failed))])
        return
    by_id = context.api_version >= _TOPIC_IDS_SINCE
    commit = CommitRequest(
        group_id=asked.group_id,
        topics=tuple([commit_topic(context, topic, by_id=by_id) for topic in asked.topics]),
        generation_id=asked.generation_id,
        member_id=asked.member_id,
        group_instance_id=asked.group_instance_id,
        retention_time_ms=asked.retention_time_ms,
        knows_member_epochs=context.api_version >= _MEMBER_EPOCHS_SINCE,
    )

    def done(reply: Any) -> None:
        respond([_body(context.api_version, asked, reply)])

    context.services.coordinator.submit(asked.group_id, GroupShard.commit, commit, done)


def _asked(request: Any) -> AskedCommit:
    return request if isinstance(request, AskedCommit) else AskedCommit.of(request)


def _body(version: int, asked: AskedCommit, reply: CommitReply) -> bytes:
    """The encoded response; a form's is the same each time that every offset is taken."""
    form = asked.form
    if form is None or not reply.is_accepted:
        return _encode(version, asked, reply)
    if form.accepted is None:
        form.accepted = _encode(version, asked, reply)
    return form.accepted


def _encode(version: int, asked: AskedCommit, reply: CommitReply) -> bytes:
    """The response (OffsetCommitResponse.json) written by hand: thousands a second say next to nothing."""
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    parts = [_NO_THROTTLE if version >= _THROTTLE_SINCE else b"", length(len(reply.topics), flexible)]
    for topic, result in zip(asked.topics, reply.topics, strict=True):
        if version >= _TOPIC_IDS_SINCE:
            parts.append(_NO_TOPIC_ID if topic.topic_id is None else topic.topic_id.bytes)
        else:
            parts.append(string(result.name, flexible))
        parts.append(length(len(result.partitions), flexible))
        parts += [_PARTITION.pack(each.partition, each.error) + tags for each in result.partitions]
        parts.append(tags)
    parts.append(tags)
    return b"".join(parts)


def _topic(context: RequestContext, asked: AskedTopic, partitions: list[tuple[int, ErrorCode]]) -> Any:
    results = tuple(
        context.make("OffsetCommitResponsePartition", partition_index=partition, error_code=error)
        for partition, error in partitions
    )
    return context.make(
        "OffsetCommitResponseTopic", name=asked.name, topic_id=asked.topic_id, partitions=results
    )
