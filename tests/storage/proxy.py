"""A TCP proxy in front of a unix socket that can hold back, delay and cut the traffic."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

from tests.support.running import end_serving
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

    from korvet.redis.barrier import Level
    from korvet.store import Store

_DEADLINE_S = 20.0
# Marks a connection that carries appends: it has sent one of these words.
_APPENDING = (b"korvet_append", b"korvet_mark")


async def until(condition: Callable[[], bool]) -> None:
    """Wait until another process has made the condition true."""
    deadline = asyncio.get_running_loop().time() + _DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.001)


class Proxy:
    """Forwards in both directions; `hold_replies` and `hold_requests` hold one direction until `cut` or
    `release`.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        """The socket to which new connections are forwarded."""
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies = asyncio.Event()
        self._replies.set()
        self._requests = asyncio.Event()
        self._requests.set()
        self.refusing = False
        self.connections = 0
        self.held_bytes = 0
        """The size of the requests that are held back."""
        self.write_delay_s = 0.0
        """The delay of replies on connections that carry appends; other replies pass at once."""
        self._appending: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        """The URL of the server through the proxy."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold_replies(self) -> None:
        self._replies.clear()

    def hold_requests(self) -> None:
        self._requests.clear()
        self.held_bytes = 0

    def release(self) -> None:
        """Forward what was held back."""
        self._replies.set()
        self._requests.set()

    async def cut(self) -> None:
        """Break every connection and drop what was held back; new connections forward everything."""
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()
        for writer in writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        self.release()

    async def close(self) -> None:
        self.refusing = True
        await end_serving(self._server)
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
        self._writers.append(writer)
        try:
            theirs, ours = await asyncio.open_unix_connection(str(self.socket))
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(ours)
        if writer.transport.is_closing():
            # The proxy has cut the connection meanwhile.
            ours.transport.abort()
            return
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._start(self._pump(reader, ours, self._requests, watched=writer))
        self._start(self._pump(theirs, writer, self._replies, late=late))
        self._start(self._pass_late(late, writer))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pump(
        self,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        gate: asyncio.Event,
        *,
        watched: asyncio.StreamWriter | None = None,
        late: asyncio.Queue[tuple[float, bytes]] | None = None,
    ) -> None:
        """`watched` is the client whose requests are forwarded; `late` takes delayed replies."""
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if watched is not None and not gate.is_set():
                    self.held_bytes += len(data)
                await gate.wait()
                if target.transport.is_closing():
                    break
                if watched is not None and any(name in data for name in _APPENDING):
                    self._appending.add(watched)
                if late is not None and target in self._appending:
                    # All later replies too, so that their order stays.
                    late.put_nowait((time.monotonic() + self.write_delay_s, data))
                    continue
                target.write(data)
                await target.drain()
        target.transport.abort()

    @staticmethod
    async def _pass_late(late: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
        while not target.transport.is_closing():
            due_s, data = await late.get()
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            target.write(data)


@contextlib.asynccontextmanager
async def proxied(socket: Path) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy, and the URL of the server through it."""
    proxy = Proxy(socket)
    try:
        yield proxy, await proxy.start()
    finally:
        await proxy.close()


@contextlib.asynccontextmanager
async def proxied_store(
    socket: Path, prefix: str, credentials: str = "", level: Level | None = None
) -> AsyncIterator[tuple[Proxy, Store]]:
    """A store that connects through a proxy; `credentials`: user and password of a URL, with the "@";
    `level`: see Store.open.
    """
    async with (
        proxied(socket) as (proxy, url),
        open_store(url.replace("redis://", f"redis://{credentials}"), prefix, level=level) as store,
    ):
        yield proxy, store


@contextlib.contextmanager
def proxy_in_thread(socket: Path) -> Iterator[tuple[Proxy, str]]:
    """A proxy with its own event loop, for blocking tests, and its URL. Set only plain attributes of the
    proxy.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxy = Proxy(socket)
    try:
        yield proxy, asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(_DEADLINE_S)
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(_DEADLINE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_DEADLINE_S)
        loop.close()
