"""Lets requests meet the faults of a table where they enter their handlers."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from msgspec.structs import replace

from korvet.faults.entries import divide, merged
from korvet.faults.table import Action
from korvet.protocol.fetch_request import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION
from korvet.protocol.response_errors import errors_in
from korvet.protocol.schemas import response_class

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from korvet.api.common.context import Client, RequestContext
    from korvet.faults.entries import Divided
    from korvet.faults.table import Counted, FaultTable
    from korvet.protocol.fetch_request import FetchRequest
    from korvet.protocol.registry import Api, Respond
    from korvet.topics.directory import TopicDirectory

log = logging.getLogger(__name__)

_PRODUCE: Final = 0
_FETCH: Final = 1
# Errors of a whole fetch session, not of partitions.
_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.invalid_fetch_session_epoch,
        ErrorCode.fetch_session_topic_id_error,
    }
)


class Handled(NamedTuple):
    """What a handler gets of a request."""

    request: Any
    """None if it gets nothing."""
    respond: Respond


class Injector:
    """Applies faults to the requests of a broker."""

    def __init__(self, faults: FaultTable, topics: TopicDirectory) -> None:
        self._faults = faults
        self._topics = topics
        self._loop = asyncio.get_running_loop()

    def meet(self, api: Api, context: RequestContext, request: Any, respond: Respond) -> Handled:
        """Let a request meet the first fault that matches it. Returns what is left to handle."""
        if not self._faults:
            return Handled(request, respond)
        armed = self._faults.armed(api.name, context.client_id)
        if armed and api.key == _FETCH and any(map(_needs_partitions, armed)):
            request, is_complete = _without_session(request)
            if not is_complete:
                return Handled(request, respond)
        for counted in armed:
            parts = divide(request, counted.fault, self._name_of)
            if parts.matched is None:
                continue
            handled = self._apply(counted, api, context, request, parts, respond)
            if handled is not None:
                self._faults.meet(counted.number)
                log.info(
                    "%s v%d of client %r meets fault %d: %s",
                    api.name,
                    context.api_version,
                    context.client_id,
                    counted.number,
                    counted.fault.action.value,
                )
                return handled
        return Handled(request, respond)

    def _name_of(self, topic_id: UUID) -> str | None:
        topic = self._topics.by_id(topic_id)
        return None if topic is None else topic.name

    def _apply(
        self,
        counted: Counted,
        api: Api,
        context: RequestContext,
        request: Any,
        parts: Divided,
        respond: Respond,
    ) -> Handled | None:
        """None if the response has no place for the error: the request does not meet the fault."""
        fault, client = counted.fault, context.client
        match fault.action:
            case Action.FAIL:
                assert fault.error is not None
                return _fail(api, context, parts, fault.error, respond)
            case Action.DELAY:
                return Handled(request, partial(self._respond_late, fault.delay_ms / 1000, respond))
            case Action.DISCONNECT:
                _disconnect(client, respond, None)
                return Handled(None, respond)
            case Action.IGNORE:
                silent = partial(respond, None)
                client.on_disconnect(silent)
                return Handled(None, silent)
            case Action.LOSE_ANSWER:
                return Handled(request, partial(_disconnect, client, respond))

    def _respond_late(self, delay_s: float, respond: Respond, body: list[bytes] | None) -> None:
        self._loop.call_later(delay_s, respond, body)


def _fail(
    api: Api, context: RequestContext, parts: Divided, error: ErrorCode, respond: Respond
) -> Handled | None:
    if api.key == _FETCH and error in _SESSION_ERRORS:
        refused = context.make("FetchResponse", error_code=error, session_id=NO_SESSION, responses=())
    else:
        refused = api.refuse(context, parts.matched, error)
    if not any(errors_in(refused)):
        return None
    if api.key == _PRODUCE and parts.matched.acks == 0:
        # As in Kafka: only a closed connection tells the client.
        context.count_errors(refused)
        closing = partial(_disconnect, context.client, respond)
        if parts.others is None:
            closing(None)
        return Handled(parts.others, closing)
    if parts.others is None:
        respond([context.encode(refused)])
        return Handled(None, respond)
    context.count_errors(refused)
    others = parts.others
    if api.key == _FETCH:
        # Errors do not wait for records.
        others = replace(others, max_wait_ms=0)
    return Handled(others, partial(_respond_with, api, context, refused, respond))


def _respond_with(
    api: Api, context: RequestContext, refused: Any, respond: Respond, body: Sequence[bytes] | None
) -> None:
    """Respond to a request of which a part was refused. `body`: the response to the other part."""
    if body is None:
        respond(None)
        return
    schema = response_class(api.key, context.api_version)
    response, _ = entity_reader(schema)(memoryview(b"".join(body)), 0)
    respond([context.schema.encode(merged(response, refused))])


def _disconnect(client: Client, respond: Respond, body: Sequence[bytes] | None) -> None:
    """Close the connection in place of a response."""
    del body
    client.close("a test asks for it")
    respond(None)


def _needs_partitions(counted: Counted) -> bool:
    """Whether a fault of Fetch is one of partitions."""
    fault = counted.fault
    is_error = fault.action is Action.FAIL and fault.error not in _SESSION_ERRORS
    return fault.topic is not None or is_error


def _without_session(request: FetchRequest) -> tuple[FetchRequest, bool]:
    """A fetch that opens no session, and whether it names all its partitions. One that continues a session
    names the changed ones only; it becomes one of an unknown session, after which clients name all.
    """
    if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        return replace(request, session_epoch=FINAL_EPOCH), True
    return replace(request, session_id=NO_SESSION), False
