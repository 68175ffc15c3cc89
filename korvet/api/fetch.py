"""Fetch (key 1), versions 4-18.

Waits for `min_bytes` until `max_wait`. Appends through this broker wake it; the broker polls for entries of
native writers. v4 adds isolation levels, v5 the log start, v7 sessions (KIP-227), v9 leader epochs, v11
racks, v12 is flexible, v13 adds topic IDs, v16 may return new leaders (KIP-951; korvet returns none), v15,
v17 and v18 matter only to replicas.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode
from msgspec.structs import replace

from korvet.api.fetching.full_fetch import FullFetch
from korvet.api.fetching.incremental_fetch import continue_session
from korvet.api.fetching.params import API_KEY, FetchParams, requested_partitions
from korvet.api.fetching.pending_fetch import PendingFetch
from korvet.api.fetching.response import encode_response
from korvet.api.fetching.sessions import SessionError
from korvet.protocol.fetch_request import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    TOPIC_IDS_SINCE,
    decode_fetch,
    requested_partition,
)
from korvet.protocol.registry import ReadQuota, Respond, submit_api

if TYPE_CHECKING:
    from korvet.api.common.context import Client, RequestContext
    from korvet.api.fetching.state import FetchState
    from korvet.protocol.fetch_request import FetchRequest


def refuse(context: RequestContext, request: FetchRequest, error: ErrorCode) -> Any:
    """Every partition with the error."""
    version = context.api_version
    name = "topic_id" if version >= TOPIC_IDS_SINCE else "topic"
    topics = tuple(
        context.make(
            "FetchableTopicResponse",
            **{name: topic.key},
            partitions=tuple(
                context.make(
                    "PartitionData",
                    partition_index=requested_partition(version, entry).index,
                    error_code=error,
                    high_watermark=-1,
                    last_stable_offset=-1,
                    log_start_offset=-1,
                    aborted_transactions=None,
                    preferred_read_replica=-1,
                    records=b"",
                )
                for entry in topic.entries
            ),
        )
        for topic in request.topics
    )
    return context.make("FetchResponse", error_code=ErrorCode.none, session_id=0, responses=topics)


def _limited(request: FetchRequest, most_bytes: int) -> FetchRequest:
    """The request with its limits lowered to `most_bytes`."""
    if request.max_bytes <= most_bytes:
        return request
    return replace(request, max_bytes=most_bytes, min_bytes=min(request.min_bytes, most_bytes))


def _emptied(context: RequestContext, body: list[bytes]) -> list[bytes]:
    """The body that a throttled client gets instead of the one that was just made (KIP-219)."""
    state = context.client.handler_state.fetch
    return body if state is None else state.empty_throttled_response()


@submit_api(
    API_KEY,
    "Fetch",
    (4, 18),
    refuse=refuse,
    decode=decode_fetch,
    read_quota=ReadQuota(_limited, _emptied),
    allowed_wait_ms=attrgetter("max_wait_ms"),
)
def fetch(context: RequestContext, request: FetchRequest, respond: Respond) -> None:
    """Read the partitions, waiting if they hold too little."""
    client, services, version = context.client, context.services, context.api_version
    if client.closed:
        respond(None)
        return
    state = client.handler_state.fetch
    if state is not None:
        state.trace = context.trace
    params = FetchParams.of(version, request, services.config.native_poll_interval_ms)
    epoch = request.session_epoch
    if epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
        _fetch_incrementally(context, request, params, respond)
        return
    if request.session_id != NO_SESSION:
        services.fetch_sessions.close(request.session_id)
        state = client.handler_state.fetch
    opens_session = epoch == INITIAL_EPOCH
    if state is None or opens_session or not state.continues(request, params):
        full = FullFetch(services, client, request, params, opens_session=opens_session)
        state = PendingFetch(services, client, full, params)
    _start(context, state, params, respond)


def _fetch_incrementally(
    context: RequestContext, request: FetchRequest, params: FetchParams, respond: Respond
) -> None:
    """Continue a session. A session that has no partition left, or no room for more, is closed and answered
    as a full fetch.
    """
    client, services, version = context.client, context.services, params.version
    sessions = services.fetch_sessions
    try:
        session = sessions.find(request.session_id, request.session_epoch, by_id=params.names_topics_by_id)
    except SessionError as error:
        _keep(client, None)
        context.failed(error.code)
        respond(encode_response(version, (), error.code))
        return
    state = continue_session(services, client, session, params)
    if request.topics or request.forgotten:
        session.update(requested_partitions(version, request), request.forgotten)
    if not sessions.advance(session, services.deadlines.now() * 1000):
        full = FullFetch(services, client, request, params)
        state = PendingFetch(services, client, full, params)
    _start(context, state, params, respond)


def _start(context: RequestContext, state: FetchState, params: FetchParams, respond: Respond) -> None:
    state.trace = context.trace
    _keep(context.client, state)
    state.start(params, respond)


def _keep(client: Client, state: FetchState | None) -> None:
    """Keep this state for the client's next fetch, and end the last one's."""
    last = client.handler_state.fetch
    if last is not state:
        if last is not None:
            last.release()
        client.handler_state.fetch = state
