"""Connections of simulated clients to brokers: requests and responses as kio's messages."""

from __future__ import annotations

import asyncio
import io
import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kio.serial import entity_reader, entity_writer

from korvet.protocol.schemas import response_class
from robustness.simulation.brokers import PORT

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

T = TypeVar("T")
_LENGTH: Final = struct.Struct(">i")


class Disconnected(Exception):
    """The connection to the broker is broken, or the broker did not answer in time."""


class BrokerConnection(asyncio.Protocol):
    """One connection to one broker."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id.encode()
        self._transport: Any = None
        self._buffer = bytearray()
        self._awaited: dict[int, tuple[asyncio.Future[Any], int, int]] = {}
        self._number = 0
        self.is_broken = False

    @classmethod
    async def open(cls, client_id: str, host: str, timeout_s: float) -> BrokerConnection:
        """Connect to the broker on a host. Raises Disconnected."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, protocol = await loop.create_connection(lambda: cls(client_id), host, PORT)
        except (OSError, TimeoutError) as error:
            raise Disconnected(str(error)) from error
        return protocol

    async def ask(self, request: RequestPayload, timeout_s: float) -> Any:
        """Send a request; returns the response. Raises Disconnected."""
        if self.is_broken:
            raise Disconnected("the connection is broken")
        self._number += 1
        key, version = request.__api_key__, request.__version__
        header = struct.pack(">hhih", key, version, self._number, len(self._client_id)) + self._client_id
        if type(request).__flexible__:
            header += b"\0"
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        frame = header + body.getvalue()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._awaited[self._number] = (future, key, version)
        self._transport.write(_LENGTH.pack(len(frame)) + frame)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.close()
            raise Disconnected("no answer in time") from None

    def close(self) -> None:
        """End the connection."""
        self.is_broken = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = _LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < 4 + size:
                return
            frame = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        (number,) = _LENGTH.unpack_from(frame)
        future, key, version = self._awaited.pop(number)
        read, start = _reader(key, version)
        response, _ = read(memoryview(frame), start)
        if not future.done():
            future.set_result(response)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_broken = True
        awaited, self._awaited = self._awaited, {}
        for future, _, _ in awaited.values():
            if not future.done():
                future.set_exception(Disconnected(str(exc or "closed by the broker")))


@cache
def _reader(key: int, version: int) -> tuple[Any, int]:
    schema = response_class(key, version)
    return entity_reader(schema), 5 if schema.__flexible__ else 4
