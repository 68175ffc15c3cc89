"""DescribeShareGroupOffsets (key 90), versions 0-1.

Where share groups begin in their partitions (KIP-932). v1 adds the lag (KIP-1226): records that are neither
accepted nor archived, without markers of transactions that members have passed. As in Kafka, partitions that
the group does not have, also those of unknown topics, have the offset -1 and no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.sharing.offsets import group_error
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import gathered, sliced

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from korvet.api.common.context import RequestContext
    from korvet.groups.share.messages import SharePartition


class _Offset(NamedTuple):
    start: int = -1
    leader_epoch: int = 0
    lag: int = -1
    error: ErrorCode = ErrorCode.none


_NONE: Final = _Offset()
_DENIED: Final = _Offset(error=ErrorCode.topic_authorization_failed)


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every group with the error."""
    groups = tuple(_group(context, asked.group_id, error) for asked in request.groups)
    return context.make("DescribeShareGroupOffsetsResponse", groups=groups)


@api(90, "DescribeShareGroupOffsets", (0, 1), refuse=refuse)
async def describe_share_group_offsets(context: RequestContext, request: Any) -> Any:
    """Start offset and lag of the partitions that the request names, or of all that the groups have."""
    groups = []
    async for asked in sliced(request.groups):
        error = group_error(context, Operation.DESCRIBE, asked.group_id)
        if error is ErrorCode.none:
            groups.append(await _described(context, asked))
        else:
            groups.append(_group(context, asked.group_id, error))
    return context.make("DescribeShareGroupOffsetsResponse", groups=tuple(groups))


async def _described(context: RequestContext, asked: Any) -> Any:
    found = await context.services.coordinator.sharing.of(asked.group_id)
    if found.error is not ErrorCode.none:
        return _group(context, asked.group_id, found.error)
    places = {(place.topic, place.partition): place for place in found.places}
    if asked.topics is None:
        wanted: dict[str, list[int]] = {}
        for name, index in places:
            if _may_describe(context, name):
                wanted.setdefault(name, []).append(index)
    else:
        wanted = {topic.topic_name: list(topic.partitions) for topic in asked.topics}
    topics = []
    async for name, indexes in sliced(wanted.items()):
        offsets = await gathered(_offset(context, places, name, index) for index in indexes)
        topics.append(_topic(context, name, dict(zip(indexes, offsets, strict=True))))
    return _group(context, asked.group_id, ErrorCode.none, topics)


def _may_describe(context: RequestContext, name: str) -> bool:
    return context.may(Operation.DESCRIBE, ResourceType.TOPIC, name)


async def _offset(
    context: RequestContext, places: Mapping[tuple[str, int], SharePartition], name: str, index: int
) -> _Offset:
    if not _may_describe(context, name):
        return _DENIED
    place = places.get((name, index))
    if place is None:
        return _NONE
    try:
        view = await context.services.coordinator.sharing.view(place)
    except StorageError as error:
        return _Offset(error=error_code_of(error, Asked.COORDINATOR))
    if view is None:
        return _NONE
    return _Offset(view.start, context.services.leadership.assignment.leader(name, index).epoch, view.lag)


def _topic(context: RequestContext, name: str, offsets: Mapping[int, _Offset]) -> Any:
    topic = context.services.topics.get(name) if _may_describe(context, name) else None
    partitions = tuple(
        context.make(
            "DescribeShareGroupOffsetsResponsePartition",
            partition_index=index,
            start_offset=offset.start,
            leader_epoch=offset.leader_epoch,
            lag=offset.lag,
            error_code=offset.error,
            error_message=None,
        )
        for index, offset in offsets.items()
    )
    return context.make(
        "DescribeShareGroupOffsetsResponseTopic",
        topic_name=name,
        topic_id=None if topic is None else topic.topic_id,
        partitions=partitions,
    )


def _group(context: RequestContext, group_id: str, error: ErrorCode, topics: Iterable[Any] = ()) -> Any:
    return context.make(
        "DescribeShareGroupOffsetsResponseGroup",
        group_id=group_id,
        topics=tuple(topics),
        error_code=error,
        error_message=None,
    )
