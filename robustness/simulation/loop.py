"""An asyncio event loop on virtual time: it never waits, and the seed decides the order of everything.

Callbacks run in the order of their times. The simulated network draws latencies from the seed, so they decide
the order in which processes run.
"""

from __future__ import annotations

import asyncio
import heapq
import socket
from typing import TYPE_CHECKING, Any

from robustness.simulation.process import CURRENT

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable

    from robustness.simulation.network import Network
    from robustness.simulation.process import Process


class Idle(Exception):
    """Nothing is scheduled any more, so nothing would ever happen."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of all simulated processes."""

    network: Network

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self.callbacks = 0
        """Callbacks that have run."""
        self.set_exception_handler(self._note_failure)
        self.failures: list[dict[str, Any]] = []
        """Contexts of exceptions that nobody handled."""

    def time(self) -> float:
        """Virtual seconds since the simulation began."""
        return self._now

    def clock_offset_s(self) -> float:
        """The error of the wall clock of the process in progress."""
        process = CURRENT.get()
        return 0.0 if process is None else process.clock_offset_s

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when they are due."""

    def _run_once(self) -> None:
        ready, heap = self._ready, self._heap  # type: ignore[attr-defined]
        if not ready:
            while heap and heap[0][2]._cancelled:
                heapq.heappop(heap)
            if not heap:
                raise Idle
            self._now = max(self._now, heap[0][0])
        while heap and heap[0][0] <= self._now:
            ready.append(heapq.heappop(heap)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            process = handle._context.get(CURRENT)
            if process is None or process.runs:
                self.callbacks += 1
                handle._run()
            elif process.is_paused and not process.is_dead:
                process.delayed.append(handle)

    def resume(self, process: Process) -> None:
        """Run what was due while a process was paused, and go on."""
        process.is_paused = False
        delayed, process.delayed = process.delayed, []
        self._ready.extend(delayed)  # type: ignore[attr-defined]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Threads would make the order depend on the machine: the function runs at once."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)
        return future

    def _note_failure(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("exception") is not None:
            self.failures.append(context)

    # Sockets

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:  # type: ignore[override]
        return await self.network.connect(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:  # type: ignore[override]
        protocol = protocol_factory()
        sock.transport.begin(protocol)
        return sock.transport, protocol

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        fd.watch(callback, *args)

    def remove_reader(self, fd: Any) -> bool:  # type: ignore[override]
        fd.watch(None)
        return True

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """There is no executor."""
