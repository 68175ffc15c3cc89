"""Decodes a frame, calls the handler of its API, and encodes what the handler returns."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.audit import audit
from korvet.api.common.authentication import evaluate, why_untimely
from korvet.api.common.context import RequestContext
from korvet.api.common.errors import asked_by, error_code_of
from korvet.causes import Causes
from korvet.logs import fields
from korvet.metrics.counted import Counted, counters
from korvet.protocol import registry
from korvet.protocol.headers import parse_header, peek_api, response_header
from korvet.protocol.messages import request_schema, response_schema
from korvet.security.errors import SaslFailure
from korvet.security.sasl import State
from korvet.server.busy_polling import BusyPolling, usable_processors
from korvet.server.request_log import RequestLog
from korvet.server.throttle import ThrottledSlot
from korvet.server.turns import Turns
from korvet.slices import sliced
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.api.common.context import Client
    from korvet.api.common.services import Services
    from korvet.quotas.limits import Limit
    from korvet.server.backpressure import Backpressure
    from korvet.server.connection import Connection
    from korvet.server.response_slot import PendingResponse, ResponseSlot

log = logging.getLogger(__name__)
causes = Causes(log)

# Processors from which on one may poll: Redis and the clients need another one.
_POLLING_PROCESSORS: Final = 2
# Interval of looks whether all producers are answered, at the end of the broker.
_ANSWER_POLL_S: Final = 0.002
_UNSUPPORTED: Final = struct.pack(">h", ErrorCode.unsupported_version)


class Dispatcher(Counted):
    """Decodes requests, runs their handlers and encodes the responses."""

    failures = counters(
        "korvet_request_exceptions_total",
        "Unexpected exceptions of request handlers, which clients see as UNKNOWN_SERVER_ERROR, by API.",
        "api",
    )

    def __init__(self, services: Services, backpressure: Backpressure) -> None:
        super().__init__()
        self.services = services
        """The broker's parts for handlers."""
        self._quotas = services.quotas
        self.backpressure = backpressure
        self.check_lease: Callable[[], None] = services.check_lease
        """See Dispatch."""
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self.turns = Turns(self.at_turn_end)
        """See Dispatch."""
        busy_poll_us = services.config.busy_poll_us if usable_processors() >= _POLLING_PROCESSORS else 0
        self.note_event: Callable[[], None] = BusyPolling(busy_poll_us, self.at_turn_end).note
        """See Dispatch."""
        self.requests = services.requests
        """What is counted of the requests of each API."""
        self._counts = services.requests.by_key
        self.request_log = RequestLog(services)

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        """Call back at the end of the event loop's current iteration."""
        self._loop.call_soon(callback)

    def __call__(self, connection: Connection, frame: memoryview, slot: ResponseSlot) -> None:
        """Handle one frame. Its slot is called now or later.

        Raises MalformedRequest for a frame that is not a request.
        """
        sasl = connection.session.sasl
        if sasl is not None and sasl.takes_raw_token:
            self._take_raw_token(connection, bytes(frame), slot)
            return
        began_s = perf_counter()
        api_key, api_version, correlation_id = peek_api(frame)
        untimely = sasl is not None and not sasl.admits(api_key, time.monotonic())
        if sasl is not None and untimely and sasl.state is not State.TOKENS:
            if sasl.state is State.AUTHENTICATED:
                connection.counts.expired += 1
            connection.close(why_untimely(sasl, api_key))
            return
        api = registry.find(api_key)
        if api is None or not api.min_version <= api_version <= api.max_version:
            slot.header = response_header(correlation_id, flexible=False)
            if api is not None:
                self._counts[api_key].failed(ErrorCode.unsupported_version)
            unsupported = None if api is None else api.unsupported
            slot([_UNSUPPORTED if unsupported is None else unsupported()])
            return
        requests, responses = request_schema(api_key, api_version), response_schema(api_key, api_version)
        client_id, position = parse_header(frame, requests.flexible)
        if api.decode is None:
            request = requests.decode(frame, position)
        else:
            request = api.decode(frame, position, api_version)
        counts, place = self._counts[api_key], slot.place
        place.counts, place.began_s = counts, began_s
        place.timing = counts.received(api_version, place.held_since_s, began_s)
        context = RequestContext(self.services, responses, api_version, client_id, connection, counts)
        slot.header = response_header(correlation_id, responses.flexible)
        request_log = self.request_log
        if request_log.active:
            place.trace = context.trace = request_log.trace(api, context, request, correlation_id, len(frame))
        if untimely:
            slot([context.encode(api.refuse(context, request, ErrorCode.illegal_sasl_state))])
            connection.end("it sent another request in the middle of an authentication")
        elif self._quotas.active and (limits := self._limits_of(connection, client_id)):
            self._handle_throttled(api, context, request, limits, slot, len(frame))
        elif api.submit is None:
            if api.waits and place.timing is not None:
                place.timing.returned_s = began_s
            self._keep(api, context, once(api.name, self._handle(api, context, request, slot)))
        else:
            if api.writes_records:
                place.in_flight = self.backpressure.take(len(frame))
                context.stored = place.in_flight.give_back
            self._submit(api, context, request, slot, place)

    def _limits_of(self, connection: Connection, client_id: str | None) -> Mapping[str, Limit]:
        return self._quotas.of(connection.session.principal.partition(":")[2], client_id or "")

    def _handle_throttled(
        self,
        api: registry.Api,
        context: RequestContext,
        request: Any,
        limits: Mapping[str, Limit],
        slot: ResponseSlot,
        size_bytes: int,
    ) -> None:
        """Handle a request of a client that has quotas."""
        throttled = ThrottledSlot(slot, self._quotas, limits, context, api, request, size_bytes)
        if api.submit is None:
            if api.waits and slot.place.timing is not None:
                slot.place.timing.returned_s = slot.place.began_s
            handle = partial(self._handle, api, context, throttled.request, throttled)
            self._keep(api, context, once(api.name, throttled.timed(handle)))
            return
        if api.writes_records:
            slot.place.in_flight = self.backpressure.take(size_bytes)
            context.stored = slot.place.in_flight.give_back
        throttled.resume()
        self._submit(api, context, throttled.request, throttled, slot.place)
        throttled.pause()

    def _take_raw_token(self, connection: Connection, token: bytes, slot: ResponseSlot) -> None:
        """Answer a token without a request around it, as clients send it after SaslHandshake v0."""

        async def take() -> None:
            answer = await evaluate(connection, self.services, token)
            # The format has no place for an error: the connection ends without a response.
            slot(None if isinstance(answer, SaslFailure) else [answer.token])

        task = once("raw SASL token", take())
        self._end_with(connection, task)

    async def finish(self) -> None:
        """Wait for the handlers in progress, except those that merely wait, and for the answers to producers.
        Connections take no more requests. The caller sets a timeout.
        """
        while self._tasks:
            await asyncio.wait(self._tasks)
        # An event would cost every request.
        while self.backpressure.unanswered:  # noqa: ASYNC110
            await asyncio.sleep(_ANSWER_POLL_S)

    def _keep(self, api: registry.Api, context: RequestContext, task: asyncio.Task[None]) -> None:
        """Wait for a handler's task at shutdown. One that merely waits ends with its connection."""
        if not api.waits:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return

        self._end_with(context.client, task)

    def _end_with(self, client: Client, task: asyncio.Task[None]) -> None:
        """Cancel a task that merely waits when the client disconnects."""

        def cancel() -> None:
            task.cancel()

        client.on_disconnect(cancel)
        task.add_done_callback(lambda _: client.forget(cancel))

    def _submit(
        self,
        api: registry.Api,
        context: RequestContext,
        request: Any,
        respond: registry.Respond,
        place: PendingResponse,
    ) -> None:
        assert api.submit is not None
        try:
            api.submit(context, request, respond)
        except Exception as error:  # noqa: BLE001 - answered and logged
            respond(self._refusal(api, context, request, error))
        if place.timing is not None and place.segments is None:
            place.timing.returned_s = perf_counter()

    async def _handle(
        self, api: registry.Api, context: RequestContext, request: Any, respond: registry.Respond
    ) -> None:
        assert api.handle is not None
        try:
            before = self.services.shared_writes.before() if api.changes_shared else None
            response = await api.handle(context, request)
            if before is not None:
                await self.services.shared_writes.replicated(before)
            body: list[bytes] | None
            body = response
            if not isinstance(response, list):
                context.count_errors(response)
                audit(context, api.name, request, response)
                pieces = context.schema.pieces(response)
                body = [b"".join([piece async for piece in sliced(pieces)])]
        except Exception as error:  # noqa: BLE001 - answered and logged
            body = self._refusal(api, context, request, error)
        respond(body)

    def _refusal(
        self, api: registry.Api, context: RequestContext, request: Any, error: Exception
    ) -> list[bytes] | None:
        """The response body with the error of a failed handler. None if it cannot be made; the connection
        ends.
        """
        said = api.name, context.api_version, context.client_id
        named: dict[str, object] = {
            "api": api.name,
            "version": context.api_version,
            "client_id": context.client_id,
        }
        code = error_code_of(error, asked_by(api.key))
        if code is ErrorCode.unknown_server_error:
            self.failures[api.name] += 1
            log.error("%s v%d of client %r failed", *said, exc_info=error, extra=fields(**named))
        else:
            named["error"] = code.name.upper()
            causes.warn(error or code.name, "%s v%d of client %r: %s", *said, error or code.name, **named)
        try:
            refused = api.refuse(context, request, code)
            audit(context, api.name, request, refused)
            return [context.encode(refused)]
        except Exception:
            log.exception("%s v%d of client %r cannot be refused", *said, extra=fields(**named))
            context.client.close(f"its {api.name} request can neither be handled nor refused")
            return None
