"""A TCP proxy in front of a unix socket that can hold back and cut what goes through it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from korvet.storage.keys import Keyspace
from korvet.storage.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

_DEADLINE_S = 20.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process brings about."""
    deadline = asyncio.get_running_loop().time() + _DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


class Proxy:
    """Forwards both ways; `hold_replies` and `hold_requests` keep one way back until `cut` or `release`."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        """Where new connections go."""
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies = asyncio.Event()
        self._replies.set()
        self._requests = asyncio.Event()
        self._requests.set()
        self.refusing = False
        self.connections = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold_replies(self) -> None:
        self._replies.clear()

    def hold_requests(self) -> None:
        self._requests.clear()

    def release(self) -> None:
        """Let through what was held back."""
        self._replies.set()
        self._requests.set()

    async def cut(self) -> None:
        """Break every connection; what was held back is lost, and new ones pass all."""
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()
        for writer in writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        self.release()

    async def close(self) -> None:
        self._server.close()
        await self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            return
        self.connections += 1
        theirs, ours = await asyncio.open_unix_connection(str(self.socket))
        self._writers += [writer, ours]
        for source, target, gate in ((reader, ours, self._requests), (theirs, writer, self._replies)):
            task = asyncio.get_running_loop().create_task(self._pump(source, target, gate))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                await gate.wait()
                if target.transport.is_closing():
                    break
                target.write(data)
                await target.drain()
        target.transport.abort()


@contextlib.asynccontextmanager
async def proxied_store(
    socket: Path, prefix: str, credentials: str = ""
) -> AsyncIterator[tuple[Proxy, Store]]:
    """A store behind a proxy; `credentials`: as in a URL, with the "@"."""
    proxy = Proxy(socket)
    url = (await proxy.start()).replace("redis://", f"redis://{credentials}")
    store = await Store.open(url, Keyspace(prefix))
    try:
        yield proxy, store
    finally:
        await store.close()
        await proxy.close()
