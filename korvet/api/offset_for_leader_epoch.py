"""OffsetForLeaderEpoch (key 23), versions 2-4 (KIP-320).

After a change of leader, a consumer asks whether records that it has read were lost. The result is the log
end, unless Redis may have lost writes since that epoch: then it is the log end that the next leader found.
v2 adds the client's leader epoch, v3 distinguishes replicas from consumers, v4 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.common.leader_epochs import check_leader_epoch
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import gathered

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

# Epoch and offset of an epoch that there is not yet.
_NONE: Final = (-1, -1)


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    return _response(
        context,
        [
            (topic.topic, [_end(context, asked.partition, error, _NONE) for asked in topic.partitions])
            for topic in request.topics
        ],
    )


@api(23, "OffsetForLeaderEpoch", (2, 4), refuse=refuse)
async def offset_for_leader_epoch(context: RequestContext, request: Any) -> Any:
    """Where each epoch asked for ended."""
    answers = []
    for topic in request.topics:
        found = await gathered(_one(context, topic.topic, each) for each in topic.partitions)
        answers.append((topic.topic, found))
    return _response(context, answers)


async def _one(context: RequestContext, topic: str, asked: Any) -> Any:
    if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic):
        return _end(context, asked.partition, ErrorCode.topic_authorization_failed, _NONE)
    log = context.services.topics.log(topic, asked.partition)
    if log is None:
        context.services.topics.missed()
        return _end(context, asked.partition, ErrorCode.unknown_topic_or_partition, _NONE)
    error = check_leader_epoch(asked.current_leader_epoch, log)
    if error is not ErrorCode.none:
        return _end(context, asked.partition, error, _NONE)
    if asked.leader_epoch < 0:
        return _end(context, asked.partition, ErrorCode.none, _NONE)
    try:
        found = await log.queries.end_of_leader_epoch(asked.leader_epoch)
    except StorageError as failed:
        return _end(context, asked.partition, error_code_of(failed, Asked.READ), _NONE)
    return _end(context, asked.partition, ErrorCode.none, found or _NONE)


def _end(context: RequestContext, index: int, error: ErrorCode, found: tuple[int, int]) -> Any:
    leader_epoch, offset = found
    return context.make(
        "EpochEndOffset", partition=index, error_code=error, leader_epoch=leader_epoch, end_offset=offset
    )


def _response(context: RequestContext, topics: list[tuple[str, list[Any]]]) -> Any:
    results = tuple(
        context.make("OffsetForLeaderTopicResult", topic=name, partitions=tuple(partitions))
        for name, partitions in topics
    )
    return context.make("OffsetForLeaderEpochResponse", topics=results)
