"""DeleteShareGroupOffsets (key 92), version 0.

Lets a share group without members forget topics (KIP-932), and destroys the Redis groups. If it subscribes to
such a topic again, it begins as `share.auto.offset.reset` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.sharing.offsets import group_error, readable_topic
from korvet.api.sharing.requests import OK, Outcome
from korvet.protocol.registry import api
from korvet.security.acls import Operation
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.api.common.context import RequestContext
    from korvet.cluster.topic import Topic

_NOTHING: Final = Outcome(ErrorCode.unknown_topic_or_partition, "There is no offset information to delete.")


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no topics."""
    del request
    return _response(context, Outcome(error))


@api(92, "DeleteShareGroupOffsets", (0, 0), refuse=refuse)
async def delete_share_group_offsets(context: RequestContext, request: Any) -> Any:
    """Remove the states of the topics that exist, all of them or none."""
    error = group_error(context, Operation.DELETE, request.group_id)
    if error is not ErrorCode.none:
        return refuse(context, request, error)
    topics: dict[str, Topic | ErrorCode] = {}
    async for asked in sliced(request.topics):
        topics[asked.topic_name] = readable_topic(context, asked.topic_name)
    known = frozenset(name for name, topic in topics.items() if not isinstance(topic, ErrorCode))
    reply = await context.services.coordinator.sharing.remove(request.group_id, known)
    if reply.error is not ErrorCode.none:
        return _response(context, Outcome(reply.error, reply.error_message))
    removed = {place.topic for place in reply.places}
    return _response(
        context,
        OK,
        [
            _topic(context, name, topic, OK if name in removed else _NOTHING)
            async for name, topic in sliced(topics.items())
        ],
    )


def _topic(context: RequestContext, name: str, topic: Topic | ErrorCode, outcome: Outcome) -> Any:
    if isinstance(topic, ErrorCode):
        topic_id, outcome = None, Outcome(topic)
    else:
        topic_id = topic.topic_id
    return context.make(
        "DeleteShareGroupOffsetsResponseTopic",
        topic_name=name,
        topic_id=topic_id,
        error_code=outcome.error,
        error_message=outcome.message,
    )


def _response(context: RequestContext, outcome: Outcome, topics: Iterable[Any] = ()) -> Any:
    return context.make(
        "DeleteShareGroupOffsetsResponse",
        error_code=outcome.error,
        error_message=outcome.message,
        responses=tuple(topics),
    )
