"""Runs a coroutine in an event loop of its own, within a deadline; and lets an event loop run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

DEADLINE_S: Final = 20


def run(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result. Raises TimeoutError if it takes too long."""

    async def timed() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(timed())


async def turns() -> None:
    """Let the event loop do all that is due, and what follows from that."""
    for _ in range(10):
        await asyncio.sleep(0)


async def end_serving(server: asyncio.Server) -> None:
    """Close a server after each connection that it has accepted has its transport and protocol. Python 3.11
    fails to make the transport if the server is closed before, and leaves the socket open.
    """
    for each in server.sockets:
        asyncio.get_running_loop().remove_reader(each.fileno())
    await turns()
    server.close()
