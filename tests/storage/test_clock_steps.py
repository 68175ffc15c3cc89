"""Redis's clock is set back: producers don't wait until it has caught up."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import TYPE_CHECKING

import pytest

from tests.storage.conftest import Bench
from tests.storage.test_append import set_log_end
from tests.storage.test_clock_limit import appended, small
from tests.support.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from korvet.log.partition_log import PartitionLog
    from tests.support.redis_server import Server

STEP_S = 5
# A lead of 3 s is 2 s more than a burst may have.
BURST_WAIT_S = 1.7


class Shifted:
    """A bench whose server's clock can be set."""

    def __init__(self, clock: Clock, server: Server) -> None:
        self.bench = Bench(server, "k")
        self._clock = clock

    def set_clock(self, seconds: int) -> None:
        self._clock.shift(seconds)
        # The server reads its clock once per iteration of its loop.
        while round(self.bench.client.time()[0] - time.time()) not in {seconds - 1, seconds}:
            pass

    def append(self, log: PartitionLog) -> float:
        """Returns how long it took (s)."""
        began_s = time.monotonic()
        self.bench.run(appended(log, [small(b"x")]))
        return time.monotonic() - began_s


@pytest.fixture
def shifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_server: Callable[..., Server]
) -> Iterator[Shifted]:
    clock = Clock(tmp_path, "redis")
    if not clock.can_shift:
        pytest.skip("no C compiler")
    for name, value in clock.environ.items():
        monkeypatch.setenv(name, value)
    made = Shifted(clock, new_server())
    yield made
    made.bench.close()


def test_the_clock_is_set_back_while_a_partition_is_idle(shifted: Shifted) -> None:
    log, busy = shifted.bench.log("t"), shifted.bench.log("busy")
    shifted.append(log)
    shifted.set_clock(2 * STEP_S)
    shifted.append(busy)
    # The step is smaller than the time for which this partition had no records.
    shifted.set_clock(STEP_S)
    shifted.append(log)
    assert shifted.append(log) < STEP_S - 2


def test_the_clock_catches_up_with_a_step_during_which_records_came(shifted: Shifted) -> None:
    log = shifted.bench.log("t")
    shifted.set_clock(STEP_S)
    shifted.append(log)
    shifted.set_clock(0)
    shifted.append(log)
    # Millions of records were appended since.
    (end,) = struct.unpack_from(">d", shifted.bench.client.hget(log.meta, "log"))
    set_log_end(shifted.bench, log, int(end) + (3000 << 10))
    assert shifted.append(log) < BURST_WAIT_S
    shifted.set_clock(STEP_S)
    assert shifted.append(log) < BURST_WAIT_S
    # The jump has ended: a burst waits for the clock again.
    shifted.set_clock(4 * STEP_S)
    shifted.append(log)
    (end,) = struct.unpack_from(">d", shifted.bench.client.hget(log.meta, "log"))
    set_log_end(shifted.bench, log, int(end) + (3000 << 10))
    assert shifted.append(log) > BURST_WAIT_S


def test_the_clock_is_set_right_while_an_append_waits(shifted: Shifted) -> None:
    log = shifted.bench.log("t")
    shifted.append(log)
    (end,) = struct.unpack_from(">d", shifted.bench.client.hget(log.meta, "log"))
    # A burst.
    set_log_end(shifted.bench, log, int(end) + (1 + 2 * STEP_S) * (1000 << 10))

    async def append() -> None:
        waiting = asyncio.ensure_future(appended(log, [small(b"x")]))
        await asyncio.sleep(0.3)
        shifted.set_clock(2 * STEP_S)
        await waiting

    began_s = time.monotonic()
    shifted.bench.run(append())
    assert time.monotonic() - began_s < STEP_S
