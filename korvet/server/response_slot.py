"""Where the response to one request goes: its place in the order of a connection's responses."""

from __future__ import annotations

import struct
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.api.common.request_counts import ApiCounts, Timing
    from korvet.request_log.trace import Trace
    from korvet.server.backpressure import InFlight

_LENGTH: Final = struct.Struct(">i")


class Responder(Protocol):
    """The connection that sends the responses."""

    def send_ready(self) -> None:
        """Send the responses that are there, up to the first one that is not."""

    def close(self, reason: str) -> None:
        """End the connection for a reason that is the client's fault. The log gets one line."""

    def mute(self, lasts_s: float) -> None:
        """Take no requests for that time, or for a longer one that was given before."""


class PendingResponse(msgspec.Struct, eq=False):
    """One response in the connection's order."""

    segments: Sequence[bytes] | None = None
    """The response; None until the request is answered."""
    in_flight: InFlight | None = None
    """Set if the request carries records, whose bytes count towards backpressure."""
    counts: ApiCounts | None = None
    """What is counted of the API's requests; None before the API is known."""
    held_since_s: float = 0.0
    """When the whole request was in the buffer (`perf_counter`), if it could not be taken at once; else 0."""
    began_s: float = 0.0
    """When its decoding began."""
    answered_s: float = 0.0
    timing: Timing | None = None
    """Where the request's time goes, if that is measured."""
    trace: Trace | None = None
    """What the request log notes of the request, if it may have to be logged."""


class ResponseSlot(msgspec.Struct, eq=False):
    """Takes the response to one request. It is called once, with the response's body.

    A handler may fail in any way, and so may a callback that gets a reply of Redis. Nobody holds the slot
    then. A slot that nobody holds gives back what the request holds (`in_flight`) and ends the connection:
    otherwise the client would wait without end, and so would all requests that it has pipelined.
    """

    connection: Responder
    place: PendingResponse
    header: bytes = b""
    """The response header, which is set before the slot is called."""

    def __call__(self, body: list[bytes] | None) -> None:
        """Send the body in segments, after its length and header. None sends nothing."""
        place = self.place
        if place.segments is not None:
            raise RuntimeError("a request was answered twice")
        size = 0
        if body is None:
            place.segments = ()
        else:
            header = self.header
            size = len(header) + (len(body[0]) if len(body) == 1 else sum(map(len, body)))
            place.segments = [_LENGTH.pack(size) + header + body[0], *body[1:]]
        if (counts := place.counts) is not None:
            now_s = place.answered_s = perf_counter()
            counts.total.observe(now_s - (place.held_since_s or place.began_s))
            if place.timing is not None:
                place.timing.answered(now_s)
        try:
            self.connection.send_ready()
        finally:
            if place.in_flight is not None:
                place.in_flight.answered()
            if place.trace is not None:
                place.trace.answered(place, size)

    def __del__(self) -> None:
        if self.place.segments is None:
            self.connection.close("one of its requests was left without an answer")
            self(None)
