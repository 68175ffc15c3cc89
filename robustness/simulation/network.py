"""The simulated network: connections with latency, and paths that can be cut in either direction.

Data in flight when a path is cut arrive; later data wait until the path is mended, as TCP sends them again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from robustness.simulation.process import CURRENT, Process
from robustness.simulation.transport import Closing, ListeningSocket, SimulatedTransport

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection

    from robustness.simulation.loop import SimulatedLoop


class Pipe:
    """One direction of a connection: delivers in order."""

    def __init__(
        self, network: Network, source: Process, target: Process, deliver: Callable[[Any], None]
    ) -> None:
        self._network = network
        self.source = source
        self.target = target
        self._deliver = deliver
        self._arrives_s = 0.0
        self._held: list[Any] = []
        self.open = True

    def send(self, item: Any) -> None:
        """Deliver an item after the path's latency, or after the path is mended."""
        if not self.open:
            return
        latency_s = self._network.latency_s(self.source, self.target)
        if latency_s is None or self._held:
            self._held.append(item)
            self._network.note_held(self)
            return
        loop = self._network.loop
        self._arrives_s = max(self._arrives_s, loop.time() + latency_s)
        loop.call_at(self._arrives_s, self._arrive, item, context=self.target.context)

    def release(self) -> None:
        """The path is mended: send what was held."""
        held, self._held = self._held, []
        for item in held:
            self.send(item)

    def close(self) -> None:
        """Deliver nothing any more."""
        self.open = False
        self._held.clear()

    def _arrive(self, item: Any) -> None:
        if self.open:
            self._deliver(item)


class Network:
    """All hosts and the paths between them."""

    def __init__(self, loop: SimulatedLoop, randomness: random.Random) -> None:
        self.loop = loop
        loop.network = self
        self._random = randomness
        self.names: dict[str, Process] = {}
        """Host name -> the process that answers there."""
        self._views: dict[tuple[str, str], str] = {}
        self._cut: dict[tuple[str, str], int] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._held: dict[tuple[str, str], dict[Pipe, None]] = {}
        self._mended: list[asyncio.Future[None]] = []
        self.least_s, self.most_s = 0.0001, 0.002

    def token(self, length: int) -> str:
        """A random number in hexadecimal digits."""
        return f"{self._random.getrandbits(4 * length):0{length}x}"

    # Names

    def process(self, name: str) -> Process:
        """Start a process on the host of that name."""
        found = self.names[name] = Process(self.loop, name)
        return found

    def redirect(self, alias: str, name: str, only: str = "") -> None:
        """Let an alias lead to a host, for all processes or for `only` one."""
        self._views[only, alias] = name

    def end_redirect(self, alias: str, only: str) -> None:
        """Let an alias lead one process to where it leads all others."""
        del self._views[only, alias]

    def resolve(self, source: str, name: str) -> Process | None:
        """The process that answers to a name."""
        name = self._views.get((source, name)) or self._views.get(("", name), name)
        return self.names.get(name)

    # Paths

    def latency_s(self, source: Process, target: Process) -> float | None:
        """The time that data need now; None if the path is cut."""
        path = source.name, target.name
        if path in self._cut:
            return None
        spread = self.most_s - self.least_s
        return self.least_s + spread * self._random.random() ** 3 + self._slow.get(path, 0.0)

    def note_held(self, pipe: Pipe) -> None:
        """A pipe has data that wait for the end of a cut."""
        self._held.setdefault((pipe.source.name, pipe.target.name), {})[pipe] = None

    def cut(self, source: str, target: str) -> None:
        """Let nothing pass from source to target."""
        path = source, target
        self._cut[path] = self._cut.get(path, 0) + 1

    def mend(self, source: str, target: str) -> None:
        """End one `cut`."""
        path = source, target
        self._cut[path] -= 1
        if not self._cut[path]:
            del self._cut[path]
            for pipe in self._held.pop(path, {}):
                pipe.release()
            waiting, self._mended = self._mended, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    def slow_down(self, source: str, target: str, by_s: float) -> None:
        """Let data take `by_s` seconds longer; 0 ends it."""
        self._slow[source, target] = by_s

    def pipe(self, source: Process, target: Process, deliver: Callable[[Any], None]) -> Pipe:
        """A direction of a connection, whose items `deliver` gets in the target's process."""
        return Pipe(self, source, target, deliver)

    # Connections

    async def connect(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> Any:
        """Connect the process in progress. Raises ConnectionRefusedError. A cut path is waited for."""
        source = CURRENT.get()
        assert source is not None
        while True:
            target = self.resolve(source.name, host)
            if target is None:
                raise ConnectionRefusedError(f"no host {host}")
            there, back = self.latency_s(source, target), self.latency_s(target, source)
            if there is not None and back is not None and not target.is_unreachable:
                break
            future = self.loop.create_future()
            self._mended.append(future)
            await asyncio.wait([future], timeout=1.0)
        await asyncio.sleep(there + back)
        accept = target.listeners.get(port)
        if accept is None or target.is_dead:
            raise ConnectionRefusedError(111, f"Connect call failed ({host!r}, {port})")
        mine, theirs = SimulatedTransport(source, target.name), SimulatedTransport(target, source.name)
        mine.pipe = Pipe(self, source, target, theirs.receive)
        theirs.pipe = Pipe(self, target, source, mine.receive)
        protocol = factory()
        self.loop.call_soon(self._accept, accept, theirs, context=target.context)
        mine.begin(protocol)
        return mine, protocol

    def _accept(self, accept: Any, transport: SimulatedTransport) -> None:
        if isinstance(getattr(accept, "__self__", None), ListeningSocket):
            accept(transport)
        else:
            transport.begin(accept())

    def half_open(self, process: Process, others: Collection[Process]) -> None:
        """Let the open connections to other processes pass nothing any more; neither end is notified."""
        for transport in [each for one in (process, *others) for each in one.transports]:
            pipe = transport.pipe
            if process in (pipe.source, pipe.target) and {pipe.source, pipe.target} & set(others):
                pipe.close()

    # Deaths

    def kill(self, process: Process) -> None:
        """End a process; its kernel resets its connections (kill -9)."""
        process.is_dead = True
        process.listeners.clear()
        for transport in list(process.transports):
            transport.end(Closing.RESET)

    def switch_off(self, process: Process) -> None:
        """The host of a process loses its power: peers get no reset."""
        process.is_dead = process.is_unreachable = True
        process.listeners.clear()
        for transport in list(process.transports):
            transport.forget()
        process.transports.clear()
