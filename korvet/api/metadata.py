"""Metadata (key 3), versions 0-13.

A topic that the request creates has a leader at once, and is returned like an existing one; with
LEADER_NOT_AVAILABLE if replicas that `min.insync.replicas` asks for lack it. Replicas of Redis are shown as
replicas of the partition; their node IDs, from 1,000,000,001 on, are not in the list of brokers. In v1 null
means all topics; v4 lets the client forbid auto-creation, v8 adds authorized operations (KIP-430), v9 is
flexible, v10 adds topic IDs (KIP-516), v12 lookup by ID, v13 a top-level error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.api.common.metadata_response import encode_partitions, encode_response, encode_topic
from korvet.api.common.operations import NOT_ASKED, cluster_operations, operations_on
from korvet.api.common.replicas import copies_of
from korvet.protocol.registry import api
from korvet.redis.clock import steady_s
from korvet.redis.errors import NotReplicated
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.topics.errors import NameCollision, TopicError
from korvet.topics.internal import INTERNAL_TOPICS, METADATA_TOPIC

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.cluster.assignment import Assignment
    from korvet.cluster.topic import Topic

_NULL_NAMES_SINCE: Final = 12
# Requests of these versions have the field, but must not name topics by ID.
_IDS_REFUSED: Final = (10, 11)


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every topic asked for with the error."""
    services = context.services
    assignment = services.leadership.assignment
    brokers = tuple(
        context.make("MetadataResponseBroker", node_id=node_id, host=host, port=port, rack=None)
        for node_id, host, port in assignment.endpoints(context.client.listener)
    )
    topics = tuple(
        context.make(
            "MetadataResponseTopic",
            error_code=error,
            name=_name(context, asked.name),
            topic_id=getattr(asked, "topic_id", None),
            is_internal=asked.name in INTERNAL_TOPICS,
            partitions=(),
            topic_authorized_operations=NOT_ASKED,
        )
        for asked in request.topics or ()
    )
    return context.make(
        "MetadataResponse",
        brokers=brokers,
        cluster_id=services.cluster_id,
        controller_id=assignment.controller.node_id,
        topics=topics,
        cluster_authorized_operations=NOT_ASKED,
        error_code=error,
    )


@api(3, "Metadata", (0, 13), refuse=refuse)
async def metadata(context: RequestContext, request: Any) -> list[bytes]:
    """The live brokers and the topics asked for."""
    if context.api_version in _IDS_REFUSED and any(each.topic_id for each in request.topics or ()):
        return [context.encode(refuse(context, request, ErrorCode.invalid_request))]
    everything = request.topics is None or (context.api_version == 0 and not request.topics)
    tells_operations = getattr(request, "include_topic_authorized_operations", False)
    if everything:
        answers: list[Topic | bytes] = [
            topic
            async for topic in sliced(context.services.topics.listed())
            if context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        ]
    else:
        may_create = getattr(request, "allow_auto_topic_creation", True)
        answers = await _named(context, request.topics, may_create)
    cluster = NOT_ASKED
    if getattr(request, "include_cluster_authorized_operations", False):
        cluster = cluster_operations(context)
    # From one version of the assignment, so that each leader is among the brokers.
    assignment = context.services.leadership.assignment
    brokers = context.services.leadership.endpoints(context.client.listener, steady_s())
    topics = [
        answer if isinstance(answer, bytes) else _found(context, assignment, answer, tells_operations)
        async for answer in sliced(answers)
    ]
    body = encode_response(
        context.api_version,
        brokers,
        assignment.controller.node_id,
        context.services.cluster_id,
        topics,
        operations=cluster,
    )
    return [body]


async def _named(context: RequestContext, topics: Any, may_create: bool) -> list[Topic | bytes]:
    """The topics that are named by name or ID, each of them once, as in Kafka."""
    # If there is an ID, it counts and the name does not.
    once = {getattr(asked, "topic_id", None) or asked.name: asked for asked in topics}
    answers: dict[Any, Topic | bytes] = {}
    async for key, asked in sliced(once.items()):
        answer = await _one(context, asked, may_create)
        answers[key if isinstance(answer, bytes) else answer.name] = answer
    return list(answers.values())


async def _one(context: RequestContext, asked: Any, may_create: bool) -> Topic | bytes:
    """The topic, or an encoded refusal."""
    directory = context.services.topics
    topic_id = getattr(asked, "topic_id", None)
    if asked.name is None or topic_id is not None:
        topic = None if topic_id is None else directory.by_id(topic_id)
        topic = topic or await directory.look_again(None, topic_id)
        if topic is None:
            return _failed(context, None, topic_id, ErrorCode.unknown_topic_id)
        if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            # The response must not contain the name, which the client may not see.
            return _failed(context, None, topic_id, ErrorCode.topic_authorization_failed)
        return topic
    if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, asked.name):
        return _failed(context, asked.name, None, ErrorCode.topic_authorization_failed)
    topic = directory.get(asked.name) or await directory.look_again(asked.name, None)
    if topic is None:
        may_create = may_create and asked.name != METADATA_TOPIC
        if not (may_create and context.services.config.auto_create_topics_enable):
            try:
                directory.check_name(asked.name)
            except TopicError as refused:
                return _failed(context, asked.name, None, _error(context, refused))
            return _failed(context, asked.name, None, ErrorCode.unknown_topic_or_partition)
        if not (
            context.may(Operation.CREATE, ResourceType.CLUSTER)
            or context.may(Operation.CREATE, ResourceType.TOPIC, asked.name)
        ):
            return _failed(context, asked.name, None, ErrorCode.topic_authorization_failed)
        writes = context.services.shared_writes
        before = writes.before()
        try:
            topic = await directory.get_or_create(asked.name)
            # In a cluster, another server would acknowledge records of a topic that a failover can take away.
            await writes.replicated(before)
        except TopicError as refused:
            return _failed(context, asked.name, None, _error(context, refused))
        except NotReplicated:
            return _failed(context, asked.name, None, ErrorCode.leader_not_available)
    return topic


def _error(context: RequestContext, refused: TopicError) -> ErrorCode:
    """Why there is no such topic. A topic that the client may not see is not given as the reason."""
    if isinstance(refused, NameCollision) and not context.may(
        Operation.DESCRIBE, ResourceType.TOPIC, refused.other
    ):
        return ErrorCode.unknown_topic_or_partition
    return error_code_of(refused)


def _found(context: RequestContext, assignment: Assignment, topic: Topic, tells_operations: bool) -> bytes:
    led, version = context.services.topics.target(topic).name, context.api_version
    return encode_topic(
        version,
        topic.name,
        topic.topic_id,
        partitions=encode_partitions(version, assignment, led, topic.partitions, copies_of(context, topic)),
        count=topic.partitions,
        internal=topic.internal,
        operations=operations_on(context, ResourceType.TOPIC, topic.name) if tells_operations else NOT_ASKED,
    )


def _failed(context: RequestContext, name: str | None, topic_id: Any, error: ErrorCode) -> bytes:
    context.failed(error)
    return encode_topic(
        context.api_version,
        _name(context, name),
        topic_id,
        error=error,
        internal=name in INTERNAL_TOPICS,
        operations=NOT_ASKED,
    )


def _name(context: RequestContext, name: str | None) -> str | None:
    return "" if name is None and context.api_version < _NULL_NAMES_SINCE else name
