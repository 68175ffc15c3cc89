"""Redis clients that write and read the entries of a topic without a broker."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import hiredis

from korvet.redis.keys import Keyspace
from robustness.history import NativeRead, NativeSend
from robustness.simulation.clients.wire import Disconnected

if TYPE_CHECKING:
    from robustness.plan import NativePlan
    from robustness.simulation.clients.client import Client

PORT: Final = 6379
KEYS: Final = Keyspace("korvet")
_TIMEOUT_S: Final = 1.5


class RedisConnection(asyncio.Protocol):
    """A connection to a Redis server, with one command at a time."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._answers: deque[asyncio.Future[Any]] = deque()
        self._transport: Any = None
        self.is_broken = False

    @classmethod
    async def open(cls, host: str) -> RedisConnection:
        """Connect. Raises Disconnected."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                _, protocol = await asyncio.get_running_loop().create_connection(cls, host, PORT)
        except (OSError, TimeoutError) as error:
            raise Disconnected(str(error)) from error
        return protocol

    async def ask(self, *args: bytes | str | int) -> Any:
        """Returns the reply. Raises Disconnected, and hiredis.ReplyError."""
        if self.is_broken:
            raise Disconnected("the connection is broken")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers.append(future)
        self._transport.write(hiredis.pack_command(args))
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reply = await future
        except TimeoutError:
            self.close()
            raise Disconnected("no answer in time") from None
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def close(self) -> None:
        """End the connection."""
        self.is_broken = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_broken = True
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(Disconnected("the connection broke"))


class NativeClient:
    """Writes entries of partition 0, and reads all entries in order."""

    def __init__(self, client: Client, plan: NativePlan, host: str) -> None:
        self._client = client
        self._plan = plan
        self._host = host
        self._key = KEYS.stream(plan.topic, 0)
        self._last = b"0-0"
        self._connection: RedisConnection | None = None

    async def run(self, until_s: float) -> None:
        """Write and read until a time."""
        number = 0
        rate_per_s = max(self._plan.writes_per_s, 4)
        while self._client.time() < until_s:
            await asyncio.sleep(self._client.dice.between(1, 2000) / 1000 / rate_per_s)
            try:
                if self._connection is None or self._connection.is_broken:
                    self._connection = await RedisConnection.open(self._host)
                if self._plan.writes_per_s and self._client.dice.chance(0.7):
                    number += 1
                    await self._write(self._connection, f"{self._client.name}:{number}")
                else:
                    await self._read(self._connection)
            except (Disconnected, hiredis.ReplyError):
                await self._client.pause()
        if self._connection is not None:
            self._connection.close()

    async def _write(self, connection: RedisConnection, value: str) -> None:
        where: dict[str, Any] = {"topic": self._plan.topic, "partition": 0, "value": value}
        self._client.note(NativeSend, "invoke", **where)
        try:
            entry_id = await connection.ask(b"XADD", self._key, b"*", b"value", value)
        except Disconnected:
            self._client.note(NativeSend, "info", **where)
            raise
        except hiredis.ReplyError as error:
            self._client.note(NativeSend, "fail", **where, error=str(error))
            raise
        self._client.note(NativeSend, "ok", **where, entry_id=entry_id.decode())

    async def _read(self, connection: RedisConnection) -> None:
        reply = await connection.ask(b"XRANGE", self._key, b"(" + self._last, b"+", b"COUNT", 20)
        found = [entry for entry in map(value_of, reply) if entry is not None]
        if reply:
            self._last = reply[-1][0]
        if found:
            where = {"topic": self._plan.topic, "partition": 0}
            self._client.note(NativeRead, "ok", **where, entries=tuple(found))


def value_of(entry: Any) -> tuple[str, str] | None:
    """The ID and the value of an entry; None if it is no record."""
    entry_id, fields = entry
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    return (entry_id.decode(), named[b"value"].decode()) if b"value" in named else None
