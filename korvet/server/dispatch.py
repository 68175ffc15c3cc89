"""From a frame to a handler and from its answer to a response frame."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.api.context import RequestContext
from korvet.api.errors import error_code_of
from korvet.protocol import registry
from korvet.protocol.headers import parse_header, peek_api, response_header
from korvet.protocol.messages import request_schema, response_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.api.services import Services
    from korvet.protocol.messages import ResponseSchema
    from korvet.server.backpressure import Backpressure
    from korvet.server.connection import Connection, Slot

log = logging.getLogger(__name__)

_PRODUCE: Final = 0
_FETCH: Final = 1
_API_VERSIONS: Final = 18
_LENGTH: Final = struct.Struct(">i")
_UNSUPPORTED: Final = struct.pack(">h", ErrorCode.unsupported_version)


class LastFetch(msgspec.Struct, frozen=True):
    """A connection's last Fetch: what stands before and behind the correlation id, and what it decoded to."""

    head: bytes
    body: bytes
    api: registry.Api
    context: RequestContext
    request: Any


class Dispatcher:
    """Decodes requests, runs their handlers and encodes what they answer."""

    def __init__(self, services: Services, backpressure: Backpressure) -> None:
        self._services = services
        self._backpressure = backpressure
        self._tasks: set[asyncio.Task[None]] = set()
        self.failures: Counter[str] = Counter()

    def blocked(self, resume: Callable[[], None]) -> bool:
        """See Backpressure.blocked."""
        return self._backpressure.blocked(resume)

    def __call__(self, connection: Connection, frame: memoryview, slot: Slot) -> None:
        """Handle one frame; `connection.respond` is called for its slot now or later.

        Raises MalformedRequest for a frame that is no request.
        """
        if self._repeats_fetch(connection, frame, slot):
            return
        api_key, api_version, correlation_id = peek_api(frame)
        api = registry.find(api_key)
        if api is None or not api.min_version <= api_version <= api.max_version:
            connection.respond(slot, self._unsupported(api_key, correlation_id))
            return
        schema = response_schema(api_key, api_version)
        context, request = self._decode(connection, api, frame, schema)
        size_bytes = len(frame) if api_key == _PRODUCE else 0
        if size_bytes:
            self._backpressure.take(size_bytes)
        header = response_header(correlation_id, schema.flexible)
        respond = _Responder(connection, slot, header, self._backpressure, size_bytes)
        if api.submit is not None:
            self._submit(api, context, request, respond)
        else:
            task = asyncio.get_running_loop().create_task(self._handle(api, context, request, respond))
            if api.waits:
                self._end_with_connection(task, connection)
            else:
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for the handlers at work, but for those that wait themselves; to be called with a timeout."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    @staticmethod
    def _end_with_connection(task: asyncio.Task[None], connection: Connection) -> None:
        def cancel() -> None:
            task.cancel()

        connection.on_disconnect(cancel)
        task.add_done_callback(lambda _: connection.forget(cancel))

    def _decode(
        self, connection: Connection, api: registry.Api, frame: memoryview, schema: ResponseSchema
    ) -> tuple[RequestContext, Any]:
        requests = request_schema(api.key, peek_api(frame)[1])
        header, position = parse_header(frame, requests.flexible)
        request = requests.decode(frame, position)
        context = RequestContext(self._services, schema, header.api_version, header.client_id, connection)
        if api.key == _FETCH:
            connection.last_fetch = LastFetch(bytes(frame[:4]), bytes(frame[8:]), api, context, request)
        return context, request

    def _repeats_fetch(self, connection: Connection, frame: memoryview, slot: Slot) -> bool:
        """Handle a Fetch that is the last one again, but for the correlation id.

        A consumer at the end of its partitions sends it again and again.
        """
        last = connection.last_fetch
        if last is None or len(frame) != len(last.body) + 8:
            return False
        octets = bytes(frame)
        if not (octets.startswith(last.head) and octets.endswith(last.body)):
            return False
        header = octets[4:8] + b"\x00" if last.context.schema.flexible else octets[4:8]
        respond = _Responder(connection, slot, header, self._backpressure, 0)
        self._submit(last.api, last.context, last.request, respond)
        return True

    def _submit(
        self, api: registry.Api, context: RequestContext, request: Any, respond: registry.Respond
    ) -> None:
        assert api.submit is not None
        try:
            api.submit(context, request, respond)
        except Exception as error:  # noqa: BLE001 - answered and logged
            respond([context.schema.encode(self._failed(api, context, request, error))])

    async def _handle(
        self, api: registry.Api, context: RequestContext, request: Any, respond: registry.Respond
    ) -> None:
        assert api.handle is not None
        try:
            response = await api.handle(context, request)
            encoded = context.schema.encode(response)
        except Exception as error:  # noqa: BLE001 - answered and logged
            encoded = context.schema.encode(self._failed(api, context, request, error))
        respond([encoded])

    def _failed(self, api: registry.Api, context: RequestContext, request: Any, error: Exception) -> Any:
        code = error_code_of(error)
        if code is ErrorCode.unknown_server_error:
            self.failures[api.name] += 1
            log.error(
                "%s v%d of client %r failed", api.name, context.api_version, context.client_id, exc_info=error
            )
        else:
            log.warning(
                "%s v%d of client %r: %s",
                api.name,
                context.api_version,
                context.client_id,
                error or code.name,
            )
        return api.refuse(context, request, code)

    def _unsupported(self, api_key: int, correlation_id: int) -> list[bytes]:
        """UNSUPPORTED_VERSION; for ApiVersions with all that is supported, in version 0 (KIP-511)."""
        body = _UNSUPPORTED
        if api_key == _API_VERSIONS:
            ranges = [
                struct.pack(">hhh", api.key, api.advertised_min, api.max_version)
                for api in registry.registered()
            ]
            body += _LENGTH.pack(len(ranges)) + b"".join(ranges)
        return [_LENGTH.pack(4 + len(body)), _LENGTH.pack(correlation_id), body]


class _Responder:
    """Puts length and header before a response body; answers once."""

    __slots__ = ("_backpressure", "_connection", "_header", "_size_bytes", "_slot")

    def __init__(
        self, connection: Connection, slot: Slot, header: bytes, backpressure: Backpressure, size_bytes: int
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._header = header
        self._backpressure = backpressure
        self._size_bytes = size_bytes

    def __call__(self, body: list[bytes] | None) -> None:
        if self._slot.done:
            raise RuntimeError("a request was answered twice")
        segments = None
        if body is not None:
            size = len(self._header) + sum(map(len, body))
            segments = [_LENGTH.pack(size) + self._header + body[0], *body[1:]]
        self._connection.respond(self._slot, segments)
        if self._size_bytes:
            self._backpressure.give_back(self._size_bytes)
