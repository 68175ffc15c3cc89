"""OffsetFetch (key 9), versions 1-10.

Answered from the coordinator's memory. In v2 null topics mean all (KIP-88), and it adds a top-level error; v5
adds leader epochs, v6 is flexible, v7 adds stable offsets (KIP-447: UNSTABLE_OFFSET_COMMIT while a
transaction has a pending one), v8 several groups (KIP-709), v9 member epochs (KIP-848), v10 topic IDs.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.groups.messages import (
    NO_GENERATION,
    FetchedPartition,
    FetchedTopic,
    FetchReply,
    FetchRequest,
    FetchTopic,
)
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_TOP_LEVEL_ERROR_SINCE: Final = 2
_GROUPS_SINCE: Final = 8
_TOPIC_IDS_SINCE: Final = 10
# Limits how long a request waits for groups that are being loaded. Kafka refuses such a request at once, and
# librdkafka then reads nothing more if its assignment changes before it repeats the request.
LOAD_WAIT_S: Final = 5.0
# The limit for members of the consumer protocol. Their heartbeats wait on the same connection, and their
# session timeout is 45 s by default.
MEMBER_WAIT_S: Final = 15.0
# Interval at which a waiting request asks the coordinator again.
_LOAD_POLL_S: Final = 0.05


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every group, or every partition where the version has no place for a group's error."""
    if context.api_version >= _GROUPS_SINCE:
        groups = tuple(_group(context, group.group_id, error, []) for group in request.groups)
        return context.make("OffsetFetchResponse", groups=groups)
    topics = []
    if context.api_version < _TOP_LEVEL_ERROR_SINCE:
        for topic in request.topics:
            found = _failed(topic, error, topic.name)
            topics.append(_topic(context, found, [_partition(context, each) for each in found.partitions]))
    return _single(context, error, topics)


@api(9, "OffsetFetch", (1, 10), refuse=refuse)
async def offset_fetch(context: RequestContext, request: Any) -> Any:
    """The committed offsets of one or several groups."""
    stable = getattr(request, "require_stable", False)
    began_s = asyncio.get_running_loop().time()
    if context.api_version < _GROUPS_SINCE:
        reply = await _fetch(context, request.group_id, request.topics, stable, began_s)
        if reply.error is not ErrorCode.none:
            return refuse(context, request, reply.error)
        return _single(context, reply.error, await _topics(context, reply))
    groups = []
    # All offsets of a group are answered once, however often they are asked for.
    once = {
        (group.group_id, None if group.topics is None else number): group
        for number, group in enumerate(request.groups)
    }
    async for group in sliced(once.values()):
        member = getattr(group, "member_id", None), getattr(group, "member_epoch", NO_GENERATION)
        reply = await _fetch(context, group.group_id, group.topics, stable, began_s, member)
        groups.append(_group(context, reply.group_id, reply.error, await _topics(context, reply)))
    return context.make("OffsetFetchResponse", groups=tuple(groups))


async def _fetch(
    context: RequestContext,
    group_id: str,
    topics: Any,
    stable: bool,
    began_s: float,
    member: tuple[str | None, int] = (None, NO_GENERATION),
) -> FetchReply:
    if not context.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
        return FetchReply(group_id, ErrorCode.group_authorization_failed)
    asked: tuple[FetchTopic, ...] | None = None
    unknown: list[FetchedTopic] = []
    if topics is not None:
        # A partition that is repeated is answered once: its metadata may be long.
        known: dict[tuple[str, bytes | None], dict[int, None]] = {}
        async for topic in sliced(topics):
            if context.api_version < _TOPIC_IDS_SINCE:
                if context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
                    known.setdefault((topic.name, None), {}).update(dict.fromkeys(topic.partition_indexes))
                else:
                    unknown.append(_failed(topic, ErrorCode.topic_authorization_failed, topic.name))
                continue
            found = None if topic.topic_id is None else context.services.topics.by_id(topic.topic_id)
            if found is None:
                unknown.append(_failed(topic, ErrorCode.unknown_topic_id))
            elif not context.may(Operation.DESCRIBE, ResourceType.TOPIC, found.name):
                unknown.append(_failed(topic, ErrorCode.topic_authorization_failed))
            else:
                key = found.name, found.topic_id.bytes
                known.setdefault(key, {}).update(dict.fromkeys(topic.partition_indexes))
        asked = tuple(
            FetchTopic(name, tuple(indexes), topic_id) for (name, topic_id), indexes in known.items()
        )
    reply = await _ask(context, FetchRequest(group_id, asked, stable, *member), began_s)
    topics = reply.topics
    if asked is None:
        topics = tuple(
            topic for topic in topics if context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        )
    return FetchReply(reply.group_id, reply.error, (*topics, *unknown))


