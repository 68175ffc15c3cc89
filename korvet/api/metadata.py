"""Metadata (key 3), versions 0-13.

v1 null means all topics, v4 lets the client forbid auto-creation, v8 authorized operations (KIP-430), v10
topic ids (KIP-516), v12 lookup by id, v13 a top-level error. A topic that is made on the way is answered as
if it had existed: it has a leader at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.errors import error_code_of
from korvet.api.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from korvet.protocol.registry import api
from korvet.topics.errors import TopicError

if TYPE_CHECKING:
    from korvet.api.context import RequestContext
    from korvet.storage.catalogue import Topic

LEADER_EPOCH: Final = 0


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every topic asked for with the error."""
    topics = () if request.topics is None else request.topics
    return _response(context, tuple(_failed(context, asked.name, None, error) for asked in topics), error)


@api(3, "Metadata", (0, 13), refuse=refuse)
async def metadata(context: RequestContext, request: Any) -> Any:
    """The broker and the topics asked for."""
    everything = request.topics is None or (context.api_version == 0 and not request.topics)
    operations = NOT_ASKED
    if getattr(request, "include_topic_authorized_operations", False):
        operations = TOPIC_OPERATIONS
    if everything:
        topics = [_found(context, topic, operations) for topic in context.services.topics.all()]
    else:
        may_create = getattr(request, "allow_auto_topic_creation", True)
        # One that is named twice is answered once.
        once = {(getattr(asked, "topic_id", None), asked.name): asked for asked in request.topics}
        topics = [await _one(context, asked, may_create, operations) for asked in once.values()]
    cluster = NOT_ASKED
    if getattr(request, "include_cluster_authorized_operations", False):
        cluster = CLUSTER_OPERATIONS
    return _response(context, tuple(topics), ErrorCode.none, cluster)


async def _one(context: RequestContext, asked: Any, may_create: bool, operations: int) -> Any:
    directory = context.services.topics
    topic_id = getattr(asked, "topic_id", None)
    if asked.name is None:
        topic = None if topic_id is None else directory.by_id(topic_id)
        if topic is None:
            return _failed(context, None, topic_id, ErrorCode.unknown_topic_id)
        return _found(context, topic, operations)
    topic = directory.get(asked.name)
    if topic is None:
        if not (may_create and context.services.config.auto_create_topics_enable):
            error = ErrorCode.unknown_topic_or_partition
            try:
                directory.check_name(asked.name)
            except TopicError as refused:
                error = error_code_of(refused)
            return _failed(context, asked.name, None, error)
        try:
            topic = await directory.get_or_create(asked.name)
        except TopicError as refused:
            return _failed(context, asked.name, None, error_code_of(refused))
    return _found(context, topic, operations)


def _found(context: RequestContext, topic: Topic, operations: int) -> Any:
    node = (context.services.config.node_id,)
    partitions = tuple(
        context.make(
            "MetadataResponsePartition",
            error_code=ErrorCode.none,
            partition_index=index,
            leader_id=node[0],
            leader_epoch=LEADER_EPOCH,
            replica_nodes=node,
            isr_nodes=node,
            offline_replicas=(),
        )
        for index in range(topic.partitions)
    )
    return context.make(
        "MetadataResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=operations,
    )


def _failed(context: RequestContext, name: str | None, topic_id: Any, error: ErrorCode) -> Any:
    if name is None and context.api_version < 12:
        name = ""
    return context.make(
        "MetadataResponseTopic",
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=(),
        topic_authorized_operations=NOT_ASKED,
    )


def _response(
    context: RequestContext, topics: tuple[Any, ...], error: ErrorCode, cluster_operations: int = NOT_ASKED
) -> Any:
    services = context.services
    broker = context.make(
        "MetadataResponseBroker",
        node_id=services.config.node_id,
        host=services.endpoint.host,
        port=services.endpoint.port,
        rack=None,
    )
    return context.make(
        "MetadataResponse",
        brokers=(broker,),
        cluster_id=services.cluster_id,
        controller_id=services.config.node_id,
        topics=topics,
        cluster_authorized_operations=cluster_operations,
        error_code=error,
    )
