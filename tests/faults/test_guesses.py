"""Guessed passwords over many connections of one address: other clients are served."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.bystander import pids_of
from tests.support.ports import free_port
from tests.support.servers import KorvetServer
from tests.support.stopwatch import Stopwatch
from tests.support.wire import api_versions_request, header

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.faults

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
GUESSING, GUESSER, INNOCENT = 200, "127.0.0.1", "127.0.0.2"
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
LASTS_S = 10.0
LONGEST_WAIT_S = 1.0
DEADLINE_S = 100.0


class Asking:
    """A connection from an address of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, address: str) -> Asking:
        return cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))

    async def ask(self, request: bytes) -> bytes:
        self._writer.write(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        return await self._reader.readexactly(size)

    async def authenticate(self, user: str, password: str) -> int:
        """The error."""
        await self.ask(header(SASL_HANDSHAKE, 1, 1) + struct.pack(">h5s", 5, b"PLAIN"))
        token = f"\0{user}\0{password}".encode()
        answer = await self.ask(header(SASL_AUTHENTICATE, 0, 2) + struct.pack(">i", len(token)) + token)
        return int.from_bytes(answer[4:6])

    def close(self) -> None:
        self._writer.close()


@pytest.fixture
def served() -> Iterator[tuple[int, KorvetServer]]:
    """The port of a listener with authentication, and a broker whose own port has one without."""
    server, sasl_port = KorvetServer(), free_port()
    for pair in (
        f"listeners=PLAINTEXT://127.0.0.1:{server.port},SASL_PLAINTEXT://127.0.0.1:{sasl_port}",
        f'plain.sasl.jaas.config={MODULE} required user_alice="secret";',
    ):
        server.options += ["--set", pair]
    try:
        server.start()
        yield sasl_port, server
    finally:
        server.discard()


@pytest.mark.long
def test_guesses_delay_their_own_address_only(served: tuple[int, KorvetServer]) -> None:
    sasl_port, server = served
    open_port, pids = server.port, pids_of(server)
    guessed = 0

    async def guess(until_s: float) -> None:
        nonlocal guessed
        while time.monotonic() < until_s:
            client = await Asking.open(sasl_port, GUESSER)
            assert await client.authenticate("alice", "wrong")
            guessed += 1
            client.close()

    async def authenticate(until_s: float) -> float:
        longest_s = 0.0
        while time.monotonic() < until_s:
            watch = Stopwatch(*pids)
            client = await Asking.open(sasl_port, INNOCENT)
            assert await client.authenticate("alice", "secret") == 0
            longest_s = max(longest_s, watch.elapsed_s)
            client.close()
            await asyncio.sleep(0.05)
        return longest_s

    async def ask(until_s: float) -> float:
        client, longest_s = await Asking.open(open_port, INNOCENT), 0.0
        while time.monotonic() < until_s:
            watch = Stopwatch(*pids)
            await client.ask(api_versions_request(1))
            longest_s = max(longest_s, watch.elapsed_s)
            await asyncio.sleep(0.05)
        client.close()
        return longest_s

    async def all_together() -> tuple[float, float]:
        until_s = time.monotonic() + LASTS_S
        async with asyncio.timeout(DEADLINE_S):
            authenticated, asked, *_ = await asyncio.gather(
                authenticate(until_s), ask(until_s), *(guess(until_s) for _ in range(GUESSING))
            )
        assert authenticated is not None
        assert asked is not None
        return authenticated, asked

    try:
        waits_s = asyncio.run(all_together())
    except OSError as error:
        if "assign requested address" not in str(error):
            raise
        pytest.skip(f"this machine has no second loopback address: {error}")
    assert guessed > GUESSING
    assert max(waits_s) < LONGEST_WAIT_S
