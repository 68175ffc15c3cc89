"""A simulated process: what runs in it, what it listens on, and whether it runs at all.

Every callback of the event loop belongs to the process in whose context it was scheduled.
"""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from typing import Any

    from robustness.simulation.loop import SimulatedLoop
    from robustness.simulation.transport import SimulatedProtocol, SimulatedTransport

CURRENT: Final[contextvars.ContextVar[Process | None]] = contextvars.ContextVar("process", default=None)


class Process:
    """One process on a host of its own. A process that died is never used again: its successor is another."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.loop = loop
        self.is_dead = False
        self.is_paused = False
        self.is_unreachable = False
        """Whether its host is off: nobody answers for its connections."""
        self.clock_offset_s = 0.0
        """The error of its wall clock."""
        self.is_ready = False
        """Whether the program in it has started completely."""
        self.program: asyncio.Task[Any] | None = None
        self.listeners: dict[int, Callable[[], SimulatedProtocol] | Callable[[SimulatedTransport], None]] = {}
        self.transports: dict[SimulatedTransport, None] = {}
        self.delayed: list[asyncio.Handle] = []
        """Callbacks that were due while the process was paused."""
        self.context = contextvars.Context()
        self.context.run(CURRENT.set, self)

    @property
    def runs(self) -> bool:
        """Whether its callbacks run."""
        return not (self.is_dead or self.is_paused)

    def listen(self, port: int, accept: Callable[[], SimulatedProtocol]) -> None:
        """Accept connections, each with a protocol that `accept` makes."""
        self.listeners[port] = accept

    def run(self, work: Coroutine[Any, Any, object], name: str | None = None) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        return self.loop.create_task(work, name=name, context=self.context)
