"""DeleteTopics (key 20), versions 1-6.

Writes tombstones for the topic's committed offsets before it deletes the streams. v4 is flexible, v5 adds an
error message, v6 deletion by topic ID (KIP-516).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.coordinator.service import CoordinatorError
from korvet.protocol.registry import api
from korvet.quotas.throttle import MutationsExceeded
from korvet.redis.errors import NotReplicated, StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import gathered
from korvet.topics.errors import TopicError

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_BY_STATE_SINCE: Final = 6
# Limits the wait for groups and other brokers, which may wait for replicas.
_LONGEST_WAIT_S: Final = 10.0


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every topic with the error."""
    results = (_result(context, name, topic_id, error, None) for name, topic_id in _asked(context, request))
    return context.make("DeleteTopicsResponse", responses=tuple(results))


@api(20, "DeleteTopics", (1, 6), refuse=refuse, changes_shared=True, strict_quota_since=5)
async def delete_topics(context: RequestContext, request: Any) -> Any:
    """Delete the topics, each on its own."""
    asked = _asked(context, request)
    times = Counter(_named(context, name, topic_id) for name, topic_id in asked)
    deadline_s = asyncio.get_running_loop().time() + _LONGEST_WAIT_S

    async def answer(name: str | None, topic_id: Any) -> Any:
        twice = times[_named(context, name, topic_id)] > 1
        if twice or (name is None) == (topic_id is None):
            message = "Name each topic once, by name or by id."
            return _result(context, name, topic_id, ErrorCode.invalid_request, message)
        return await _delete(context, name, topic_id, deadline_s)

    results = await gathered(answer(name, topic_id) for name, topic_id in dict.fromkeys(asked))
    return context.make("DeleteTopicsResponse", responses=tuple(results))


async def _delete(context: RequestContext, name: str | None, topic_id: Any, deadline_s: float) -> Any:
    directory = context.services.topics
    topic = directory.by_id(topic_id) if name is None else directory.get(name)
    asked = name if topic is None else topic.name
    if asked is not None and not _may_delete(context, asked):
        # The response to an ID contains the name only for clients that may see it.
        told = asked if context.may(Operation.DESCRIBE, ResourceType.TOPIC, asked) else name
        denied = ErrorCode.topic_authorization_failed
        return _result(context, told, topic_id, denied, "Topic authorization failed.")
    if topic is None:
        error = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
        return _result(context, name, topic_id, error, "This server does not host this topic.")
    try:
        context.mutate(topic.partitions)
        await directory.delete(topic.name, deadline_s)
    except (CoordinatorError, NotReplicated, TimeoutError):
        message = "The deletion goes on: not all brokers, groups and replicas have forgotten the topic yet."
        return _result(context, topic.name, topic.topic_id, ErrorCode.request_timed_out, message)
    except (TopicError, MutationsExceeded, StorageError) as refused:
        return _result(context, topic.name, topic.topic_id, error_code_of(refused), str(refused))
    return _result(context, topic.name, topic.topic_id, ErrorCode.none, None)


def _named(context: RequestContext, name: str | None, topic_id: Any) -> Any:
    """What the topic is known by, so that one that is named in both ways is seen to be one."""
    topic = context.services.topics.by_id(topic_id) if name is None else None
    return (name, topic_id) if topic is None else (topic.name, None)


def _asked(context: RequestContext, request: Any) -> list[tuple[str | None, Any]]:
    if context.api_version >= _BY_STATE_SINCE:
        return [(state.name, state.topic_id) for state in request.topics]
    return [(name, None) for name in request.topic_names]


def _result(
    context: RequestContext, name: str | None, topic_id: Any, error: ErrorCode, message: str | None
) -> Any:
    return context.make(
        "DeletableTopicResult", name=name, topic_id=topic_id, error_code=error, error_message=message
    )


def _may_delete(context: RequestContext, name: str) -> bool:
    return context.may(Operation.DELETE, ResourceType.CLUSTER) or context.may(
        Operation.DELETE, ResourceType.TOPIC, name
    )
