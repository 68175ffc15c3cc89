"""One end of a simulated TCP connection, and the sockets that a broker listens on."""

from __future__ import annotations

import asyncio
import enum
import socket
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from robustness.simulation.network import Pipe
    from robustness.simulation.process import Process

SimulatedProtocol: TypeAlias = asyncio.Protocol


class Closing(enum.Enum):
    """How one end closes a connection: what the other end gets."""

    END = enum.auto()
    """The end of the stream, after all data."""
    RESET = enum.auto()
    """A reset."""


class Socket:
    """Takes the options that are set on a connection's socket."""

    family: Final = socket.AF_INET

    def setsockopt(self, *_: Any) -> None:
        """The simulation has no options."""


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. `pipe` leads to the other end."""

    def __init__(self, process: Process, peer_name: str) -> None:
        super().__init__({"socket": Socket(), "peername": (peer_name, 1)})
        self._process = process
        self._protocol: Any = None
        self._buffered = False
        self._closing = False
        self._is_over = False
        self._paused = False
        self._received: deque[bytes | Closing] = deque()
        self.pipe: Pipe
        process.transports[self] = None

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection over to its protocol. Called in the process of this end."""
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)
        protocol.connection_made(self)
        self._deliver()

    def receive(self, item: bytes | Closing) -> None:
        """Something arrives from the other end."""
        self._received.append(item)
        self._deliver()

    def _deliver(self) -> None:
        while self._received and self._protocol is not None and not (self._paused or self._is_over):
            item = self._received.popleft()
            if isinstance(item, Closing):
                self._peer_closed(item)
            elif not self._closing:
                self._hand_over(item)

    def _hand_over(self, data: bytes) -> None:
        if not self._buffered:
            self._protocol.data_received(data)
            return
        while data and not self._closing:
            buffer = self._protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]

    def _peer_closed(self, how: Closing) -> None:
        if how is Closing.RESET:
            self._finish(ConnectionResetError("Connection reset by peer"))
        elif not self._protocol.eof_received():
            self.close()

    # What protocols use

    def write(self, data: Any) -> None:
        if not self._closing:
            self.pipe.send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self._shut(Closing.END)

    def abort(self) -> None:
        self._shut(Closing.RESET)

    def _shut(self, how: Closing) -> None:
        if not self._closing:
            self._closing = True
            self.pipe.send(how)
            self._process.loop.call_soon(self._finish, None)

    def end(self, how: Closing) -> None:
        """Close at once on behalf of the process's kernel: the protocol is not called."""
        if not self._is_over:
            self._closing = self._is_over = True
            self._process.transports.pop(self, None)
            self.pipe.send(how)

    def forget(self) -> None:
        """The host is gone: the other end gets nothing."""
        self._closing = self._is_over = True

    def _finish(self, error: Exception | None) -> None:
        if self._is_over:
            return
        self._closing = self._is_over = True
        self._process.transports.pop(self, None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The simulated network accepts all data at once."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._process.loop.call_soon(self._deliver)

    def is_reading(self) -> bool:
        return not self._paused

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol  # type: ignore[no-any-return]


class AcceptedSocket(Socket):
    """A connection between its accept and its protocol."""

    def __init__(self, transport: SimulatedTransport) -> None:
        self.transport = transport

    def setblocking(self, flag: bool) -> None:
        """Nothing blocks."""

    def close(self) -> None:
        self.transport.end(Closing.END)


class ListeningSocket:
    """A socket that a broker's acceptor listens on."""

    def __init__(self, process: Process, port: int) -> None:
        self._process = process
        self._port = port
        self._arrived: deque[AcceptedSocket] = deque()
        self._wake: Callable[[], None] | None = None
        self._open = True

    def listen(self, backlog: int) -> None:
        """Accept connections from now on."""
        self._process.listeners[self._port] = self.arrive

    def arrive(self, transport: SimulatedTransport) -> None:
        """A client has connected."""
        self._arrived.append(AcceptedSocket(transport))
        if self._wake is not None:
            self._process.loop.call_soon(self._wake, context=self._process.context)

    def watch(self, callback: Callable[..., None] | None, *args: Any) -> None:
        """Call back when connections have arrived (add_reader)."""
        self._wake = None if callback is None else partial(callback, *args)

    def accept(self) -> tuple[AcceptedSocket, tuple[str, int]]:
        """The next connection. Raises BlockingIOError if there is none."""
        if not self._arrived:
            raise BlockingIOError
        accepted = self._arrived.popleft()
        return accepted, accepted.transport.get_extra_info("peername")

    def getsockname(self) -> tuple[str, int]:
        return self._process.name, self._port

    def fileno(self) -> int:
        return 0 if self._open else -1

    def close(self) -> None:
        self._open = False
        self._process.listeners.pop(self._port, None)
