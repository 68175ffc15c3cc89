"""AlterReplicaLogDirs (key 34), versions 1-2 (KIP-113).

A broker has one log directory, the one that DescribeLogDirs returns. A move to another one returns
LOG_DIR_NOT_FOUND. v2 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.describe_log_dirs import log_dir
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    return _response(context, request, lambda path, topic, index: error)


@api(34, "AlterReplicaLogDirs", (1, 2), refuse=refuse)
async def alter_replica_log_dirs(context: RequestContext, request: Any) -> Any:
    """Report for each partition whether it already is in the requested directory: there is one only."""
    if not context.may(Operation.ALTER, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)

    def move(path: str, topic: str, index: int) -> ErrorCode:
        if path != log_dir(context):
            return ErrorCode.log_dir_not_found
        log = context.services.topics.log(topic, index)
        if log is None:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.not_leader_or_follower if log.closed else ErrorCode.none

    asked = (
        (directory.path, topic.name, index)
        for directory in request.dirs
        for topic in directory.topics
        for index in topic.partitions
    )
    errors = {each: move(*each) async for each in sliced(asked)}
    return _response(context, request, lambda *each: errors[each])


def _response(context: RequestContext, request: Any, judge: Callable[[str, str, int], ErrorCode]) -> Any:
    results = tuple(
        context.make(
            "AlterReplicaLogDirTopicResult",
            topic_name=topic.name,
            partitions=tuple(
                context.make(
                    "AlterReplicaLogDirPartitionResult",
                    partition_index=index,
                    error_code=judge(directory.path, topic.name, index),
                )
                for index in topic.partitions
            ),
        )
        for directory in request.dirs
        for topic in directory.topics
    )
    return context.make("AlterReplicaLogDirsResponse", results=results)
