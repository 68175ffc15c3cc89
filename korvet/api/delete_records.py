"""DeleteRecords (key 21), versions 0-2 (KIP-107).

Deletes all records before an offset, which is the high watermark at most; -1 means the high watermark. The
response waits for the replicas that the topic asks for. A topic that is only compacted returns
POLICY_VIOLATION, an internal topic INVALID_TOPIC_EXCEPTION. v2 is flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.protocol.durations import milliseconds
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import answer_each

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_WATERMARK: Final = -1
_NONE: Final = -1


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = tuple(
        _topic(context, topic.name, [(each.partition_index, _NONE, error) for each in topic.partitions])
        for topic in request.topics
    )
    return context.make("DeleteRecordsResponse", topics=topics)


@api(21, "DeleteRecords", (0, 2), refuse=refuse)
async def delete_records(context: RequestContext, request: Any) -> Any:
    """Delete from all partitions at once, each on its own."""
    answers = await answer_each(request.topics, partial(_delete, context, milliseconds(request.timeout)))
    topics = tuple(_topic(context, name, found) for name, found in answers)
    return context.make("DeleteRecordsResponse", topics=topics)


async def _delete(
    context: RequestContext, timeout_ms: int, name: str, asked: Any
) -> tuple[int, int, ErrorCode]:
    """Partition, log start, error."""
    index, directory = asked.partition_index, context.services.topics
    if not context.may(Operation.DELETE, ResourceType.TOPIC, name):
        return index, _NONE, ErrorCode.topic_authorization_failed
    topic, log = directory.get(name), directory.log(name, index)
    if topic is None or log is None:
        directory.missed()
        return index, _NONE, ErrorCode.unknown_topic_or_partition
    if topic.internal:
        return index, _NONE, ErrorCode.invalid_topic_exception
    if log.closed:
        return index, _NONE, ErrorCode.not_leader_or_follower
    policy = directory.policy(topic)
    if policy.compacts and not policy.deletes:
        return index, _NONE, ErrorCode.policy_violation
    try:
        start = await log.delete_before(None if asked.offset == _WATERMARK else asked.offset, timeout_ms)
    except StorageError as failed:
        return index, _NONE, error_code_of(failed)
    return index, start, ErrorCode.none


def _topic(context: RequestContext, name: str, found: list[tuple[int, int, ErrorCode]]) -> Any:
    partitions = tuple(
        context.make(
            "DeleteRecordsPartitionResult", partition_index=index, low_watermark=start, error_code=error
        )
        for index, start, error in found
    )
    return context.make("DeleteRecordsTopicResult", name=name, partitions=partitions)
