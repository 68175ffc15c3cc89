"""A transport without a socket, and what feeds a connection as an event loop does."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import korvet.api
from korvet.server.connection import Connection
from korvet.server.connections import ConnectionLimits, Connections
from korvet.server.listener_access import OPEN_ACCESS, ListenerAccess
from korvet.server.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

korvet.api.load_all()

MAX_REQUEST_BYTES = 1_000_000
# Wires of the test that runs. A request that is dropped ends its connection and is logged, unless the
# client has gone.
MADE: Final[list[Wire]] = []


class MockTransport:
    """Keeps what is written, and notes what it is told."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.writes = 0
        self.reading = True
        self.closed = False
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.written += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.writes += 1
        for part in parts:
            self.written += part

    def pause_reading(self) -> None:
        assert self.reading, "paused twice"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading, "resumed without a pause"
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def get_extra_info(self, name: str) -> Any:
        return ("10.1.2.3", 4567) if name == "peername" else None


class Held:
    """A dispatch that keeps each frame with the callable that answers it."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.answers: list[Callable[[list[bytes] | None], None]] = []
        self.is_blocked = False
        self.resumes: list[Callable[[], None]] = []
        self.at_turn_end_calls: list[Callable[[], None]] = []
        self.turns = Turns(self.at_turn_end, lambda: self.now_s)
        self.now_s = 0.0
        self.takes_s = 0.0
        """How long each frame keeps the event loop."""

    def __call__(self, connection: Connection, frame: memoryview, slot: Any) -> None:
        self.frames.append(bytes(frame))
        self.now_s += self.takes_s
        self.answers.append(slot)

    @property
    def backpressure(self) -> Held:
        return self

    @property
    def full(self) -> bool:
        return self.is_blocked

    def blocked(self, resume: Callable[[], None]) -> bool:
        if self.is_blocked:
            self.resumes.append(resume)
        return self.is_blocked

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        self.at_turn_end_calls.append(callback)

    def check_lease(self) -> None:
        """It lasts."""

    def note_event(self) -> None:
        """Nobody polls."""

    def end_turn(self) -> None:
        """What an event loop does when it is done with what it was at."""
        calls, self.at_turn_end_calls = self.at_turn_end_calls, []
        for call in calls:
            call()


def unframed(written: bytes | bytearray) -> bytes:
    """The frames in what was written, one behind the other without their lengths."""
    found, position = b"", 0
    while position < len(written):
        (size,) = struct.unpack_from(">i", written, position)
        position += 4 + size
        assert position <= len(written)
        found += written[position - size : position]
    return found


class Wire:
    """A connection with both of its ends in the test's hands."""

    def __init__(
        self,
        dispatch: Any,
        connections: Connections | None = None,
        listener_access: ListenerAccess = OPEN_ACCESS,
    ) -> None:
        self.connections = Connections(ConnectionLimits(10, 10)) if connections is None else connections
        self.transport = MockTransport()
        self.connection = Connection(dispatch, MAX_REQUEST_BYTES, self.connections, listener_access)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        MADE.append(self)

    def feed(self, data: bytes, most: int = 2**30) -> int:
        """Hand over bytes as reads of at most `most` bytes; how many were taken before reading paused."""
        fed = 0
        while fed < len(data) and self.transport.reading and not self.transport.closed:
            room = self.connection.get_buffer(-1)
            assert len(room) > 0, "an event loop takes an empty buffer for an error"
            part = data[fed : fed + min(len(room), most)]
            room[: len(part)] = part
            self.connection.buffer_updated(len(part))
            fed += len(part)
        return fed

    def lose(self) -> None:
        self.connection.connection_lost(None)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def request(number: int, api_key: int = 3, size: int = 12) -> bytes:
    """A frame of `size` bytes that begins as a request of that API."""
    return struct.pack(">hhi", api_key, 0, number).ljust(size, b".")
