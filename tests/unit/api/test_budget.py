"""How many bytes requests may hold, and in which order waiting requests are served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from korvet.api.common.budget import Budget
from korvet.api.fetching.memory import FetchMemory
from tests.support.running import turns

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


async def test_bytes_are_limited_except_for_one_request() -> None:
    loop = asyncio.get_running_loop()
    budget = Budget(100, loop)
    assert budget.take(60)
    assert budget.take(40)
    assert not budget.take(1)
    budget.give_back(100)
    assert budget.take(1000)
    assert not budget.take(1)
    budget.give_back(1000)
    assert budget.held_bytes == 0


async def test_waiting_requests_are_served_in_order_and_small_ones_first() -> None:
    loop = asyncio.get_running_loop()
    budget = Budget(10 * MIB, loop)
    served: list[int] = []
    assert budget.take(10 * MIB)
    for number, size in enumerate((8 * MIB, 8 * MIB, MIB // 8, 2 * MIB)):
        budget.wait(size, lambda _, number=number: served.append(number))
    # No request overtakes the waiting ones.
    assert not budget.take(1)
    await turns()
    assert served == []
    budget.give_back(10 * MIB)
    await turns()
    assert served == [2, 3]
    budget.give_back(MIB // 8 + 2 * MIB)
    await turns()
    assert served == [2, 3, 0]
    budget.give_back(8 * MIB)
    await turns()
    assert served == [2, 3, 0, 1]


async def test_a_request_that_waited_in_vain_does_not_delay_others() -> None:
    loop = asyncio.get_running_loop()
    budget = Budget(100, loop)
    assert budget.take(60)
    over: asyncio.Future[bool] = loop.create_future()
    served: asyncio.Future[bool] = loop.create_future()
    budget.wait(80, over.set_result, 0.01)
    budget.wait(90, lambda _: None)
    assert not await over
    assert budget.is_waited_for
    budget.give_back(60)
    await turns()
    assert budget.held_bytes == 90
    budget.wait(10, served.set_result)
    assert await served
    assert not budget.is_waited_for


async def test_a_request_that_fails_when_admitted_does_not_delay_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    budget = Budget(100, loop)
    assert budget.take(100)
    served: asyncio.Future[bool] = loop.create_future()

    def fail(_: bool) -> None:
        raise ZeroDivisionError("a defect")

    budget.wait(10, fail)
    budget.wait(20, served.set_result)
    budget.give_back(100)
    assert await served
    assert budget.held_bytes == 30
    assert "a defect" in vars(caplog.records[0])["traceback"]


class Reader:
    """A client's connection."""

    client_host = "/10.0.0.1"

    def __init__(self, unsent_bytes: int) -> None:
        self.unsent_bytes = unsent_bytes
        self.was_cut = False
        self.callbacks: list[Any] = []

    def when_sent(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def cut(self) -> None:
        self.was_cut = True


async def test_fetches_share_the_free_bytes() -> None:
    loop = asyncio.get_running_loop()
    memory = FetchMemory(80 * MIB, loop)
    taken = []
    while size := memory.take(50 * MIB):
        taken.append(size)
    assert taken[0] == 10 * MIB
    assert len(taken) > 20
    assert sum(taken) == memory.held_bytes <= 80 * MIB
    assert memory.take(1) in (0, 1)


async def test_a_fetch_gets_a_little_after_its_wait() -> None:
    loop = asyncio.get_running_loop()
    memory = FetchMemory(MIB, loop)
    while memory.take(MIB):
        pass
    given: asyncio.Future[int] = loop.create_future()
    began_s = loop.time()
    memory.wait(MIB, given.set_result)
    assert 0 < await given < MIB // 4
    assert loop.time() - began_s > 0.2


async def test_received_bytes_are_given_back() -> None:
    loop = asyncio.get_running_loop()
    memory = FetchMemory(MIB, loop)
    slow, quick = Reader(1000), Reader(0)
    held = memory.take(MIB) + memory.take(MIB)
    memory.sent_by(quick, held // 2, 100)  # type: ignore[arg-type]
    assert memory.held_bytes == held // 2
    memory.sent_by(slow, held // 2, 100)  # type: ignore[arg-type]
    assert memory.held_bytes == 100
    for callback in slow.callbacks:
        callback()
    assert memory.held_bytes == 0


@pytest.mark.parametrize("read_bytes", [0, 1], ids=["nothing", "next to nothing"])
async def test_a_client_that_hardly_receives_while_others_wait_is_disconnected(
    monkeypatch: Any, read_bytes: int
) -> None:
    monkeypatch.setattr("korvet.api.fetching.memory._MAX_WAIT_S", 0.02)
    monkeypatch.setattr("korvet.api.fetching.memory._STALLED_S", 0.3)
    loop = asyncio.get_running_loop()
    memory = FetchMemory(MIB, loop)
    silent, slow = Reader(10**9), Reader(10**9)
    for reader in (silent, slow):
        memory.sent_by(reader, memory.take(MIB // 4), MIB // 4)  # type: ignore[arg-type]
    while memory.take(MIB):
        pass
    while not silent.was_cut:
        silent.unsent_bytes -= read_bytes
        slow.unsent_bytes -= MIB
        given: asyncio.Future[int] = loop.create_future()
        memory.wait(MIB, given.set_result)
        memory.resize(await given, 0)
    assert not slow.was_cut
