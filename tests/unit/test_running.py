"""How tests end the servers that they run in their own event loop."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from tests.support.running import end_serving, run


@pytest.mark.parametrize("turn", range(6))
def test_a_connection_that_arrives_at_the_end_has_its_transport(turn: int) -> None:
    served = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        writer.transport.abort()
        await writer.wait_closed()

    async def work() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            for _ in range(turn):
                await asyncio.sleep(0)
            await end_serving(server)

    run(work())
    # A warning of a socket that is still open is an error.
    gc.collect()
    assert len(served) == (turn > 1)
