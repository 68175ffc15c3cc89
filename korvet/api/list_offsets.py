"""ListOffsets (key 2), versions 1-11.

A timestamp finds the first offset whose record's timestamp isn't earlier. Without tiered storage, the
earliest local offset is the log start, and there is no tiered or pending offset. v2 adds isolation levels, v4
leader epochs, v6 is flexible, v7 adds the largest timestamp (KIP-734), v8 the earliest local offset
(KIP-405), v9 the latest tiered offset, v10 a timeout, v11 the earliest pending upload offset.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.common.leader_epochs import check_leader_epoch
from korvet.api.fetching.params import READ_COMMITTED
from korvet.protocol.registry import api
from korvet.redis.errors import HighWatermarkUnknown, StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import answer_each

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.log.partition_log import PartitionLog

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
# The version that introduced each of the special timestamps.
_SINCE: Final = {
    _LATEST: 0,
    _EARLIEST: 0,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
_NONE: Final = (-1, -1, -1)
# KIP-207. Older clients retry after LEADER_NOT_AVAILABLE.
_OFFSET_NOT_AVAILABLE_SINCE: Final = 5


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = tuple(
        context.make(
            "ListOffsetsTopicResponse",
            name=topic.name,
            partitions=tuple(
                _partition(context, each.partition_index, error, _NONE) for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return context.make("ListOffsetsResponse", topics=topics)


@api(2, "ListOffsets", (1, 11), refuse=refuse)
async def list_offsets(context: RequestContext, request: Any) -> Any:
    """The offsets of all partitions asked for, looked up at once."""
    times = Counter(
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions
    )
    answers = await answer_each(request.topics, partial(_one, context, request, times))
    topics = tuple(
        context.make("ListOffsetsTopicResponse", name=name, partitions=tuple(partitions))
        for name, partitions in answers
    )
    return context.make("ListOffsetsResponse", topics=topics)


async def _one(
    context: RequestContext, request: Any, times: Counter[tuple[str, int]], name: str, asked: Any
) -> Any:
    """`times`: how often the request names each partition."""
    index = asked.partition_index
    if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
        return _partition(context, index, ErrorCode.topic_authorization_failed, _NONE)
    if times[name, index] > 1:
        return _partition(context, index, ErrorCode.invalid_request, _NONE)
    if asked.timestamp < 0 and context.api_version < _SINCE.get(asked.timestamp, 2**15):
        return _partition(context, index, ErrorCode.unsupported_version, _NONE)
    log = context.services.topics.log(name, index)
    if log is None:
        context.services.topics.missed()
        return _partition(context, index, ErrorCode.unknown_topic_or_partition, _NONE)
    error = check_leader_epoch(getattr(asked, "current_leader_epoch", -1), log)
    if error is not ErrorCode.none:
        return _partition(context, index, error, _NONE)
    try:
        is_committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
        found = await _look_up(log, asked.timestamp, is_committed=is_committed)
    except HighWatermarkUnknown:
        known = context.api_version >= _OFFSET_NOT_AVAILABLE_SINCE
        error = ErrorCode.offset_not_available if known else ErrorCode.leader_not_available
        return _partition(context, index, error, _NONE)
    except StorageError as failed:
        return _partition(context, index, error_code_of(failed, Asked.READ), _NONE)
    return _partition(context, index, ErrorCode.none, found)


async def _look_up(log: PartitionLog, timestamp_ms: int, *, is_committed: bool) -> tuple[int, int, int]:
    """(offset, timestamp, leader epoch); all are -1 if there is no such record.

    The log ends at its high watermark; for consumers with isolation level READ_COMMITTED at its last stable
    offset.
    """
    if timestamp_ms in (_LATEST_TIERED, _EARLIEST_PENDING_UPLOAD):
        return _NONE
    if timestamp_ms in (_LATEST, _EARLIEST, _EARLIEST_LOCAL):
        if timestamp_ms == _LATEST:
            return await log.readable_end(is_committed=is_committed), -1, log.leader_epoch
        await log.bounds()
        start = log.ends.log_start if timestamp_ms == _EARLIEST else log.ends.local_log_start
        return start, -1, log.leader_epoch
    if timestamp_ms == _MAX_TIMESTAMP:
        found = await log.queries.offset_of_max_timestamp()
    else:
        found = await log.queries.offset_for_timestamp(timestamp_ms)
    if found is None:
        return _NONE
    is_limited = is_committed or log.waits_for_replicas
    if is_limited and found[0] >= await log.readable_end(is_committed=is_committed, after=found[0]):
        return _NONE
    return found[0], found[1], log.leader_epoch


def _partition(context: RequestContext, index: int, error: ErrorCode, found: tuple[int, int, int]) -> Any:
    offset, timestamp_ms, leader_epoch = found
    return context.make(
        "ListOffsetsPartitionResponse",
        partition_index=index,
        error_code=error,
        timestamp=timestamp_ms,
        offset=offset,
        leader_epoch=leader_epoch,
    )
