"""DescribeQuorum (key 55), versions 0-2 (KIP-595).

Redis holds the metadata, so the quorum is the controller alone, and the other brokers are observers that
know all. The offsets are versions of the assignment. v1 adds times (KIP-836), v2 addresses and directories
(KIP-853).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.topics.internal import METADATA_TOPIC

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_NOT_HERE: Final = "This server does not host this topic-partition."
_NO_DIRECTORY: Final = uuid.UUID(int=0)


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no partitions."""
    del request
    return context.make("DescribeQuorumResponse", error_code=error, error_message=None, topics=(), nodes=())


@api(55, "DescribeQuorum", (0, 2), refuse=refuse)
async def describe_quorum(context: RequestContext, request: Any) -> Any:
    """The voters and observers of the cluster's metadata."""
    if not context.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    topics = []
    async for topic in sliced(request.topics):
        # A partition that is repeated is answered once.
        indexes = dict.fromkeys(asked.partition_index for asked in topic.partitions)
        partitions = [_partition(context, topic.topic_name, index) async for index in sliced(indexes)]
        topics.append(context.make("TopicData", topic_name=topic.topic_name, partitions=tuple(partitions)))
    known = any(part.error_code is ErrorCode.none for topic in topics for part in topic.partitions)
    return context.make(
        "DescribeQuorumResponse",
        error_code=ErrorCode.none,
        error_message="",
        topics=tuple(topics),
        nodes=_nodes(context) if known and context.schema.has("DescribeQuorumResponse", "nodes") else (),
    )


def _partition(context: RequestContext, topic: str, index: int) -> Any:
    if (topic, index) != (METADATA_TOPIC, 0):
        return context.make(
            "PartitionData",
            partition_index=index,
            error_code=ErrorCode.unknown_topic_or_partition,
            error_message=_NOT_HERE,
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
            current_voters=(),
            observers=(),
        )
    assignment = context.services.leadership.assignment
    controller = assignment.controller.node_id
    others = [broker.node_id for broker in assignment.brokers if broker.node_id != controller]
    return context.make(
        "PartitionData",
        partition_index=index,
        error_code=ErrorCode.none,
        error_message="",
        leader_id=controller,
        leader_epoch=assignment.version,
        high_watermark=assignment.version,
        current_voters=(_replica(context, controller),),
        observers=tuple(_replica(context, node_id) for node_id in others),
    )


def _replica(context: RequestContext, node_id: int) -> Any:
    services = context.services
    now_ms = services.clock_ns() // 1_000_000
    return context.make(
        "ReplicaState",
        replica_id=node_id,
        replica_directory_id=_NO_DIRECTORY,
        log_end_offset=services.leadership.assignment.version,
        last_fetch_timestamp=now_ms,
        last_caught_up_timestamp=now_ms,
    )


def _nodes(context: RequestContext) -> tuple[Any, ...]:
    assignment = context.services.leadership.assignment
    name, controller = context.client.listener, assignment.controller.node_id
    return tuple(
        context.make(
            "Node",
            node_id=node_id,
            listeners=(context.make("Listener", name=name, host=host, port=port),),
        )
        for node_id, host, port in assignment.endpoints(name)
        if node_id == controller
    )
