"""Damaged requests over sockets, beside a client that produces and fetches all the time.

The seed is in the test's name; KORVET_TEST_SEED sets the first one.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest

from tests.support.bystander import OtherClient
from tests.support.mutations import FIRST_SEED, WAITING, mutated
from tests.support.wire import api_versions_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.mutations import Sent
    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.faults

WAIT_S = 0.05
DEADLINE_S = 30.0
CONNECTIONS = 8
LONGEST_WAIT_S = 1.0
PROBE = 77_001
LENGTH = struct.Struct(">i")


class Attacker:
    """Sends damaged requests one after the other, each followed by a good one."""

    def __init__(self, server: KorvetServer) -> None:
        self._server = server
        self._writer: asyncio.StreamWriter | None = None

    async def send_all(self, frames: Iterator[Sent]) -> None:
        for sent in frames:
            try:
                wait_s = WAIT_S if sent.api_key in WAITING else DEADLINE_S
                await asyncio.wait_for(self._send(sent.frames), wait_s)
            except TimeoutError:
                if sent.api_key not in WAITING:
                    pytest.fail(f"neither answered nor closed: {sent.api_key} {sent.frame.hex()}")
                await self.close()
        await self.close()

    async def _send(self, frames: list[bytes]) -> None:
        """Returns when the request after the frames was answered or the connection closed."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._server.host, self._server.port)
        try:
            for each in (*frames, api_versions_request(PROBE)):
                self._writer.write(LENGTH.pack(len(each)) + each)
            while True:
                (size,) = LENGTH.unpack(await self._reader.readexactly(4))
                answer = await self._reader.readexactly(size)
                if answer[:4] == LENGTH.pack(PROBE):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.close()

    async def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.transport.abort()


def fuzz(server: KorvetServer, count: int, seed: int) -> float:
    """Returns the longest wait of the other client, in seconds."""
    frames = mutated(seed, count)

    async def attack() -> None:
        attackers = [Attacker(server) for _ in range(CONNECTIONS)]
        async with asyncio.TaskGroup() as group:
            for attacker in attackers:
                group.create_task(attacker.send_all(frames))

    with OtherClient(server) as other:
        asyncio.run(attack())
    assert "Traceback" not in server.log.read_text()
    return other.longest_s


@pytest.mark.parametrize("seed", [FIRST_SEED])
def test_a_few_damaged_requests_over_sockets(own_korvet: Callable[..., KorvetServer], seed: int) -> None:
    fuzz(own_korvet(), 1_500, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 10))
def test_nobody_waits_for_damaged_requests(own_korvet: Callable[..., KorvetServer], seed: int) -> None:
    """A hundred thousand of them."""
    assert fuzz(own_korvet(), 10_000, seed) < LONGEST_WAIT_S
