"""A million damaged requests: each is answered or ends its connection, and no other client notices anything.

The seed is in the test's name; KORVET_TEST_SEED sets the first one.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest

from korvet import broker as running_broker
from korvet.config.settings import Config
from korvet.server.dispatch import Dispatcher
from korvet.server.response_slot import ResponseSlot
from tests.support.mutations import FIRST_SEED, WAITING, Sent, mutated
from tests.support.polling import until_async
from tests.support.ports import free_port
from tests.unit.server.transports import MADE, Wire, framed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.faults

WAIT_S = 0.02
DEADLINE_S = 20.0
WIRES = 32


class Alarms(logging.Handler):
    """Every log record with a traceback or of level ERROR."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


@pytest.fixture
def alarms() -> Iterator[Alarms]:
    handler = Alarms()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


class InProcess:
    """A broker of this process, and connections to it without sockets."""

    def __init__(self, dispatcher: Dispatcher, alarms: Alarms) -> None:
        self._dispatcher = dispatcher
        self._alarms = alarms
        self._wires = [Wire(dispatcher) for _ in range(WIRES)]

    async def send(self, sent: list[Sent]) -> None:
        """One frame on each connection. Returns when each was answered or has ended its connection."""
        wires = self._wires[: len(sent)]
        for wire, each in zip(wires, sent, strict=True):
            wire.feed(b"".join(map(framed, each.frames)))
        began = time.monotonic()
        busy = deque(zip(wires, sent, strict=True))
        while busy:
            wire, each = busy[0]
            waited_s = time.monotonic() - began
            if not is_open(wire) or (each.api_key in WAITING and waited_s > WAIT_S):
                busy.popleft()
            elif waited_s > DEADLINE_S:
                pytest.fail(f"neither answered nor closed: {each.api_key} {each.frame.hex()}")
            else:
                await asyncio.sleep(0 if waited_s < WAIT_S else WAIT_S)
        if self._alarms.texts:
            frames = "\n".join(f"{each.api_key} {each.frame.hex()}" for each in sent)
            pytest.fail(f"{self._alarms.texts[0]}\nafter one of\n{frames}")
        for number, wire in enumerate(wires):
            if wire.transport.closed or is_open(wire):
                self._replace(number)
            else:
                wire.transport.written.clear()

    def _replace(self, number: int) -> None:
        self._wires[number].lose()
        MADE.remove(self._wires[number])
        self._wires[number] = Wire(self._dispatcher)

    async def end(self) -> None:
        """All clients disconnect. Nothing of their requests may be left."""
        for wire in self._wires:
            wire.lose()
            MADE.remove(wire)
        self._wires.clear()

        async def is_over() -> bool:
            # The state that a connection keeps for its next request may refer to it.
            gc.collect()
            return open_slots() == 0 and self._gives_back()

        await until_async(is_over, DEADLINE_S, "no slot is open and no produced byte counted")

    def _gives_back(self) -> bool:
        pressure = self._dispatcher.backpressure
        return pressure.in_flight_bytes == pressure.unanswered == 0


def is_open(wire: Wire) -> bool:
    """Whether a request of the connection waits for its answer."""
    return bool(wire.connection._in_flight) and not wire.transport.closed


def open_slots() -> int:
    return sum(type(each) is ResponseSlot and each.place.segments is None for each in gc.get_objects())


async def fuzz_in_process(redis_url: str, keyspace: str, frames: Iterator[Sent], alarms: Alarms) -> None:
    made: list[Dispatcher] = []

    class Known(Dispatcher):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    config = Config(
        listen=f"127.0.0.1:{free_port()}",
        keyspace=keyspace,
        group_initial_rebalance_delay_ms=0,
        # On a busy machine the process may stall for some seconds.
        broker_session_timeout_ms=120_000,
    )
    ready = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_broker, "Dispatcher", Known)
        serving = asyncio.create_task(running_broker.run(config, redis_url, lambda *_: ready.set()))
        await asyncio.wait_for(ready.wait(), 60)
    threshold = gc.get_threshold()
    clients = InProcess(made.pop(), alarms)
    try:
        while batch := [*itertools.islice(frames, WIRES)]:
            await clients.send(batch)
        await clients.end()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        gc.unfreeze()
        gc.set_threshold(*threshold)


def forget(redis: Any, keyspace: str) -> None:
    """Delete what a broker has left."""
    for key in redis.scan_iter(match=f"*{keyspace}*", count=10_000):
        redis.unlink(key)


def in_process(korvet: KorvetServer, count: int, seed: int, alarms: Alarms) -> None:
    path: Path = korvet.socket_path()
    keyspace = f"fuzz{seed}"
    try:
        asyncio.run(fuzz_in_process(f"unix://{path}", keyspace, mutated(seed, count), alarms))
    finally:
        forget(korvet.redis, keyspace)


@pytest.mark.parametrize("seed", [FIRST_SEED])
def test_a_few_damaged_requests_in_process(korvet: KorvetServer, alarms: Alarms, seed: int) -> None:
    in_process(korvet, 3_000, seed, alarms)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 50))
def test_a_million_damaged_requests_in_process(korvet: KorvetServer, alarms: Alarms, seed: int) -> None:
    in_process(korvet, 20_000, seed, alarms)
