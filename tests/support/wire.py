"""Raw Kafka frames over a plain socket, for what no client would send; responses are decoded by kio."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kio.serial import entity_reader

from korvet.protocol.schemas import response_class

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

API_VERSIONS = 18


class ConnectionClosed(AssertionError):
    """The server closed the connection."""


def header(api_key: int, api_version: int, correlation_id: int, client_id: str | None = "raw") -> bytes:
    """A request header of version 1."""
    if client_id is None:
        return struct.pack(">hhih", api_key, api_version, correlation_id, -1)
    encoded = client_id.encode()
    return struct.pack(">hhih", api_key, api_version, correlation_id, len(encoded)) + encoded


def api_versions_request(correlation_id: int) -> bytes:
    """An ApiVersions v0 request, without its length."""
    return header(API_VERSIONS, 0, correlation_id)


class RawConnection:
    """One TCP connection on which the test decides every byte."""

    def __init__(self, host: str, port: int, timeout_s: float = 60) -> None:
        self.socket = socket.create_connection((host, port), timeout_s)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        """Send one frame with its length."""
        self.send_all([frame])

    def send_all(self, frames: Iterable[bytes]) -> None:
        """Send frames with their lengths in one write."""
        self.socket.sendall(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))

    def receive(self) -> bytes:
        """The next frame, without its length. Raises ConnectionClosed."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            try:
                part = self.socket.recv(size - len(content))
            except ConnectionResetError:
                part = b""
            if not part:
                raise ConnectionClosed(f"closed after {len(content)} of {size} bytes")
            content += part
        return bytes(content)

    def closed_by_server(self) -> bool:
        """Wait for the end of the stream; bytes before it are dropped."""
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.receive()

    def works(self) -> bool:
        """Whether the connection still answers a request, in order."""
        answer = self.ask(api_versions_request(77_001))
        return answer[:4] == struct.pack(">i", 77_001) and answer[4:6] == b"\x00\x00"


@dataclass(frozen=True, slots=True)
class Response:
    """A decoded response: its correlation id, its message, and the number of bytes after it."""

    correlation_id: int
    message: Any
    left_bytes: int


def decode_response(api_key: int, api_version: int, frame: bytes) -> Response:
    """Decode a response by Kafka's schema of this version."""
    schema = response_class(api_key, api_version)
    (correlation_id,) = struct.unpack_from(">i", frame)
    position = 4
    if schema.__flexible__ and api_key != API_VERSIONS:
        assert frame[4] == 0, "a response header with tagged fields that nobody defined"
        position = 5
    message, size = entity_reader(schema)(memoryview(frame), position)
    return Response(correlation_id, message, len(frame) - position - size)


def advertised(host: str, port: int) -> dict[int, tuple[int, int]]:
    """API key → (lowest, highest) version, from ApiVersions."""
    with RawConnection(host, port) as connection:
        response = decode_response(API_VERSIONS, 0, connection.ask(api_versions_request(1)))
    assert response.message.error_code == 0
    return {
        int(api.api_key): (int(api.min_version), int(api.max_version)) for api in response.message.api_keys
    }
