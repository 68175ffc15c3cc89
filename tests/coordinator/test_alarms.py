"""The one timer: rings when due, not when moved, and only once."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from korvet.coordinator.partition_timers import Alarms
from tests.support.polling import until_async


class Bell:
    """Alarms on a clock that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.rung: list[int] = []
        self.alarms = Alarms(lambda: self.now_ms, self.rung.append)

    def set_clock(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.alarms.shift(by_ms)

    async def rings(self, *numbers: int) -> None:
        await until_async(lambda: self.rung == list(numbers), 20, f"{numbers} ring")


async def test_rings_in_the_order_of_deadlines() -> None:
    bell = Bell()
    bell.alarms.set(1, 1_004)
    bell.alarms.set(2, 1_002)
    bell.now_ms = 1_003
    await bell.rings(2)
    bell.now_ms = 1_004
    await bell.rings(2, 1)
    bell.alarms.close()


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
async def test_deadlines_move_with_the_clock(by_ms: int) -> None:
    bell = Bell()
    bell.alarms.set(1, 1_500)
    bell.set_clock(by_ms)
    bell.alarms.set(2, bell.now_ms + 10)
    bell.now_ms += 499
    await bell.rings(2)
    bell.now_ms += 1
    await bell.rings(2, 1)
    bell.alarms.close()


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
async def test_a_near_deadline_after_the_clock_was_set_rings_before_far_ones(by_ms: int) -> None:
    bell = Bell()
    bell.alarms.set(1, 600_000)
    bell.alarms.set(2, 600_000)
    bell.set_clock(by_ms)
    bell.alarms.set(1, bell.now_ms + 10)
    bell.now_ms += 10
    await bell.rings(1)
    bell.alarms.close()


async def test_clients_find_room_between_two_that_ring() -> None:
    bell = Bell()
    for number in range(5):
        bell.alarms.set(number, 1_001)
    bell.now_ms = 1_001
    seen: list[int] = []

    async with asyncio.timeout(20):
        while len(bell.rung) < 5:
            seen.append(len(bell.rung))
            await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise([*seen, 5])) == 1
    bell.alarms.close()


async def test_moved_deadlines() -> None:
    bell = Bell()
    bell.alarms.set(1, 1_002)
    bell.alarms.set(1, 1_050)  # later
    bell.alarms.set(2, 9_000)
    bell.alarms.set(2, 1_003)  # earlier
    bell.alarms.set(3, 1_001)
    bell.alarms.set(3, None)  # never
    bell.now_ms = 1_010
    await bell.rings(2)
    bell.now_ms = 1_050
    await bell.rings(2, 1)
    bell.alarms.close()


async def test_rings_again_when_set_by_its_own_ringing() -> None:
    now_ms, rung = 0, []

    def ring(number: int) -> None:
        nonlocal now_ms
        rung.append(number)
        now_ms += 1
        if len(rung) < 4:
            alarms.set(number, now_ms)

    alarms = Alarms(lambda: now_ms, ring)
    alarms.set(7, 0)
    await until_async(lambda: rung == [7, 7, 7, 7], 20, "four times")
    alarms.close()


async def test_closed_alarms_are_silent() -> None:
    bell = Bell()
    bell.alarms.set(1, 1_000)
    bell.alarms.close()
    marker = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.005, marker.set_result, None)
    await marker
    assert bell.rung == []
