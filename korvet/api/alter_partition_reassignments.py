"""AlterPartitionReassignments (key 45), versions 0-1 (KIP-455).

The leader of a partition is the broker that hashing selects, and its replicas are those of Redis. A request
for these changes nothing; others are refused. v1 adds whether the number of replicas may change (KIP-860).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.api.create_topics import check_replicas
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.topics.errors import InvalidAssignment

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error alone."""
    del request
    return _response(context, error, ())


@api(45, "AlterPartitionReassignments", (0, 1), refuse=refuse)
async def alter_partition_reassignments(context: RequestContext, request: Any) -> Any:
    """Report for each partition whether it already is on the requested brokers: no partition can be moved."""
    if not context.may(Operation.ALTER, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    topics = []
    for topic in request.topics:
        partitions = [_answer(context, topic.name, each) async for each in sliced(topic.partitions)]
        topics.append(
            context.make("ReassignableTopicResponse", name=topic.name, partitions=tuple(partitions))
        )
    return _response(context, ErrorCode.none, tuple(topics))


def _answer(context: RequestContext, name: str, asked: Any) -> Any:
    error, message = _reassign(context, name, asked)
    return context.make(
        "ReassignablePartitionResponse",
        partition_index=asked.partition_index,
        error_code=error,
        error_message=message,
    )


def _reassign(context: RequestContext, name: str, asked: Any) -> tuple[ErrorCode, str | None]:
    topic = context.services.topics.get(name)
    if topic is None or not 0 <= asked.partition_index < topic.partitions:
        return ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."
    if asked.replicas is None:
        return ErrorCode.no_reassignment_in_progress, None
    try:
        check_replicas(context, name, [(asked.partition_index, asked.replicas)])
    except InvalidAssignment as refused:
        return error_code_of(refused), str(refused)
    return ErrorCode.none, None


def _response(context: RequestContext, error: ErrorCode, topics: tuple[Any, ...]) -> Any:
    return context.make(
        "AlterPartitionReassignmentsResponse", error_code=error, error_message=None, responses=topics
    )
