"""One client's HTTP connection: requests one after the other, with limits on size and time."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from korvet.admin.http import (
    MOST_HEAD_BYTES,
    BadRequest,
    Request,
    Response,
    encode_head,
    take_request,
    text_response,
)
from korvet.slices import sliced
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Answer: TypeAlias = "Callable[[Request], Awaitable[Response]]"

log = logging.getLogger(__name__)

# Limits the time in which a request arrives. The first one includes the time after the accept.
_REQUEST_S: Final = 10.0
# Limits the time between two requests of a client: longer than usual intervals of scrapes.
_IDLE_S: Final = 150.0
# Limits the time in which a request is answered, and then the time in which its response is sent.
_ANSWER_S: Final = 30.0
# The bytes that wait for a client's network; TLS encrypts that many at once.
_WRITE_BYTES: Final = 64 * 1024
# The time for which the event loop is held at once.
_SLICE_S: Final = 0.001


class HttpConnection(asyncio.Protocol):
    """Answers the requests of one client, until it disconnects or a limit is exceeded."""

    def __init__(self, answer: Answer, on_end: Callable[[], None], most_body_bytes: int = 0) -> None:
        """on_end: called once, when the connection has ended. most_body_bytes: see take_request."""
        self._answer = answer
        self._most_body_bytes = most_body_bytes
        self._on_end = on_end
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._answering: asyncio.Task[None] | None = None
        self._reading = True
        self._all_received = False
        # Whether a request has begun to arrive.
        self._arriving = True
        self._deadline: asyncio.TimerHandle | None = None
        self._ended = False

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._ended:
            self._cut()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES)
        self._limit(_REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self._answering is not None:
            self._answering.cancel()
        self._on_end()

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        self._buffer += data
        if self._answering is None:
            self._take()
        elif len(self._buffer) > MOST_HEAD_BYTES and self._reading:
            assert self._transport is not None
            self._reading = False
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The client has closed its side. Requests that have arrived are answered, unless the connection uses
        TLS: asyncio closes both sides of it.
        """
        self._all_received = True
        assert self._transport is not None
        return self._answering is not None and self._transport.get_extra_info("sslcontext") is None

    def pause_writing(self) -> None:
        """The client does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client reads again."""
        self._writable.set()

    def end(self) -> None:
        """End the connection at once."""
        self._ended = True
        self._cut()
        # The transport does not report its end if its accept was cancelled.
        if self._answering is not None:
            self._answering.cancel()

    # Requests

    def _take(self) -> None:
        """Answer the next request if it has arrived."""
        try:
            request, refusal = take_request(self._buffer, self._most_body_bytes), None
            if request is None:
                if self._buffer and not self._arriving:
                    self._arriving = True
                    self._limit(_REQUEST_S)
                return
        except BadRequest as error:
            request, refusal = Request("GET", "", keeps_alive=False), text_response(error.status, str(error))
        self._arriving = False
        self._limit(_ANSWER_S)
        self._answering = once("an admin request", self._respond(request, refusal))

    async def _respond(self, request: Request, refusal: Response | None) -> None:
        try:
            response = refusal or await self._answer(request)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            response = text_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the page cannot be made: see the log")
        self._limit(_ANSWER_S)
        await self._send(request, response)
        transport = self._transport
        if transport is None:
            return
        if not request.keeps_alive:
            transport.close()
            return
        self._answering = None
        self._limit(_IDLE_S)
        if not self._reading:
            self._reading = True
            transport.resume_reading()
        self._take()
        if self._all_received and self._answering is None:
            transport.close()

    async def _send(self, request: Request, response: Response) -> None:
        head = encode_head(response, keeps_alive=request.keeps_alive)
        pieces = [head] if request.method == "HEAD" else [head, *response.body]
        async for piece in sliced(pieces, _SLICE_S):
            await self._writable.wait()
            if self._transport is not None:
                self._transport.write(piece)

    def _limit(self, time_s: float) -> None:
        """End the connection after this time, unless the next step comes first."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(time_s, self._cut)

    def _cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
