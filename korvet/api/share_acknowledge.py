"""ShareAcknowledge (key 79), versions 1-2.

Acknowledges records of share groups (KIP-932), within the share session that ShareFetch opens. With
`share.version` 0 it is refused (KIP-584). v2 adds renewals of locks (KIP-1222).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.sharing.requests import OK, Leaders, Outcome, acknowledge, by_topic, denial, named_partitions
from korvet.api.sharing.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSessionError
from korvet.protocol.registry import api
from korvet.redis.clock import steady_s
from korvet.slices import gathered, sliced

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.api.common.context import RequestContext
    from korvet.api.sharing.sessions import SharedKey


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error."""
    del request
    return _make(context, Outcome(error), (), 0, ())


@api(79, "ShareAcknowledge", (1, 2), refuse=refuse)
async def share_acknowledge(context: RequestContext, request: Any) -> Any:
    """Apply the acknowledgements of each partition, all or none of them."""
    refusal = denial(context, request)
    if refusal is not None:
        return await _response(context, refusal, {}, 0)
    sharing, group, member = context.services.sharing, request.group_id, request.member_id
    config = sharing.config(group)
    epoch = request.share_session_epoch
    try:
        if epoch == INITIAL_EPOCH:
            raise ShareSessionError(ErrorCode.invalid_share_session_epoch)
        if epoch == FINAL_EPOCH:
            sharing.find(group, member)
        else:
            sharing.advance(group, member, epoch, context.client)
        named = named_partitions(request.topics)
        outcomes = await gathered(
            acknowledge(context, request, config, key, batches) for key, batches in named.items()
        )
        if epoch == FINAL_EPOCH:
            await sharing.close(group, member)
    except ShareSessionError as error:
        return await _response(context, Outcome(error.code), {}, 0)
    found = dict(zip(named, outcomes, strict=True))
    return await _response(context, OK, found, config.limits.lock_ms)


async def _response(
    context: RequestContext, outcome: Outcome, partitions: Mapping[SharedKey, Outcome], lock_ms: int
) -> Any:
    leaders = Leaders(context, steady_s())
    structures = {}
    async for key, one in sliced(partitions.items()):
        structures[key] = context.make(
            "PartitionData",
            partition_index=key[1],
            error_code=one.error,
            error_message=one.message,
            current_leader=leaders.of(key, one),
        )
    topics = tuple(
        context.make("ShareAcknowledgeTopicResponse", topic_id=topic_id, partitions=tuple(found))
        for topic_id, found in by_topic(structures).items()
    )
    return _make(context, outcome, topics, lock_ms, leaders.endpoints())


def _make(
    context: RequestContext,
    outcome: Outcome,
    topics: tuple[Any, ...],
    lock_ms: int,
    endpoints: tuple[Any, ...],
) -> Any:
    return context.make(
        "ShareAcknowledgeResponse",
        error_code=outcome.error,
        error_message=outcome.message,
        acquisition_lock_timeout=datetime.timedelta(milliseconds=lock_ms),
        responses=topics,
        node_endpoints=endpoints,
    )
