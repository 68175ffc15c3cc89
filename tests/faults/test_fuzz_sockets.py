"""Damaged requests over sockets, beside a client that produces and fetches all the time.

The seed is in the test's name; KORVET_TEST_SEED is the first one.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.api.asking import connect
from tests.api.batches import batch
from tests.support.mutations import mutated
from tests.support.wire import api_versions_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.mutations import Sent
    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.faults

FIRST_SEED = int(os.environ.get("KORVET_TEST_SEED", "20261124"))
# These wait for as long as the request says.
WAITING = frozenset((1, 11, 14))
WAIT_S = 0.05
DEADLINE_S = 30.0
CONNECTIONS = 8
LONGEST_WAIT_S = 1.0
PROBE = 77_001
LENGTH = struct.Struct(">i")
PRODUCE_VERSION, FETCH_VERSION = 9, 11


class Bystander:
    """Produces a record and fetches it, 20 times a second, and notes how long it waits."""

    def __init__(self, server: KorvetServer) -> None:
        self._client = connect(server, timeout_s=DEADLINE_S)
        topic = {"name": "bystander", "num_partitions": 1, "replication_factor": 1}
        self._client("CreateTopics", 4, topics=[topic], timeout=10_000)
        self._over = threading.Event()
        self.longest_s = 0.0
        self.rounds = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(2 * DEADLINE_S)
        self._client.raw.socket.close()

    def _run(self) -> None:
        try:
            while not self._over.wait(0.05):
                began = time.monotonic()
                offset = self._produce()
                produced = time.monotonic()
                self._fetch(offset)
                self.longest_s = max(self.longest_s, produced - began, time.monotonic() - produced)
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self.error = error

    def _produce(self) -> int:
        data = [{"index": 0, "records": batch([(b"k", b"v")])}]
        topic = {"name": "bystander", "partition_data": data}
        answer = self._client("Produce", PRODUCE_VERSION, acks=-1, timeout=10_000, topic_data=[topic])
        (partition,) = answer.responses[0].partition_responses
        assert partition.error_code == 0
        return int(partition.base_offset)

    def _fetch(self, offset: int) -> None:
        wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 10_000}
        topics = [{"topic": "bystander", "partitions": [wanted]}]
        answer = self._client(
            "Fetch", FETCH_VERSION, max_wait=0, min_bytes=1, max_bytes=10_000, session_epoch=-1, topics=topics
        )
        (partition,) = answer.responses[0].partitions
        assert partition.error_code == 0
        assert partition.records


class Attacker:
    """Sends damaged requests one after the other, each with a good one behind it."""

    def __init__(self, server: KorvetServer) -> None:
        self._server = server
        self._writer: asyncio.StreamWriter | None = None

    async def send_all(self, frames: Iterator[Sent]) -> None:
        for sent in frames:
            try:
                await asyncio.wait_for(
                    self._send(sent.frame), WAIT_S if sent.api_key in WAITING else DEADLINE_S
                )
            except TimeoutError:
                if sent.api_key not in WAITING:
                    pytest.fail(f"neither answered nor closed: {sent.api_key} {sent.frame.hex()}")
                await self.close()
        await self.close()

    async def _send(self, frame: bytes) -> None:
        """Returns when the request behind the frame was answered or the connection closed."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._server.host, self._server.port)
        try:
            for each in (frame, api_versions_request(PROBE)):
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


def fuzz(server: KorvetServer, count: int, seed: int) -> Bystander:
    frames = mutated(seed, count)

    async def attack() -> None:
        attackers = [Attacker(server) for _ in range(CONNECTIONS)]
        async with asyncio.TaskGroup() as group:
            for attacker in attackers:
                group.create_task(attacker.send_all(frames))

    with Bystander(server) as bystander:
        asyncio.run(attack())
    if bystander.error is not None:
        raise bystander.error
    assert bystander.rounds > 0
    assert "Traceback" not in server.log.read_text()
    return bystander


@pytest.mark.parametrize("seed", [FIRST_SEED])
def test_a_few_damaged_requests_over_sockets(own_korvet: Callable[..., KorvetServer], seed: int) -> None:
    fuzz(own_korvet(), 1_500, seed)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 10))
def test_nobody_waits_for_damaged_requests(own_korvet: Callable[..., KorvetServer], seed: int) -> None:
    """A hundred thousand of them."""
    bystander = fuzz(own_korvet(), 10_000, seed)
    assert bystander.longest_s < LONGEST_WAIT_S