async def _ask(context: RequestContext, request: FetchRequest, began_s: float) -> FetchReply:
    """Returns the coordinator's reply. While the group is being loaded, asks again, until the limit after
    `began_s` (on the event loop's clock), or until the broker stops or the client has gone.
    """
    clock, client = asyncio.get_running_loop().time, context.client
    give_up_at_s = began_s + (LOAD_WAIT_S if request.member_epoch == NO_GENERATION else MEMBER_WAIT_S)
    while True:
        reply: FetchReply = await context.services.coordinator.call(
            request.group_id, GroupShard.fetch, request
        )
        if reply.error is not ErrorCode.coordinator_load_in_progress or clock() >= give_up_at_s:
            return reply
        if client.closing or client.closed:
            return reply
        await asyncio.sleep(_LOAD_POLL_S)


def _failed(topic: Any, error: ErrorCode, name: str = "") -> FetchedTopic:
    partitions = tuple(FetchedPartition(index, error=error) for index in topic.partition_indexes)
    topic_id = getattr(topic, "topic_id", None)
    return FetchedTopic(name, partitions, None if topic_id is None else topic_id.bytes)


def _group(context: RequestContext, group_id: str, error: ErrorCode, topics: list[Any]) -> Any:
    return context.make("OffsetFetchResponseGroup", group_id=group_id, topics=tuple(topics), error_code=error)


def _single(context: RequestContext, error: ErrorCode, topics: list[Any]) -> Any:
    return context.make("OffsetFetchResponse", topics=tuple(topics), error_code=error)


async def _topics(context: RequestContext, reply: FetchReply) -> list[Any]:
    """What was found; by ID only topics that there are."""
    return [
        _topic(context, topic, [_partition(context, each) async for each in sliced(topic.partitions)])
        async for topic in sliced(reply.topics)
        if context.api_version < _TOPIC_IDS_SINCE or _topic_id(context, topic) is not None
    ]


def _topic_id(context: RequestContext, topic: FetchedTopic) -> uuid.UUID | None:
    """The id asked for, else that of the topic now; None for one that is gone."""
    if topic.topic_id is not None:
        return uuid.UUID(bytes=topic.topic_id)
    found = context.services.topics.get(topic.name)
    return None if found is None else found.topic_id


def _topic(context: RequestContext, topic: FetchedTopic, partitions: list[Any]) -> Any:
    several = context.api_version >= _GROUPS_SINCE
    topic_id = _topic_id(context, topic) if context.api_version >= _TOPIC_IDS_SINCE else None
    return context.make(
        "OffsetFetchResponseTopics" if several else "OffsetFetchResponseTopic",
        name=topic.name,
        topic_id=topic_id,
        partitions=tuple(partitions),
    )


def _partition(context: RequestContext, found: FetchedPartition) -> Any:
    several = context.api_version >= _GROUPS_SINCE
    return context.make(
        "OffsetFetchResponsePartitions" if several else "OffsetFetchResponsePartition",
        partition_index=found.partition,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=found.error,
    )
