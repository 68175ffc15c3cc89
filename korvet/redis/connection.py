"""One connection to Redis (RESP2): pipelined commands out, raw replies in the same order back."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from korvet.metrics.histogram import Histogram
from korvet.records.batch import BatchError
from korvet.records.kernel import ReplyScanner
from korvet.redis.calls import answer, fault_of
from korvet.redis.errors import LinkLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.records.batch import BytesLike
    from korvet.redis.calls import OnReply, Payload
    from korvet.redis.errors import RedisFault

# The receive buffer at rest; most replies are small. A reply that does not fit doubles the buffer.
_BUFFER_BYTES: Final = 1 << 16
# A larger buffer is replaced by a small one when it is empty.
_KEPT_BUFFER_BYTES: Final = 1 << 21
# Of how many commands one is measured: measuring each would take a percent of the broker's time.
_SAMPLED: Final = 8
# Error replies about the server instead of the command: it is a replica; it cannot write to its disk.
READONLY: Final = "READONLY"
MISCONF: Final = "MISCONF"
_FAULTS_OF_SERVERS: Final = frozenset((READONLY, MISCONF))


class Connection(asyncio.BufferedProtocol):
    """One TCP or unix connection. It is not opened again after it broke."""

    __slots__ = (
        "_buffer",
        "_end",
        "_loop",
        "_on_fault",
        "_on_lost",
        "_on_push",
        "_outbox",
        "_round_trips",
        "_scanner",
        "_start",
        "_until_timed",
        "_view",
        "gone",
        "lost",
        "reason",
        "received",
        "transport",
        "waiting",
    )

    def __init__(
        self,
        on_lost: Callable[[Exception | None], None],
        on_fault: Callable[[RedisFault], None],
        on_push: Callable[[], None] | None = None,
        round_trips: Histogram | None = None,
    ) -> None:
        """`on_lost` is called once after the connection broke, `on_fault` after each reply of READONLY or
        MISCONF, `on_push` after each message of a channel; without `on_push` the server must not send any.
        `round_trips` counts how long replies take.
        """
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._scanner = ReplyScanner()
        # Looking up the running loop costs a system call each time.
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._on_push = on_push
        self._round_trips = Histogram() if round_trips is None else round_trips
        # Commands that are sent in one write at the end of the loop's iteration.
        self._outbox: list[BytesLike] = []
        self.lost = False
        self.gone = asyncio.Event()
        """Set after the connection broke."""
        self.received = False
        """Whether anything was received since this was set to False."""
        self.reason = ""
        """Why this side ended the connection; empty if it did not."""
        self.transport: asyncio.Transport | None = None
        self.waiting: deque[tuple[OnReply, int, float]] = deque()
        """What takes the next replies, each with the number of replies that it takes at once and the time of
        its command (`perf_counter`) if that is measured, else 0.
        """
        # Commands before the next one whose round trip is measured.
        self._until_timed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        # uvloop writes at once only above this limit, otherwise at the end of the iteration. Redis gets a
        # single command 3 us earlier; `_flush` joins the commands of one iteration.
        self.transport.set_write_buffer_limits(high=0)

    def send(self, payload: Payload, on_reply: OnReply, replies: int = 1) -> None:
        """See RedisLink.send."""
        assert self.transport is not None
        if self.lost or self.transport.is_closing():
            lost = LinkLost("the connection to Redis is broken")
            self._loop.call_soon(answer, on_reply, lost)
            return
        outbox = self._outbox
        first = not outbox
        if isinstance(payload, bytes):
            outbox.append(payload)
        else:
            outbox += payload
        # An idle server gets its command now; a busy server gets the commands of one iteration in one write.
        if not self.waiting:
            self._flush()
        elif first:
            self._loop.call_soon(self._flush)
        if self._until_timed:
            self._until_timed -= 1
            self.waiting.append((on_reply, replies, 0.0))
        else:
            self._until_timed = _SAMPLED - 1
            self.waiting.append((on_reply, replies, perf_counter()))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        if outbox and not self.lost:
            assert self.transport is not None
            self.transport.writelines(outbox)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def _make_room(self) -> None:
        held = self._end - self._start
        # Callers may still use views of the old buffer: the buffer is replaced, never resized.
        size = len(self._buffer) * (2 if self._start < len(self._buffer) // 2 else 1)
        fresh = bytearray(size)
        fresh[:held] = self._view[self._start : self._end]
        self._take_buffer(fresh, held)

    def _take_buffer(self, buffer: bytearray, held: int) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._start = 0
        self._end = held

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.received = True
        while self._start < self._end:
            replies = self.waiting[0][1] if self.waiting else 1
            try:
                found = self._scanner.feed(self._buffer, self._start, self._end, replies)
            except BatchError as error:
                self.abort(f"the server does not speak RESP: {error}")
                return
            if found < 0:
                return
            start, self._start = self._start, found
            if not self.waiting:
                if self._on_push is None:
                    self.abort("the server sent a reply without a command")
                    return
                self._on_push()
                continue
            on_reply, _, sent_s = self.waiting.popleft()
            if sent_s:
                self._round_trips.observe(perf_counter() - sent_s)
            self._deliver(on_reply, self._view[start:found])
            if self.reason:
                # This side has ended the connection: what else has arrived counts as lost.
                return
        if len(self._buffer) > _KEPT_BUFFER_BYTES:
            self._take_buffer(bytearray(_BUFFER_BYTES), 0)
        self._start = self._end = 0

    def _deliver(self, on_reply: OnReply, reply: memoryview) -> None:
        fault = fault_of(reply)
        answer(on_reply, fault or reply)
        if fault is not None and fault.code in _FAULTS_OF_SERVERS:
            self._on_fault(fault)

    def abort(self, reason: str) -> None:
        """End the connection; commands in flight fail with LinkLost."""
        self.reason = self.reason or reason
        if self.transport is not None:
            self.transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.gone.set()
        waiting, self.waiting = self.waiting, deque()
        why = f": {self.reason}" if self.reason else ""
        for on_reply, *_ in waiting:
            answer(on_reply, LinkLost(f"the connection to Redis broke before it answered{why}"))
        self._on_lost(exc)
