"""CreatePartitions (key 37), versions 0-3 (KIP-195).

Existing partitions don't change. Internal topics are refused, because their partition count decides which
partition stores a group or a transaction. v2 is flexible, v3 may be throttled (KIP-599).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.api.create_topics import check_replicas
from korvet.protocol.registry import api
from korvet.quotas.throttle import MutationsExceeded
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.topics.directory import MAX_PARTITIONS, TOO_MANY
from korvet.topics.errors import InvalidAssignment, TooManyPartitions, TopicError

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every topic with the error."""
    results = tuple(_result(context, asked.name, error, None) for asked in request.topics)
    return context.make("CreatePartitionsResponse", results=results)


@api(37, "CreatePartitions", (0, 3), refuse=refuse, changes_shared=True, strict_quota_since=3)
async def create_partitions(context: RequestContext, request: Any) -> Any:
    """Grow the topics to the counts asked for, each on its own."""
    times = Counter(asked.name for asked in request.topics)
    results = [
        _result(context, name, ErrorCode.invalid_request, f"Duplicate topic name: {name}")
        for name, count in times.items()
        if count > 1
    ]
    too_many = sum(_added(context, asked) for asked in request.topics) > MAX_PARTITIONS
    async for asked in sliced(request.topics):
        if times[asked.name] > 1:
            continue
        if not context.may(Operation.ALTER, ResourceType.TOPIC, asked.name):
            results.append(_result(context, asked.name, ErrorCode.topic_authorization_failed, None))
            continue
        try:
            if too_many:
                raise TooManyPartitions(TOO_MANY)
            _check_assignments(context, asked)
            topic = context.services.topics.get(asked.name)
            if topic is not None and asked.count > topic.partitions:
                context.mutate(asked.count - topic.partitions)
            await context.services.topics.add_partitions(
                asked.name, asked.count, validate_only=request.validate_only
            )
        except (TopicError, MutationsExceeded, StorageError) as refused:
            results.append(_result(context, asked.name, error_code_of(refused), str(refused)))
        else:
            results.append(_result(context, asked.name, ErrorCode.none, None))
    return context.make("CreatePartitionsResponse", results=tuple(results))


def _added(context: RequestContext, asked: Any) -> int:
    """The number of partitions that the request adds to a topic, if it is valid."""
    topic = context.services.topics.get(asked.name)
    if not context.may(Operation.ALTER, ResourceType.TOPIC, asked.name):
        return 0
    return 0 if topic is None else max(asked.count - topic.partitions, 0)


def _check_assignments(context: RequestContext, asked: Any) -> None:
    topic = context.services.topics.get(asked.name)
    if asked.assignments is None or topic is None or asked.count <= topic.partitions:
        return
    if len(asked.assignments) != asked.count - topic.partitions:
        raise InvalidAssignment(
            f"{asked.count - topic.partitions} partitions are to be added, {len(asked.assignments)} assigned"
        )
    check_replicas(
        context,
        asked.name,
        [(index, each.broker_ids) for index, each in enumerate(asked.assignments, topic.partitions)],
    )


def _result(context: RequestContext, name: str, error: ErrorCode, message: str | None) -> Any:
    return context.make("CreatePartitionsTopicResult", name=name, error_code=error, error_message=message)
