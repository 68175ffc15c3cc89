"""One client connection: cuts frames out of a receive buffer, and answers them in the order of requests.

As in Kafka, a connection has one request in progress at a time. Only requests of an API that allows it
(`in_flight_max`) start before the previous request of the same API is answered.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from korvet.api.common.context import HandlerState
from korvet.protocol import registry
from korvet.protocol.headers import LASTING_FRAME_BYTES
from korvet.protocol.primitives import MalformedRequest
from korvet.server.flow_control import WAITING, WRITING, FlowControl
from korvet.server.listener_access import OPEN_ACCESS
from korvet.server.response_slot import PendingResponse, ResponseSlot
from korvet.server.session import Session
from korvet.server.turns import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.api.common.request_counts import Timing
    from korvet.server.listener_access import ListenerAccess
    from korvet.server.surroundings import Dispatch, OpenConnections

log = logging.getLogger(__name__)

# The receive buffer of an idle connection. Thousands of these are common.
_SMALL_BUFFER_BYTES: Final = 4096
# The largest receive buffer that is used again once it is empty. A larger one is replaced: one large request
# does not occupy memory for the life of the connection, and views of its frame stay valid.
_KEEP_BUFFER_BYTES: Final = LASTING_FRAME_BYTES
# Buffer allocated for an announced frame before any of its bytes arrived.
_TRUSTED_BYTES: Final = 1024 * 1024
# Unsent response bytes from which on the next request waits for a slow reader. No memory budget counts them
# below this, so this is small: there may be thousands of connections.
_WRITE_HIGH_BYTES: Final = 256 * 1024
# In place of the API key for a SASL token without a request around it, whatever its first bytes are.
_TOKEN: Final = -1
_LENGTH: Final = struct.Struct(">i")


class Connection(asyncio.BufferedProtocol):
    """Server side of one client connection."""

    __slots__ = (
        "_active",
        "_buffer",
        "_connections",
        "_disconnect_callbacks",
        "_dispatch",
        "_end",
        "_ending",
        "_flow",
        "_held_since_s",
        "_in_flight",
        "_large_bytes",
        "_newest_api",
        "_outbox",
        "_processing",
        "_reading_paused",
        "_retained",
        "_start",
        "_transport",
        "_unsent",
        "_view",
        "_when_sent",
        "client_host",
        "closed",
        "closing",
        "counts",
        "handler_state",
        "listener",
        "pipelines",
        "session",
    )

    def __init__(
        self,
        dispatch: Dispatch[Connection],
        max_request_bytes: int,
        connections: OpenConnections[Connection],
        listener_access: ListenerAccess = OPEN_ACCESS,
    ) -> None:
        self._dispatch = dispatch
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._use_buffer(bytearray(_SMALL_BUFFER_BYTES))
        # The size of the last frame that a view may outlive: the next frame is probably as large.
        self._large_bytes = 0
        self._start = 0
        self._end = 0
        self._in_flight: deque[PendingResponse] = deque()
        # Responses that share one write with those of the same iteration of the event loop.
        self._outbox: list[bytes] = []
        # Of these, the responses of measured requests.
        self._unsent: list[Timing] = []
        # When the next request was first found complete, but could not be taken; 0 if it has not been.
        self._held_since_s = 0.0
        # The API key of the requests in progress, which all belong to one API.
        self._newest_api = _TOKEN
        self._reading_paused = False
        self._flow = FlowControl()
        self._when_sent: list[Callable[[], None]] = []
        self._processing = False
        self._active = True
        self._disconnect_callbacks: set[Callable[[], None]] = set()
        self.client_host = ""
        self.closing = False
        """Whether it takes no more requests. It stays open until all written responses are sent."""
        self.closed = False
        self.handler_state = HandlerState()
        """See korvet.api.common.context.Client."""
        self.listener = listener_access.name
        self.counts = connections.counts[self.listener]
        """What is counted of the listener's connections."""
        self.session = Session(listener_access, self.counts, max_request_bytes)
        self.pipelines = False
        """Whether the client has recently sent requests before earlier ones were answered."""
        self._ending = False

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_BYTES)
        peer = transport.get_extra_info("peername")
        self.client_host = f"/{peer[0]}" if isinstance(peer, tuple) else "/127.0.0.1"
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.join(self)
        try:
            self.session.begin(transport, self.client_host.removeprefix("/"))
        except ValueError as error:
            self._connections.note_refused(self.client_host, f"listener {self.listener}: {error}")
            self.counts.failed_authentications += 1
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone: run the callbacks of everything that waits for it."""
        self.closed = True
        self._connections.leave(self)
        self._in_flight.clear()
        self._sent()
        self._flow.close()
        callbacks, self._disconnect_callbacks = self._disconnect_callbacks, set()
        for callback in callbacks:
            callback()
        self.handler_state.release()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Free space after the received bytes."""
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :] if self._end else self._view

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived. Those of a connection that takes no more requests are dropped."""
        if not self.closing:
            self._end += nbytes
            self._active = True
            self._dispatch.note_event()
            self._process()

    def pause_writing(self) -> None:
        """The client does not read its responses: take no more requests."""
        self._flow.held |= WRITING

    def resume_writing(self) -> None:
        """The client reads again."""
        self._take_again(WRITING)
        self._sent()

    # what handlers use

    def send_ready(self) -> None:
        """Send the responses that are there, up to the first one that is not.

        One read from Redis may answer many pipelined requests. While some are in progress, their responses
        are awaited until the event loop's iteration ends, so that all of them cost one write.
        """
        in_flight, outbox, unsent = self._in_flight, self._outbox, self._unsent
        first = not outbox
        while in_flight and (segments := in_flight[0].segments) is not None:
            answered = in_flight.popleft()
            outbox += segments
            if answered.timing is not None and segments:
                unsent.append(answered.timing)
        if outbox:
            if not in_flight:
                self._flush()
            elif first:
                self._dispatch.at_turn_end(self._flush)
        if self._ending and not in_flight:
            self.shut_down()
        if self._start < self._end and not self._processing:
            self._process()

    @property
    def unsent_bytes(self) -> int:
        """See korvet.api.common.context.Client."""
        if not self._flow.held & WRITING or self.closed or self._transport is None:
            return 0
        return self._transport.get_write_buffer_size()

    def when_sent(self, callback: Callable[[], None]) -> None:
        """See korvet.api.common.context.Client."""
        self._when_sent.append(callback)

    def _sent(self) -> None:
        callbacks, self._when_sent = self._when_sent, []
        for callback in callbacks:
            callback()

    def hold_back(self) -> Callable[[], None]:
        """Take no more requests until the returned function is called. The newest request waits for memory.
        Its own bytes do not count towards backpressure until then.
        """
        self._flow.held |= WAITING
        newest = self._in_flight[-1]
        if newest.in_flight is not None:
            newest.in_flight.give_back()
        return partial(self._take_again, WAITING)

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back when the client disconnects, unless `forget` is called first; soon if it has already."""
        if self.closed:
            self._dispatch.at_turn_end(callback)
        else:
            self._disconnect_callbacks.add(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Cancel an on_disconnect."""
        self._disconnect_callbacks.discard(callback)

    def close(self, reason: str) -> None:
        """End the connection for a reason that is the client's fault; the log gets one line."""
        if not (self.closing or self.closed):
            self.closing = True
            log.warning("closing the connection of %s: %s", self.client_host, reason)
            self.shut_down()

    def end(self, reason: str | None = None) -> None:
        """See korvet.api.common.context.Client."""
        self._ending = self.closing = True
        if reason is not None:
            log.warning("closing the connection of %s: %s", self.client_host, reason)
        if not self._in_flight:
            self.shut_down()

    def mute(self, lasts_s: float) -> None:
        """Take no requests for that time, or for a longer one that was given before."""
        if not self.closed:
            self._flow.mute(lasts_s, self._resume)

    def _take_again(self, reason: int) -> None:
        """Take requests, unless there is another reason not to."""
        self._flow.held &= ~reason
        self._resume()

    def _resume(self) -> None:
        """A reason to wait is over."""
        if self.closed:
            return
        self._active = True
        if not self._processing:
            self._process()

    def shut_down(self) -> None:
        """Close after all written responses have been sent."""
        self._flush()
        self.closing = True
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Close at once, and drop the responses that are not sent."""
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    def take_activity(self) -> bool:
        """Whether anything was received or sent since the last call.

        A client that did nothing needs no large buffer; none pipelines until it does so again.
        """
        active, self._active = self._active, False
        self.pipelines = False
        if not active and self._start == self._end and len(self._buffer) > _SMALL_BUFFER_BYTES:
            self._use_buffer(bytearray(_SMALL_BUFFER_BYTES))
        return active

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and not self.closed and self._transport is not None:
            self._active = True
            self._dispatch.note_event()
            if self._unsent:
                self._count_sent()
            if len(outbox) == 1:
                self._transport.write(outbox[0])
            else:
                self._transport.writelines(outbox)

    def _count_sent(self) -> None:
        """Count how long the responses of measured requests have waited for others."""
        unsent, self._unsent = self._unsent, []
        now_s = perf_counter()
        for timing in unsent:
            timing.sent(now_s)

    # frames

    def _process(self) -> None:
        """Take as many requests out of the buffer as may be in progress now."""
        self._processing = True
        try:
            self._dispatch.check_lease()
            while self._start < self._end and not self.closing and not self.closed and self._take_one():
                pass
        finally:
            self._processing = False
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _KEEP_BUFFER_BYTES:
                self._use_buffer(bytearray(_SMALL_BUFFER_BYTES))
        if self._reading_paused or self._end == len(self._buffer):
            self._pause_or_resume_reading()

    def _take_one(self) -> bool:
        size = self._frame_size()
        begin = self._start + 4
        end = begin + size
        if size < 0 or self._end < end:
            return False
        buffer, sasl = self._buffer, self.session.sasl
        raw = sasl is not None and sasl.takes_raw_token
        api_key = _TOKEN if raw else buffer[begin] << 8 | buffer[begin + 1]
        api = registry.find(api_key)
        in_flight, flow = self._in_flight, self._flow
        if flow.held or (
            in_flight
            and (api_key != self._newest_api or len(in_flight) >= (1 if api is None else api.in_flight_max))
        ):
            return self._hold()
        if (
            api is not None
            and api.writes_records
            and (flow.blocked or self._dispatch.backpressure.full)
            and not flow.may_write(self._dispatch.backpressure, self._resume)
        ):
            return self._hold()
        is_large = size > LARGE_BYTES
        if is_large and not flow.may_take_large(self._dispatch.turns, self._resume):
            return self._hold()
        self._newest_api = api_key
        self._start = end
        place = PendingResponse()
        if self._held_since_s:
            place.held_since_s, self._held_since_s = self._held_since_s, 0.0
        if in_flight:
            self.pipelines = True
        in_flight.append(place)
        # The buffer may be overwritten after this call, except for retained frames: values that outlive the
        # call are copies.
        if size > LASTING_FRAME_BYTES:
            self._retained = True
            self._large_bytes = min(size, _TRUSTED_BYTES)
        if is_large:
            self._dispatch.turns.run(partial(self._handle, begin, end, ResponseSlot(self, place)))
        else:
            self._handle(begin, end, ResponseSlot(self, place))
        return True

    def _hold(self) -> bool:
        """Note that a complete request waits. Returns False, as `_take_one`."""
        self._held_since_s = self._held_since_s or perf_counter()
        return False

    def _handle(self, begin: int, end: int, slot: ResponseSlot) -> None:
        """Handle the frame buffer[begin:end]. Any failure ends this connection and no other."""
        try:
            self._dispatch(self, self._view[begin:end].toreadonly(), slot)
        except MalformedRequest as error:
            self.close(str(error))
        except Exception:
            log.exception("a request of %s could not be handled", self.client_host)
            self.close("one of its requests could not be handled")

    def _frame_size(self) -> int:
        """The size of the frame at the start of the buffer; -1 if its length has not arrived."""
        if self._end - self._start < 4:
            return -1
        (size,) = _LENGTH.unpack_from(self._buffer, self._start)
        least, most = self.session.least_bytes, self.session.most_bytes
        if not least <= size <= most:
            self.close(f"a frame of {size} bytes is outside {least} to {most}")
            return -1
        return int(size)

    def _make_room(self) -> None:
        """Move unread bytes to the front, or grow the buffer towards the frame that is arriving.

        The buffer doubles each time, because a client may announce a large frame and send none. A client that
        has sent one before gets space for another one at once.
        """
        unread = self._view[self._start : self._end]
        size = len(unread) if self._retained else len(self._buffer)
        if self._retained or len(unread) > size // 2:
            room = min(max(2 * size, self._large_bytes + 4), self._frame_size() + 4)
            self._use_buffer(bytearray(max(room, size + _SMALL_BUFFER_BYTES)))
        self._view[: len(unread)] = unread
        self._start, self._end = 0, len(unread)

    def _use_buffer(self, buffer: bytearray) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        # Whether the buffer holds a frame that a view may outlive.
        self._retained = False

    def _pause_or_resume_reading(self) -> None:
        """Stop reading while the buffer is full of requests that have to wait."""
        if self._transport is None or self.closed or self.closing:
            return
        full = self._end == len(self._buffer) and self._end - self._start >= 4
        waiting = full and self._end - self._start >= 4 + self._frame_size()
        if waiting and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        elif not waiting and self._reading_paused:
            self._reading_paused = False
            self._transport.resume_reading()
